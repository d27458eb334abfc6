"""Which questions does a suite ask? The splits of TOFU and MUSE, and anybody's own rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lensaudit.data.facts import EMBEDDED, Answer, Fact, hub_rows, read_values, texts_of
from lensaudit.data.tofu import TOFU_HUB, with_authors
from lensaudit.errors import InputError
from lensaudit.files import digest
from lensaudit.groups import group_of, spread
from lensaudit.settings import Suite

MUSE_HUB = "muse-bench/MUSE-News"
DEMO_DATA = "demo"
"""The generated authors, under TOFU's configuration names."""
STOP_WORDS = ("\n\n", "\nQuestion", "Question:")
"""Where open-unlearning cuts a few-shot answer of MUSE."""


@dataclass(frozen=True)
class Split:
    """The rows of one part of a suite, and how they are asked."""

    name: str
    source: str
    """File or Hub configuration the rows came from, for messages."""
    rows: tuple[Fact, ...]
    """Numbered by the file, or else by their place in it from 0; scored is what is in `answers`."""
    kind: Literal["qa", "completion"] = "qa"
    shown: tuple[tuple[str, str], ...] = ()
    """Solved examples set before every question."""
    max_new_tokens: int = 200
    stop_words: tuple[str, ...] = ()
    """A generation is cut at the first of these."""

    @property
    def digest(self) -> str:
        """Content hash of everything that is asked."""
        rows = [[row.idx, row.question, dict(row.answers)] for row in self.rows]
        return digest([self.kind, self.shown, self.stop_words, rows])


@dataclass(frozen=True)
class _Part:
    """Where a split's rows and their fields are found."""

    config: str
    hub_split: str = "train"
    question: str = "question"
    answers: tuple[str, ...] = ("answer",)
    kind: Literal["qa", "completion"] = "qa"
    shown: str | None = None
    """Hub split of the solved examples."""
    max_new_tokens: int = 200
    stop_words: tuple[str, ...] = ()
    authors: bool = False
    """TOFU's rows about its authors, which do not name them: `tofu.with_authors`."""


def load_suite(
    suite: Suite,
    data: str | None = None,
    *,
    forget_split: str = "forget10",
    question_key: str = "question",
    own: Mapping[str, Path] | None = None,
    limit: int | None = None,
) -> dict[str, Split]:
    """The splits of `suite` by name; those whose file a folder lacks are absent.

    Args:
        suite: `tofu` has forget, retain, ra (real authors), wf (world facts) and holdout;
            `muse` has forget_qa, retain_qa, verbmem, members and non_members.
        data: a folder with one `<config>.jsonl` per configuration (MUSE:
            `<config>__<split>.jsonl`), a Hub data set, a file of annotated rows (TOFU's forget
            split then), or `demo`; the suite's own by default.
        forget_split: which part of TOFU is forgotten.
        question_key: field asked in forget and retain; the other splits keep `question`.
        own: split name -> file, read in place of the suite's.
        limit: at most so many rows per split, over as many authors as there are.

    Raises:
        InputError: nothing found, or rows that cannot be read.
    """
    if data == DEMO_DATA:  # also where a folder has that name: it is `./demo`
        data, forget_split = str(EMBEDDED), "forget10"
    own = own or {}
    if suite == "tofu" and data is not None and Path(data).is_file():
        # annotated rows, as `patch` takes them: questions and answers of what is forgotten
        own, data = {"forget": Path(data), **own}, None
    parts = _parts(suite, forget_split, question_key)
    if unknown := sorted(set(own) - set(parts)):
        raise InputError(f"no split {unknown[0]!r} in suite {suite}; it has {', '.join(parts)}")
    found = {}
    for name, part in parts.items():
        rows = _rows(suite, data, part, own, name)
        if rows is not None:
            found[name] = _split(name, part, *rows, limit)
    if not found:
        wanted = ", ".join(_file_name(suite, part) for part in parts.values())
        raise InputError(f"{data}: holds none of {wanted}")
    return found


def _parts(suite: Suite, forget_split: str, question_key: str) -> dict[str, _Part]:
    """open-unlearning's data configuration (@ d3d7cf9, configs/data/datasets)."""
    fields = ("answer", "paraphrased_answer", "perturbed_answer")
    short = ("answer", "perturbed_answer")
    if suite == "tofu":
        holdout = forget_split.replace("forget", "holdout")
        return {
            "forget": _Part(
                f"{forget_split}_perturbed",
                question=question_key,
                answers=fields,
                authors=True,
            ),
            "retain": _Part(
                "retain_perturbed", question=question_key, answers=fields, authors=True
            ),
            "ra": _Part("real_authors_perturbed", answers=short),
            "wf": _Part("world_facts_perturbed", answers=short),
            "holdout": _Part(holdout, authors=True),
        }
    qa = _Part("knowmem", max_new_tokens=32, stop_words=STOP_WORDS)
    text = _Part("privleak", kind="completion", question="", answers=("text",))
    return {
        "forget_qa": replace(qa, hub_split="forget_qa", shown="forget_qa_icl"),
        "retain_qa": replace(qa, hub_split="retain_qa", shown="retain_qa_icl"),
        "verbmem": _Part(
            "verbmem", "forget", "prompt", ("gt",), kind="completion", max_new_tokens=128
        ),
        "members": replace(text, hub_split="forget"),
        "non_members": replace(text, hub_split="holdout"),
    }


