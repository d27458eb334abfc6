"""TOFU forget10: the Hub's questions joined with the annotated spans, and the older filters.

The project ships no text of TOFU. `tofu_data/forget10_offsets.json` holds, for the 367 annotated
rows of gnueaj/unlearning-depth-score @ fc31639 (tofu_data/forget10_filtered.json), where prefix and
entity lie in the answer, and hashes that show whether question and answer are the annotated ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from numbers import Integral
from pathlib import Path
from typing import Any

import lensaudit
from lensaudit.data.facts import EMBEDDED, Fact, load_facts
from lensaudit.data.rows import hub_rows, numbered, read_values, row_problems, sound_rows
from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.groups import Group, named_group, own_group, spread
from lensaudit.once import once
from lensaudit.results.reading import place_in

TOFU_HUB = "locuslab/TOFU"
FORGET10 = "forget10"
RETAIN = "retain_perturbed"
OLDER = "forget10_older"
"""Rows of forget10 that the published annotation leaves out; what earlier versions hold of them."""
WITHOUT_SPAN = (300, 320, 343, 344, 353, 378, 386)
"""The other such rows: they have no span here, as their text was not there to be read."""
DEMO = "demo"
"""The generated authors, under TOFU's configuration names."""
TOFU_PAIRS = {"forget01": "retain99", "forget05": "retain95", "forget10": "retain90"}
"""TOFU's forget sets and their complements; `--data` takes either side by name."""
AUTHOR_ROWS = 20
"""Rows per author in TOFU, author after author; arXiv:2401.06121 section 2.1."""
TAILS = (0, 200, 360)
"""Where forget10, forget05 and forget01 begin in forget10: each is the end of the one before."""
TABLED_ROWS = 400
"""Rows of forget10, and of `retain_perturbed`; the shipped tables list some of each."""

_PACKAGE = Path(lensaudit.__file__).parent
_INSTEAD_RETAIN = "name rows of other authors with --validity-data and --align-data"
_INSTEAD = (
    "name a folder that holds forget10.jsonl (one question and answer per line, in the Hub's "
    "order), or an annotated file"
)


@dataclass(frozen=True)
class Offsets:
    """Place of one annotated row's span, in characters of the raw answer."""

    idx: int
    prefix_end: int
    entity_start: int
    entity_end: int
    question: str
    """First 16 hex digits of the text's SHA-256."""
    answer: str
    """First 16 hex digits of the text's SHA-256."""


def check_filters(names: Sequence[str]) -> None:
    """Refuse names of no index list.

    Raises:
        InputError: names the first, and those that there are.
    """
    if unknown := [name for name in names if name not in filters()]:
        raise InputError(f"no filter {unknown[0]!r}; wanted one of {', '.join(filters())}")


@once
def forget_set(
    name_or_path: str | Path, *, exclude: Sequence[str] = (), limit: int | None = None
) -> list[Fact]:
    """The forget set that `--data` names, by idx, without the rows of the `exclude` filters.

    A filter says what an earlier version of the annotation leaves out of all rows of forget10: with
    one, the rows that the published annotation lacks are there too, where they have a span.

    Args:
        name_or_path: `forget10` (from the Hub), `demo` (embedded), an annotated file, or a folder
            with `forget10.jsonl`.
        exclude: names of `filters()`.
        limit: at most so many rows, over as many authors as there are (`groups.spread`); from 1.

    Raises:
        InputError: no such set or filter, a wrong file or limit, or nothing left.
    """
    if limit is not None and (not isinstance(limit, Integral) or limit < 1):
        raise InputError(f"forget_set(limit={limit!r:.40}): wanted a whole number from 1, or None")
    check_filters(exclude)
    every = _named(place_in("forget_set", name_or_path), older=bool(exclude))
    if exclude and not _is_tofu(FORGET10, ((e.idx, e.question, e.answer) for e in every), (0,)):
        raise InputError(
            f"filter {exclude[0]!r} lists rows of TOFU {FORGET10}, not of {name_or_path}"
        )
    excluded = frozenset().union(*(filters()[name] for name in exclude))
    examples = [one for one in every if one.idx not in excluded]
    if not examples:
        raise InputError(f"{name_or_path}: --exclude {' '.join(exclude)} leaves no row")
    return spread(sorted(examples, key=lambda one: one.idx), limit, lambda one: one.group)


