"""From question-answer pairs to a forget set whose facts can be scored: propose, check, write."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from lensaudit.data.facts import Fact, Origin, validate
from lensaudit.data.relations import Relations, labelled, relations_of
from lensaudit.errors import InputError
from lensaudit.evaluation.settings import AnnotationSettings
from lensaudit.files import (
    check_output,
    check_plain,
    json_bytes,
    make_folder,
    parse_json,
    read_text,
    write_json,
)
from lensaudit.groups import assumption


@dataclass(frozen=True)
class Annotated:
    """What was found: rows that can be scored, rows that cannot, rows to look at."""

    proposals: Sequence[Proposal]
    kept: Sequence[Fact]
    left_out: Mapping[int, str]
    """idx -> reason."""
    remarks: Mapping[int, list[str]]
    """idx -> everything a person should look at."""

    @cached_property
    def relations(self) -> Relations:
        """Facts that are asked in one way about different subjects, and why others are not."""
        return relations_of(labelled(self.kept))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What is written: each fact with the relation that it says, or that it is found in."""
        written = {one.name for one in self.relations.found}
        said = {one.idx: one.relation for one in labelled(self.kept) if one.relation in written}
        return [_row(replace(one, relation=one.relation or said.get(one.idx))) for one in self.kept]

    @property
    def alone(self) -> str | None:
        """What to know of rows that name no author."""
        return assumption(one.group for one in self.kept)


def annotate(settings: AnnotationSettings, *, force: bool = False) -> Annotated:
    """Write the forget set and its review file.

    Args:
        settings: which pairs, and where to.
        force: write over a file and a review that are not ours, or were corrected.

    Raises:
        InputError: the pairs have problems, no row can be scored, or a file is in the way.
    """
    if not settings.out.name:
        raise InputError("--out: names no file")
    pairs, out, review = settings.pairs, settings.out, settings.review_file
    if settings.min_logprob is not None and settings.model is None:
        raise InputError("--min-logprob needs --model, which is asked for the facts")
    reviewed = is_review(read_text(pairs))
    # Path.resolve stumbles over a link to itself
    own, *kept = map(os.path.realpath, (pairs, out) if reviewed else (pairs, out, review))
    if own in kept:
        raise InputError(f"{pairs}: would be written over; name another --out or --review")
    check_output(out, ours=_is_forget_set, force=force)
    check_plain(review)
    proposals = (
        read_review(pairs)
        if reviewed
        else [
            propose(pair) if given is None else located(pair, given)
            for pair, given in read_pairs(pairs, _fields(settings))
        ]
    )
    found = checked(proposals, reviewed=reviewed)
    if settings.model is not None and found.kept:
        found = asked_of_model(found, settings.model, settings)
    make_folder(out.parent)
    if not (reviewed and os.path.realpath(review) == own):
        if not force:
            _refuse_edited(review, found.proposals)
        write_review(review, found.proposals, found.remarks)
    if not found.kept:
        raise InputError(f"{pairs}: no row can be scored; the reasons are in {review}")
    validate(found.rows, str(pairs))
    write_json(out, found.rows)
    return found


def _fields(settings: AnnotationSettings) -> Fields:
    return Fields(settings.question_key, settings.answer_key, settings.group_key)


def _is_forget_set(content: bytes) -> bool:
    """Whether `annotate` wrote a file: rows of examples, byte for byte as they are written."""
    try:
        rows = parse_json(content)
        # rows of earlier versions do not say who found their spans
        found = [{name: _row(Fact(**row))[name] for name in row} for row in rows]
    except (ValueError, TypeError):
        return False
    return found == rows and content == json_bytes(rows)


def _refuse_edited(review: Path, proposals: Sequence[Proposal]) -> None:
    """A review that a person corrected is never written over: brackets moved or blocks deleted.

    Raises:
        InputError: `review` exists and holds other spans than were proposed, or something else.
    """
    if not review.exists():
        return
    try:
        edited = _spans(read_review(review)) != _spans(proposals)
    except InputError:
        edited = True
    if edited:
        raise InputError(
            f"{review}: holds other spans than proposed here; if you corrected it run "
            f"`lensaudit annotate {review} -o …`, else name another --review, or --force"
        )


def _spans(
    proposals: Sequence[Proposal],
) -> list[tuple[int, str, str, int, int, Origin, str | None]]:
    return [
        (p.pair.idx, p.pair.question, p.pair.answer, p.start, p.end, p.origin, p.pair.relation)
        for p in proposals
    ]


def checked(proposals: Sequence[Proposal], *, reviewed: bool = False) -> Annotated:
    """Rows that can be scored and rows that cannot; a reviewed row has no doubts left."""
    bad = {one.pair.idx: found for one in proposals if (found := faults(one))}
    unsure = {} if reviewed else {one.pair.idx: doubts(one) for one in proposals}
    return Annotated(
        proposals=proposals,
        kept=[one.example() for one in proposals if one.pair.idx not in bad],
        left_out={idx: "; ".join(found) for idx, found in bad.items()},
        remarks={
            idx: said
            for one in proposals
            if (said := [*bad.get(idx := one.pair.idx, []), *unsure.get(idx, [])])
        },
    )


def asked_of_model(found: Annotated, model: str, settings: AnnotationSettings) -> Annotated:
    """The rows whose spans the tokenizer finds and whose facts the model knows."""
    from lensaudit.evaluation.known import known_facts  # imports torch; rules alone do not

    left_out, remarks = known_facts(
        found.kept,
        model,
        settings.min_logprob,
        registry=settings.registry,
        dtype=settings.dtype,
        device=settings.device,
    )
    merged = dict(found.remarks)
    for idx, said in [*remarks.items(), *((i, [why]) for i, why in left_out.items())]:
        merged[idx] = [*merged.get(idx, []), *said]
    return Annotated(
        found.proposals,
        [one for one in found.kept if one.idx not in left_out],
        {**found.left_out, **left_out},
        merged,
    )


def _row(example: Fact) -> dict[str, Any]:
    relation = {} if example.relation is None else {"relation": example.relation}
    return {**example.asked, "span": example.span, **relation}
