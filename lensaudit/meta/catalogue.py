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
class Judged:
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


def _fisher(share: str, label: str) -> Judged:
    key = f"fisher_masked_{share}"
    return Judged(key, f"Fisher Masked ({label})", "representation", key, "forgot")


_ROWS = (
    Judged("es", "Extraction Strength", "memorization", "extraction_strength", "knows"),
    Judged("em", "Exact Memorization", "memorization", "exact_memorization", "knows"),
    Judged("prob", "Probability", "memorization", "forget_Q_A_Prob", "knows"),
    Judged("paraprob", "Para. Probability", "memorization", "forget_Q_A_PARA_Prob", "knows"),
    Judged("truth_ratio", "Truth Ratio", "memorization", "forget_truth_ratio_prob_mean", "knows"),
    Judged("rouge", "ROUGE", "generation", "forget_Q_A_ROUGE", "knows"),
    Judged("para_rouge", "Para. ROUGE", "generation", "forget_Q_A_PARA_ROUGE", "knows"),
    Judged(
        "jailbreak_rouge", "Jailbreak ROUGE", "generation", "forget_Q_A_jailbreak_ROUGE", "knows"
    ),
    Judged("mia_loss", "MIA-LOSS", "mia", "mia_loss", "knows"),
    Judged("mia_zlib", "MIA-ZLib", "mia", "mia_zlib", "knows"),
    Judged("mia_min_k", "MIA-Min-K", "mia", "mia_min_k", "knows"),
    Judged("mia_min_kpp", "MIA-Min-K++", "mia", "mia_min_k_plus_plus", "knows"),
    Judged("s_mia_loss", "s_LOSS", "mia", "s_mia_loss", "forgot", "mia_loss"),
    Judged("s_mia_zlib", "s_ZLib", "mia", "s_mia_zlib", "forgot", "mia_zlib"),
    Judged("s_mia_min_k", "s_Min-K", "mia", "s_mia_min_k", "forgot", "mia_min_k"),
    Judged("s_mia_min_kpp", "s_Min-K++", "mia", "s_mia_min_k_plus_plus", "forgot", "mia_min_kpp"),
    Judged("cka", "CKA", "representation", "cka", "forgot"),
    _fisher("0.0001", "0.01%"),
    _fisher("0.001", "0.1%"),
    _fisher("0.01", "1%"),
    Judged("logit_lens", "Logit Lens", "representation", "logit_lens", "forgot"),
    Judged("uds", "UDS", "representation", "uds", "forgot"),
)
CATALOGUE: Mapping[str, Judged] = {one.key: one for one in _ROWS}
"""`meta_evaluation.md` sections 3 and 6; Fisher counts once among the paper's 20 metrics."""

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


def judged(names: Iterable[str]) -> list[Judged]:
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


def _of_suite(name: str) -> Judged:
    from lensaudit.metrics.registry import all_metrics  # imports torch

    metric = all_metrics().get(name)
    if metric is None or "tofu" not in metric.reads:
        raise InputError(
            f"no metric {name!r} to judge; known: {', '.join(CATALOGUE)}, and every metric of "
            "`lensaudit eval --suite tofu`"
        )
    return Judged(name, name, "other", name, metric.high_means)
