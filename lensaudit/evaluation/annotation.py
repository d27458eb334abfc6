"""From question-answer pairs to a forget set whose facts can be scored: propose, check, write."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lensaudit.data.annotate import (
    Fields,
    Proposal,
    doubts,
    faults,
    is_review,
    located,
    propose,
    read_pairs,
    read_review,
    write_review,
)
from lensaudit.data.facts import Fact, validate
from lensaudit.data.relations import Relation, labelled, relations_of
from lensaudit.data.rows import read_rows, row_idx, texts_of
from lensaudit.data.tables import LISTS
from lensaudit.errors import InputError
from lensaudit.evaluation.settings import AnnotationSettings
from lensaudit.files import (
    check_output,
    check_plain,
    json_bytes,
    make_folder,
    read_text,
    write_json,
)
from lensaudit.groups import assumption
from lensaudit.text import parse_json

FULL_WRONG, GENERAL = "full_wrong", "general_knowledge"
CARRIED = (*LISTS, "set", "source", "full_output", "retain_output")
"""What else a row may say; no span depends on it."""


@dataclass(frozen=True)
class AskedRows:
    """What two models say to rows, and which rows an audit should not ask for it."""

    outputs: Mapping[int, Mapping[str, str]]
    """idx -> `full_output` and `retain_output`."""
    replaced: Mapping[int, Fact]
    """idx -> the row with another answer and entity."""
    full_wrong: dict[int, str] = field(default_factory=dict)
    """idx -> what full says instead."""
    general_knowledge: dict[int, str] = field(default_factory=dict)
    """idx -> what the model that never saw the facts says."""


@dataclass(frozen=True)
class Annotated:
    """What was found: rows that can be scored, rows that cannot, rows to look at."""

    proposals: Sequence[Proposal]
    kept: Sequence[Fact]
    left_out: Mapping[int, str]
    """idx -> reason."""
    remarks: Mapping[int, list[str]]
    """idx -> everything a person should look at."""
    carried: Mapping[int, Mapping[str, Any]]
    """idx -> what else a row says that readers know, as wrong answers."""
    aside: Mapping[str, Sequence[Fact]] = field(default_factory=dict)
    """Rows in files of their own: `full_wrong`, `general_knowledge`."""

    @cached_property
    def relations(self) -> tuple[tuple[Relation, ...], dict[int, str]]:
        """Facts that are asked in one way about different subjects, and why others are not."""
        return relations_of(labelled(self.kept))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What is written: each fact with the relation that it says, or that it is found in."""
        written = {one.name for one in self.relations[0]}
        said = {one.idx: one.relation for one in labelled(self.kept) if one.relation in written}
        return self.written(
            replace(one, relation=one.relation or said.get(one.idx)) for one in self.kept
        )

    def written(self, facts: Iterable[Fact]) -> list[dict[str, Any]]:
        """Rows as they are written, with all that they say besides."""
        return [_row(one) | {**self.carried.get(one.idx, {})} for one in facts]

    @property
    def alone(self) -> str | None:
        """What to know of rows that name no author."""
        return assumption(one.group for one in self.kept)


def annotate(
    settings: AnnotationSettings,
    *,
    force: bool = False,
    ask: Callable[[Sequence[Fact]], AskedRows] | None = None,
) -> Annotated:
    """Write the forget set and its review file.

    Args:
        settings: which pairs, and where to.
        force: write over a file and a review that are not ours, or were corrected.
        ask: what models say to the rows; rows that an audit should not ask for it go to files of
            their own. None: no model is asked.

    Raises:
        InputError: the pairs have problems, no row can be scored, or a file is in the way.
    """
    if not settings.out.name:
        raise InputError("--out: names no file")
    out, review = settings.out, settings.review_file
    # the page goes on where its reader was
    pairs = review if settings.page and _is_of(review, settings) else settings.pairs
    reviewed = is_review(read_text(pairs))
    own = _check_apart(pairs, (out,) if reviewed else (out, review))
    for one in (out, *map(settings.aside, (FULL_WRONG, GENERAL) if ask else ())):
        check_output(one, ours=_is_forget_set, force=force)
    check_plain(review)
    if reviewed:
        proposals = read_review(pairs)
    else:  # a row that names its entity is believed
        rows = _pairs(settings)
        proposals = [propose(one) if given is None else located(one, given) for one, given in rows]
    # a review holds the spans alone: what rows say besides stands in what was written before
    carried = _carried(out if is_review(read_text(settings.pairs)) else settings.pairs)
    found = Annotated(proposals, *_checked(proposals, settings), carried)
    found = found if ask is None else _sorted(found, ask(found.kept))
    make_folder(out.parent)
    if not (reviewed and os.path.realpath(review) == own):
        if not force:
            _refuse_edited(review, found.proposals, out, reviewed=reviewed)
        write_review(review, found.proposals, found.remarks, out=out)
    if not found.kept:
        raise InputError(f"{pairs}: no row can be scored; the reasons are in {review}")
    validate(found.rows, str(pairs))
    write_json(out, found.rows)
    for name, facts in found.aside.items():
        write_json(settings.aside(name), found.written(facts))
    return found


def _check_apart(pairs: Path, outputs: Sequence[Path]) -> str:
    """Refuse to write over the pairs; where the pairs are."""
    # Path.resolve stumbles over a link to itself
    own, *kept = map(os.path.realpath, (pairs, *outputs))
    if own in kept:
        raise InputError(f"{pairs}: would be written over; name another --out or --review")
    return own


