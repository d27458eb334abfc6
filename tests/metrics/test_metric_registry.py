"""What is registered, and in which order it is computed."""

import pkgutil

import pytest
from support import printed
from support.metric_helpers import tiny_passes

import lensaudit.metrics
from lensaudit.evaluation.suite import evaluate
from lensaudit.metrics import registry
from lensaudit.metrics.registry import (
    MetricResult,
    Read,
    all_metrics,
    metric,
    ordered,
    retain_names,
    unscored,
)

INFRASTRUCTURE = {"registry", "options", "records", "given", "outside", "betrayal"}


def test_every_file_registers_a_metric_and_names_its_source():
    files = {
        one.name for one in pkgutil.iter_modules(lensaudit.metrics.__path__) if not one.ispkg
    } - INFRASTRUCTURE
    registering = {one.fn.__module__.rpartition(".")[2] for one in all_metrics().values()}
    assert files <= registering
    for one in all_metrics().values():
        assert any(kind in one.source for kind in ("arXiv:", "doi:", "open-unlearning", "gnueaj"))
        assert one.fn.__doc__
        assert one.reads, one.name


def test_the_table_of_metrics_imports_no_library_that_one_of_them_asks():
    code = (
        "import sys; from lensaudit.metrics.registry import all_metrics; all_metrics();"
        "print(sys.modules.keys() & {'nltk', 'scipy.stats', 'sklearn'})"
    )
    assert printed(code) == "set()\n"


@pytest.mark.parametrize("suite", ["tofu", "muse"])
def test_a_metric_comes_after_what_it_needs(suite):
    done = set()
    for one in ordered(suite):
        assert set(one.local_needs) <= done
        done.add(one.name)


def test_one_metric_brings_its_needs_and_nothing_else():
    names = [one.name for one in ordered("tofu", ["forget_quality"])]
    assert names == [
        "forget_Q_A_PARA_Prob",
        "forget_Q_A_PERT_Prob",
        "forget_truth_ratio",
        "forget_quality",
    ]
    assert retain_names(ordered("tofu", ["forget_quality"])) == ["forget_truth_ratio"]


NEW = '''
from lensaudit.metrics.registry import MetricResult, metric

@metric("share_of_ones", high_means="knows", source="arXiv:0000.00000", tofu=())
def share_of_ones(context) -> MetricResult:
    """One."""
    return MetricResult(1.0)
'''


def test_a_new_metric_is_one_file(tmp_path, monkeypatch, tiny_tokenizer):
    known = dict(all_metrics())
    (tmp_path / "share.py").write_text(NEW)
    monkeypatch.setattr(lensaudit.metrics, "__path__", [*lensaudit.metrics.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "METRICS", known)
    found = evaluate(tiny_passes(tiny_tokenizer), "tofu", ["share_of_ones"])
    assert found["share_of_ones"].value == 1


def test_a_name_can_be_registered_once():
    with pytest.raises(ValueError, match="one of this name already"):

        @metric("mia_loss", high_means="knows", source="here", tofu=())
        def again(context) -> MetricResult:
            return unscored("never")


def test_a_metric_from_outside_that_edits_what_it_is_handed_changes_no_other(
    tiny_tokenizer, monkeypatch
):
    """Told of the passes, of needs and of the retain model's log."""
    names = ["forget_truth_ratio", "forget_Q_A_Prob", "mia_loss"]
    passes, retain = tiny_passes(tiny_tokenizer), {}
    plain = evaluate(tiny_passes(tiny_tokenizer), "tofu", names)
    retain["forget_truth_ratio"] = plain["forget_truth_ratio"]
    monkeypatch.setattr(registry, "METRICS", dict(all_metrics()))

    @metric(
        "edits",
        high_means="knows",
        source="here",
        tofu=[Read("trace", "forget")],
        needs=("forget_truth_ratio", "retain:forget_truth_ratio"),
    )
    def edits(context):
        read = context.passes.measured(context.reads[0])
        for (trace,) in read.rows.values():
            trace.log_prob.sort()
        read.unscored[0] = "mine"
        for logs in (context.done, context.retain):
            for record in logs["forget_truth_ratio"].records.values():
                record["score"] = 0.0
        return 1.0

    assert edits.__module__ == __name__
    found = evaluate(passes, "tofu", ["edits", *names], retain=retain)
    assert found["edits"].value == 1.0
    assert {name: found[name] for name in names} == {name: plain[name] for name in names}
    assert retain["forget_truth_ratio"] == plain["forget_truth_ratio"]
    assert passes.measured(Read("trace", "forget")).unscored == {}
    assert evaluate(passes, "tofu", names) == plain
