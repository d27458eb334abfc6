"""At which layer does a direction steer best? One strength at every layer, judged alike.

The strength is equal as a share of the stream's length, not as a coefficient: streams and
directions grow from layer to layer.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.patching.interventions import strength_of
from lensaudit.steer.outcome import COHERENT_FROM, Level, chosen_on_dev, strongest
from lensaudit.steer.settings import LayerSettings
from lensaudit.steer.vector import LAYER_CONVENTION, SteeringVector
from lensaudit.traits.evaluate import (
    Evaluation,
    Setting,
    check_asked,
    check_judged,
    described,
    levels_of,
)

SCHEMA = "steer-sweep/1"
RATIO = LayerSettings.ratio
BASELINE = "baseline"


def sweep(
    job: Evaluation,
    vectors: Sequence[SteeringVector],
    *,
    ratio: float | None = RATIO,
    coefficient: float | None = None,
) -> dict[str, Any]:
    """Steer at every vector's layer, and write `layer_sweep.json` into `job.out`.

    Args:
        job: what is asked; the baseline has as many rollouts as the layers.
        vectors: one per layer.
        ratio: length of what is added over that of the stream; each layer has its own coefficient.
        coefficient: the same for all layers, in place of a ratio.

    Raises:
        InputError: no vectors, two of one layer, or one without the stream's length.
        PartialError: some answers could not be judged; the rest is written.
    """
    by_layer = _by_layer(vectors)
    for vector in vectors:
        check_asked(job.trait, vector)
    at = {
        layer: vector_strength(vector, ratio=ratio, coefficient=coefficient)
        for layer, vector in by_layer.items()
    }
    settings = [Setting(BASELINE, next(iter(by_layer.values())), 0.0)]
    settings += [Setting(f"layer_{layer}", by_layer[layer], at[layer]) for layer in by_layer]
    base, *levels = levels_of(job, settings)
    found = dict(zip(by_layer, levels, strict=True))
    results = {
        "schema": SCHEMA,
        "trait": job.trait.name,
        "method": next(iter(by_layer.values())).method,
        "layer_convention": LAYER_CONVENTION,
        "positions": job.where,
        "coefficient": coefficient,
        "ratio": None if coefficient is not None else ratio,
        "n_questions": len(job.questions),
        "rollouts": job.n_rollouts,
        **_numbers(job, base, found, at, by_layer),
        **described(job),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_json(job.out / "layer_sweep.json", results)
    check_judged([base, *levels], job)
    return results


def vector_strength(
    vector: SteeringVector, *, ratio: float | None, coefficient: float | None
) -> float:
    """The coefficient of a layer.

    Raises:
        InputError: a ratio is wanted and the vector's file does not know the stream's length.
    """
    if coefficient is not None:
        return coefficient
    if not vector.resid_norm:
        raise InputError(
            f"vector {vector.file_name}: its file gives no length of the stream; use --coefficient"
        )
    return strength_of(
        RATIO if ratio is None else ratio, vector.vector, resid_norm=vector.resid_norm
    )


def _by_layer(vectors: Sequence[SteeringVector]) -> dict[int, SteeringVector]:
    by_layer = {vector.layer: vector for vector in sorted(vectors, key=lambda v: v.layer)}
    if not vectors or len(by_layer) < len(vectors):
        raise InputError(f"sweep: found {len(vectors)} vectors, wanted one for each of some layers")
    return by_layer


def _numbers(
    job: Evaluation,
    base: Level,
    found: Mapping[int, Level],
    at: Mapping[int, float],
    by_layer: Mapping[int, SteeringVector],
) -> dict[str, Any]:
    """What the layers say; the best ones, and what was chosen on one half of the questions."""
    polarity, baseline = job.trait.polarity, base.mean
    layers = {
        str(layer): {
            "layer": layer,
            "coefficient": at[layer],
            "trait_mean": level.mean,
            "trait_std": level.document(baseline=None, ratio=None)["std"],
            "coherence_mean": level.coherence,
            **level.document(baseline=baseline, ratio=by_layer[layer].ratio(at[layer])),
        }
        for layer, level in found.items()
    }
    best = strongest({float(layer): level for layer, level in found.items()}, polarity)
    sound = {float(layer): level for layer, level in found.items() if level.coherent}
    best_sound = strongest(sound, polarity)
    score = None if best is None else found[int(best)].mean
    return {
        "baseline_mean": baseline,
        "baseline_coherence": base.coherence,
        "layers": layers,
        "best_layer": None if best is None else int(best),
        "best_score": score,
        "delta_from_baseline": None if score is None or baseline is None else score - baseline,
        "coherence_warnings": [layer for layer, level in found.items() if not level.coherent],
        "coherence_threshold": COHERENT_FROM,
        "best_layer_coherent": None if best_sound is None else int(best_sound),
        "chosen": _chosen(job, base, found),
    }


def _chosen(job: Evaluation, base: Level, found: Mapping[int, Level]) -> dict[str, Any] | None:
    """The layer that half of the questions chooses, on the other half; None: the baseline wins."""
    # 0 is the baseline's key there, so layers are counted from 1
    levels = {0.0: base} | {float(layer + 1): level for layer, level in found.items()}
    chosen = chosen_on_dev(
        levels, job.questions, polarity=job.trait.polarity, seed=job.sampling.seed
    )
    if chosen is None or chosen["setting"] == 0.0:
        return None
    return {"layer": int(chosen.pop("setting")) - 1, **chosen}
