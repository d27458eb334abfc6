"""How good a judge is: its scores compared with labels that people set."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import Field

from lensaudit.data.rows import read_rows
from lensaudit.errors import InputError, PartialError, WorkError
from lensaudit.groups import grouped
from lensaudit.judge.client import open_client
from lensaudit.judge.items import MOST_VOID, UNFINISHED, JudgeRequest, JudgeVerdict
from lensaudit.judge.programmatic import PROGRAMMATIC
from lensaudit.judge.prompts import BUILT_IN, named_template, prompt_id
from lensaudit.judge.scalar import ScalarJudge
from lensaudit.judge.settings import CalibrationSettings
from lensaudit.progress import Tell, unheard
from lensaudit.results.reading import Number, Text, Whole, checked
from lensaudit.results.sentences import shown
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.means import mean_known
from lensaudit.scores.ranks import spearman
from lensaudit.text import digest
from lensaudit.verdict.thresholds import ALPHA

FOLDER = Path(__file__).parent / "calibration"
KIND = "calibration"
CLOSE = 20
"""Points within which a score counts as that of the label."""
_FEWEST = 3
_FEWEST_LABELS = 4
_HIGHEST = 1 - 1e-12
"""A correlation of 1 has no inverse tanh."""


@dataclass(frozen=True)
class Labelled:
    """An answer with the score a person gives it: a row of a set."""

    question: Text
    answer: Text
    label: Annotated[Number, Field(ge=0, le=100)]
    pair: Whole | None = None
    """Two answers of one pair say the same, one at greater length."""


@dataclass(frozen=True)
class Agreement:
    """How far a judge agrees with the labels."""

    labels: str
    """Name or file of the set."""
    labels_digest: str
    judge: str
    mode: str
    prompt_id: str
    n: int
    n_invalid: int
    """Answers without a score."""
    n_unfinished: int
    """Those of them that another run can score."""
    n_independent: int
    """Answers with a score, two of one pair as one."""
    spearman: float | None
    p: float | None
    """Two-sided, of the rank correlation: labels in a random order, a pair as one."""
    mae: float | None
    """Mean absolute error, points of 100."""
    bias: float | None
    """Mean of score - label."""
    within_20: float | None
    """Share of scores at most 20 points off."""
    length_effect: float | None
    """Spearman of the error score - label with the answer's length: 0 where length is no merit."""
    pair_gap: float | None
    """Mean |difference| beyond the labels' own between a short answer and its longer twin."""
    first_problem: str = ""

    @property
    def reading(self) -> str | None:
        """What to know of the agreement; None where the judge is shown to agree."""
        return self.gap or labels_agreed(self.spearman, self.n_independent, self.p)

    @property
    def gap(self) -> str:
        """Why the scores that there are say nothing; empty where they do."""
        if not self.n_unfinished and self.n_invalid <= MOST_VOID * self.n:
            return ""
        missing = f"{self.n_invalid} of {self.n} answers have no score"
        to_do = f", {self.n_unfinished} to do" if self.n_unfinished else ""
        return f"{missing}{to_do}: {self.first_problem}"

    def checked(self) -> "Agreement":
        """Itself, if most answers have a score and another run can give no more.

        Raises:
            WorkError: none has one, or more than half have none; the first reason is named.
            PartialError: some have none for want of budget or of an answer.
        """
        if self.n_invalid == self.n:
            raise WorkError(f"none of {self.n} answers has a score: {self.first_problem}")
        if self.n_unfinished:
            raise PartialError(f"{self.gap}; the same command goes on from there")
        if self.gap:
            raise WorkError(self.gap)
        return self