def _sorted(found: Annotated, asked: AskedRows) -> Annotated:
    """The rows without those that an audit should not ask, each of these with what was answered."""
    why = {FULL_WRONG: asked.full_wrong, GENERAL: asked.general_knowledge}
    out = {
        idx: f"{name.replace('_', ' ')}: {said}" for name in why for idx, said in why[name].items()
    }
    carried = {
        idx: {**found.carried.get(idx, {}), **asked.outputs.get(idx, {})}
        for idx in {**found.carried, **asked.outputs}
    }
    return replace(
        found,
        kept=[asked.replaced.get(one.idx, one) for one in found.kept if one.idx not in out],
        left_out={**found.left_out, **out},
        remarks={**found.remarks, **{idx: [*found.remarks.get(idx, ()), out[idx]] for idx in out}},
        carried=carried,
        aside={name: [one for one in found.kept if one.idx in why[name]] for name in why},
    )


def _pairs(settings: AnnotationSettings) -> list[tuple[Fact, str | None]]:
    fields = Fields(settings.question_key, settings.answer_key, settings.group_key)
    return read_pairs(settings.pairs, fields)


def _carried(path: Path) -> dict[int, dict[str, Any]]:
    """What the rows of a file say besides question, answer and span, by idx."""
    found = {}
    for n, (_, row) in enumerate(read_rows(path)[0] if path.exists() else ()):
        if isinstance(row, Mapping) and (idx := row_idx({"idx": n} | dict(row))) is not None:
            said = {key: (row[key], texts_of(row[key])) for key in CARRIED if key in row}
            found[idx] = {
                key: value if isinstance(value, str) else [*texts]
                for key, (value, texts) in said.items()
                if texts
            }
    return found


def _is_forget_set(content: bytes) -> bool:
    """Whether `annotate` wrote a file: rows of examples, byte for byte as they are written."""
    try:
        rows = parse_json(content)
        own = [{name: row[name] for name in row if name not in CARRIED} for row in rows]
        # rows of earlier versions do not say who found their spans
        found = [{name: _row(Fact(**row))[name] for name in row} for row in own]
    except (ValueError, TypeError):
        return False
    return found == own and content == json_bytes(rows)


def _is_of(review: Path, settings: AnnotationSettings) -> bool:
    """Whether a review is there, and of these pairs: it has no row that they have not."""
    if not review.exists() or is_review(read_text(settings.pairs)):
        return False
    asked = {_pair(pair) for pair, _ in _pairs(settings)}
    try:
        return asked.issuperset(_pair(one.pair) for one in read_review(review))
    except InputError:
        return False


def _pair(fact: Fact) -> tuple[int, str, str]:
    return fact.idx, fact.question, fact.answer


def _refuse_edited(
    review: Path, proposals: Sequence[Proposal], out: Path, *, reviewed: bool
) -> None:
    """A review that a person corrected is never written over: brackets moved or blocks deleted.

    Another review of the person replaces it, unless rows that nobody saw there were seen here.

    Raises:
        InputError: `review` exists and holds other spans than were proposed, or something else.
    """
    if not review.exists():
        return
    try:
        old = _spans(read_review(review))
        unseen = _spans(one for one in proposals if not one.reviewed)
        edited = bool({*unseen} - {*old}) if reviewed else old != unseen
    except InputError:
        edited = True
    if edited:
        raise InputError(
            f"{review}: holds other spans than those proposed now; if you corrected it, run "
            f"`lensaudit annotate {review} -o {out}`; else name another --review, or replace it "
            "with --force"
        )


def _spans(proposals: Iterable[Proposal]) -> list[tuple[Any, ...]]:
    return [(*_pair(p.pair), p.start, p.end, p.origin, p.pair.relation) for p in proposals]


def _checked(
    proposals: Sequence[Proposal], settings: AnnotationSettings
) -> tuple[list[Fact], dict[int, str], dict[int, list[str]]]:
    """Rows that can be scored, why others cannot, and what a person should look at, by idx.

    A reviewed row has no doubts left. With a model, its tokenizer finds every span that is kept,
    and it knows the facts.
    """
    bad = {one.pair.idx: found for one in proposals if (found := faults(one))}
    remarks = {
        one.pair.idx: [*bad.get(one.pair.idx, ()), *(() if one.reviewed else doubts(one))]
        for one in proposals
    }
    left_out = {idx: "; ".join(found) for idx, found in bad.items()}
    kept = [one.example() for one in proposals if one.pair.idx not in bad]
    if settings.model is not None and kept:
        from lensaudit.evaluation.known import known_facts  # imports torch; rules alone do not

        unknown, said = known_facts(
            kept,
            settings.model,
            settings.min_logprob,
            registry=settings.registry,
            dtype=settings.dtype,
            device=settings.device,
        )
        for idx, more in [*said.items(), *((idx, [why]) for idx, why in unknown.items())]:
            remarks[idx] += more
        left_out |= unknown
        kept = [one for one in kept if one.idx not in unknown]
    return kept, left_out, {idx: found for idx, found in remarks.items() if found}


def _row(example: Fact) -> dict[str, Any]:
    relation = {} if example.relation is None else {"relation": example.relation}
    return {**example.asked, "span": example.span, **relation}
