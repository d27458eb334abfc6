"""Many models: `sweep`, `watch`, and what judges metrics and auditors by them, `meta` and `gym`."""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.filesize import decimal as size

from lensaudit.cli import library
from lensaudit.cli.options import ByteSize, PlaceName, SettingOption, options, shared
from lensaudit.cli.terminal import answer, emit, notice, say, tell, written
from lensaudit.errors import VerificationError
from lensaudit.files import read_json
from lensaudit.gym.settings import (
    GymTableSettings,
    MakeSettings,
    ScoreSettings,
    SubmitSettings,
    gym_folder,
)
from lensaudit.meta.settings import (
    AggregateSettings,
    FaithfulnessSettings,
    MetaTableSettings,
    RobustnessSettings,
)
from lensaudit.screen.cells import number
from lensaudit.sweep.settings import CheckSettings, PlanSettings, RunSettings, WatchSettings

if TYPE_CHECKING:
    from lensaudit.kinds.curve import CurveRow

RESULTS = click.argument("results", nargs=-1, required=True, type=PlaceName())


@click.group()
def meta() -> None:
    """Judge the metrics themselves, over many models."""


@meta.command()
@options(FaithfulnessSettings)
@shared("json", "dry_run")
def faithfulness(settings: FaithfulnessSettings, as_json: bool, dry_run: bool) -> None:
    """Does a metric tell models that know from models that do not? AUC over two pools.

    Models are measured one at a time and finished ones are not measured again. A model that cannot
    be measured is named and stays to do: without it there is no AUC, and the exit code is 3.
    """
    prepared = library.meta_runs.prepare_faithfulness(settings, notice)
    found = None if dry_run else library.meta_runs.run_faithfulness(settings, prepared)
    _tell(prepared, found, library.screen_meta.faithfulness_table, as_json=as_json)


@meta.command()
@options(RobustnessSettings)
@shared("json", "dry_run")
def robustness(settings: RobustnessSettings, as_json: bool, dry_run: bool) -> None:
    """Does a metric survive quantisation or relearning? Its stability over models that forgot.

    Each metric is judged on the models that its own filter leaves; n is shown, and the value on the
    models that all metrics share.
    """
    prepared = library.meta_runs.prepare_robustness(settings, notice)
    found = None if dry_run else library.meta_runs.run_robustness(settings, prepared)
    _tell(prepared, found, library.screen_meta.robustness_table, as_json=as_json)


@meta.command()
@RESULTS
@options(AggregateSettings)
@shared("json")
def aggregate(settings: AggregateSettings, as_json: bool) -> None:
    """Memorisation, privacy, utility and overall of every model; methods ranked.

    RESULTS: folders of lensaudit eval and patch, ep5/ and ep10/ of the UDS repository, or
    method_results.json.
    """
    found = library.meta_documents.run_aggregate(settings, notice)
    document = library.results_reading.document(found)
    answer(document, library.screen_meta.of_aggregates(found), settings.out, as_json=as_json)


@meta.command("table")
@RESULTS
@options(MetaTableSettings)
@shared("json")
def table_(settings: MetaTableSettings, as_json: bool) -> None:
    """One table of all metrics: faithfulness, quantisation, relearning, robustness, overall.

    RESULTS: folders of meta faithfulness and robustness, their files, or meta_eval.json.
    """
    found = library.meta_documents.run_table(settings, notice)
    document = library.results_reading.document(found)
    answer(document, library.screen_meta.of_meta_table(found), settings.out, as_json=as_json)


@meta.command()
@RESULTS
@shared("json")
def methods(results: tuple[Path, ...], as_json: bool) -> None:
    """The method table: UDR, retention, and what share is over-, exactly and under-erased.

    RESULTS: folders of `patch --score em`, or folders that hold such. Shares leave general
    knowledge out, facts that the retain model keeps at every layer.
    """
    found = library.meta_methods.method_table(results)
    answer([asdict(one) for one in found], library.screen_meta.of_methods(found), as_json=as_json)


