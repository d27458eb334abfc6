"""Every number of a suite: as it was when open-unlearning agreed, and as open-unlearning has it."""

import json

import pytest
from support import frozen
from support.frozen_suites import SCENARIOS, suites
from support.metric_helpers import FAMILY, goldens, scenario_passes, subject_in

from lensaudit.evaluation.log import completed, read_log, recomputed, write_log
from lensaudit.evaluation.suite import evaluate, retain_reference

EVERY_RUN = ["edge__plain__full", "muse__retain"]
"""One of each suite; the others are slow, and frozen numbers guard them all."""
SLOW = [
    "chat_pad__npo",
    "edge__chat_eospad__full",
    "muse__full",
    "llama3like__full",
    "plain__full",
    "chat_eospad__full",
    "chat_eospad__npo",
    "chat_eospad__retain",
    "chat_pad__full",
    "chat_pad__full_bs1",
    "chat_pad__full_paraq",
    "chat_pad__full_sdpa",
    "chat_pad__graddiff",
    "chat_pad__idknll",
    "chat_pad__retain",
    "chat_pad__simnpo",
    "edge__chat_pad__full",
    "edge__llama3like__full",
    "llama3like__retain",
    "plain__retain",
]
EXACT = ("exact_memorization", "extraction_strength", "auc")


def differences(found, wanted, path=""):
    """Places where a log differs from the golden one: text always, numbers by 1e-4 and 1e-5."""
    if isinstance(wanted, dict):
        absent = object()
        for key, value in wanted.items():
            yield from differences(found.get(key, absent), value, f"{path}/{key}")
    elif isinstance(wanted, list) and len(found) == len(wanted):
        for place, value in enumerate(wanted):
            yield from differences(found[place], value, f"{path}/{place}")
    elif not alike(found, wanted, path):
        yield f"{path}: {found!r} for {wanted!r}"


def alike(found, wanted, path):
    """What counts and ranks determine is exact."""
    if not isinstance(wanted, float) or not isinstance(found, float | int):
        return found == wanted
    tolerance = 1e-12 if any(name in path for name in EXACT) else 1e-5 + 1e-4 * abs(wanted)
    return abs(found - wanted) <= tolerance


def test_every_number_is_as_it_was_when_open_unlearning_agreed():
    wanted = frozen.frozen("suites")
    assert list(frozen.differences(suites(), wanted, within=1e-4, floor=0.1)) == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_log_gives_its_aggregates_again(scenario, tmp_path):
    logs, asked = frozen.frozen("suites"), SCENARIOS[scenario]
    path = tmp_path / f"{asked.suite.upper()}_EVAL.json"
    retain = {}
    if asked.retain:
        path.write_text(json.dumps(logs[asked.retain]))
        retain = completed(read_log(path))
    path.write_text(json.dumps(logs[scenario]))
    found = recomputed(read_log(path), retain=retain, retain_value=None if retain else 0.5)
    wanted = {name: entry["agg_value"] for name, entry in logs[scenario].items()}
    assert {name: entry.value for name, entry in found.items() if name in wanted} == pytest.approx(
        wanted, rel=1e-5
    )


@pytest.mark.parametrize(
    "scenario", [*EVERY_RUN, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)]
)
def test_the_suite_agrees_with_open_unlearning(scenario, shared, tmp_path):
    env, wanted = goldens()[scenario]["env"], goldens()[scenario]["metrics"]
    suite, passes = env["suite"], scenario_passes(scenario)
    retain = {}
    if env["retain_logs"]:
        log = tmp_path / f"{suite.upper()}_EVAL.json"
        log.write_text(json.dumps(goldens()[env["retain_logs"].split()[1]]["metrics"]))
        retain = retain_reference(read_log(log), passes, suite)
    found = evaluate(
        passes,
        suite,
        list(wanted),
        retain=retain,
        empty="upstream",
        retain_value=None if retain else 0.5,
    )
    written = json.loads(write_log(tmp_path, suite, found).read_text())
    assert list(differences(written, wanted)) == []
    summary = json.loads((tmp_path / f"{suite.upper()}_SUMMARY.json").read_text())
    assert summary == {name: e.value for name, e in found.items() if e.value is not None}
    assert goldens()[scenario]["summary"].keys() <= summary.keys()


def test_every_scenario_is_listed(shared):
    assert sorted([*EVERY_RUN, *SLOW]) == sorted(goldens())


@pytest.mark.parametrize("scenario", [*EVERY_RUN, *SLOW])
def test_a_log_of_open_unlearning_gives_its_aggregates_again(scenario, shared, tmp_path):
    env = goldens()[scenario]["env"]
    name = f"{env['suite'].upper()}_EVAL.json"
    (tmp_path / name).write_text(json.dumps(goldens()[scenario]["metrics"]))
    retain = {}
    if env["retain_logs"]:
        folder = tmp_path / "retain"
        folder.mkdir()
        theirs = goldens()[env["retain_logs"].split()[1]]["metrics"]
        (folder / name).write_text(json.dumps(theirs))
        retain = completed(read_log(folder))
    found = recomputed(
        read_log(tmp_path / name), retain=retain, retain_value=None if retain else 0.5
    )
    for metric, entry in goldens()[scenario]["metrics"].items():
        if entry["agg_value"] is None:
            assert found[metric].value is None
        else:
            assert found[metric].value == pytest.approx(entry["agg_value"], rel=1e-5), metric


@pytest.mark.parametrize("model", ["idknll", pytest.param("graddiff", marks=pytest.mark.slow)])
def test_the_suite_agrees_with_the_uds_reference(model, shared):
    """Another implementation of the same metrics: other data, no date line."""
    from transformers import AutoTokenizer

    from lensaudit.data.chat import Template
    from lensaudit.data.suites import load_suite
    from lensaudit.evaluation.forward import Tokenization
    from lensaudit.evaluation.passes import ModelPasses

    golden = json.loads((shared / "golden" / "uds" / "mem_mia.json").read_text())
    splits = load_suite(
        "tofu",
        own={"forget": FAMILY / "forget_perturbed.jsonl", "holdout": FAMILY / "holdout.json"},
    )
    asked = Tokenization(
        AutoTokenizer.from_pretrained(FAMILY / model), Template(date_string=None), "true"
    )
    passes = ModelPasses(
        subject_in(FAMILY / model),
        splits,
        asked,
        # that implementation never cleaned decoded text
        batch_size=8,
        cleanup="none",
    )
    names = {
        "em": "exact_memorization",
        "es": "extraction_strength",
        "prob": "forget_Q_A_Prob",
        "paraprob": "forget_Q_A_PARA_Prob",
        "truth_ratio": "forget_truth_ratio_prob_mean",
    }
    attacks = {
        "loss": "mia_loss",
        "zlib": "mia_zlib",
        "min_k": "mia_min_k",
        "min_k++": "mia_min_k_plus_plus",
    }
    found = evaluate(passes, "tofu", [*names.values(), *attacks.values()])
    wanted = golden["variants"][model]
    for theirs, ours in names.items():
        assert found[ours].value == pytest.approx(wanted["mem"][theirs], rel=1e-4), ours
    for theirs, ours in attacks.items():
        assert found[ours].value == pytest.approx(wanted["mia_auc"][theirs], abs=1e-9), ours
        forget = [one["score"] for one in found[ours].parts["forget"].records.values()]
        assert forget == pytest.approx(wanted["mia_scores"]["forget"][theirs], rel=1e-4, abs=1e-5)
