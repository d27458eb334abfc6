"""Suites on the embedded family, in the ways of asking that open-unlearning was run in."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lensaudit.data.chat import PLAIN, Template
from lensaudit.data.suites import Split, load_suite
from lensaudit.evaluation.forward import Tokenization
from lensaudit.evaluation.log import write_log
from lensaudit.evaluation.passes import ModelPasses
from lensaudit.evaluation.suite import evaluate
from lensaudit.metrics.registry import MetricResult, all_metrics
from support import EMBEDDED
from support.generated import save_edge, save_muse, tokenizer_like
from support.metric_helpers import subject_in

all_metrics()  # the files of the folder register themselves when they are imported

FORGET = (
    *("exact_memorization", "extraction_strength", "forget_Q_A_PARA_Prob"),
    *("forget_Q_A_PARA_ROUGE", "forget_Q_A_PERT_Prob", "forget_Q_A_Prob", "forget_Q_A_ROUGE"),
    *("forget_truth_ratio", "forget_truth_ratio_prob_mean", "mia_loss", "mia_min_k"),
    *("mia_min_k_plus_plus", "mia_zlib"),
)
TOFU = (
    *FORGET,
    *("forget_Q_A_ROUGE_f1", "forget_quality", "mia_gradnorm", "mia_reference", "model_utility"),
    *("privleak", "rel_diff", "s_mia_loss", "s_mia_min_k"),
)
"""`model_utility` brings its nine parts."""
RETAIN = ("forget_truth_ratio", "mia_loss", "mia_min_k")
"""What the metrics of a model compare with."""
MUSE = (
    *("exact_memorization", "extraction_strength", "forget_knowmem_ROUGE"),
    *("forget_verbmem_ROUGE", "mia_gradnorm", "mia_loss", "mia_min_k", "mia_min_k_plus_plus"),
    *("mia_zlib", "privleak", "rel_diff", "retain_knowmem_ROUGE"),
)


@dataclass(frozen=True)
class Scenario:
    """One evaluation: who is asked what, and how."""

    model: str
    tokenizer: str = "pad"
    template: Template = Template()  # noqa: RUF009  # frozen
    data: str = "demo"
    """`demo`, `edge` or `muse`."""
    metrics: tuple[str, ...] = FORGET
    retain: str | None = None
    """The scenario that the metrics compare with."""

    @property
    def suite(self) -> Any:
        """Whose metrics are computed."""
        return "muse" if self.data == "muse" else "tofu"


SCENARIOS = {
    "chat_pad__retain": Scenario("retain", metrics=RETAIN),
    "chat_pad__npo": Scenario("npo", metrics=TOFU, retain="chat_pad__retain"),
    "llama3like__graddiff": Scenario("graddiff", "llama3like"),
    "plain__full": Scenario("full", template=PLAIN),
    "edge__chat_eospad__npo": Scenario("npo", "eospad", data="edge"),
    "edge__plain__npo": Scenario("npo", template=PLAIN, data="edge"),
    "muse__retain": Scenario("retain", template=PLAIN, data="muse", metrics=RETAIN[1:]),
    "muse__npo": Scenario("npo", template=PLAIN, data="muse", metrics=MUSE, retain="muse__retain"),
}
"""In the order in which they need each other."""


def splits_of(data: str, folder: Path) -> dict[str, Split]:
    """Few questions of each part."""
    if data == "demo":
        whole = load_suite("tofu", "demo")
        return {name: replace(one, rows=one.rows[:5]) for name, one in whole.items()}
    if data == "edge":
        return load_suite("tofu", str(save_edge(folder / "edge")))
    return load_suite("muse", str(save_muse(folder / "muse")))


def evaluated(
    scenario: Scenario, folder: Path, retain: Mapping[str, MetricResult] | None = None
) -> dict[str, MetricResult]:
    """The scenario's metrics."""
    passes = ModelPasses(
        subject_in(EMBEDDED / scenario.model),
        splits_of(scenario.data, folder),
        Tokenization(tokenizer_like(scenario.tokenizer), scenario.template, "upstream"),
        batch_size=4,
        max_new_tokens=12,
        reference=subject_in(EMBEDDED / "retain") if "mia_reference" in scenario.metrics else None,
    )
    how: dict[str, Any] = {"empty": "upstream", "retain_value": None if retain else 0.5}
    return evaluate(passes, scenario.suite, scenario.metrics, retain=retain, **how)


def suites() -> Any:
    """The numbers of every scenario's log: aggregates and rows, no text."""
    found: dict[str, dict[str, MetricResult]] = {}
    logs = {}
    for name, scenario in SCENARIOS.items():
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            retain = found[scenario.retain] if scenario.retain else None
            found[name] = evaluated(scenario, folder, retain)
            log = json.loads(write_log(folder, scenario.suite, found[name]).read_text())
            logs[name] = numbers(log)
    return logs


def numbers(value: Any) -> Any:
    """The same without what is text, and without intervals, which are this package's own."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k != "interval_95" and not isinstance(v, str)}
        return {k: numbers(v) for k, v in kept.items()}
    return [numbers(one) for one in value] if isinstance(value, list) else value