@meta.command()
@RESULTS
@shared("json")
def check(results: tuple[Path, ...], as_json: bool) -> None:
    """Compare RESULTS with the published tables, number by number; exit code 4 where one differs.

    RESULTS: folders of a sweep, of eval, patch and meta, or result files of the UDS repository.
    Each published number is equal within its tolerance, differs, or is not measured, with the
    reason. The tables of the UDS paper, open-unlearning and the patching audit are shipped.
    """
    found = library.meta_check.check(results)
    answer([asdict(one) for one in found], library.screen_meta.of_check(found), as_json=as_json)
    if n := sum(one.found == "differs" for one in found):
        measured = sum(one.found != "not measured" for one in found)
        raise VerificationError(f"{n} of {measured} numbers differ from the published tables")


def _tell(prepared: Any, found: Any, shown_as: Callable[[Any], Any], *, as_json: bool) -> None:
    """The plan of a run that wrote nothing; else its table, and the models still to do."""
    if found is None:
        say("\n".join(prepared.plan()))
        return
    document = library.results_reading.document(found)
    answer(document, [shown_as(found)], prepared.out, as_json=as_json)
    if error := library.meta_runs.unfinished(found, prepared.out):
        raise error


@click.group()
def gym() -> None:
    """Judge auditors on models whose truth is planted and proven."""


@gym.command("ls")
@options(MakeSettings, "mechanism", "seeds", "first_seed", "own")
@shared("json")
def ls(settings: MakeSettings, as_json: bool) -> None:
    """List the models that `gym make` plants: mechanism, truth, strength and seed."""
    found = library.gym_make.listing(settings)
    answer([asdict(one) for one in found], library.screen_meta.of_plan(found), as_json=as_json)


@gym.command("make")
@options(MakeSettings)
@shared("json")
def make_command(settings: MakeSettings, as_json: bool) -> None:
    """Plant models into a pair, each with a certificate of truth; existing ones are kept.

    Seed 0 plants into the pair as it is; each further seed retrains both anchors and all that is
    trained. A model whose certificate fails is named, is not scored, and the exit code is 4.
    """
    found = library.gym_make.make(settings, notice=notice)
    lines = (
        f"{one.folder}: {one.truth}; {one.certificate.kind}: {one.certificate.says}"
        for one in found
    )
    answer([one.document() for one in found], lines, as_json=as_json)


@gym.command()
@options(ScoreSettings)
@shared("json")
def score(settings: ScoreSettings, as_json: bool) -> None:
    """Let auditors judge the planted models; earlier judgements are kept."""
    new, left = library.gym_scoring.score(settings, notice=notice)
    path = library.gym_table.ledger_of(gym_folder(settings.gym), settings.limit).path
    document = {"ledger": str(path), "new": new, "left": left}
    more = f", {left} left to do" if left else ""
    answer(document, [f"{path}: {new} new scores{more}"], as_json=as_json)


@gym.command("table")
@options(GymTableSettings)
@shared("json")
def gym_table(settings: GymTableSettings, as_json: bool) -> None:
    """Judge the auditors: by mechanism, left out in turn, held out, fact by fact."""
    rows = library.gym_table.rows_of(gym_folder(settings.gym), settings.limit, notice=notice)
    found = library.gym_table.document(
        rows, calibration=settings.calibration, picture=settings.picture
    )
    answer(asdict(found), library.gym_table.text(found).splitlines(), as_json=as_json)


@gym.command()
@click.argument("recipe", type=PlaceName(dir_okay=False))
@options(SubmitSettings)
@shared("json")
def submit(settings: SubmitSettings, recipe: Path, as_json: bool) -> None:
    """Try to fool the auditors with RECIPE, a Python file of your recipes; it is run.

    A recipe enters the next version if its certificate holds and the best auditor is fooled by a
    model as useful as full.
    """
    found = library.gym_scoring.submit(settings, recipe, notice=notice)
    answer(
        [asdict(one) for one in found], library.screen_meta.of_submission(found), as_json=as_json
    )


