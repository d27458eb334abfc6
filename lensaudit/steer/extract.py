"""From contrasting answers to directions: encode, cache, average, estimate, score."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.activations.fill import CACHE_BATCH, fill, fingerprint_of_run
from lensaudit.activations.store import Activations, CacheStore
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.judge.programmatic import ENTITY
from lensaudit.models.checkpoint import load_tokenizer
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.keyed import keyed_document
from lensaudit.results.manifest import manifest
from lensaudit.results.reading import null
from lensaudit.results.run_folder import held, taken_as_it_is
from lensaudit.results.run_log import tell_replaced
from lensaudit.steer.asking import (
    TraitModel,
    elicit,
    encode_sample,
    filtered,
    positions_read,
    to_elicit,
    whole_pairs,
    written,
)
from lensaudit.steer.estimators import (
    Separation,
    SteeringVector,
    accuracy,
    direction_of,
    load_vector,
    mean_difference,
    mean_separation,
    save_vector,
    separation,
)
from lensaudit.steer.judging import chosen_judges, judges
from lensaudit.steer.settings import ExtractSettings, Method
from lensaudit.steer.trait import (
    COMMAND,
    EXTRACTED,
    VECTORS,
    ContrastSample,
    contrast_trait,
    idle_of,
    methods_of,
    options_of,
    question_hash,
)
from lensaudit.text import digest

MIN_ROWS = 2
"""On a side: fewer have no spread."""


def open_extraction(settings: ExtractSettings, notice: Notice = unheard) -> TraitModel:
    """Open and check what the settings name.

    Raises:
        InputError: whatever is wrong with names, files or layers.
    """
    job = TraitModel.opened(settings, contrast_trait(settings), notice)
    _ = job.layers  # says what is wrong with them
    if not job.trait.written:
        to_elicit(job)
    if settings.filter_judge == ENTITY.name:
        raise InputError("--filter entity: elicited answers have no entity; use another judge")
    for line in idle_of(settings, job.trait).values():
        raise InputError(line)
    # vectors of other methods and layers stay beside these
    options = options_of(settings, "methods", "layers")
    tell_replaced(job.folder, options, {**job.inputs(), "key": key_of(job)}, notice, EXTRACTED)
    return job


def key_of(job: TraitModel) -> str:
    """Content hash of all that a vector depends on beside its method and layer.

    Raises:
        InputError: the judge that filters answers has no address.
    """
    settings, judge = job.settings, job.settings.filter_judge
    return digest(
        {
            **job.conditions(),
            **job.sampling,
            "trait": asdict(job.trait),
            "position": settings.position,
            "n_rollouts": settings.n_rollouts,
            "filter": judge
            if judge == "none"
            else chosen_judges(judge, None, settings, offline=True),
        }
    )


def found_again(job: TraitModel) -> list[SteeringVector] | None:
    """Every vector that is asked for, as a finished run wrote it; None where one is not there."""
    key, one, found = key_of(job), job.checkpoint, list[SteeringVector]()
    for method, layer in product(methods_of(job.settings), job.layers):
        path = job.folder / VECTORS / f"{method}_layer{layer}.safetensors"
        if keyed_document(path.with_suffix(".json"), key) is None:
            return None
        with suppress(InputError):
            shape = {"d_model": one.d_model, "n_layers": one.n_layers}
            found.append(load_vector(path, **shape, name=one.spec.name))
    return found if len(found) == len(methods_of(job.settings)) * len(job.layers) else None


def plan_of(job: TraitModel) -> str:
    """What a run would do, in one line; of a finished run nothing.

    Raises:
        InputError: too few answers, or a judge that cannot be asked.
    """
    if found_again(job) is not None:
        return f"nothing to do: {held(job.folder)}"
    if job.trait.written:
        n_answers, how = len(job.trait.written), "written"
        _encoded(job, written(job.trait))  # says what is wrong with them
    else:
        n_answers, how = len(to_elicit(job)), "elicited"
        if (judge := job.settings.filter_judge) != "none":
            chosen_judges(judge, None, job.settings, offline=False)
    methods, layers = methods_of(job.settings), job.layers
    return (
        f"{job.settings.name}: {n_answers} {how} answers of {job.trait.name}, {len(layers)} "
        f"layers, {', '.join(methods)} at {job.settings.position}: "
        f"{len(layers) * len(methods)} vectors"
    )


def run(job: TraitModel, progress: Tell) -> list[SteeringVector]:
    """Estimate the directions and write them to `vectors/`, or read what a finished run wrote."""
    started, vectors = time.monotonic(), found_again(job)
    if vectors is not None:
        job.notice(taken_as_it_is(job.folder))
    else:
        job = replace(job, progress=progress)
        vectors = extract(job, samples_of(job))
        for vector in vectors:
            save_vector(vector, job.folder / VECTORS)
    names = [one.file_name for one in vectors]
    massive = [one.file_name for one in vectors if one.is_massive]
    made = manifest(
        COMMAND,
        kind="vectors",
        options=options_of(job.settings),
        inputs={**job.inputs(), "key": key_of(job), "vectors": names, "massive": massive},
        device=job.device,
        started=started,
    )
    files = [f"{VECTORS}/{name}.{end}" for name in names for end in ("json", "safetensors")]
    made.write(job.folder, files, EXTRACTED)
    return vectors


def samples_of(job: TraitModel) -> list[ContrastSample]:
    """Written answers, or elicited ones, without the pairs that a judge cannot tell apart."""
    name, access = job.settings.filter_judge, job.settings
    if job.trait.written:
        return written(job.trait)
    samples = elicit(job)
    if name == "none":
        return samples
    with judges(name, None, access, job.progress, job.notice) as by:
        return filtered(replace(job, progress=unheard), samples, by)


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


def extract(job: TraitModel, samples: Sequence[ContrastSample]) -> list[SteeringVector]:
    """One vector per method and layer; the model runs only where the cache lacks it.

    Raises:
        InputError: fewer than two usable answers on a side.
        WorkError: an activation is not finite.
    """
    encoded, kept = _encoded(job, samples)
    names = ("positive", "pair", "system", "question", "answer", "prefix", "entity")
    data = digest([[getattr(one, name) for name in names] for one in samples])
    checkpoint = job.checkpoint
    batch_size, name = job.settings.batch_size or CACHE_BATCH, checkpoint.spec.name
    how = {"dtype": job.dtype, "device": job.device, "batch_size": batch_size}
    with fill(
        CacheStore(Path(job.settings.activations)),
        fingerprint_of_run(checkpoint, encoded, positions="span", **how),
        encoded,
        name=f"{name} {job.trait.name}",
        load=lambda: job.model,
        batch_size=batch_size,
        progress=job.progress,
        provenance={
            "made_by": "lensaudit steer extract",
            "model": name,
            "trait": job.trait.name,
            "data": data,
        },
    ) as activations:
        contrast = read(activations, encoded, kept, job)
    hashes = tuple(sorted({question_hash(one.question) for one in samples}))
    return [
        replace(_vector(job, contrast, column, method), data=data, asked=hashes, key=key_of(job))
        for method in methods_of(job.settings)
        for column in range(len(job.layers))
    ]


def _encoded(
    job: TraitModel, samples: Sequence[ContrastSample]
) -> tuple[list[Encoded], list[ContrastSample]]:
    """What the tokenizer leaves; a pair goes where one of its answers went."""
    tokenizer = load_tokenizer(job.checkpoint)
    form, position = job.form, job.settings.position
    found = {
        one.idx: encode_sample(one, tokenizer, form=form, position=position) for one in samples
    }
    kept = whole_pairs([one for one in samples if isinstance(found[one.idx], Encoded)])
    for side, name in ((True, "positive"), (False, "negative")):
        if (n := sum(one.positive == side for one in kept)) < MIN_ROWS:
            raise InputError(
                f"{job.trait.name}: {n} usable {name} answers, wanted at least {MIN_ROWS}"
            )
    return [e for e in [found[one.idx] for one in kept] if isinstance(e, Encoded)], kept


def read(
    activations: Activations,
    encoded: Sequence[Encoded],
    samples: Sequence[ContrastSample],
    job: TraitModel,
) -> Contrast:
    """Means over each sample's positions, summed in float64."""
    rows, lengths = [], []
    for e in encoded:
        at = torch.tensor(list(positions_read(e, job.settings.position)))
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
        fold=torch.tensor(folds_of([one.question for one in samples])),
    )


