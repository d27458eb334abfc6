"""Many models: `sweep`, `watch`, and what judges metrics and auditors by them, `meta` and `gym`."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal as size

from lensaudit.cli.options import ByteSize, SettingOption, options, shared
from lensaudit.cli.terminal import answer, emit, lazily, notice, say, tell, written
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

with lazily():
    from lensaudit.gym import make, scoring, table
    from lensaudit.meta import documents, runs
    from lensaudit.screen import meta as shown
    from lensaudit.sweep import (
        collect,
        engines,
        plan,
        planning,
        run,
        unit,
        upkeep,
        watch,
        weights,
    )
    from lensaudit.verdict import collect as judging

RESULTS = click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))


@click.group()
def meta() -> None:
    """Judge the metrics themselves, over many models."""


@meta.command()
@options(FaithfulnessSettings)
@shared("json", "dry_run")
def faithfulness(settings: FaithfulnessSettings, as_json: bool, dry_run: bool) -> None:
    """Does a metric tell models that know from models that do not? AUC over two pools.

    Models are measured one at a time and finished ones are not measured again. A model that
    cannot be measured stays to do: it is named, no AUC is given without it, and the exit code is 3.
    """
    prepared = runs.prepare_faithfulness(settings, notice)
    path = None if dry_run else runs.run_faithfulness(settings, prepared)
    _tell(prepared, path, shown.faithfulness_table, as_json=as_json)


@meta.command()
@options(RobustnessSettings)
@shared("json", "dry_run")
def robustness(settings: RobustnessSettings, as_json: bool, dry_run: bool) -> None:
    """Does a metric survive quantisation or relearning? Its stability over models that forgot.

    Every metric is judged on the models its own filter leaves; n is always shown, and the value on
    the models that all metrics share.
    """
    prepared = runs.prepare_robustness(settings, notice)
    path = None if dry_run else runs.run_robustness(settings, prepared)
    _tell(prepared, path, shown.robustness_table, as_json=as_json)


@meta.command()
@RESULTS
@options(AggregateSettings)
@shared("json")
def aggregate(settings: AggregateSettings, as_json: bool) -> None:
    """Memorisation, privacy, utility and overall of every model; methods ranked.

    RESULTS: folders of lensaudit eval and patch, ep5/ and ep10/ of the UDS repository, or
    method_results.json.
    """
    document = documents.run_aggregate(settings)
    tables = [shown.ranking_table(document), shown.aggregate_table(document)]
    answer(document, tables, settings.out, as_json=as_json)


@meta.command("table")
@RESULTS
@options(MetaTableSettings)
@shared("json")
def table_(settings: MetaTableSettings, as_json: bool) -> None:
    """One table of all metrics: faithfulness, quantisation, relearning, robustness, overall.

    RESULTS: folders of meta faithfulness and robustness, their files, or meta_eval.json.
    """
    document = documents.run_table(settings)
    answer(document, [shown.meta_table(document)], settings.out, as_json=as_json)


def _tell(
    prepared: Any, path: Path | None, shown_as: Callable[[Any], Any], *, as_json: bool
) -> None:
    """The plan of a run that wrote nothing; else its table, and the models still to do."""
    if path is None:
        say("\n".join(prepared.plan()))
        return
    document = read_json(path)
    answer(document, [shown_as(document)], path.parent, as_json=as_json)
    if error := runs.unfinished(document, path.parent):
        raise error


@click.group()
def gym() -> None:
    """Judge auditors on models whose truth is planted and proven."""


@gym.command("ls")
@options(MakeSettings, "mechanism", "seeds", "first_seed", "own")
@shared("json")
def ls(settings: MakeSettings, as_json: bool) -> None:
    """List the models that `gym make` plants: mechanism, truth, strength and seed."""
    found = make.listing(settings)
    answer([asdict(one) for one in found], shown.of_plan(found), as_json=as_json)


@gym.command("make")
@options(MakeSettings)
@shared("json")
def make_command(settings: MakeSettings, as_json: bool) -> None:
    """Plant models into a pair, with a certificate of truth each; those there are kept.

    Seed 0 plants into the pair as it is; each further seed retrains both anchors and all that is
    trained. A model whose certificate fails is named, is not scored, and the exit code is 4.
    """
    found = make.make(settings, notice=notice)
    lines = (
        f"{one.folder}: {one.truth}; {one.certificate.kind}: {one.certificate.says}"
        for one in found
    )
    answer([one.document() for one in found], lines, as_json=as_json)


@gym.command()
@options(ScoreSettings)
@shared("json")
def score(settings: ScoreSettings, as_json: bool) -> None:
    """Let auditors judge the planted models; what is judged already is kept."""
    new, left = scoring.score(settings, notice=notice)
    path = table.ledger_of(gym_folder(settings.gym), settings.limit).path
    document = {"ledger": str(path), "new": new, "left": left}
    more = f", {left} left to do" if left else ""
    answer(document, [f"{path}: {new} new scores{more}"], as_json=as_json)


@gym.command("table")
@options(GymTableSettings)
@shared("json")
def gym_table(settings: GymTableSettings, as_json: bool) -> None:
    """Judge the auditors: by mechanism, left out in turn, held out, fact by fact."""
    rows = table.rows_of(gym_folder(settings.gym), settings.limit)
    found = table.document(rows, calibration=settings.calibration, picture=settings.picture)
    answer(asdict(found), [table.text(found)], as_json=as_json)


@gym.command()
@click.argument("recipe", type=click.Path(path_type=Path, dir_okay=False))
@options(SubmitSettings)
@shared("json")
def submit(settings: SubmitSettings, recipe: Path, as_json: bool) -> None:
    """Try to fool the auditors: RECIPE is a Python file with own recipes, and is run.

    A recipe enters the next version if its certificate holds and the best auditor is fooled by a
    model as useful as full.
    """
    found = scoring.submit(settings, recipe, notice=notice)
    answer([asdict(one) for one in found], shown.of_submission(found), as_json=as_json)


FOLDER = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
WATCH_S = 10.0
SHOWN = 20


@click.group()
def sweep() -> None:
    """Audit many checkpoints: plan, run on any engine, look, collect.

    A unit is one checkpoint in one variant with all its scores. Finished units are never done
    again, failed ones never look finished. Exit code 3: some units failed, they are named.
    """


@sweep.command("plan")
@click.argument("models", nargs=-1)
@options(PlanSettings)
@shared("json", "dry_run")
def plan_command(settings: PlanSettings, as_json: bool, dry_run: bool) -> None:
    """Write the plan of a sweep: MODELS are names, folders, patterns or role:NAME.

    idknll_*_ep10 is a pattern, role:pool_knows all of a role. The anchors are added. A plan never
    changes; the same command gives the same plan.
    """
    made = planning.plan_of(settings, notice)
    if not dry_run:
        plan.write_plan(made)
    print_plan(made, as_json=as_json)
    if not dry_run and not as_json:
        written(made.file)


@sweep.command("run")
@FOLDER
@options(RunSettings)
@shared("json", "dry_run")
def run_command(folder: Path, settings: RunSettings, as_json: bool, dry_run: bool) -> None:
    """Do what is left of a sweep. Run it again after an interruption, or beside another run."""
    planned = plan.read_plan(folder)
    if dry_run:
        print_plan(planned, as_json=as_json)
        return
    engine = engines.engine_of(settings, planned, report=notice)
    try:
        run.run_sweep(folder, engine, settings, notice)
    finally:  # whatever the end is
        print_status(planned, as_json=as_json)


@sweep.command("status")
@FOLDER
@click.option("--watch", "again", is_flag=True, help="Again every 10 seconds until nothing runs.")
@shared("json")
def status(folder: Path, again: bool, as_json: bool) -> None:
    """Say how many units are done, running, failed and left, and why some failed."""
    planned = plan.read_plan(folder)
    while True:
        found = print_status(planned, as_json=as_json)
        for line in [] if as_json else upkeep.problem_lines(found, SHOWN):
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
    help="Finished units of MODELS too: their results go.",
)
def retry(folder: Path, models: tuple[str, ...], redo: bool) -> None:
    """Let failed units be tried again by the next run: all, or those of MODELS."""
    chosen = upkeep.retry(plan.read_plan(folder), models, redo=redo)
    tell([f"{len(chosen)} units will be tried again", *(f"  {unit.label}" for unit in chosen)])


@sweep.command("collect")
@FOLDER
@click.option("--out", "-o", type=click.Path(path_type=Path), help="[default: FOLDER/results]")
@click.option("--allow-missing", is_flag=True, help="Go on where planned units have no result.")
@shared("json")
def collect_command(folder: Path, out: Path | None, allow_missing: bool, as_json: bool) -> None:
    """Write one table of all numbers, and the folders that `meta` and `report` read."""
    place = collect.collect(plan.read_plan(folder), out, allow_missing=allow_missing, notice=notice)
    found = read_json(place / collect.COLLECTED)
    verdicts = read_json(place / collect.VERDICTS)
    document = {key: found[key] for key in ("n_planned", "n_done", "missing")}
    said = ["{variant}: {sentence}".format(**one).removeprefix("base: ") for one in verdicts]
    said += [
        judging.keeps_line(label, judging.keeps_of(one)) or ""
        for label, one in found["keeps"].items()
    ]
    said.append(f"{found['n_done']} of {found['n_planned']} planned units")
    answer(document | {"verdicts": verdicts}, said, place, as_json=as_json)


@sweep.command("gc")
@FOLDER
@click.option(
    "--others", cls=SettingOption, typed=True, is_flag=True, help="Results of other plans too."
)
@shared("dry_run")
def gc(folder: Path, others: bool, dry_run: bool) -> None:
    """Remove leftovers of finished units and dead workers; results stay.

    A leftover that holds a file of others stays whole, and that is named.
    """
    planned = plan.read_plan(folder)
    left = upkeep.garbage(planned, others=others, report=say)
    verb = "would remove" if dry_run else "removed"
    tell([f"{verb}: {path}" for path in left])
    freed = "" if dry_run else f", {size(upkeep.remove(planned, left))} freed"
    say(f"{len(left)} leftovers{freed}")


@sweep.command("fetch")
@FOLDER
@click.option("--quota", type=ByteSize(), help="At most. [default: all that is needed]")
def fetch(folder: Path, quota: int | None) -> None:
    """Fetch the checkpoints of all units that are left, for `run --offline` without a network."""
    weights.fetch_left(plan.read_plan(folder), quota, notice)


@sweep.command("verify")
@FOLDER
@options(CheckSettings)
@shared("json")
def verify(folder: Path, settings: CheckSettings, as_json: bool) -> None:
    """Compute random finished units again from nothing and compare. Exit code 4: they differ."""
    found = unit.verify_sweep(plan.read_plan(folder), **vars(settings), report=notice)
    lines = (
        f"{one.unit}: {one.n_values} values, largest difference "
        + (f"{one.worst:.2e} at {one.metric}" if one.metric else "none")
        for one in found
    )
    answer([asdict(one) for one in found], lines, as_json=as_json)
    unit.refuse(found)


def print_plan(planned: "plan.Sweep", *, as_json: bool) -> None:
    """What a run would do."""
    forecast = planning.forecast_of(planned)
    emit(forecast) if as_json else say("\n".join(planning.lines_of(forecast)))


def print_status(planned: "plan.Sweep", *, as_json: bool) -> dict[str, Any]:
    """One line, or the document; returned too."""
    found = upkeep.status_of(planned)
    emit(found) if as_json else say(upkeep.line_of(found))
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
    rows, folder = watch.follow_run(settings, notice)
    answer(rows, map(_step, rows), folder, as_json=as_json)


def _step(row: Mapping[str, Any]) -> str:
    """A checkpoint of a watched run, in a line."""
    known = [f"{key} {number(row[key])}" for key in watch.CURVE if row.get(key) is not None]
    return f"step {row['step']}: {row['failure'] or ', '.join(known)}"
