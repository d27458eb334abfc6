"""What every judge is asked and what it says: the contract of the room."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Status = Literal[
    "ok", "low_mass", "refusal", "no_logprobs", "parse_error", "api_error", "budget", "unscored"
]
"""Why there is a score, or none. `budget`: not asked, a cap would have been passed. `unscored`:
the request holds nothing to judge."""


@dataclass(frozen=True)
class JudgeRequest:
    """One answer to judge."""

    idx: int
    """The data set's number of the question; several requests may share it (rollouts)."""
    question: str
    answer: str
    """The text that is judged: what the model said."""
    prompt: str = ""
    """A judge's prompt with `{question}` and `{answer}`; programmatic judges do not read it."""
    entity: str = ""
    """The fact that `EntityJudge` looks for in the answer."""
    truth: str = ""
    """The right answer, for prompts with `{truth}`."""


@dataclass(frozen=True)
class JudgeVerdict:
    """What a judge says of one request."""

    score: float | None
    """0 to 100; None where the judge gives none."""
    reason: str = ""
    """Why there is no score; empty where there is one."""
    status: Status = "ok"
    cut: bool = False
    """A text was too long for the judge: of it the beginning alone was judged."""

    def __post_init__(self) -> None:
        if (self.score is None) != bool(self.reason) or (self.score is None) == (
            self.status == "ok"
        ):
            raise ValueError(f"wanted a score, or a reason and a status other than ok: {self}")


@runtime_checkable
@runtime_checkable
class Judge(Protocol):
    """Anything that scores answers; `EntityJudge`, `IdkJudge` and `ScalarJudge` do."""

    @property
    def name(self) -> str:
        """What results call the judge: `entity`, `idk`, or the language model's name."""
        ...

    def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeVerdict]:
        """One verdict per request, in the order of the requests."""
        ...
