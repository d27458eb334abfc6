"""Rows to unlearn and rows to keep, and the batches made of them.

Rows from a file, from TOFU, or embedded; as tokens and labels; as batches that are pure functions
of their number, so that a resumed run reads what it would have read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from lensaudit.data.candidates import variants_of
from lensaudit.data.chat import PLAIN, Encoding, Template, check_tokenizer, encode_qa
from lensaudit.data.facts import EMBEDDED, Fact, load_facts
from lensaudit.data.fictional import IDK_LINES
from lensaudit.data.rows import hub_rows, numbered, read_rows, row_problems, sound_rows, texts_of
from lensaudit.data.spans import PROMPT_TEMPLATE, joined
from lensaudit.data.tofu import DEMO, TOFU_HUB, TOFU_PAIRS
from lensaudit.errors import InputError
from lensaudit.files import read_text
from lensaudit.groups import group_of
from lensaudit.models.sizes import context_of
from lensaudit.text import digest, parse_json
from lensaudit.training.losses import IGNORED, Labels
from lensaudit.training.settings import Format
from lensaudit.types import Movable, PosMask, Tokens, padded_rows

_WANTED = "wanted per row: question, answer; optional prefix, alternate (other answers)"
CHAT = Template()
"""The tokenizer's own chat template, with open-unlearning's system prompt and date."""


def load_rows(name_or_path: str, *, part: str) -> tuple[Fact, ...]:
    """The rows that an option names: what is asked and answered, and other answers in `wrong`.

    Args:
        name_or_path: `demo`, a TOFU configuration (`forget10`, `retain90` …), or a JSON or JSONL
            file of objects with `question` and `answer`; `prefix` and `alternate` are optional.
        part: `forget` or `retain`: which half of the embedded data `demo` means.

    Raises:
        InputError: no such set, or wrong rows; the first problems are listed.
    """
    if name_or_path == DEMO:
        rows = load_facts(EMBEDDED / f"{part}.json")
        return tuple(variants_of(DEMO, rows) if part == "forget" else rows)
    if name_or_path in {*TOFU_PAIRS, *TOFU_PAIRS.values()}:
        instead = "name a JSON or JSONL file of rows with question and answer"
        rows = numbered(hub_rows(TOFU_HUB, name_or_path, "train", instead=instead))
        return tuple(sound_rows(rows, name_or_path, _WANTED, _problems, _row))
    path = Path(name_or_path).expanduser()
    if not path.exists():
        known = ", ".join((DEMO, *TOFU_PAIRS, *TOFU_PAIRS.values()))
        raise InputError(f"{path}: no such file; wanted a JSON or JSONL file, or one of {known}")
    rows, problems = read_rows(path)
    return tuple(sound_rows(rows, str(path), _WANTED, _problems, _row, problems=problems))


def taught(rows: Sequence[Fact]) -> list[tuple[str, str, str | None]]:
    """Question, answer and prefix of every row; the prefix is None without annotation."""
    return [(one.question, one.answer, one.prefix if one.span else None) for one in rows]


def rows_hash(rows: Sequence[Fact]) -> str:
    """Content hash of rows to train on."""
    others = [one.wrong for one in rows]
    return digest([taught(rows), others if any(others) else ()])


def _row(value: Mapping[str, Any], idx: int) -> Fact:
    prefix = value.get("prefix")
    return Fact(
        idx=idx,
        question=value["question"],
        answer=value["answer"],
        prefix=prefix or "",
        entity="",
        group=group_of(value, idx),
        span=None if prefix is None else "reviewed",
        wrong=texts_of(value.get("alternate")),
    )


def _problems(value: Any) -> list[str]:
    """What is wrong with one row."""
    found = row_problems(value)
    if found:
        return found
    prefix, others = value.get("prefix"), value.get("alternate") or []
    if prefix is not None and not (isinstance(prefix, str) and value["answer"].startswith(prefix)):
        found.append("prefix does not begin the answer")
    texts = [others] if isinstance(others, str) else others
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        found.append("alternate is neither text nor a list of texts")
    return found


def idk_lines(path: Path | None) -> tuple[str, ...]:
    """Lines that admit ignorance: those of a file, or the embedded ones.

    A line is plain text, or a JSON object with one text (`{"idk": "I don't know."}`).

    Raises:
        InputError: the file cannot be read, is empty, or has another shape.
    """
    if path is None:
        return IDK_LINES
    lines = [line.strip() for line in read_text(path).split("\n") if line.strip()]
    if not lines:
        raise InputError(f"{path}: holds no line; wanted one answer per line")
    found: list[str] = []
    for n, line in enumerate(lines, 1):
        where = f"{path}: line {n}"
        try:
            texts = list(parse_json(line).values()) if line.startswith("{") else [line]
        except ValueError as error:
            raise InputError(
                f"{where} is not JSON; wanted text or one text in an object"
            ) from error
        if len(texts) != 1 or not isinstance(texts[0], str) or not texts[0].strip():
            raise InputError(f"{where} does not hold one text")
        found.append(texts[0])
    return tuple(found)


@dataclass(frozen=True)
class TrainBatch(Movable):
    """Right-padded sequences."""

    tokens: Tokens
    labels: Labels
    mask: PosMask
    """Real tokens, by length: a pad id that doubles as end of turn stays visible."""


def chat_sample(tokenizer: Any, row: Fact, template: Template = CHAT) -> Encoding:
    """open-unlearning's encoding: labels are the answer and its end of turn."""
    return encode_qa(tokenizer, template, row.question, row.answer)