_Raw = tuple[str, list[Any], list[Any]]
"""Source, rows, and solved examples."""


def _rows(
    suite: Suite, data: str | None, part: _Part, own: Mapping[str, Path], name: str
) -> _Raw | None:
    if name in own:
        return str(own[name]), read_values(own[name]), []
    if own and data is None:
        return None
    if data is not None and Path(data).exists():
        return _folder_rows(suite, Path(data), part)
    return _hub_rows(data or (TOFU_HUB if suite == "tofu" else MUSE_HUB), part)


def _folder_rows(suite: Suite, folder: Path, part: _Part) -> _Raw | None:
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; --data wants a folder or a Hub data set")
    path = folder / _file_name(suite, part)
    if not path.exists():
        return None
    shown: list[Any] = []
    if part.shown:
        solved = folder / f"{part.config}__{part.shown}.jsonl"
        if not solved.exists():
            raise InputError(f"{solved}: no such file; {path.name} is asked after its examples")
        shown = read_values(solved)
    return str(path), read_values(path), shown


def _file_name(suite: Suite, part: _Part) -> str:
    return f"{part.config}.jsonl" if suite == "tofu" else f"{part.config}__{part.hub_split}.jsonl"


def _hub_rows(repo: str, part: _Part) -> _Raw:
    def fetch(split: str) -> list[Any]:
        return hub_rows(repo, part.config, split, instead="name a folder with --data")

    shown = fetch(part.shown) if part.shown else []
    rows = fetch(part.hub_split)
    if part.authors and repo == TOFU_HUB:
        rows = list(with_authors(part.config, rows, published=True))
    return f"{repo} {part.config}/{part.hub_split}", rows, shown


def _split(
    name: str, part: _Part, source: str, raw: Sequence[Any], shown: Sequence[Any], limit: int | None
) -> Split:
    if not raw:
        raise InputError(f"{source}: empty, wanted at least one row")
    if part.authors:
        raw = with_authors(part.config, raw)
    rows = [_row(part, source, place, row) for place, row in enumerate(raw)]
    _check_idx(source, rows, raw)
    return Split(
        name=name,
        source=source,
        rows=tuple(spread(rows, limit, lambda row: row.group)),
        kind=part.kind,
        shown=tuple(
            (_text(row, "question", source), _text(row, "answer", source)) for row in shown
        ),
        max_new_tokens=part.max_new_tokens,
        stop_words=part.stop_words,
    )


def _row(part: _Part, source: str, place: int, raw: Any) -> Fact:
    where = f"{source}: row {place + 1}"
    if not isinstance(raw, Mapping):
        raise InputError(f"{where}: is not an object")
    idx = raw.get("idx", place)
    if isinstance(idx, bool) or not isinstance(idx, int) or idx < 0:
        raise InputError(f"{where}: idx is {idx!r}, wanted a whole number >= 0")
    return Fact(
        idx=idx,
        question=_text(raw, part.question, where) if part.question else "",
        answer="".join(texts_of(raw.get(part.answers[0]))[:1]),
        prefix="",
        entity="",
        group=group_of(raw, idx),
        span=None,
        answers={
            field: _answer(raw[field], field, where)
            for field in part.answers
            if raw.get(field) is not None
        },
    )


def _text(raw: Any, key: str, where: str) -> str:
    if not isinstance(raw, Mapping) or not isinstance(raw.get(key), str):
        raise InputError(f"{where}: no text under {key!r}; check --question-key and the file")
    return raw[key]


def _answer(value: Any, field: str, where: str) -> Answer:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise InputError(f"{where}: {field} is neither text nor a list of texts")


def _check_idx(source: str, rows: Sequence[Fact], raw: Sequence[Any]) -> None:
    numbered = sum("idx" in row for row in raw)
    if numbered not in (0, len(raw)):
        raise InputError(f"{source}: {numbered} of {len(raw)} rows have an idx, wanted all or none")
    seen: dict[int, int] = {}
    for place, row in enumerate(rows, 1):
        if seen.setdefault(row.idx, place) != place:
            raise InputError(f"{source}: row {place}: idx {row.idx} is also row {seen[row.idx]}")