FOLDER = click.argument("folder", type=PlaceName(file_okay=False))
WATCH_S = 10.0
SHOWN = 20


@click.group()
def sweep() -> None:
    """Audit many checkpoints: plan, run on any engine, look, collect.

    A unit is one checkpoint in one variant with all its scores. A finished unit is never repeated,
    and a failed one never looks finished. Exit code 3: some units failed, they are named.
    """


@sweep.command("plan")
@click.argument("models", nargs=-1)
@options(PlanSettings)
@shared("json", "dry_run")
def plan_command(settings: PlanSettings, as_json: bool, dry_run: bool) -> None:
    """Write the plan of a sweep: MODELS are names, folders, patterns or role:NAME.

    idknll_*_ep10 is a pattern, role:pool_knows all of a role. The anchors are added. Planned
    again, a folder may get more models, or the paths that they have now; finished units stay.
    """
    made = library.sweep_planning.plan_of(settings, notice)
    if not dry_run:
        library.sweep_plan.write_plan(made)
    elif library.sweep_plan.has_plan(made) and not as_json:
        click.echo(f"nothing to do: {made.root} holds this plan already")
    print_plan(made, as_json=as_json)
    if not dry_run and not as_json:
        written(made.file)


@sweep.command("run")
@FOLDER
@options(RunSettings)
@shared("json", "dry_run")
def run_command(folder: Path, settings: RunSettings, as_json: bool, dry_run: bool) -> None:
    """Do what is left of a sweep. Run it again after an interruption, or beside another run."""
    planned = library.sweep_plan.read_plan(folder)
    engine = library.sweep_engines.engine_of(settings, planned, report=notice)
    if dry_run:
        print_plan(planned, as_json=as_json)
        return
    try:
        library.sweep_run.run_sweep(folder, engine, settings, notice)
    finally:  # whatever the end is
        print_status(planned, as_json=as_json)


@sweep.command("status")
@FOLDER
@click.option(
    "--watch",
    "again",
    is_flag=True,
    help="Show the status again every 10 seconds until nothing runs.",
)
@shared("json")
def status(folder: Path, again: bool, as_json: bool) -> None:
    """Say how many units are done, running, failed and left, and why some failed."""
    planned = library.sweep_plan.read_plan(folder)
    while True:
        found = print_status(planned, as_json=as_json)
        for line in [] if as_json else library.sweep_upkeep.problem_lines(found, SHOWN):
            say(line)
        if not again or not found["running"]:
            return
        time.sleep(WATCH_S)


@sweep.command("retry")
@FOLDER
@click.argument("models", nargs=-1)
@click.option(
    "--redo",
    cls=SettingOption,
    typed=True,
    is_flag=True,
    help="Redo finished units of MODELS too: their results are deleted.",
)
def retry(folder: Path, models: tuple[str, ...], redo: bool) -> None:
    """Let failed units be tried again by the next run: all, or those of MODELS."""
    chosen = library.sweep_upkeep.retry(library.sweep_plan.read_plan(folder), models, redo=redo)
    tell([f"{len(chosen)} units will be tried again", *(f"  {unit.label}" for unit in chosen)])


@sweep.command("collect")
@FOLDER
@click.option(
    "--out",
    "-o",
    type=PlaceName(),
    help="Folder of the table and results. [default: FOLDER/results]",
)
@click.option("--allow-missing", is_flag=True, help="Go on where planned units have no result.")
@shared("json")
def collect_command(folder: Path, out: Path | None, allow_missing: bool, as_json: bool) -> None:
    """Write one table of all numbers, and the folders that `meta` and `report` read."""
    place = library.sweep_collect.collect(
        library.sweep_plan.read_plan(folder), out, allow_missing=allow_missing, notice=notice
    )
    found = read_json(place / library.sweep_collect.COLLECTED)
    verdicts = read_json(place / library.sweep_collect.VERDICTS)
    document = {key: found[key] for key in ("n_planned", "n_done", "missing")}
    holes = f"; missing: {', '.join(found['missing'])}" if found["missing"] else ""
    said = [f"{found['n_done']} of {found['n_planned']} planned units{holes}"]
    said += ["{variant}: {sentence}".format(**one).removeprefix("base: ") for one in verdicts]
    said += [
        library.screen_depth.keeps_line(label, library.screen_depth.keeps_of(one)) or ""
        for label, one in found["keeps"].items()
    ]
    answer(document | {"verdicts": verdicts}, said, place, as_json=as_json)


