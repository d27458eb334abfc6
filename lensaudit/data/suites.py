"""The questions of a suite: the splits of TOFU and MUSE, and a user's own rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lensaudit.data.facts import EMBEDDED, Fact, candidate_problems, list_problems
from lensaudit.data.rows import hub_rows, numbered, read_values, row_problems, sound_rows, texts_of
from lensaudit.data.tables import LISTS
from lensaudit.data.tofu import DEMO, TOFU_HUB, with_authors
from lensaudit.errors import InputError
from lensaudit.groups import group_of, own_group, spread
from lensaudit.once import once
from lensaudit.settings import FORGET_SPLIT, Suite
from lensaudit.text import digest

MUSE_HUB = "muse-bench/MUSE-News"
STOP_WORDS = ("\n\n", "\nQuestion", "Question:")
"""Where open-unlearning cuts a few-shot answer of MUSE."""


@dataclass(frozen=True)
class Split:
    """One part of a suite: where its rows are found, the rows, and how they are asked."""

    name: str
    source: str = ""
    """File or Hub configuration the rows came from, for messages."""
    rows: tuple[Fact, ...] = ()
    """Numbered by the file, or else by their place in it from 0; scored is what is in `answers`."""
    kind: Literal["qa", "completion"] = "qa"
    shown: tuple[tuple[str, str], ...] = ()
    """Solved examples set before every question."""
    max_new_tokens: int = 200
    stop_words: tuple[str, ...] = ()
    """A generation is cut at the first of these."""
    config: str = ""
    """Configuration of the data set, and the name of its file."""
    hub_split: str = "train"
    question: str = "question"
    """Field that is asked; empty: none."""
    scored: tuple[str, ...] = ("answer",)
    """Fields that metrics score, the answer first."""
    solved: str | None = None
    """Hub split of the solved examples."""
    authors: bool = False
    """TOFU's rows about its authors, which do not name them: `tofu.with_authors`."""
    how: Mapping[str, int] = field(default_factory=dict)
    """What options of one metric say: `max_new_tokens`, `batch_size`."""

    @property
    def digest(self) -> str:
        """Content hash of everything that is asked, and of the authors that the rows name."""
        rows = [[row.idx, row.question, dict(row.answers)] for row in self.rows]
        named = [[row.idx, row.group] for row in self.rows if row.group != own_group(row.idx)]
        asked = [self.kind, self.shown, self.stop_words, rows]
        return digest([*asked, named] if named else asked)


