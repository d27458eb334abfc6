"""What a run would do: counted from what is already there, nothing loaded or written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.filesize import decimal as size

from lensaudit.activations.spec import Fingerprint
from lensaudit.data.spans import Encoded
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.large.placement import planned_text
from lensaudit.models.sizes import BYTES, sizes_on_disk
from lensaudit.patching.budget import Room
from lensaudit.patching.preflight import planned_engine
from lensaudit.patching.session import Session
from lensaudit.progress import unheard
from lensaudit.settings import Positions

PREFLIGHT_PASSES = 8
"""Forward passes of `full` in `patching.preflight`: four on the longest example, four in which
sweep and oracle are compared."""


@dataclass(frozen=True)
class PatchPlan:
    """Counts of a dry run."""

    n_examples: int
    n_lost: int
    n_layers: int
    n_rows: int
    """(example, source, layer) triples whose score is not in a book yet."""
    n_forward: int
    """Examples to run through a model to fill caches."""
    n_bytes: int
    """Size of the caches still to be written."""
    models: tuple[str, ...]
    weights: str = ""
    """Where those of a model would lie, and what bringing them would cost; empty where none is
    loaded."""
    controls: str = ""
    """What stands beside the score; how much of it is wanted follows from the score."""

    def text(self) -> str:
        """The plan in a few lines."""
        lost = f" ({self.n_lost} unscored: lost in tokenisation)" if self.n_lost else ""
        return "\n".join(
            [
                f"models: {', '.join(self.models)}",
                f"examples: {self.n_examples}{lost}; layers: {self.n_layers}",
                f"to cache: {self.n_forward} forward passes of one example, "
                f"{size(self.n_bytes)} on disk",
                f"to score: {self.n_rows} patched rows (example x source x layer)",
                *(one for one in (self.weights, self.controls) if one),
            ]
        )


def plan_of(session: Session) -> PatchPlan:
    """Count what is missing."""
    rows = _rows_missing(session)
    n_forward = n_bytes = n_caches = 0
    for weights, checkpoint in session.patched_in().items():
        # the sweep reads the clean run of `full` whatever is patched into it
        used = any(rows.values()) if weights == session.full.weights else rows[weights]
        positions = session.options.positions_needed(of_full=weights == session.full.weights)
        if not used or positions is None:
            continue
        forward, more = _cache_missing(session, checkpoint, positions)
        n_forward += forward
        n_caches += forward > 0
        n_bytes += more
    return PatchPlan(
        n_examples=len(session.encoded) + len(session.lost),
        n_lost=len(session.lost),
        n_layers=len(session.options.layers),
        n_rows=sum(rows.values()),
        n_forward=n_forward,
        n_bytes=n_bytes,
        weights=_weights(session, sum(rows.values()), n_forward, n_caches),
        models=tuple(
            f"{role} {checkpoint.spec.name}"
            for role, checkpoint in [
                ("full", session.full),
                ("retain", session.retain),
                *(("source", source) for source in session.sources.values()),
            ]
        ),
    )


def _weights(session: Session, n_rows: int, n_forward: int, n_caches: int) -> str:
    """Of each model alike: they are of one shape. Controls are not counted."""
    if not n_rows and not n_forward:
        return ""
    options, full, encoded = session.options, session.full, session.encoded
    room = Room(sizes_on_disk(full, options.dtype), options, options.engine == "sweep")
    n_sources, n_layers = len(session.patched_in()), len(options.layers)
    n_batches = len(room.batches(encoded, lambda e: n_sources * n_layers, n_sources=n_sources))
    each = 1 if room.sweeps else 1 + n_sources * n_layers
    n_passes = n_caches + (PREFLIGHT_PASSES + n_batches * each if n_rows else 0)
    return planned_text(
        full,
        dtype=options.dtype,
        device=options.device,
        spread=options.memory_bytes if session.spread else None,
        n_passes=n_passes,
    )


def _rows_missing(session: Session) -> dict[str, int]:
    """By source. Rows at KE layers only are known once S1 is; until then all layers are counted."""
    engine = planned_engine(session.full.architecture, session.options, unheard)
    # a fresh cache would be emptied
    kept = replace(session, fresh=False, options=replace(session.options, engine=engine))
    wanted, rows = kept.wanted(), {}
    for weights in session.patched_in():
        lists = (wanted(e, weights) for e in session.encoded)
        if not session.fresh:
            scores = kept.scores(weights)
            lists = (scores.missing(e, wanted(e, weights)) for e in session.encoded)
        rows[weights] = sum(map(len, lists))
    return rows


def _cache_missing(
    session: Session, checkpoint: Checkpoint, positions: Positions
) -> tuple[int, int]:
    """Forward passes and bytes of a cache still to be made."""
    if session.there(checkpoint, positions) is not None:
        return 0, 0
    return len(session.encoded), cache_bytes(
        session.encoded, session.fingerprint(checkpoint, positions)
    )


def cache_bytes(encoded: Sequence[Encoded], fingerprint: Fingerprint) -> int:
    """Bytes of activations a cache holds: one row per layer and, of the stream, the final norm's.

    A row is one token of one example.
    """
    everywhere = fingerprint.positions == "all"
    n_rows = sum(len(e.token_ids if everywhere else e.read_positions) for e in encoded)
    n_normed, width = fingerprint.norm_shape(n_rows)
    return (n_rows * fingerprint.layers + n_normed) * width * BYTES[fingerprint.dtype]
