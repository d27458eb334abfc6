"""Directions of the residual stream: `steer extract`, `eval`, `sweep`, `cross`, `audit`."""

from dataclasses import asdict
from importlib.util import find_spec
from typing import Literal

import click

from lensaudit.cli import library
from lensaudit.cli.options import SettingOption, options, shared
from lensaudit.cli.terminal import answer, looked_up, notice, say
from lensaudit.steer.settings import (
    CrossSettings,
    DirectionSettings,
    EvalSettings,
    ExtractSettings,
    LayerSettings,
)


@click.group("steer")
def steer_command() -> None:
    """Directions of the residual stream: extract, steer and judge, audit.

    Layer L is the output of block L, counted from 0.
    """


@steer_command.command("extract")
@options(ExtractSettings)
@shared("json", "dry_run")
def steer_extract(settings: ExtractSettings, as_json: bool, dry_run: bool) -> None:
    """Estimate a direction from answers with and without a trait, at every layer.

    Answers come from the trait's own rows, from --positive and --negative, or are elicited by its
    system prompts. Writes vectors/<method>_layer<L>.safetensors and .json with scores on held-out
    rows. Every vector has the length of the mean difference of its layer.
    """
    if dry_run:
        job = library.steer_extract.open_extraction(settings, notice)
        say(library.steer_extract.plan_of(job))
        return
    found = looked_up(lambda: library.doors_steering.extracted, settings)
    shown = library.screen_steer.of_vectors(found.documents, found.massive)
    answer(found.documents, shown, found.folder, as_json=as_json)


@steer_command.command("eval")
@options(EvalSettings)
@shared("json", "dry_run")
def steer_eval(settings: EvalSettings, as_json: bool, dry_run: bool) -> None:
    """Steer by each coefficient and judge the answers; run again to resume.

    Writes responses/coef_*.jsonl, judgements.jsonl and results.json. A row draws the same random
    numbers under every coefficient. The coefficient is chosen on half of the questions and
    reported on the other half.
    """
    _steered(settings, "of_coefficients", as_json=as_json, dry_run=dry_run)


@steer_command.command("sweep")
@options(LayerSettings)
@click.option(
    "--report",
    cls=SettingOption,
    is_flag=True,
    help="Also report which layer held-out scores choose, over this trait and those beside it.",
)
@shared("json", "dry_run")
def steer_sweep(settings: LayerSettings, report: bool, as_json: bool, dry_run: bool) -> None:
    """Steer at every layer with one strength and judge the answers; run again to resume.

    Writes responses/layer_*.jsonl and layer_sweep.json. The layer is chosen on half of the
    questions and reported on the other half.
    """
    _steered(settings, "of_layers", as_json=as_json, dry_run=dry_run, report=report)


@steer_command.command("cross")
@options(CrossSettings)
@shared("json", "dry_run")
def steer_cross(settings: CrossSettings, as_json: bool, dry_run: bool) -> None:
    """Steer each trait and judge every other; run again to resume.

    Each trait is asked its own questions: without steering, under each trait's direction as `steer
    eval` or `steer sweep` chose it, and under random ones of equal length. Writes traits.json and,
    with matplotlib, traits.pdf and traits.png.
    """
    if dry_run:
        say(library.steer_crossing.open_crossing(settings, notice).plan())
        return
    matrix, path = looked_up(lambda: library.doors_steering.crossed, settings)
    document = library.results_reading.document(matrix)
    answer(document, library.screen_steer.of_traits(matrix), path, as_json=as_json)
    if find_spec("matplotlib"):
        library.doors_figures.write_figures([path.parent], path.parent)


@steer_command.command("audit")
@options(DirectionSettings)
@shared("json", "dry_run")
def steer_audit(settings: DirectionSettings, as_json: bool, dry_run: bool) -> None:
    """Is a direction all that hides the answers? Estimated on some authors, scored on others.

    ADD brings full's shift back, ABLATE removes the refusal (or the shift), CLAMP asks whether one
    component is necessary and sufficient. Each is compared with random directions of equal length,
    one from retain questions, and a model that never saw the answers. Writes interventions.jsonl,
    summary.json and manifest.json; run again to resume.
    """
    if dry_run:
        say(library.steer_audit.plan_of(library.steer_audit.open_audit(settings, notice)))
        return
    found = looked_up(lambda: library.doors_steering.directed, settings)
    answer(
        found.summary,
        library.screen_steer.of_directions(found.record),
        found.folder,
        as_json=as_json,
    )
    library.doors_steering.check_scored(found.record)


def _steered(
    settings: EvalSettings | LayerSettings,
    shown: Literal["of_coefficients", "of_layers"],
    *,
    as_json: bool,
    dry_run: bool,
    report: bool = False,
) -> None:
    """Steer, or print the plan."""
    if dry_run:
        say(library.steer_evaluate.Steering.of(settings, notice).plan())
        return
    results, path = looked_up(lambda: library.doors_steering.steered, settings)
    document = library.results_reading.document(results)
    parts = [*getattr(library.screen_steer, shown)(results)]
    if report:
        layers = library.steer_profile.layer_report(path.parent)
        document = {**document, "report": asdict(layers)}
        parts += library.screen_steer.of_report(layers)
    answer(document, parts, path, as_json=as_json)
