"""Settings of `know`."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from lensaudit.choices import Replaces
from lensaudit.judge.settings import OF_THE_ENDPOINT, EndpointAccess
from lensaudit.settings import Caches, Names, Needs, Option, Place, Precision, Rows, Seed, needing

ReaderName = Literal["outputs", "chat", "few_shot", "lens", "foreign"]
READERS: tuple[ReaderName, ...] = ("outputs", "chat", "few_shot", "lens", "foreign")

Reading = Literal["logprobs", "samples"]
"""How a model behind an address is read: by log-probabilities of prompts, or by its answers."""


@dataclass(frozen=True, kw_only=True)
class KnowSettings(Replaces, EndpointAccess, Names, Rows, Precision, Caches):
    """A run of `know`: readers, values and controls."""

    rare: ClassVar = OF_THE_ENDPOINT
    needs: ClassVar = needing(EndpointAccess, Needs("source", address=True)) | dict.fromkeys(
        ("answer_tokens", "api_model", "reading", "samples"), (Needs("source", address=True),)
    )

    base: Annotated[
        str | None,
        Option(
            "Model before it was taught the facts: a prior, and a head that knows nothing. "
            "[default: that of the embedded family]",
            is_a="model",
        ),
    ] = None
    retain: Annotated[
        tuple[str, ...],
        Option(
            "Model that never saw the facts: a control, and from two on a prior. Repeatable.",
            flag="--retain",
            is_a="model",
        ),
    ] = ()
    readers: Annotated[
        tuple[ReaderName, ...],
        Option(
            "Only this reader: outputs, chat, few_shot, lens (own head) or foreign (an ignorant "
            "head). Repeatable. [default: all]",
            flag="--reader",
        ),
    ] = ()
    placebos: Annotated[
        int, Option("Further values of the same kind, beside those of the subjects.", least=0)
    ] = 32
    retain_data: Annotated[
        Place | None,
        Option(
            "Rows that should be kept: a control, solved questions, and text that maps are fitted "
            "on. [default: the forget set's retain rows]",
            flag="--kept",
            old="--retain-data",
            is_a="file",
        ),
    ] = None
    strangers: Annotated[
        Place | None,
        Option(
            "Names of nobody, one a line, drawn as the subjects' own: a p for each person.",
            is_a="file",
        ),
    ] = None
    api_model: Annotated[
        str | None,
        Option("Model behind an address, as its server calls it. [default: its only one]"),
    ] = None
    reading: Annotated[
        Reading | None,
        Option(
            "How a model behind an address is read; auto: log-probabilities, else samples.",
            none="auto",
        ),
    ] = None
    samples: Annotated[
        int, Option("Answers to each prompt, where answers are sampled.", least=1)
    ] = 32
    answer_tokens: Annotated[
        int | None,
        Option(
            "Longest sampled answer, the thought before it included. [default: 96 in a chat, 48 "
            "of a completion]",
            least=1,
        ),
    ] = None
    seed: Seed = 0


def quick(retain: tuple[str, ...], **settings: Any) -> KnowSettings:
    """Settings of an audit's `know`: outputs and the model's own head, no further values."""
    return KnowSettings(retain=retain, readers=("outputs", "lens"), placebos=0, **settings)