def shipped_sets() -> list[str]:
    """Names of the sets in the package."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def read_labels(name_or_path: str) -> list[Labelled]:
    """A shipped set by name, or a file of rows `{"question", "answer", "label"}`.

    Raises:
        InputError: no such set, or a row without them.
    """
    path = Path(name_or_path)
    if name_or_path in shipped_sets():
        path = FOLDER / f"{name_or_path}.jsonl"
    elif not path.is_file():
        names = ", ".join(shipped_sets())
        raise InputError(f"{name_or_path}: no such set or file; shipped are {names}")
    rows, problems = read_rows(path)
    if problems or len(rows) < _FEWEST:
        problem = problems[0] if problems else f"{len(rows)} rows, wanted {_FEWEST} or more"
        raise InputError(f"{path}: {problem}")
    remedy = "a row is question, answer and a label from 0 to 100"
    return [checked(Labelled, row, f"{path}: {where}", remedy=remedy) for where, row in rows]


def calibrate(settings: CalibrationSettings, progress: Tell = unheard) -> Agreement:
    """A judge beside the labels; that of a language model is kept for later manifests if whole.

    Raises:
        InputError: no such set, judge or prompt, or the server refuses.
        WorkError: the server refuses half-way.
    """
    name, words = settings.by, settings.words
    if words is not None and (words not in PROGRAMMATIC or words == "entity"):
        known = ", ".join(name for name in PROGRAMMATIC if name != "entity")
        raise InputError(f"--words {words}: no such judge here; known are {known}")
    rows = read_labels(name)
    requests = [JudgeRequest(at, row.question, row.answer) for at, row in enumerate(rows)]
    if words is not None:
        verdicts = PROGRAMMATIC[words].score(requests)
        return agreement(rows, verdicts, labels=name, judge=words, mode="words", prompt="")
    prompt = settings.prompt or name
    known = f"no prompt {prompt!r}; give --prompt: {', '.join(BUILT_IN)}, or a file"
    template = named_template(prompt, known)
    fresh = settings.fresh
    with open_client(settings, settings.model, fresh=fresh, progress=progress) as client:
        judge = ScalarJudge(client, client.capability(), template)
        found = agreement(
            rows,
            judge.score(requests),
            labels=name,
            judge=judge.name,
            mode=judge.capability.mode,
            prompt=template,
        )
        if not found.n_unfinished:
            kind = f"{KIND}:{found.prompt_id}"
            client.cache.keep_fact(kind, client.endpoint.host, judge.name, asdict(found))
        return found


def agreement(
    rows: Sequence[Labelled],
    verdicts: Sequence[JudgeVerdict],
    *,
    labels: str,
    judge: str,
    mode: str,
    prompt: str,
) -> Agreement:
    """The report; what cannot be computed is None."""
    scored = [(row, v.score) for row, v in zip(rows, verdicts, strict=True) if v.score is not None]
    void = [v for v in verdicts if v.score is None]
    to_do = [v for v in void if v.status in UNFINISHED]
    errors = [score - row.label for row, score in scored]
    lengths = [float(len(row.answer)) for row, _ in scored]
    pairs = grouped((row.pair, score - row.label) for row, score in scored if row.pair is not None)
    return Agreement(
        labels=labels,
        labels_digest=digest([[r.question, r.answer, r.label] for r in rows]),
        judge=judge,
        mode=mode,
        prompt_id=prompt_id(prompt),
        n=len(rows),
        n_invalid=len(void),
        n_unfinished=len(to_do),
        n_independent=sum(row.pair is None for row, _ in scored) + len(pairs),
        spearman=spearman([row.label for row, _ in scored], [score for _, score in scored]),
        p=_random_order(scored),
        mae=mean_known(map(abs, errors)),
        bias=mean_known(errors),
        within_20=mean_known(abs(error) <= CLOSE for error in errors),
        length_effect=spearman(errors, lengths),
        pair_gap=mean_known(abs(one[0] - one[1]) for one in pairs.values() if len(one) == 2),
        first_problem=next((v.reason for v in (*to_do, *void)), ""),
    )


def _random_order(scored: Sequence[tuple[Labelled, float]]) -> float | None:
    """Two-sided p of Spearman over orders of the labels: all up to 7 answers, else 9,999.

    The mean of a pair counts. None where labels or scores are one number.
    """
    from scipy.stats import permutation_test, rankdata

    units = grouped(
        (at if row.pair is None else f"pair {row.pair}", (row.label, score))
        for at, (row, score) in enumerate(scored)
    )
    means = [tuple(map(fmean, zip(*one, strict=True))) for one in units.values()]
    if spearman([one[0] for one in means], [one[1] for one in means]) is None:
        return None
    labels, scores = (rankdata(one) - (len(means) + 1) / 2 for one in zip(*means, strict=True))
    found = permutation_test(
        (labels,),
        lambda drawn, axis: drawn @ scores,
        permutation_type="pairings",
        vectorized=True,
        rng=0,
    )
    return float(found.pvalue)


def labels_agreed(correlation: float | None, n: int, p: float | None) -> str | None:
    """What to know of a judge's rank correlation with labels; None where it is shown to agree.

    The interval is Fisher's, with the variance 1.06 / (n - 3) of ranks, of n independent answers.
    Of few answers, or of labels with few values, it is too short: p counts as well.

    >>> labels_agreed(0.3, 20, 0.2)
    'not shown to agree with the labels: Spearman 0.30 [-0.18, 0.66] holds 0'
    >>> labels_agreed(1.0, 4, 1 / 3)
    'not shown to agree with the labels: Spearman 1.00, p = 0.333'
    >>> labels_agreed(0.8, 20, 0.001)
    """
    if n < _FEWEST_LABELS:
        return f"not shown to agree with the labels: {n} scored, a pair as one"
    if correlation is None or p is None:
        return "not shown to agree with the labels: its scores, or the labels, are all one number"
    half = 1.959964 * math.sqrt(1.06 / (n - 3))
    middle = math.atanh(max(-_HIGHEST, min(correlation, _HIGHEST)))
    low, high = math.tanh(middle - half), math.tanh(middle + half)
    if low <= 0 <= high:
        rho = shown(Estimate(correlation, low, high))
        return f"not shown to agree with the labels: Spearman {rho} holds 0"
    if p > ALPHA:
        return f"not shown to agree with the labels: Spearman {correlation:.2f}, p = {p:.3f}"
    turned = f"ranks the answers the other way round: Spearman {correlation:.2f}"
    return None if low > 0 else turned