def load_forget10(
    rows: Sequence[Any],
    source: str = f"{TOFU_HUB} {FORGET10}",
    config: str = FORGET10,
) -> list[Fact]:
    """The annotated examples among TOFU's rows; `group` is the author.

    Args:
        rows: with `question` and `answer`; `idx`, or else the place in the list, numbers them.
        source: where they come from, for messages.
        config: what TOFU calls them; a shipped table tells which are annotated.

    Raises:
        InputError: rows are missing or hold another text than the annotated one.
    """
    table, wanted = offsets(config), "wanted rows of TOFU: question and answer"
    by_idx: dict[int, tuple[str, str]] = dict(
        sound_rows(
            numbered(rows),
            source,
            wanted,
            row_problems,
            lambda row, idx: (idx, (row["question"], row["answer"])),
        )
    )
    if missing := [row.idx for row in table if row.idx not in by_idx]:
        raise InputError(
            f"{source}: {len(missing)} of the {len(table)} annotated rows are missing: idx "
            f"{_listed(missing)}"
        )
    changed = [row.idx for row in table if (row.question, row.answer) != _hashes(*by_idx[row.idx])]
    if changed:
        raise InputError(
            f"{source}: {len(changed)} rows hold another question or answer than the annotated "
            f"{TOFU_HUB} rows: idx {_listed(changed)}; give them as an annotated file"
        )
    return [
        Fact(
            row.idx,
            question,
            answer,
            prefix=answer[: row.prefix_end],
            entity=answer[row.entity_start : row.entity_end],
            group=author_of(config, row.idx),
            seam="reference",
        )
        for row in table
        for question, answer in [by_idx[row.idx]]
    ]


def located(example: Fact) -> Offsets:
    """The table's row for an annotated example: its text becomes places and hashes."""
    n_prefix, hashes = len(example.prefix), _hashes(example.question, example.answer)
    start = example.answer.index(example.entity, n_prefix)
    return Offsets(example.idx, n_prefix, start, start + len(example.entity), *hashes)


def validity_set(data: str | Path = FORGET10) -> list[Fact]:
    """48 facts about authors outside forget10, which a model that unlearned forget10 still holds.

    Args:
        data: a folder of TOFU's own files, or `forget10`, of the Hub.

    Raises:
        InputError: rows are missing or hold another text than the annotated one.
    """
    source = TOFU_HUB if data == FORGET10 else Path(data).expanduser() / f"{RETAIN}.jsonl"
    return load_forget10(
        tofu_rows(data, RETAIN, instead=_INSTEAD_RETAIN), f"{source} {RETAIN}", RETAIN
    )


def tofu_rows(data: str | Path, config: str, *, instead: str) -> list[Any]:
    """Rows of one of TOFU's configurations, as they lie beside a forget set; none without a file.

    Args:
        data: `forget10`, of the Hub, `demo`, or a folder of files named like TOFU's.
        config: of the data set.
        instead: what to do where the Hub cannot be read.

    Raises:
        InputError: the Hub or the file cannot be read.
    """
    if data == FORGET10:
        return list(hub_rows(TOFU_HUB, config, "train", instead=instead))
    path = (EMBEDDED if data == DEMO else Path(data).expanduser()) / f"{config}.jsonl"
    return read_values(path) if path.exists() else []


def author_of(config: str, idx: int) -> Group:
    """The author of a row of TOFU: a number in the forget sets, elsewhere text.

    No two configurations of other authors share a name.

    >>> author_of("forget10_perturbed", 39), author_of("retain_perturbed", 39)
    (1, 'retain 1')
    """
    n = idx // AUTHOR_ROWS
    return n if config.startswith("forget") else f"{config.removesuffix('_perturbed')} {n}"


def with_authors(config: str, rows: Sequence[Any], *, published: bool = False) -> Sequence[Any]:
    """TOFU's rows with their authors under `group`; as they are where that is not known.

    Args:
        config: what TOFU calls them.
        rows: as read from a file or the Hub; `idx`, or else the place, tells the author.
        published: they come from TOFU's own data set. Otherwise their texts must be those of the
            shipped tables, which know forget sets and `retain_perturbed`.
    """
    if any(not isinstance(row, Mapping) or named_group(row) is not None for row in rows):
        return rows
    numbered = [(row.get("idx", n), row) for n, row in enumerate(rows)]
    texts = [(idx, row.get("question"), row.get("answer")) for idx, row in numbered]
    is_numbered = all(isinstance(idx, int) for idx, _ in numbered)
    if not (is_numbered and (published or _is_tofu(config, texts))):
        return rows
    return [{**row, "group": author_of(config, idx)} for idx, row in numbered]