@once
def load_suite(
    suite: Suite,
    data: str | None = None,
    *,
    forget_split: str = FORGET_SPLIT,
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
        InputError: nothing found, rows that cannot be read, or a split that these data lack.
    """
    if forget_split != FORGET_SPLIT and (data == DEMO or suite != "tofu"):
        what = f"suite {suite}" if suite != "tofu" else f"{DEMO} data"
        raise InputError(f"--forget-split {forget_split}: belongs to TOFU's data, not to {what}")
    if data == DEMO:  # also where a folder has that name: it is `./demo`
        data = str(EMBEDDED)
    own = own or {}
    parts = _parts(suite, forget_split, question_key)
    if unknown := sorted(set(own) - {part.name for part in parts}):
        known = ", ".join(part.name for part in parts)
        raise InputError(f"no split {unknown[0]!r} in suite {suite}; it has {known}")
    read = [(part, _read(suite, data, part, own)) for part in parts]
    found = {
        part.name: _filled(part, *raw, limit, own=part.name in own) for part, raw in read if raw
    }
    if not found:
        wanted = ", ".join(_file_name(suite, part) for part in parts)
        raise InputError(f"{data}: holds none of {wanted}")
    return found


def own_rows(part: Split, file: Path, limit: int | None) -> Split:
    """A split with the rows of a file in place of its own.

    Raises:
        InputError: rows that cannot be read.
    """
    return _filled(part, str(file), read_values(file), (), limit, own=True)


def _parts(suite: Suite, forget_split: str, question_key: str) -> tuple[Split, ...]:
    """open-unlearning's data configuration (@ d3d7cf9, configs/data/datasets)."""
    if suite == "tofu":
        forget = Split(
            "forget",
            config=f"{forget_split}_perturbed",
            question=question_key,
            scored=("answer", "paraphrased_answer", "perturbed_answer"),
            authors=True,
        )
        short = ("answer", "perturbed_answer")
        return (
            forget,
            replace(forget, name="retain", config="retain_perturbed"),
            Split("ra", config="real_authors_perturbed", scored=short),
            Split("wf", config="world_facts_perturbed", scored=short),
            Split("holdout", config=forget_split.replace("forget", "holdout"), authors=True),
        )
    qa = Split("forget_qa", config="knowmem", max_new_tokens=32, stop_words=STOP_WORDS)
    text = Split("members", kind="completion", config="privleak", question="", scored=("text",))
    verbmem = Split("verbmem", kind="completion", config="verbmem", max_new_tokens=128)
    return (
        replace(qa, hub_split="forget_qa", solved="forget_qa_icl"),
        replace(qa, name="retain_qa", hub_split="retain_qa", solved="retain_qa_icl"),
        replace(verbmem, hub_split="forget", question="prompt", scored=("gt",)),
        replace(text, hub_split="forget"),
        replace(text, name="non_members", hub_split="holdout"),
    )


_Raw = tuple[str, Sequence[Any], Sequence[Any]]
"""Source, rows, and solved examples."""


def _read(suite: Suite, data: str | None, part: Split, own: Mapping[str, Path]) -> _Raw | None:
    if part.name in own:
        return str(own[part.name]), read_values(own[part.name]), ()
    if own and data is None:
        return None
    if data is not None and Path(data).exists():
        return _folder_rows(suite, Path(data), part)
    repo = data or (TOFU_HUB if suite == "tofu" else MUSE_HUB)

    shown, rows = (
        hub_rows(repo, part.config, split, instead="name a folder with --data") if split else ()
        for split in (part.solved, part.hub_split)
    )
    if part.authors and repo == TOFU_HUB:
        rows = with_authors(part.config, rows, published=True)
    return f"{repo} {part.config}/{part.hub_split}", rows, shown


def _folder_rows(suite: Suite, folder: Path, part: Split) -> _Raw | None:
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; --data wants a folder or a Hub data set")
    path, solved = folder / _file_name(suite, part), folder / f"{part.config}__{part.solved}.jsonl"
    if not path.exists():
        return None
    if part.solved and not solved.exists():
        raise InputError(
            f"{solved}: no such file; the questions of {path.name} are asked after the solved "
            "examples in it"
        )
    return str(path), read_values(path), read_values(solved) if part.solved else ()


def _file_name(suite: Suite, part: Split) -> str:
    return f"{part.config}.jsonl" if suite == "tofu" else f"{part.config}__{part.hub_split}.jsonl"


def _filled(
    part: Split,
    source: str,
    raw: Sequence[Any],
    shown: Sequence[Any],
    limit: int | None,
    *,
    own: bool,
) -> Split:
    raw = with_authors(part.config, raw) if part.authors else raw
    wanted = f"wanted per row: {', '.join(filter(None, (part.question, *part.scored)))}"
    wrong, make = partial(_wrong, part, own), partial(_row, part)
    fact = partial(_texts_of, part) if own and part.authors else None
    rows = sound_rows(numbered(raw), source, wanted, wrong, make, fact=fact)
    if told := [one for row in shown for one in row_problems(row)]:
        raise InputError(f"{source}: solved examples: {told[0]}")
    return replace(
        part,
        source=source,
        rows=tuple(spread(sorted(rows, key=lambda row: row.idx), limit, lambda row: row.group)),
        shown=tuple((row["question"], row["answer"]) for row in shown),
    )


def _wrong(part: Split, own: bool, row: Any) -> list[str]:
    """What is wrong with a row; of published sets the candidates are as they are."""
    found = row_problems(row, ())
    if not isinstance(row, Mapping):
        return found
    if part.question and not isinstance(row.get(part.question), str):
        found.append(f"no text under {part.question!r}; give the field that is asked this name")
    said = {field: row[field] for field in part.scored if row.get(field) is not None}
    texts = {field: one if isinstance(one, list) else [one] for field, one in said.items()}
    found += list_problems(row, (name for name in part.scored if name in LISTS))
    found += candidate_problems(row) if own else ()
    return found + [
        f"{field} is neither text nor a list of texts"
        for field, ones in texts.items()
        if field not in LISTS and not all(isinstance(one, str) for one in ones)
    ]


def _texts_of(part: Split, row: Any) -> list[str]:
    """What is asked, and what is answered."""
    return [row[part.question], *texts_of(row.get(part.scored[0]))]


def _row(part: Split, row: Any, idx: int) -> Fact:
    said = {field: row[field] for field in part.scored if row.get(field) is not None}
    return Fact(
        idx=idx,
        question=row[part.question] if part.question else "",
        answer="".join(texts_of(row.get(part.scored[0]))[:1]),
        prefix="",
        entity="",
        group=group_of(row, idx),
        span=None,
        answers={key: one if isinstance(one, str) else tuple(one) for key, one in said.items()},
    )
