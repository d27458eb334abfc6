"""What every judge is asked and says, and which generations of a log are judged.

Logs are those that `eval` and `patch` write.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from lensaudit.data.rows import numbered, read_values, row_problems, spelled_apart
from lensaudit.data.thoughts import answer_in
from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.groups import Group, group_of, own_group, spread
from lensaudit.results.integrity import check_result
from lensaudit.results.kinds.eval import LOGS
from lensaudit.results.reading import Flag, Number, part

CONTEXTS = (
    "forget_Q_A_ROUGE",
    "retain_Q_A_ROUGE",
    "ra_Q_A_ROUGE",
    "wf_Q_A_ROUGE",
    "forget_knowmem_ROUGE",
    "forget_verbmem_ROUGE",
    "retain_knowmem_ROUGE",
)
"""Metrics of a log whose generations are judged by default (pull request 121, `llm_judge.yaml`)."""
Status = Literal[
    "ok", "low_mass", "refusal", "no_logprobs", "parse_error", "api_error", "budget", "unscored"
]
"""Why there is a score, or none. `budget`: not asked, a cap would have been passed. `unscored`:
the request holds nothing to judge."""
UNFINISHED = frozenset({"budget", "api_error", "no_logprobs"})
"""Statuses that another run can change; the others are what the judge says."""
MOST_VOID = 0.5
"""Share of rows without a verdict beyond which the others are no reading."""


@dataclass(frozen=True)
class JudgeRequest:
    """An answer to judge: a user's, or a row of a log."""

    idx: int
    """The data set's number of the question; several requests may share it (rollouts)."""
    question: str
    answer: str
    """The text that is judged: what the model said."""
    prompt: str = ""
    """A judge's prompt with `{question}` and `{answer}`; programmatic judges do not read it."""
    entity: str = ""
    """The fact that `ENTITY` looks for in the answer."""
    truth: str = ""
    """The right answer, for prompts with `{truth}`."""
    context: str = ""
    """The log's metric or split; `forget` in it decides the rubric."""
    group: Group = ""
    """The author, where the log names one, else the row itself."""
    gap: str = ""
    """Of a row without a generation: why there is nothing to judge."""


@dataclass(frozen=True)
class JudgeVerdict:
    """What a judge says of one request."""

    score: Number | None
    """0 to 100; None where the judge gives none."""
    reason: str = ""
    """Why there is no score; empty where there is one."""
    status: Status = "ok"
    cut: Flag = False
    """A text was too long for the judge: of it the beginning alone was judged."""
    mass: float | None = None
    """M, the probability of all numbers of the scale; None where probabilities are not read."""
    argmax: float | None = None
    """The value of the likeliest number."""
    variance: float | None = None
    """sum_k k^2 p_k / M - score^2; in mode `sample` that of the samples (over n)."""
    tokens: Mapping[str, float] = field(default_factory=dict)
    """The likeliest first tokens, numbers or not, and their log-probs, nats."""

    def __post_init__(self) -> None:
        if (self.score is None) != bool(self.reason) or (self.score is None) == (
            self.status == "ok"
        ):
            raise ValueError(f"wanted a score, or a reason and a status other than ok: {self}")


@runtime_checkable
class Judge(Protocol):
    """Anything that scores answers; `ENTITY`, `IDK` and `ScalarJudge` do."""

    @property
    def name(self) -> str:
        """What results call the judge: `entity`, `idk`, or the language model's name."""
        ...

    def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeVerdict]:
        """One verdict per request, in the order of the requests."""
        ...


@dataclass(frozen=True)
class GradedItem:
    """An item's scores, or why it has none."""

    item: JudgeRequest
    scores: Mapping[str, float]
    """Metric -> value; empty unless `status` is ok."""
    status: Status = "ok"
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    """The calls it rests on, in the cache of answers."""
    cut: bool = False
    """A text was too long for the judge: of it the beginning alone was judged."""

    @classmethod
    def of(cls, item: JudgeRequest, name: str, said: JudgeVerdict, **more: Any) -> "GradedItem":
        """The item with a verdict as its one score, called `name`."""
        scores = {} if said.score is None else {name: said.score}
        return cls(item, scores, said.status, said.reason, cut=said.cut, **more)

    @classmethod
    def read(cls, item: JudgeRequest, row: Mapping[str, Any]) -> "GradedItem":
        """The item with what its row in `results.jsonl` says."""
        known = ("context", "idx", "scores", "status", "unscored", "cut", "keys")
        evidence = {name: value for name, value in row.items() if name not in known}
        reason, keys = row["unscored"] or "", tuple(row["keys"])
        return cls(item, row["scores"], row["status"], reason, evidence, keys, row["cut"])

    def document(self) -> dict[str, Any]:
        """The row as `results.jsonl` has it."""
        return {
            "context": self.item.context,
            "idx": self.item.idx,
            "scores": dict(self.scores),
            "status": self.status,
            "unscored": self.reason or None,
            "cut": self.cut,
            **self.evidence,
            "keys": list(self.keys),
        }


