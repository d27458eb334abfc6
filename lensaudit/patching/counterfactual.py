"""A stream that answers another question: the anchor where no model never saw the facts.

`full`'s own stream on another fact of the set is patched in, of another subject and with as many
tokens. What `full` then loses is S1. A fact's own stream loses nothing; that of a model which never
saw the fact loses less than a wrong answer does; anything that `full` cannot read loses as much. So
a depth near 0 shows that the fact is there, and no high one shows anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.facts import Fact
from lensaudit.data.neutral import other_answers
from lensaudit.data.spans import Encoded
from lensaudit.files import digest
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.score_cache import example_hash
from lensaudit.patching.scoring import Scored, plan_of, run, scored
from lensaudit.patching.session import Session
from lensaudit.patching.sources import CachedSource, Layers
from lensaudit.progress import Plan
from lensaudit.settings import COUNTERFACTUAL

NO_OTHER = "no other fact has an answer of as many tokens"
Given = Mapping[int, tuple[int, Mapping[int, int]]]
"""Row -> the other, and for each position of the row the other's that it is given."""


@dataclass(frozen=True)
class Others:
    """For each row another that stands for it; rows that none can stand for are left out."""

    full: Checkpoint
    rows: tuple[Encoded, ...]
    """Those that have another."""
    given: Given

    @cached_property
    def key(self) -> str:
        """What decides what is handed over: the weights, and which row stands for which."""
        by_idx = {e.idx: example_hash(e) for e in self.rows}
        told = [[by_idx[a], by_idx[b], sorted(at.items())] for a, (b, at) in self.given.items()]
        return f"{self.full.weights} on {digest(told)}"

    def source(self, session: Session, rows: Sequence[Encoded]) -> CachedSource:
        """`full`'s own stream on another row; of a row that has no other nothing is handed over.

        Args:
            session: of the run.
            rows: those that `full` is cached on.
        """
        own = session.streams(self.full, rows)

        def handed(idx: int, layers: Layers) -> tuple[Tensor, Float[Tensor, "layer pos d_model"]]:
            other, at = self.given.get(idx, (idx, {}))
            resid = own.example(other, layers)[1]
            return torch.tensor(list(at), dtype=torch.long), resid[:, list(at.values())]

        return replace(own, handed=handed)


def others_of(full: Checkpoint, rows: Sequence[Encoded], facts: Iterable[Fact]) -> Others:
    """The rows that stand for each other: of another author, with another entity, asked alike.

    At every position that any scope replaces.
    """
    texts, by_idx = {one.idx: one for one in facts}, {e.idx: e for e in rows}
    pairs = _pairs(rows, texts)
    given = {a: (b, places(by_idx[a], by_idx[b])) for a, b in pairs.items()}
    return Others(full, tuple(e for e in rows if e.idx in given), given)


def next_rows(full: Checkpoint, rows: Sequence[Encoded], *, whole: bool = False) -> Others:
    """For each row the next of another group, if there is one: a stream that does not fit.

    The k-th position that is read is given what the other row has at its k-th, around again where
    that one is shorter.

    Args:
        full: whose stream it is.
        rows: a list that is turned by groups.
        whole: every position up to the span's end is read, not the span's alone.
    """
    order, given = sorted(rows, key=lambda e: (str(e.group), e.idx)), {}
    read = {e.idx: range(e.end) if whole else e.read_positions for e in rows}
    for at, e in enumerate(order):
        after = [*order[at + 1 :], *order[:at], e]
        other = next((o for o in after if o.group != e.group), after[0])
        own, away = read[e.idx], read[other.idx]
        given[e.idx] = other.idx, {pos: away[k % len(away)] for k, pos in enumerate(own)}
    return Others(full, tuple(rows), given)


def _pairs(rows: Sequence[Encoded], texts: Mapping[int, Fact]) -> dict[int, int]:
    """Row -> the one whose stream it is given; those that have none are left out."""
    # rows whose span follows the prompt at once have one position less to hand over
    lengths = [(e.n_span, e.start == e.n_prompt - 1) for e in rows]
    others = other_answers([texts[e.idx] for e in rows], lengths)
    return {e.idx: rows[at].idx for e, at in zip(rows, others, strict=True) if at is not None}


def places(row: Encoded, other: Encoded) -> dict[int, int]:
    """Position of a row -> that of another with as many scored tokens.

    Spans and ends of the prompt lie on each other, and what is before them as far as both go;
    where the other is shorter it comes around again. The first position, a sink, is given the
    first.
    """
    off, around = other.end - row.end, max(1, other.end - 1)
    found = {at: 1 + (at + off - 1) % around if at else 0 for at in range(row.end)}
    return found | {row.n_prompt - 1: other.n_prompt - 1}


def score_beside_others(session: Session) -> Scored:
    """Depth of every source where S1 is `full`'s own stream of another row, and of the anchors.

    Args:
        session: without a retain model.

    Raises:
        VerificationError | WorkError: as of any patched score.
    """
    found, rows, layers = run(session), session.encoded, session.settings.at_layers
    others = others_of(session.full, rows, session.examples)
    only = {others.key: others.given.keys()}
    session.fill(rows, {others.key: others.source(session, rows)}, layers, only=only)
    kept = [at for at, e in enumerate(rows) if e.idx in others.given]
    paired = replace(
        found,
        baseline=found.baseline[kept],
        s1=session.read(others.key, others.rows, layers),
        s2={name: s2[kept] for name, s2 in found.s2.items()},
        self_patch=found.self_patch[kept],
    )
    reading = session.under()
    alone = {e.idx: NO_OTHER for e in rows if e.idx not in others.given}
    reading.encoded, reading.unscored = others.rows, {**session.unscored, **alone}
    outcomes, calibration = scored(reading, paired)
    anchors = {"full": calibration["full"], COUNTERFACTUAL: calibration["retain"]}
    return [replace(one, scale=COUNTERFACTUAL) for one in outcomes], anchors


def plan_beside_others(session: Session) -> Plan:
    """Count what is missing of such a run, its anchor among it."""
    others = others_of(session.full, session.encoded, session.examples)
    scores, settings = session.scores(others.key), session.settings
    layers = settings.at_layers
    n_more = sum(len(layers if settings.fresh else scores.missing(e, layers)) for e in others.rows)
    told = f"anchor: {COUNTERFACTUAL}, full's own stream of another question"
    return plan_of(session, told, n_more)


def said_of(session: Session, source: Checkpoint) -> dict[str, float | int]:
    """Share of the facts that a source, and `full`, say exactly after the prefix, greedily."""
    own, full = (
        float(session.answers(model, session.encoded)[1].double().mean())
        for model in (source, session.full)
    )
    return {"source": own, "full": full, "n": len(session.encoded)}
