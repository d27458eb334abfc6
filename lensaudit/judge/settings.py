"""What may be chosen of a judge: who judges, what it may use, what is judged."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from lensaudit.choices import Replaces
from lensaudit.settings import Limit, Needs, Option, Place, needing

Mode = Literal["int100", "digit10", "letters", "sample", "text"]
"""How a number is read, in order of preference; the first three read probabilities."""

BY_WORDS = ("entity", "idk", "variety", "positivity", "uncertainty", "search_activation")
"""Judges that need no server; of logs they are named with a prefix."""
WORDS = "words:"
POLL_S = 5.0
Fresh = Annotated[bool, Option("Ask again even what the cache holds.")]


@dataclass(frozen=True, kw_only=True)
class EndpointAccess:
    """How models behind an address are reached, and what all of them together may use."""

    key_env: Annotated[
        str | None,
        Option(
            "Environment variable that holds the key. [default: OPENAI_API_KEY, for OpenAI's "
            "server only]",
            metavar="NAME",
            typed=True,
            expert=True,
        ),
    ] = None
    key_file: Annotated[
        Place | None,
        Option(
            "File that holds the key, readable by its owner only.",
            is_a="file",
            typed=True,
            expert=True,
        ),
    ] = None
    cache: Annotated[
        Place | None,
        Option("File that keeps every answer.", flag="--cache --judge-cache", is_a="file"),
    ] = Path("experiments/out/judge.sqlite")
    timeout_s: Annotated[
        float, Option("Seconds per attempt.", flag="--timeout", least=0.1, most=86_400, expert=True)
    ] = 60.0
    retries: Annotated[
        int, Option("Attempts after 429, 5xx, timeouts and lost connections.", least=0, rare="set")
    ] = 6
    """After the first attempt; the SDK waits 0.5 s * 2^n up to 8 s, or what the server says."""
    price_in: Annotated[float, Option("Price of a million tokens sent.", least=0, expert=True)] = (
        0.0
    )
    price_out: Annotated[
        float, Option("Price of a million tokens received.", least=0, expert=True)
    ] = 0.0
    max_cost: Annotated[
        float | None,
        Option(
            "Highest cost of all calls together; no call is made that would exceed it.", least=0
        ),
    ] = None
    max_calls: Annotated[
        int | None, Option("Most calls in all; calls that fail count too.", least=0, expert=True)
    ] = None
    max_tokens_total: Annotated[
        int | None, Option("At most so many tokens in all.", least=0, expert=True)
    ] = None
    concurrency: Annotated[int, Option("Calls in flight at once.", least=1, rare="set")] = 8


OF_THE_ENDPOINT = (
    *("cache", "timeout_s", "retries", "price_in", "price_out"),
    *("max_calls", "max_tokens_total", "concurrency"),
)
"""What commands beside `judge` take by `--set` alone."""


@dataclass(frozen=True, kw_only=True)
class JudgeAccess(EndpointAccess):
    """How language models that judge are reached."""

    base_url: Annotated[
        str | None,
        Option(
            "OpenAI-compatible endpoint of the judge. [default: OPENAI_BASE_URL, or OpenAI's]",
            metavar="URL",
            typed=True,
        ),
    ] = None
    mode: Annotated[
        Mode | None,
        Option(
            "How the judge's number is read; auto: the way that the probe finds best.",
            none="auto",
            rare="set",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class JudgeSettings(JudgeAccess):
    """A language model that judges."""

    model: Annotated[
        str | None,
        Option("The judge's model, as its server calls it.", flag="--judge", old="--model"),
    ] = None
    offline: bool = False
    """Use answers of the cache alone."""
    fresh: bool = False
    """Ask again even what the cache holds."""


_BY_A_MODEL = Needs("by", none_of=tuple(WORDS + name for name in BY_WORDS))
_RUBRIC = Needs("by", one_of=("rubric",))


@dataclass(frozen=True, kw_only=True)
class LogSettings(Replaces, JudgeSettings):
    """What is judged, and how."""

    needs: ClassVar = needing(JudgeSettings, _BY_A_MODEL) | {"max_tokens": (_BY_A_MODEL,)}

    log: Path
    by: Annotated[
        str,
        Option(
            "rubric (grades 0-10), coherence or idk (0-100), a prompt's file with {question} and "
            "{answer}, or one that asks nobody: words:entity, idk, variety or a trait.",
            metavar="NAME|FILE",
        ),
    ] = "rubric"
    contexts: Annotated[
        tuple[str, ...], Option("Only this metric or split. Repeatable.", flag="--context")
    ] = ()
    limit: Limit = None
    max_tokens: Annotated[
        int | None,
        Option(
            "Most tokens of a written reply, thoughts included. [default: 512 for the rubric, "
            "16 for a number; 8192 and 4096 of a model that thinks]",
            least=1,
        ),
    ] = None
    prompts: Annotated[
        Place | None,
        Option(
            "Python file with create_prompt(context_type, input_text, ground_truth, generation), "
            "or a rubric of an installed package; it is run.",
            flag="--prompts --from",
            metavar="FILE|NAME",
            is_a="file",
            typed=True,
            needs=(_RUBRIC,),
        ),
    ] = None
    grades: Annotated[
        tuple[str, ...],
        Option(
            "Keys of the reply: forget=NAME,NAME or retain=NAME. Repeatable.",
            metavar="FAMILY=NAMES",
            expert=True,
            needs=(_RUBRIC,),
        ),
    ] = ()
    temperature: Annotated[
        float,
        Option(
            "Temperature of the judge; open-unlearning documents 0.3.",
            least=0,
            expert=True,
            needs=(_RUBRIC,),
        ),
    ] = 0.0
    sample_size: Annotated[
        int | None, Option("Judge so many rows of each context, drawn at random.", least=1)
    ] = None
    seed: Annotated[
        int,
        Option(
            "Seed with which these rows are drawn.",
            least=0,
            expert=True,
            needs=(Needs("sample_size"),),
        ),
    ] = 0
    offline: Annotated[bool, Option("Use answers of the cache alone.")] = False
    fresh: Fresh = False
    out: Annotated[
        Path | None, Option("Result folder. [default: experiments/out/<log>-judge-<by>]")
    ] = None


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings(JudgeSettings):
    """A run of `judge calibrate`: the labels that a judge is compared with."""

    needs: ClassVar = needing(JudgeSettings, Needs("words", one_of=(None,)))

    by: Annotated[
        str,
        Option(
            "Labelled set: coherence, idk, a trait, or your JSONL of question, answer, label.",
            metavar="NAME|FILE",
        ),
    ] = "coherence"
    prompt: Annotated[
        str | None, Option("Prompt of the judge. [default: that of the set]", metavar="NAME|FILE")
    ] = None
    words: Annotated[
        str | None, Option("Calibrate a judge that asks nobody: idk, variety or a trait's.")
    ] = None
    fresh: Fresh = False


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """How long a batch is waited for."""

    wait: Annotated[bool, Option("Wait until the batch is over.")] = False
    poll_s: Annotated[
        float,
        Option(
            "Seconds before the second look; then doubled, up to 5 minutes.",
            flag="--poll",
            least=0,
            needs=(Needs("wait"),),
        ),
    ] = POLL_S
    resubmit: Annotated[
        bool, Option("Send again what failed, expired or was cancelled.", typed=True)
    ] = False