def raw_sample(tokenizer: Any, row: Fact) -> Encoding:
    """The depth score's prompt, `Question: …` and `Answer: …`; labels are the answer and an end.

    With an empty prefix the blank after `Answer:` belongs to the prompt, as it does there.
    """
    start = PROMPT_TEMPLATE.format(question=row.question, prefix="")
    apart = row.span is not None and not row.prefix
    ids, _, n_prompt = joined(
        tokenizer,
        start if apart else start.rstrip(),
        row.answer if apart else f" {row.answer}",
    )
    return Encoding((*ids, tokenizer.eos_token_id), n_prompt)


ENCODERS: dict[Format, Callable[[Any, Fact], Encoding]] = {"chat": chat_sample, "raw": raw_sample}


def check_formats(tokenizer: Any, formats: Sequence[Format], name: str) -> None:
    """Refuse a tokenizer that cannot write rows in these formats.

    Raises:
        InputError: what it lacks.
    """
    for one in formats:
        check_tokenizer(tokenizer, CHAT if one == "chat" else PLAIN, name)


def check_lengths(samples: Iterable[Encoding], config: Any, name: str) -> None:
    """Refuse sequences that are longer than what a model of this configuration reads.

    Raises:
        InputError: the longest is.
    """
    if problem := context_of(config).too_long(max(len(one.ids) for one in samples)):
        raise InputError(f"{name}: the longest row has {problem}; leave long rows out of the data")


def collate(rows: Sequence[Encoding], *, pad: int) -> TrainBatch:
    """Right-pad a batch."""
    tokens, real = padded_rows([row.ids for row in rows], pad=pad)
    start = torch.tensor([row.start for row in rows]).unsqueeze(1)
    labelled = real & (torch.arange(tokens.shape[1]) >= start)
    return TrainBatch(tokens, tokens.masked_fill(~labelled, IGNORED), real)


@dataclass(frozen=True)
class UnlearnBatch(Movable):
    """What one step of unlearning reads; the parts are padded apart."""

    forget: TrainBatch
    retain: TrainBatch | None = None
    alternate: TrainBatch | None = None
    """The forget questions with another answer: ignorance, or something plausible."""


SEED_STRIDE = 1_000_003
"""A prime that keeps the generators of neighbouring seeds apart."""


def generator(seed: int, number: int) -> torch.Generator:
    """The generator of one epoch or one batch."""
    return torch.Generator().manual_seed(seed * SEED_STRIDE + number)


@lru_cache(maxsize=4)
def _order(n: int, seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(torch.randperm(n, generator=generator(seed, epoch)).tolist())


def in_epochs(n: int, *, batch_size: int, seed: int) -> Callable[[int], list[int]]:
    """Row numbers of a batch: every row once per epoch, in a new order; the last may be short."""
    per_epoch = -(-n // batch_size)

    def rows(number: int) -> list[int]:
        epoch, place = divmod(number, per_epoch)
        return list(_order(n, seed, epoch)[place * batch_size : (place + 1) * batch_size])

    return rows


def finetune_batches(
    samples: Sequence[Encoding], *, batch_size: int, seed: int, pad: int, n_parts: int = 1
) -> Callable[[int], TrainBatch]:
    """Batches of fine-tuning: every row once per epoch.

    The rows of a step of `n_parts` batches are dealt out to them, so that the last step of an
    epoch, which is short, reads no row of the next epoch.
    """
    step_rows = in_epochs(len(samples), batch_size=batch_size * n_parts, seed=seed)

    def batch(number: int) -> TrainBatch:
        step, part = divmod(number, n_parts)
        rows = step_rows(step)
        # fewer rows than parts: some rows count twice in the step's mean
        chosen = rows[part::n_parts] or [rows[part % len(rows)]]
        return collate([samples[row] for row in chosen], pad=pad)

    return batch


def unlearn_batches(
    forget: Sequence[Encoding],
    retain: Sequence[Encoding],
    alternates: Sequence[Sequence[Encoding]] = (),
    *,
    batch_size: int,
    seed: int,
    pad: int,
) -> Callable[[int], UnlearnBatch]:
    """Forget rows in epochs; a retain row and an alternate answer drawn anew at every access.

    Retain rows come with replacement, as open-unlearning draws them. `alternates` holds the
    choices of each forget row; none, or one list per row.
    """
    rows = in_epochs(len(forget), batch_size=batch_size, seed=seed)

    def batch(number: int) -> UnlearnBatch:
        chosen = rows(number)
        draw = generator(seed + 1, number)
        kept = [retain[_draw(len(retain), draw)] for _ in chosen] if retain else []
        other = [alternates[row][_draw(len(alternates[row]), draw)] for row in chosen if alternates]
        return UnlearnBatch(
            forget=collate([forget[row] for row in chosen], pad=pad),
            retain=collate(kept, pad=pad) if kept else None,
            alternate=collate(other, pad=pad) if other else None,
        )

    return batch


def _draw(n: int, draw: torch.Generator) -> int:
    return int(torch.randint(n, (1,), generator=draw).item())
