"""`annotate` behind the options: read, propose, check, write."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import notice
from lensaudit.data.annotate import Proposal, doubts, faults, located, propose
from lensaudit.data.examples import Example, validate
from lensaudit.data.pairs import read_pairs
from lensaudit.data.review import is_review, read_review, write_review
from lensaudit.errors import InputError
from lensaudit.files import canonical_json, make_folder, read_text, write_json


@dataclass(frozen=True)
class Annotated:
    """What a run found, before it is written."""

    proposals: Sequence[Proposal]
    kept: Sequence[Example]
    left_out: Mapping[int, str]
    """idx -> reason."""
    remarks: Mapping[int, list[str]]
    """idx -> everything a person should look at."""


def annotate_pairs(
    pairs: Path,
    *,
    out: Path,
    review: Path,
    model: str | None,
    min_logprob: float | None,
    registry: Path | None,
    dtype: str,
    device: str,
    as_json: bool,
) -> None:
    """Write the forget set and its review file; print how many rows are in each.

    Raises:
        InputError: the pairs have problems, or no row can be scored.
    """
    if min_logprob is not None and model is None:
        raise click.UsageError("--min-logprob needs --model, which is asked for the facts")
    reviewed = is_review(read_text(pairs))
    kept = {out.resolve()} if reviewed else {out.resolve(), review.resolve()}
    if pairs.resolve() in kept:
        raise InputError(f"{pairs}: would be written over; name another --out or --review")
    proposals = (
        read_review(pairs)
        if reviewed
        else [propose(pair) if given is None else located(pair, given)
              for pair, given in read_pairs(pairs)]
    )  # fmt: skip
    found = checked(proposals, reviewed=reviewed)
    if model is not None and found.kept:
        found = asked_of_model(
            found, model, min_logprob, registry=registry, dtype=dtype, device=device
        )
    make_folder(out.parent)
    if not (reviewed and review.resolve() == pairs.resolve()):
        _refuse_edited(review, found.proposals)
        write_review(review, found.proposals, found.remarks)
    if not found.kept:
        raise InputError(f"{pairs}: no row can be scored; the reasons are in {review}")
    validate([_row(one) for one in found.kept], str(pairs))
    write_json(out, [_row(one) for one in found.kept])
    _say(found, out, review, as_json=as_json)


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
            f"`lensaudit annotate {review} -o …`, else name another --review or delete it"
        )


def _spans(proposals: Sequence[Proposal]) -> list[tuple[int, str, str, int, int]]:
    return [(p.pair.idx, p.pair.question, p.pair.answer, p.start, p.end) for p in proposals]


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


def asked_of_model(
    found: Annotated,
    model: str,
    min_logprob: float | None,
    *,
    registry: Path | None,
    dtype: str,
    device: str,
) -> Annotated:
    """The rows whose spans the tokenizer finds and whose facts the model knows."""
    from lensaudit.cli.knowing import known_facts

    left_out, remarks = known_facts(
        found.kept, model, min_logprob, registry=registry, dtype=dtype, device=device
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


def _row(example: Example) -> dict[str, Any]:
    return dict(vars(example))


def _say(found: Annotated, out: Path, review: Path, *, as_json: bool) -> None:
    rules = Counter(one.rule for one in found.proposals)
    if as_json:
        result = {
            "out": str(out), "review": str(review), "n": len(found.kept),
            "left_out": {str(idx): why for idx, why in found.left_out.items()},
            "to_check": sorted(found.remarks), "rules": dict(rules),
        }  # fmt: skip
        click.echo(canonical_json(result))
        return
    click.echo(f"written: {out} ({len(found.kept)} of {len(found.proposals)} rows)")
    click.echo(f"review: {review} ({len(found.remarks)} rows marked CHECK)")
    for idx, why in list(found.left_out.items())[:20]:
        notice(f"idx {idx} left out: {why}")
    if len(found.left_out) > 20:
        notice(f"{len(found.left_out) - 20} more left out; see {review}")