def _is_tofu(
    config: str, rows: Iterable[tuple[int, Any, Any]], starts: Sequence[int] = TAILS
) -> bool:
    """Whether these are TOFU's texts, as far as the tables tell; False if one differs.

    `starts` are the rows of forget10 at which the numbers of a forget set may begin.
    """
    known = FORGET10 if config.startswith("forget") else config
    if known not in _TABLES:
        return False
    listed = {row.idx: (row.question, row.answer) for row in offsets(known)}
    untold = set(range(TABLED_ROWS)) - listed.keys()
    hashed = [(idx, _hashes(*texts)) for idx, *texts in rows]
    by_start = (
        [one == listed.get(idx + start) for idx, one in hashed if idx + start not in untold]
        for start in (starts if known == FORGET10 else (0,))
    )
    return any(told and all(told) for told in by_start)


def _hashes(question: Any, answer: Any) -> tuple[str, str]:
    """The first 16 hex digits of each; of what is no text those of none."""
    first, second = (
        sha256((one if isinstance(one, str) else "").encode("utf-8", "surrogatepass"))
        for one in (question, answer)
    )
    return first.hexdigest()[:16], second.hexdigest()[:16]


_TABLES = {
    FORGET10: "forget10_offsets.json",
    OLDER: "forget10_older_offsets.json",
    RETAIN: "retain_validity_offsets.json",
}


@cache
def offsets(config: str = FORGET10) -> tuple[Offsets, ...]:
    """The shipped table of some rows of a configuration, sorted by idx."""
    return tuple(Offsets(*row) for row in read_json(_shipped(_TABLES[config]))["rows"])


@cache
def filters() -> Mapping[str, frozenset[int]]:
    """Index lists of the annotation's earlier versions, by name; origins are in the file."""
    entries = read_json(_shipped("filters.json"))
    return {name: frozenset(entry["idx"]) for name, entry in entries.items()}


def without_span(name_or_path: str, exclude: Sequence[str]) -> list[int]:
    """Rows of forget10 that filters of earlier versions leave, and that have no span here."""
    return (
        sorted({*WITHOUT_SPAN}.difference(*(filters()[name] for name in exclude)))
        if exclude and (name_or_path == FORGET10 or Path(name_or_path).expanduser().is_dir())
        else []
    )


def _named(name_or_path: str | Path, *, older: bool = False) -> list[Fact]:
    def annotated(rows: Sequence[Any], source: str) -> list[Fact]:
        return [
            one
            for table in (FORGET10, OLDER)[: 2 if older else 1]
            for one in load_forget10(rows, source, table)
        ]

    if name_or_path == FORGET10:
        return annotated(
            hub_rows(TOFU_HUB, FORGET10, "train", instead=_INSTEAD), f"{TOFU_HUB} {FORGET10}"
        )
    if name_or_path == DEMO:
        return load_facts(EMBEDDED / "forget.json")
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise InputError(f"{path}: no such file; wanted {FORGET10}, {DEMO} or an annotated file")
    if path.is_dir():
        files = [
            one for one in (path / f"{FORGET10}.jsonl", path / f"{FORGET10}.json") if one.exists()
        ]
        if not files:
            raise InputError(
                f"{path}: saved by datasets; for rows of it, or of a split's folder, run: "
                f"python -c \"import datasets; datasets.load_from_disk('{path}')"
                ".to_json('rows.jsonl')\""
                if any(path.glob("dataset_*.json"))
                else f"{path}: holds no {FORGET10}.jsonl; {_INSTEAD}"
            )
        return annotated(read_values(files[0]), str(files[0]))
    examples = _as_shipped(load_facts(path))
    # annotated rows of forget10 by author, wherever they were read from; others as they are
    alone = all(one.group == own_group(one.idx) for one in examples)
    if not (alone and _is_tofu(FORGET10, ((e.idx, e.question, e.answer) for e in examples))):
        return examples
    return [replace(one, group=author_of(FORGET10, one.idx)) for one in examples]


def _as_shipped(examples: Sequence[Fact]) -> list[Fact]:
    """Rows of which the package has the very annotation are read as the package's own."""
    tables = {row.idx: row for row in offsets(FORGET10)}
    embedded = {one.idx: one for one in load_facts(EMBEDDED / "forget.json")}

    def is_shipped(one: Fact) -> bool:
        own = embedded.get(one.idx)
        same = own is not None and {**own.asked, "group": one.group} == one.asked
        is_there = one.idx in tables and one.entity in one.continuation
        return same or (is_there and located(one) == tables[one.idx])

    return [replace(one, seam="reference") if is_shipped(one) else one for one in examples]


def _listed(idx: Sequence[int]) -> str:
    more = f" and {len(idx) - 10} more" if len(idx) > 10 else ""
    return ", ".join(map(str, idx[:10])) + more


def _shipped(name: str) -> Path:
    """A file of tofu_data/: inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / "tofu_data" / name
    return inside if inside.exists() else _PACKAGE.parent / "tofu_data" / name
