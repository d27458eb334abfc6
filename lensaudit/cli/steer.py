"""`lensaudit steer`: find a direction, steer with it, and test what it hides."""

from typing import TYPE_CHECKING, Any

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import ProgressBar, answer, notice, say
from lensaudit.steer.settings import (
    DirectionSettings,
    EvalSettings,
    ExtractSettings,
    LayerSettings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lensaudit.screen.tables import Part
    from lensaudit.steer.evaluate import Steering


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
    from lensaudit.screen.steer import of_vectors
    from lensaudit.steer.extract import Extraction

    job = Extraction.of(settings)
    if dry_run:
        say(job.plan())
        return
    with ProgressBar() as progress:
        vectors = job.run(progress, notice)
    document = [one.document() for one in vectors]
    answer(document, of_vectors(vectors), job.folder / "vectors", as_json=as_json)


@steer.command("eval")
@options(EvalSettings)
@shared("json", "dry_run")
def evaluate(settings: EvalSettings, as_json: bool, dry_run: bool) -> None:
    """Steer by each coefficient and judge the answers; run again to resume.

    Writes responses/coef_*.jsonl, judgements.jsonl and results.json. A row draws the same random
    numbers under every coefficient. The coefficient is chosen on half of the questions and
    reported on the other half.
    """
    from lensaudit.screen.steer import of_coefficients
    from lensaudit.steer.evaluate import Steering

    job = Steering.over_coefficients(settings, notice)
    _steered(job, of_coefficients, as_json=as_json, dry_run=dry_run)


@steer.command()
@options(LayerSettings)
@shared("json", "dry_run")
def sweep(settings: LayerSettings, as_json: bool, dry_run: bool) -> None:
    """Steer at every layer with one strength and judge the answers; run again to resume.

    Writes responses/layer_*.jsonl and layer_sweep.json. The layer is chosen on half of the
    questions and reported on the other half.
    """
    from lensaudit.screen.steer import of_layers
    from lensaudit.steer.evaluate import Steering

    _steered(Steering.over_layers(settings), of_layers, as_json=as_json, dry_run=dry_run)


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
    from lensaudit.directions.audit import check_scored, open_audit, plan_of, run_audit
    from lensaudit.screen.steer import of_directions

    job = open_audit(settings, notice)
    if dry_run:
        say(plan_of(job))
        return
    with ProgressBar() as progress:
        summary, folder = run_audit(job, progress, notice)
    answer(summary, of_directions(summary), folder, as_json=as_json)
    check_scored(summary)


def _steered(
    job: "Steering",
    shown: "Callable[[Any], Iterable[Part]]",
    *,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Run a job, or print its plan."""
    if dry_run:
        say(job.plan())
        return
    with ProgressBar() as progress:
        results, path = job.run(progress, notice)
    answer(results, shown(results), path, as_json=as_json)
