"""What an option needs is declared; what cannot act is refused, and nothing else."""

import dataclasses
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import pytest

import lensaudit as la
from lensaudit.ask import acting
from lensaudit.association.settings import KnowSettings
from lensaudit.attacks.settings import EffortSettings, RelearnSettings, SampleSettings
from lensaudit.auditing.settings import AuditSettings, EvaluateSettings
from lensaudit.errors import InputError
from lensaudit.judge.settings import LogSettings
from lensaudit.meta.settings import FaithfulnessSettings, RobustnessSettings
from lensaudit.patching.settings import PatchSettings
from lensaudit.settings import AnswerGroups, Needs, Option
from lensaudit.steer.settings import ExtractSettings
from lensaudit.sweep.settings import PlanSettings
from lensaudit.training.settings import UnlearnSettings


@dataclass(frozen=True, kw_only=True)
class Group:
    tau: Annotated[float, Option(needs=(Needs("score", one_of=("uds",)),))] = 0.05


@dataclass(frozen=True, kw_only=True)
class Record(Group):
    needs: ClassVar = {"data": (Needs("tau"),)}
    score: Annotated[str, Option()] = "uds"
    data: Annotated[str | None, Option()] = None


@pytest.mark.parametrize(
    ("record", "names"),
    [
        (Record(), []),
        (Record(tau=0.2), []),
        (Record(score="em"), []),  # a default that cannot act is nobody's choice
        (Record(score="em", tau=0.2), ["tau"]),
        (Record(data="x"), ["data"]),
        (Record(data="x", tau=0.2), []),
        (PatchSettings(score="em", tau=0.2, max_new_tokens=4), ["tau"]),
        (PatchSettings(score="lens", tau=0.2, align="affine"), ["align"]),
        (PatchSettings(align="none", align_tokens=9), ["align_tokens"]),
        (PatchSettings(score="em", scope="boundary"), ["scope"]),  # generation patches no other
        (PatchSettings(score="em", component="attn"), ["component"]),
        (PatchSettings(score="em", em_form="teacher", scope="prefix", component="attn"), []),
        (PatchSettings(score="lens", scope="boundary"), []),
        (PatchSettings(also=("world",), base="demo/base"), []),
        (PatchSettings(also=("world",), component="attn"), ["also"]),
        (PatchSettings(base="demo/base"), ["base"]),
        (EvaluateSettings(max_new_tokens=4), []),  # all metrics, and some generate
        (EvaluateSettings(metrics=("mia_loss",), max_new_tokens=4), ["max_new_tokens"]),
        (EvaluateSettings(metrics=("forget_Q_A_ROUGE_f1",), max_new_tokens=4), []),  # by a need
        (EvaluateSettings(metrics=("mia_loss",), holdout=Path("x")), []),
        (EvaluateSettings(metrics=("forget_Q_A_Prob",), holdout=Path("x")), ["holdout"]),
        (EvaluateSettings(metrics=("forget_Q_A_Prob",), retain="x"), ["retain"]),
        (EvaluateSettings(metrics=("privleak",), retain_log="x"), []),
        (EvaluateSettings(metrics=("mia_loss",), retain_log="x"), ["retain_log"]),
        (EvaluateSettings(metrics=("mia_loss",), reference="x"), ["reference"]),
        (EvaluateSettings(align_tokens=3, retain="x"), ["align_tokens"]),
        (EvaluateSettings(align_tokens=3, retain="x", metrics=("uds_aligned",)), []),
        (EvaluateSettings(metrics=("of my own",), max_new_tokens=4), []),  # said elsewhere
        (EvaluateSettings(metrics=("mia_loss",), data="x"), []),
        (EvaluateSettings(metrics=("mia_loss",), data="x", forget="y", holdout="z"), ["data"]),
        (EvaluateSettings(metrics=("mia_loss",), data="x", forget="y"), []),  # its holdout rows
        (EvaluateSettings(data="x", forget="y", holdout="z"), []),  # ra and wf are of the suite
        (EvaluateSettings(data=__file__, forget="y"), ["data"]),  # a file is forget rows too
        (AuditSettings(suite="none", holdout=Path("x")), ["holdout"]),
        (AuditSettings(suite="none", retain_set="x"), ["retain_set"]),
        (AuditSettings(suite="none", retain_set="x", data="demo"), ["retain_set"]),
        (AuditSettings(suite="none", retain_set="x", data=__file__), []),  # rows for validity
        (
            AuditSettings(suite="none", retain_set="x", data=__file__, validity_data="y"),
            ["retain_set"],
        ),
        (AuditSettings(retain_set="x"), []),
        (
            RobustnessSettings(models=("x",), attack="quantize", by="none", no_fluency=True),
            ["no_fluency"],
        ),
        (RobustnessSettings(models=("x",), attack="quantize", no_fluency=True), []),
        (ExtractSettings(name="x", trait="demo_idk", seed=1, methods=("mean_diff",)), ["seed"]),
        (ExtractSettings(name="x", trait="demo_idk", seed=1, methods=("mean_diff", "random")), []),
        (ExtractSettings(name="x", trait="refusal", seed=1), []),  # answers are drawn
        (ExtractSettings(name="x", trait="demo_idk", temperature=0.5), ["temperature"]),
        (EffortSettings(arms=("neutral",), retain_data="x"), ["retain_data"]),
        (EffortSettings(neutral_data="x"), []),  # the usual arms are T and neutral
        (EffortSettings(arms=("T",), neutral_data="x"), ["neutral_data"]),
        (LogSettings(log=Path("x"), by="words:idk", mode="letters"), ["mode"]),
        (LogSettings(log=Path("x"), by="rubric", mode="letters"), []),
        (RobustnessSettings(models=("x",), attack="quantize", relearn_lr=1e-3), ["relearn_lr"]),
        (PlanSettings(metrics="es,mia_loss", max_new_tokens=4, out=Path("x")), []),  # es: of meta
        (PlanSettings(metrics="mia_loss", validity_data="x", out=Path("x")), ["validity_data"]),
        (PlanSettings(metrics="mia_loss, uds", validity_data="x", out=Path("x")), []),
        (PlanSettings(metrics="mia_loss", exclude=("v2",), out=Path("x")), ["exclude"]),
        (UnlearnSettings(method="NPO", idk=Path("x"), out=Path("x")), ["idk"]),
        (UnlearnSettings(method="IdkDPO", idk=Path("x"), out=Path("x")), []),
        (UnlearnSettings(method="NPO", epochs=50.0, out=Path("x")), []),
        (UnlearnSettings(method="NPO", epochs=50.0, steps=1, out=Path("x")), ["epochs"]),
        (RelearnSettings(model="x", dtype="bfloat16"), ["dtype"]),
        (RelearnSettings(model="x", dtype="bfloat16", audit=True), []),
        (PlanSettings(relearn_on="x", out=Path("x")), ["relearn_on"]),
        (PlanSettings(relearn_on="x", variants="base,relearn-1ep", out=Path("x")), []),
        (
            RobustnessSettings(
                models=("x",),
                attack="quantize",
                metrics=("mia_loss",),
                measuring=AnswerGroups(exclude=("v2",)),
            ),
            ["exclude"],
        ),
        (
            FaithfulnessSettings(
                knows=("x",), forgot=("y",), measuring=AnswerGroups(exclude=("v2",))
            ),
            [],
        ),
        (
            FaithfulnessSettings(
                knows=("x",),
                forgot=("y",),
                metrics=("exact_memorization",),
                measuring=AnswerGroups(data="x", forget="y"),
            ),
            ["data"],
        ),
    ],
)
def test_an_option_is_idle_where_what_it_needs_does_not_hold(record, names):
    assert list(acting.idle(record)) == names


