"""Which metrics are judged, under which names, and what a high value of each means?

The short keys are those of the published result files; `suite` is the name in `lensaudit eval`.
Any other metric of the suite can be judged as well, under its own name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lensaudit.errors import InputError

Means = Literal["knows", "forgot"]


@dataclass(frozen=True)
class JudgedMetric:
    """One metric that is judged."""

    key: str
    label: str
    category: str
    suite: str
    """Its name in `lensaudit eval`."""
    high_means: Means
    usable_as: str | None = None
    """The metric whose threshold picks its models: s_MIA takes that of the attack itself."""

    def knowledge(self, value: float) -> float:
        """The value turned so that higher means more knowledge: 1 - v where high means forgot.

        >>> CATALOGUE["uds"].knowledge(0.25), CATALOGUE["es"].knowledge(0.25)
        (0.75, 0.25)
        """
        return value if self.high_means == "knows" else 1 - value


def _fisher(share: str, label: str) -> JudgedMetric:
    key = f"fisher_masked_{share}"
    return JudgedMetric(key, f"Fisher Masked ({label})", "representation", key, "forgot")


_ROWS = (
    JudgedMetric("es", "Extraction Strength", "memorization", "extraction_strength", "knows"),
    JudgedMetric("em", "Exact Memorization", "memorization", "exact_memorization", "knows"),
    JudgedMetric("prob", "Probability", "memorization", "forget_Q_A_Prob", "knows"),
    JudgedMetric("paraprob", "Para. Probability", "memorization", "forget_Q_A_PARA_Prob", "knows"),
    JudgedMetric(
        "truth_ratio", "Truth Ratio", "memorization", "forget_truth_ratio_prob_mean", "knows"
    ),
    JudgedMetric("rouge", "ROUGE", "generation", "forget_Q_A_ROUGE", "knows"),
    JudgedMetric("para_rouge", "Para. ROUGE", "generation", "forget_Q_A_PARA_ROUGE", "knows"),
    JudgedMetric(
        "jailbreak_rouge", "Jailbreak ROUGE", "generation", "forget_Q_A_jailbreak_ROUGE", "knows"
    ),
    JudgedMetric("mia_loss", "MIA-LOSS", "mia", "mia_loss", "knows"),
    JudgedMetric("mia_zlib", "MIA-ZLib", "mia", "mia_zlib", "knows"),
    JudgedMetric("mia_min_k", "MIA-Min-K", "mia", "mia_min_k", "knows"),
    JudgedMetric("mia_min_kpp", "MIA-Min-K++", "mia", "mia_min_k_plus_plus", "knows"),
    JudgedMetric("s_mia_loss", "s_LOSS", "mia", "s_mia_loss", "forgot", "mia_loss"),
    JudgedMetric("s_mia_zlib", "s_ZLib", "mia", "s_mia_zlib", "forgot", "mia_zlib"),
    JudgedMetric("s_mia_min_k", "s_Min-K", "mia", "s_mia_min_k", "forgot", "mia_min_k"),
    JudgedMetric(
        "s_mia_min_kpp", "s_Min-K++", "mia", "s_mia_min_k_plus_plus", "forgot", "mia_min_kpp"
    ),
    JudgedMetric("cka", "CKA", "representation", "cka", "forgot"),
    _fisher("0.0001", "0.01%"),
    _fisher("0.001", "0.1%"),
    _fisher("0.01", "1%"),
    JudgedMetric("logit_lens", "Logit Lens", "representation", "logit_lens", "forgot"),
    JudgedMetric("uds", "UDS", "representation", "uds", "forgot"),
)
CATALOGUE: Mapping[str, JudgedMetric] = {one.key: one for one in _ROWS}
"""Rows of the UDS paper's table; Fisher counts once among the paper's 20 metrics."""

UTILITY_PARTS: Mapping[str, str] = {
    "retain_q_prob": "retain_Q_A_Prob",
    "retain_q_rouge": "retain_Q_A_ROUGE",
    "retain_truth_ratio": "retain_Truth_Ratio",
    "ra_q_prob": "ra_Q_A_Prob_normalised",
    "ra_q_rouge": "ra_Q_A_ROUGE",
    "ra_truth_ratio": "ra_Truth_Ratio",
    "wf_q_prob": "wf_Q_A_Prob_normalised",
    "wf_q_rouge": "wf_Q_A_ROUGE",
    "wf_truth_ratio": "wf_Truth_Ratio",
}
"""Published key -> name in `lensaudit eval`, for the nine parts of model utility."""
FLUENCY = "fluency"
SUITE_NAMES: Mapping[str, str] = {
    **{one.key: one.suite for one in _ROWS},
    **UTILITY_PARTS,
    FLUENCY: "forget_Q_A_gibberish",
}
"""Key -> name in `lensaudit eval`, for everything that is read from a log."""


def judged(names: Iterable[str]) -> list[JudgedMetric]:
    """The named metrics, by key or by their name in `lensaudit eval`; none means the catalogue.

    Raises:
        InputError: neither the catalogue nor the suite has the name.
    """
    by_suite = {one.suite: one for one in _ROWS}
    found = {}
    for name in names or CATALOGUE:
        one = CATALOGUE.get(name) or by_suite.get(name) or _of_suite(name)
        found[one.key] = one
    return list(found.values())


def _of_suite(name: str) -> JudgedMetric:
    from lensaudit.metrics.registry import all_metrics  # imports torch

    metric = all_metrics().get(name)
    if metric is None or "tofu" not in metric.reads:
        raise InputError(
            f"no metric {name!r} to judge; known: {', '.join(CATALOGUE)}, and every metric of "
            "`lensaudit eval --suite tofu`"
        )
    return JudgedMetric(name, name, "other", name, metric.high_means)
