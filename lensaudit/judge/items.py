"""Which generations are judged? Those in the logs that `eval` and `patch` write."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.data.facts import read_rows
from lensaudit.errors import InputError
from lensaudit.files import digest, read_json
from lensaudit.groups import Group, group_of, own_group, spread
from lensaudit.judge.verdict import JudgeRequest
from lensaudit.results.eval_runs import entries_of
from lensaudit.results.reading import part
from lensaudit.results.records import check_result
from lensaudit.results.schema import Whole, checked

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
_NONE_SAID = "the log holds no generation"


@dataclass(frozen=True)
class Item:
    """One generation of a log."""

    context: str
    """The log's metric or split; `forget` in it decides the rubric."""
    request: JudgeRequest
    group: Group
    """The author, where the log names one, else the row itself."""

    @property
    def idx(self) -> int:
        """The data set's number."""
        return self.request.idx


@dataclass(frozen=True)
class Gap:
    """A row without anything to judge."""

    context: str
    idx: int
    reason: str


@dataclass(frozen=True)
class Items:
    """What a log holds to be judged."""

    source: Path
    items: tuple[Item, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def contexts(self) -> tuple[str, ...]:
        """In the order of the log."""
        return tuple(dict.fromkeys(one.context for one in (*self.items, *self.gaps)))

    @property
    def digest(self) -> str:
        """Content hash of what is judged."""
        rows = [
            [one.context, one.idx, one.request.question, one.request.truth, one.request.answer]
            for one in self.items
        ]
        return digest(rows)


def read_items(path: Path, *, contexts: Sequence[str] = (), limit: int | None = None) -> Items:
    """The generations of a log, a results.jsonl, or the folder of either.

    Args:
        path: `TOFU_EVAL.json` or `MUSE_EVAL.json` in open-unlearning's layout; rows of `eval` or
            of `patch --score em`; or own rows `{"idx", "question", "answer", "generation"}` with an
            optional `context`, `entity` and `group`.
        contexts: only these metrics or splits.
        limit: at most so many rows of each context, over as many authors as there are.

    Raises:
        InputError: unreadable, or nothing to judge in it.
    """
    path = _file_in(path) if path.is_dir() else path
    check_result(path)
    found = [_kept(one, contexts) for one in _read(path, contexts)]
    every = [one for one in found if one is not None]
    if not contexts:  # a split of which nothing was generated was never meant to be judged
        spoken = {one.context for one in every if isinstance(one, Item)}
        every = [one for one in every if one.context in spoken]
    if not any(isinstance(one, Item) for one in every):
        wanted = f" of {', '.join(contexts)}" if contexts else ""
        raise InputError(
            f"{path}: holds no generation{wanted} to judge; wanted TOFU_EVAL.json, MUSE_EVAL.json, "
            "or rows with question, answer and generation"
        )
    places: list[int] = []
    for context in dict.fromkeys(one.context for one in every):
        own = [at for at, one in enumerate(every) if one.context == context]
        places += spread(own, limit, lambda at: _group(every[at]))
    kept = [every[at] for at in sorted(places)]
    return Items(
        path,
        tuple(one for one in kept if isinstance(one, Item)),
        tuple(one for one in kept if isinstance(one, Gap)),
    )


def _group(one: Item | Gap) -> Group:
    return one.group if isinstance(one, Item) else own_group(one.idx)


def _kept(one: Item | Gap, contexts: Sequence[str]) -> Item | Gap | None:
    return one if not contexts or one.context in contexts else None


def _file_in(folder: Path) -> Path:
    for name in ("results.jsonl", "TOFU_EVAL.json", "MUSE_EVAL.json"):
        if (folder / name).exists():
            return folder / name
    raise InputError(f"{folder}: has no results.jsonl, TOFU_EVAL.json or MUSE_EVAL.json in it")


def _read(path: Path, contexts: Sequence[str]) -> Iterator[Item | Gap]:
    if path.suffix == ".json":
        content = read_json(path)
        if isinstance(content, dict):
            return _from_log(content, path, contexts or CONTEXTS)
    rows, problems = read_rows(path)
    if problems:
        raise InputError(f"{path}: {problems[0]}")
    return _from_rows([row.value for row in rows], path)


def _from_log(
    content: Mapping[str, Any], path: Path, contexts: Sequence[str]
) -> Iterator[Item | Gap]:
    wanted = {name: content[name] for name in contexts if name in content}
    for context, entry in entries_of(wanted, path).items():
        for key, record in (entry.value_by_index or {}).items():
            texts, idx = part(record), int(key) if key.isdigit() else 0
            said = _text(texts.get("generation")) if key.isdigit() else None
            if said is None:
                yield Gap(context, idx, _NONE_SAID)
            else:
                yield _item(context, idx, texts.get("input"), texts.get("ground_truth"), said)


@dataclass(frozen=True)
class _Row:
    """A row of `results.jsonl`, or one's own."""

    idx: Whole
    context: Any = None
    split: Any = None
    question: Any = None
    answer: Any = None
    generation: Any = None
    texts: Any = None
    entity: Any = None
    group: Whole | str | None = None
    author: Whole | str | None = None


def _from_rows(rows: Sequence[Any], path: Path) -> Iterator[Item | Gap]:
    for n, value in enumerate(rows, 1):
        row = checked(_Row, value, f"{path}: row {n}")
        context = str(row.context or row.split or "forget")
        said = _text(row.generation)
        said = _text(part(row.texts).get("source")) if said is None else said
        if said is None:
            yield Gap(context, row.idx, _NONE_SAID)
            continue
        yield _item(
            context,
            row.idx,
            row.question,
            row.answer,
            said,
            entity=row.entity,
            group=group_of(vars(row), row.idx),
        )


def _item(
    context: str,
    idx: int,
    question: Any,
    truth: Any,
    said: str,
    *,
    entity: Any = None,
    group: Group | None = None,
) -> Item:
    request = JudgeRequest(
        idx, _text(question) or "", said, entity=_text(entity) or "", truth=_text(truth) or ""
    )
    return Item(context, request, own_group(idx) if group is None else group)


def _text(value: Any) -> str | None:
    """A text; the first of several."""
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, str) else None