def read_items(
    path: Path, *, contexts: Sequence[str] = (), limit: int | None = None
) -> list[JudgeRequest]:
    """The rows of a log in its order, those without a generation too.

    Args:
        path: `TOFU_EVAL.json` or `MUSE_EVAL.json` in open-unlearning's layout; rows of `eval` or
            of `patch --score em`; or own rows `{"idx", "question", "answer", "generation"}` with an
            optional `context`, `entity` and `group`.
        contexts: only these metrics or splits.
        limit: at most so many rows of each context, over as many authors as there are.

    Raises:
        InputError: unreadable, or nothing to judge in it.
    """
    check_result(path)
    every = [one for one in _read(path, contexts) if not contexts or one.context in contexts]
    if not contexts:  # a split of which nothing was generated was never meant to be judged
        spoken = {one.context for one in every if not one.gap}
        every = [one for one in every if one.context in spoken]
    if all(one.gap for one in every):
        wanted = f" of {', '.join(contexts)}" if contexts else ""
        raise InputError(
            f"{path}: holds no generation{wanted} to judge; wanted TOFU_EVAL.json, MUSE_EVAL.json, "
            "or rows with question, answer and generation"
        )
    places: list[int] = []
    for context in dict.fromkeys(one.context for one in every):
        own = [at for at, one in enumerate(every) if one.context == context]
        places += spread(own, limit, lambda at: every[at].group)
    return [every[at] for at in sorted(places)]


def log_in(place: Path) -> Path:
    """The log in a folder, or the file itself.

    Raises:
        InputError: the folder has none.
    """
    names = ("results.jsonl", *LOGS)
    found = [place / name for name in names if (place / name).exists()]
    if place.is_dir() and not found:
        raise InputError(f"{place}: has no results.jsonl, TOFU_EVAL.json or MUSE_EVAL.json in it")
    return found[0] if found else place


def _read(path: Path, contexts: Sequence[str]) -> Iterator[JudgeRequest]:
    if path.suffix == ".json":
        content = read_json(path)
        if isinstance(content, dict):
            return _from_log(content, path, contexts or CONTEXTS)
    return _from_rows(read_values(path), path)


def _from_log(
    content: Mapping[str, Any], path: Path, contexts: Sequence[str]
) -> Iterator[JudgeRequest]:
    for context in contexts:
        for key, record in part(content, context, "value_by_index").items():
            texts, idx = part(record), int(key) if key.isdecimal() else 0
            said = texts.get("generation") if key.isdecimal() else None
            own = {"question": texts.get("input"), "truth": texts.get("ground_truth")}
            yield _item(context, idx, own_group(idx), said, **own)


def _from_rows(rows: Sequence[Any], path: Path) -> Iterator[JudgeRequest]:
    """Rows of `results.jsonl`, or one's own."""
    if told := next(spelled_apart(numbered(rows)), None):
        raise InputError(f"{path}: {told}")
    for n, row in enumerate(rows, 1):
        if problems := row_problems(row, ("idx",)):
            raise InputError(f"{path}: row {n}: {problems[0]}")
        context = str(row.get("context") or row.get("split") or "forget")
        said = row.get("generation")
        said = part(row, "texts").get("source") if _text(said) is None else said
        own = {"question": row.get("question"), "truth": row.get("answer")}
        group = group_of(row, row["idx"])
        yield _item(context, row["idx"], group, said, entity=row.get("entity"), **own)


def _item(context: str, idx: int, group: Group, said: Any, **texts: Any) -> JudgeRequest:
    answer, gap = _text(said), "the log holds no generation"
    if answer is not None:
        answer, gap = answer_in(answer), "its thought was cut: there is no answer"
    if answer is None:
        return JudgeRequest(idx, "", "", context=context, group=own_group(idx), gap=gap)
    known = {name: _text(value) or "" for name, value in texts.items()}
    return JudgeRequest(idx, answer=answer, context=context, group=group, **known)


def _text(value: Any) -> str | None:
    """A text; the first of several."""
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, str) else None