def test_what_is_chosen_beside_a_record_counts():
    asked = KnowSettings(samples=4)
    assert list(acting.idle(asked, {"source": ("demo/npo",)})) == ["samples"]
    assert not acting.idle(asked, {"source": ("http://127.0.0.1:1/v1",)})
    sampled = SampleSettings(full="demo/full")
    assert not acting.idle(sampled, {"source": "runs/mine"})  # its full is nobody's guess
    for known in ("demo/npo", "idknll"):
        assert acting.idle(sampled, {"source": known}) == {
            "full": f"--full: acts beside a model of your own (here {known}); leave it out"
        }


def test_a_line_names_all_that_would_make_an_option_act():
    (line,) = acting.idle(AuditSettings(suite="none", retain_set="x")).values()
    wanted = "--kept: needs --suite tofu (here none), or --data, a file of rows; leave it out"
    assert line == wanted
    asked = EvaluateSettings(metrics=("mia_loss",), data="x", forget="y", holdout="z")
    assert acting.idle(asked)["data"] == (
        "--data: no metric that is asked for (here mia_loss) reads other rows than --forget and "
        "--holdout; leave it out"
    )


def test_a_record_says_its_needs_of_fields_that_there_are():
    records = {
        one
        for module in ("settings", "attacks.settings", "auditing.settings", "sweep.settings")
        for _, one in inspect.getmembers(
            __import__(f"lensaudit.{module}", fromlist=["x"]), inspect.isclass
        )
        if dataclasses.is_dataclass(one)
    } | {PatchSettings, KnowSettings, LogSettings, RobustnessSettings, SampleSettings}
    for record in records:
        known = {one.name for one in dataclasses.fields(record)}
        for one in dataclasses.fields(record):
            if dataclasses.is_dataclass(one.default):
                known |= {inner.name for inner in dataclasses.fields(one.default)}
        for name in vars(record).get("needs", {}):
            assert name in known, (record, name)


def test_python_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match=r"^--tau: needs --score uds or lens \(here em\)"):
        la.patch("demo/npo", out=tmp_path / "out", score="em", tau=0.2)
    assert not (tmp_path / "out").exists()