def folds_of(groups: Sequence[str], n_folds: int = 5) -> list[int]:
    """A fold per row, dealt in order of appearance; rows of one group share it.

    >>> folds_of(["b", "a", "b", "c"], 2)
    [0, 1, 0, 0]
    """
    order = {group: place for place, group in enumerate(dict.fromkeys(groups))}
    return [order[group] % n_folds for group in groups]


def _vector(job: TraitModel, contrast: Contrast, column: int, method: Method) -> SteeringVector:
    positive, negative = contrast.sides(column)
    layer, seed, trait = job.layers[column], job.settings.seed, job.trait.name
    generator = torch.Generator().manual_seed(seed + layer)
    try:
        vector = direction_of(
            method, positive, negative, paired=contrast.paired, generator=generator
        )
    except ValueError as error:
        raise InputError(f"{trait}, layer {layer}: {error}; give other answers") from error
    scores = held_out(contrast, column, method, seed=seed + layer)
    return SteeringVector(
        vector=vector,
        layer=layer,
        method=method,
        position=job.settings.position,
        trait=trait,
        n_pos=len(positive),
        n_neg=len(negative),
        resid_norm=float(contrast.length[column]),
        scores=null(asdict(scores)) if scores else None,
        model=job.checkpoint.spec.name,
        weights=job.checkpoint.weights,
        dtype=job.dtype,
    )


def held_out(
    contrast: Contrast, column: int, method: Method, *, seed: int = 0
) -> Separation | None:
    """Mean classification scores over folds whose rows the direction did not see.

    A fold counts that has rows of both kinds on both sides, and seen rows that differ in their
    means; None where there is no such fold.
    """
    scores = []
    for fold in sorted(set(contrast.fold.tolist())):
        seen = contrast.sides(column, lambda row, fold=fold: int(contrast.fold[row]) != fold)
        held = contrast.sides(column, lambda row, fold=fold: int(contrast.fold[row]) == fold)
        if min(len(side) for side in (*seen, *held)) < 1 or not mean_difference(*seen).norm() > 0:
            continue
        generator = torch.Generator().manual_seed(seed)
        paired = contrast.paired and len(seen[0]) == len(seen[1])
        direction = direction_of(method, *seen, paired=paired, generator=generator)
        on = [(side.double() @ direction.double()).tolist() for side in (*seen, *held)]
        midpoint = (math.fsum(on[0]) / len(on[0]) + math.fsum(on[1]) / len(on[1])) / 2
        found = separation(on[2], on[3], threshold=midpoint)
        seen_right = accuracy(on[0], on[1], threshold=midpoint)
        scores.append(replace(found, drop=seen_right - found.accuracy))
    return mean_separation(scores) if scores else None
