"""From contrasting answers to directions: encode, cache, average, estimate, score."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.activations.fill import fill, fingerprint_of_run
from lensaudit.activations.store import Activations, ActivationStore
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.models.bridge import DTYPES, TransformerBridge, load
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer
from lensaudit.progress import Tick
from lensaudit.steer.estimators import Method, Separation, direction_of, mean_separation, separation
from lensaudit.steer.generate import Format
from lensaudit.steer.trait import (
    ContrastSample,
    Position,
    encode_sample,
    positions_read,
    question_hash,
    samples_hash,
    whole_pairs,
)
from lensaudit.steer.vector import SteeringVector, finite

N_FOLDS = 5
MIN_ROWS = 2
"""On a side: fewer have no spread."""


@dataclass(frozen=True)
class Extraction:
    """What is extracted, from which model, and how."""

    checkpoint: Checkpoint
    samples: tuple[ContrastSample, ...]
    trait: str
    methods: tuple[Method, ...]
    layers: tuple[int, ...]
    position: Position = "response"
    form: Format = "chat"
    dtype: str = "float32"
    device: str = "cpu"
    batch_size: int = 16
    seed: int = 0
    root: Path = Path("activations")


@dataclass(frozen=True)
class Contrast:
    """One mean activation per sample, at every layer asked for."""

    resid: Float[Tensor, "sample layer d_model"]
    length: Float[Tensor, " layer"]
    """Mean length of the stream at the positions that were averaged."""
    positive: tuple[int, ...]
    """Rows with the trait; paired with `negative` in order where `paired`."""
    negative: tuple[int, ...]
    paired: bool
    fold: Int[Tensor, " sample"]
    """Which fold a sample is held out in; answers of one question share it."""

    def sides(
        self, column: int, keep: Callable[[int], bool] = lambda row: True
    ) -> tuple[Float[Tensor, "_ d_model"], Float[Tensor, "_ d_model"]]:
        """Positive and negative rows of one layer that are kept."""
        at = self.resid[:, column]
        chosen = [[row for row in side if keep(row)] for side in (self.positive, self.negative)]
        return at[chosen[0]], at[chosen[1]]


def extract(job: Extraction, progress: Tick | None = None) -> list[SteeringVector]:
    """One vector per method and layer; the model runs only where the cache lacks it.

    Raises:
        InputError: fewer than two usable answers on a side.
        WorkError: an activation is not finite.
    """
    encoded, samples = _encoded(job)
    activations = _cached(job, encoded, progress)
    try:
        contrast = read(activations, encoded, samples, job)
    finally:
        activations.close()
    return [
        _vector(job, contrast, column, method)
        for method in job.methods
        for column in range(len(job.layers))
    ]


def _encoded(job: Extraction) -> tuple[list[Encoded], list[ContrastSample]]:
    """What the tokenizer leaves; a pair goes where one of its answers went."""
    tokenizer = load_tokenizer(job.checkpoint)
    found = {
        one.idx: encode_sample(one, tokenizer, form=job.form, position=job.position)
        for one in job.samples
    }
    kept = whole_pairs([one for one in job.samples if isinstance(found[one.idx], Encoded)])
    for side, name in ((True, "positive"), (False, "negative")):
        if (n := sum(one.positive == side for one in kept)) < MIN_ROWS:
            raise InputError(f"{job.trait}: {n} usable {name} answers, wanted at least {MIN_ROWS}")
    encoded = [found[one.idx] for one in kept]
    return [e for e in encoded if isinstance(e, Encoded)], kept


def _cached(job: Extraction, encoded: Sequence[Encoded], progress: Tick | None) -> Activations:
    fingerprint = fingerprint_of_run(
        job.checkpoint,
        encoded,
        positions="span",
        dtype=job.dtype,
        device=job.device,
        batch_size=job.batch_size,
    )

    def loaded() -> TransformerBridge:
        return load(job.checkpoint, dtype=DTYPES[job.dtype], device=job.device)

    name = job.checkpoint.spec.name
    return fill(
        ActivationStore(job.root),
        fingerprint,
        encoded,
        name=f"{name} {job.trait}",
        load=loaded,
        batch_size=job.batch_size,
        progress=progress,
        provenance={
            "made_by": "lensaudit steer extract",
            "model": name,
            "trait": job.trait,
            "data": samples_hash(job.samples),
        },
    )


def read(
    activations: Activations,
    encoded: Sequence[Encoded],
    samples: Sequence[ContrastSample],
    job: Extraction,
) -> Contrast:
    """Means over each sample's positions, summed in float64."""
    rows, lengths = [], []
    for e in encoded:
        at = torch.tensor(list(positions_read(e, job.position)))
        resid = activations.example(e.idx, layers=job.layers).at(at).resid.double()
        rows.append(resid.mean(1).float())
        lengths.append(resid.norm(dim=-1).mean(1))
    order = sorted(range(len(samples)), key=lambda row: (samples[row].pair or 0, row))
    sides = [[row for row in order if samples[row].positive == side] for side in (True, False)]
    return Contrast(
        resid=torch.stack(rows),
        length=torch.stack(lengths).mean(0).float(),
        positive=tuple(sides[0]),
        negative=tuple(sides[1]),
        paired=all(one.pair is not None for one in samples) and len(sides[0]) == len(sides[1]),
        fold=torch.tensor(folds_of([one.group for one in samples])),
    )


