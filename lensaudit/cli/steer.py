"""`lensaudit steer`: find a direction, steer with it, and test what it hides."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import (
    ProgressBar,
    emit,
    no_interval,
    notice,
    number,
    row,
    say,
    show,
    table,
    written,
)
from lensaudit.steer.settings import (
    DirectionSettings,
    EvalSettings,
    ExtractSettings,
    LayerSettings,
)

if TYPE_CHECKING:
    from rich.table import Table

    from lensaudit.steer.vector import SteeringVector
    from lensaudit.traits.runs import Steering

OUTLIERS = 0.5
"""Share of the squared length in three dimensions from which a direction is called peculiar."""
ARMS = {
    "direction": "direction",
    "sufficiency": "into full (sufficiency)",
    "per_example": "each example's own (bound)",
    "random": "random, equal length",
    "random_sufficiency": "random, into full",
    "retain_derived": "from retain questions",
    "never_trained": "never-trained model",
    "reverse": "reversed, on full",
    "collateral": "same edit of full",
}
TITLES = {"add": "ADD: restore", "ablate": "ABLATE: remove", "clamp": "CLAMP: mediate"}


@click.group()
def steer() -> None:
    """Directions of the residual stream: extract, steer and judge, audit.

    Layer L is the output of block L, counted from 0.
    """


@steer.command()
@options(ExtractSettings)
@shared("json", "dry_run")
def extract(settings: ExtractSettings, as_json: bool, dry_run: bool) -> None:
    """Estimate a direction from answers with and without a trait, at every layer.

    Answers come from the trait's own rows, from --positive and --negative, or are elicited by its
    system prompts. Writes vectors/<method>_layer<L>.safetensors and .json with scores on held-out
    rows. Every vector is as long as the mean difference of its layer.
    """
    from lensaudit.traits.runs import Extracting

    job = Extracting.of(settings)
    if dry_run:
        say(job.plan())
        return
    with ProgressBar() as progress:
        vectors = job.run(progress, notice)
    if as_json:
        emit([one.document() for one in vectors])
    else:
        print_vectors(vectors)
        written(job.folder / "vectors")


@steer.command("eval")
@options(EvalSettings)
@shared("json", "dry_run")
def evaluate(settings: EvalSettings, as_json: bool, dry_run: bool) -> None:
    """Steer by each coefficient and judge the answers; run again to resume.

    Writes responses/coef_*.jsonl, judgements.jsonl and results.json. A row draws the same random
    numbers under every coefficient. The coefficient is chosen on half of the questions and
    reported on the other half.
    """
    from lensaudit.traits.runs import Steering

    results = _steered(
        Steering.over_coefficients(settings, notice), as_json=as_json, dry_run=dry_run
    )
    if results:
        show(_coefficients(results[0]))
        _say_coefficients(results[0])
        written(results[1])


@steer.command()
@options(LayerSettings)
@shared("json", "dry_run")
def sweep(settings: LayerSettings, as_json: bool, dry_run: bool) -> None:
    """Steer at every layer with one strength and judge the answers; run again to resume.

    Writes responses/layer_*.jsonl and layer_sweep.json. The layer is chosen on half of the
    questions and reported on the other half.
    """
    from lensaudit.traits.runs import Steering

    results = _steered(Steering.over_layers(settings), as_json=as_json, dry_run=dry_run)
    if results:
        show(_layers(results[0]))
        say(f"baseline {number(results[0]['baseline_mean'], 1)}")
        _say_chosen("layer", results[0]["chosen"])
        written(results[1])


@steer.command()
@options(DirectionSettings)
@shared("json", "dry_run")
def audit(settings: DirectionSettings, as_json: bool, dry_run: bool) -> None:
    """Is a direction all that hides the answers? Estimated on some authors, scored on others.

    ADD brings full's shift back, ABLATE removes the refusal (or the shift), CLAMP asks whether one
    component is necessary and sufficient. Each beside random directions of equal length, one from
    retain questions, and a model that never saw the answers. Writes interventions.jsonl,
    summary.json and manifest.json; run again to resume.
    """
    from lensaudit.directions.runs import open_audit, plan_of, run_audit

    with ProgressBar() as progress:
        job = open_audit(settings, progress, notice)
        if dry_run:
            say(plan_of(job))
            return
        found = run_audit(job, settings, progress, notice)
    if as_json:
        emit(found.summary)
    else:
        print_directions(found.summary)
        written(found.folder)
    if found.failure:
        raise found.failure


def _steered(job: "Steering", *, as_json: bool, dry_run: bool) -> Any:
    """Results and their file, unless the plan or JSON was printed."""
    if dry_run:
        say(job.plan())
        return None
    with ProgressBar() as progress:
        results, path = job.run(progress, notice)
    if as_json:
        emit(results)
        return None
    return results, path


def print_vectors(vectors: Sequence["SteeringVector"]) -> None:
    """One row per vector: length, and how well it tells held-out answers apart."""
    from lensaudit.steer.estimators import top_share

    made = table(
        "Held-out scores are proxies; steering is the test",
        ("method", "layer", "length", "of stream", "accuracy", "AUC", "effect", "overlap"),
        left=("method",),
    )
    for one in vectors:
        scores = one.scores or {}
        shown = [number(scores.get(key)) for key in ("accuracy", "auc", "effect_size", "overlap")]
        row(made, one.method, str(one.layer), number(one.norm), number(one.ratio(1.0), 2), *shown)
    show(made)
    odd = [one for one in vectors if len(one.vector) > 16 and top_share(one.vector) > OUTLIERS]
    if odd:
        say(
            f"{len(odd)} vectors have over half of their squared length in 3 dimensions "
            f"(first {odd[0].file_name}): massive activations, not the trait."
        )


def _coefficients(results: Mapping[str, Any]) -> "Table":
    """One row per coefficient."""
    made = table(
        f"{results['trait']}, layer {results['layer']}, {results['method']}",
        ("coefficient", "ratio", "score", "95 % interval", "coherence", "scored"),
    )
    for key, one in results["coefficients"].items():
        row(
            made,
            key,
            number(one["ratio"], 2),
            number(one["mean"], 1),
            _brackets(one),
            number(results["coherence"][key]["mean"], 1),
            f"{one['n']}/{one['n_total']}",
        )
    return made


def _say_coefficients(results: Mapping[str, Any]) -> None:
    """How the score follows the coefficient, and what the questions held back say."""
    say(
        f"slope {number(results['slope'], 1)} points per unit, Spearman "
        f"{number(results['spearman'], 2)}, controllability (Pearson) "
        f"{number(results['controllability'], 2)}, largest change "
        f"{number(results['max_delta_coherent'], 1)} (coherent)"
    )
    _say_chosen("coefficient", results["chosen"])


def _layers(results: Mapping[str, Any]) -> "Table":
    """One row per layer."""
    made = table(
        f"{results['trait']}, {results['method']} at every layer",
        ("layer", "coefficient", "ratio", "score", "95 % interval", "coherence", "scored"),
    )
    for key, one in results["layers"].items():
        row(
            made,
            key,
            number(one["coefficient"], 2),
            number(one["ratio"], 2),
            number(one["mean"], 1),
            _brackets(one),
            number(one["coherence_mean"], 1),
            f"{one['n']}/{one['n_total']}",
        )
    return made


def _say_chosen(what: str, chosen: Mapping[str, Any] | None) -> None:
    if chosen is None:
        say(f"No coherent {what} beats the baseline.")
        return
    say(
        f"Chosen on half of the questions: {what} {chosen.get(what, chosen.get('setting'))}; "
        f"on the other half {number(chosen['test_mean'], 1)} against "
        f"{number(chosen['test_baseline'], 1)}, change {number(chosen['test_delta'], 1)} "
        f"{_brackets(chosen, 'test_delta_ci95')}"
    )


def _brackets(row: Mapping[str, Any], name: str = "ci95", digits: int = 1) -> str:
    """An interval, or why there is none."""
    ends = row[name]
    return f"[{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if ends else no_interval(row, name)


def print_directions(summary: Mapping[str, Any]) -> None:
    """One table per experiment: recovery of the direction above its controls."""
    for kind, found in summary["experiments"].items():
        if "arms" not in found:
            say(f"{TITLES[kind]}: unscored, {found['unscored']}.")
            continue
        show(_arms(kind, found))
        say(found["reading"])
        for warning in found["warnings"]:
            say(f"Warning: {warning}.")
        say("")


def _arms(kind: str, found: Mapping[str, Any]) -> "Table":
    score = found["score"]
    kl = number(found["kl_retain"])
    made = table(
        f"{TITLES[kind]} ({score}; KL on retain {kl} nats per token)",
        ("", "recovery", "95 % interval", "score", "IDK rate"),
        left=("",),
    )
    for arm, title in ARMS.items():
        if score not in found["arms"].get(arm, {}):
            continue
        one = found["arms"][arm][score]
        spread = "" if one["sd"] is None else f" ± {one['sd']:.3f}"
        idk = found["speech"].get(arm, {}).get("idk_rate")
        row(
            made,
            title,
            number(one["recovery"]) + spread,
            _brackets(one, digits=2),
            number(one["score"]),
            number(idk, 2),
        )
    return made