@sweep.command("gc")
@FOLDER
@click.option(
    "--others",
    cls=SettingOption,
    typed=True,
    is_flag=True,
    help="Remove results of other plans too.",
)
@shared("dry_run")
def gc(folder: Path, others: bool, dry_run: bool) -> None:
    """Remove leftovers of finished units and dead workers; results stay.

    A leftover that holds a file we did not write stays, and is named.
    """
    planned = library.sweep_plan.read_plan(folder)
    left = library.sweep_upkeep.garbage(planned, others=others, report=say)
    freed, verb = 0, "would remove" if dry_run else "removed"
    for path, files in left.items():
        freed += 0 if dry_run else library.sweep_upkeep.remove(planned, {path: files})
        say(f"{verb}: {path}")
    say(f"{len(left)} leftovers" + ("" if dry_run else f", {size(freed)} freed"))


@sweep.command("fetch")
@FOLDER
@click.option(
    "--quota", type=ByteSize(), help="Fetch at most this much. [default: all that is needed]"
)
def fetch(folder: Path, quota: int | None) -> None:
    """Fetch the checkpoints of all units that are left, for `run --offline` without a network."""
    library.sweep_weights.fetch_left(library.sweep_plan.read_plan(folder), quota, notice)


@sweep.command("verify")
@FOLDER
@options(CheckSettings)
@shared("json")
def verify(folder: Path, settings: CheckSettings, as_json: bool) -> None:
    """Compute random finished units again from nothing and compare. Exit code 4: they differ."""
    found = library.sweep_unit.verify_sweep(
        library.sweep_plan.read_plan(folder), **vars(settings), report=notice
    )
    lines = (
        f"{one.unit}: {one.n_values} values, largest difference "
        + (f"{one.worst:.2e} at {one.metric}" if one.metric else "none")
        for one in found
    )
    answer([asdict(one) for one in found], lines, as_json=as_json)
    library.sweep_unit.refuse(found)


def print_plan(planned: "library.sweep_plan.Sweep", *, as_json: bool) -> None:
    """What a run would do."""
    forecast = library.sweep_planning.forecast_of(planned)
    emit(forecast) if as_json else say("\n".join(library.sweep_planning.lines_of(forecast)))


def print_status(planned: "library.sweep_plan.Sweep", *, as_json: bool) -> dict[str, Any]:
    """One line, or the document; returned too."""
    found = library.sweep_upkeep.status_of(planned)
    emit(found) if as_json else say(library.sweep_upkeep.line_of(found))
    return found


@click.command("watch")
@FOLDER
@options(WatchSettings)
@shared("json")
def watch_command(settings: WatchSettings, as_json: bool) -> None:
    """Audit each new checkpoint-N, step_N or epoch-N under FOLDER as it appears.

    Keeps curve.csv and curve.json: UDS, erasure, utility and the other metrics by step. Run it
    again to go on; what is audited is not audited again.
    """
    rows, folder = library.sweep_watch.follow_run(settings, notice)
    said = list(map(library.results_reading.document, rows))
    answer(said, map(_step, rows), folder, as_json=as_json)


def _step(row: "CurveRow") -> str:
    """A checkpoint of a watched run, in a line."""
    values = ((key, row.metrics.get(key)) for key in library.sweep_watch.CURVE)
    known = [f"{key} {number(value)}" for key, value in values if value is not None]
    return f"step {row.step}: {row.failure or ', '.join(known)}"