def folds_of(groups: Sequence[str], n_folds: int = N_FOLDS) -> list[int]:
    """A fold per row, dealt in order of appearance; rows of one group share it.

    >>> folds_of(["b", "a", "b", "c"], 2)
    [0, 1, 0, 0]
    """
    order = {group: place for place, group in enumerate(dict.fromkeys(groups))}
    return [order[group] % n_folds for group in groups]


def _vector(job: Extraction, contrast: Contrast, column: int, method: Method) -> SteeringVector:
    positive, negative = contrast.sides(column)
    layer = job.layers[column]
    generator = torch.Generator().manual_seed(job.seed + layer)
    try:
        vector = direction_of(
            method, positive, negative, paired=contrast.paired, generator=generator
        )
    except ValueError as error:
        raise InputError(f"{job.trait}, layer {layer}: {error}; give other answers") from error
    scores = held_out(contrast, column, method, seed=job.seed + layer)
    return SteeringVector(
        vector=vector,
        layer=layer,
        method=method,
        position=job.position,
        trait=job.trait,
        n_pos=len(positive),
        n_neg=len(negative),
        resid_norm=float(contrast.length[column]),
        scores=finite(scores) if scores else None,
        model=job.checkpoint.spec.name,
        weights=job.checkpoint.weights,
        data=samples_hash(job.samples),
        dtype=job.dtype,
        asked=tuple(sorted({question_hash(one.row.question) for one in job.samples})),
    )


def held_out(
    contrast: Contrast, column: int, method: Method, *, seed: int = 0
) -> Separation | None:
    """Mean classification scores over folds whose rows the direction did not see.

    None where no fold leaves rows of both kinds on both sides.
    """
    scores = []
    for fold in sorted(set(contrast.fold.tolist())):
        seen = contrast.sides(column, lambda row, fold=fold: int(contrast.fold[row]) != fold)
        held = contrast.sides(column, lambda row, fold=fold: int(contrast.fold[row]) == fold)
        if min(len(side) for side in (*seen, *held)) < 1:
            continue
        generator = torch.Generator().manual_seed(seed)
        paired = contrast.paired and len(seen[0]) == len(seen[1])
        direction = direction_of(method, *seen, paired=paired, generator=generator)
        on = [(side.double() @ direction.double()).tolist() for side in (*seen, *held)]
        midpoint = (math.fsum(on[0]) / len(on[0]) + math.fsum(on[1]) / len(on[1])) / 2
        scores.append(separation(on[2], on[3], threshold=midpoint))
    return mean_separation(scores) if scores else None
