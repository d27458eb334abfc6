"""Results on disk: `report`, `runs`, `verdict`, `export`, `verify`."""

from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
from rich.filesize import decimal as size

from lensaudit.cli import library
from lensaudit.cli.options import PlaceName, options, shared
from lensaudit.cli.project import is_typed
from lensaudit.cli.terminal import answer, emit, listing, notice, say, written
from lensaudit.doors.settings import ExportSettings
from lensaudit.errors import InputError, VerificationError
from lensaudit.settings import results_folder

FOLDER = PlaceName(file_okay=False)
FILE = PlaceName(dir_okay=False)
RUN = PlaceName()
RUNS = click.argument("runs", nargs=-1, required=True, type=RUN)


@click.command()
@click.argument("results", nargs=-1, required=True, metavar="RESULTS…", type=RUN)
@click.option(
    "-o",
    "--out",
    type=FILE,
    default=Path("audit.html"),
    show_default=True,
    help="The page.",
)
@click.option("--title", help="Heading of the page. [default: what was audited]")
@click.option(
    "--data",
    metavar="FILE",
    type=FILE,
    help="Forget set, for questions that older results do not hold.",
)
@click.option(
    "--figures",
    metavar="DIR",
    type=FOLDER,
    help="Also write pictures (PDF, PNG) and LaTeX tables, for a paper.",
)
@shared("force")
def report(
    results: tuple[Path, ...],
    out: Path,
    title: str | None,
    data: Path | None,
    figures: Path | None,
    force: bool,
) -> None:
    """Write one HTML page of everything found in the RESULTS folders.

    The page needs no network, no server and no lensaudit: send it to a colleague. It holds the
    questions and answers of the forget set.
    """
    examples = library.data_facts.load_facts(data) if data else []
    in_vain = (
        library.report_render.refused
        if is_typed("data")
        else lambda line: notice(f"of the project file left out: {line}")
    )
    for one in library.report_render.write_report(
        results, out, title=title, examples=examples, force=force, idle=in_vain
    ):
        notice(f"left out {one.path}: {one.reason}")
    written(out)
    if figures is not None:
        made = library.doors_figures.write_figures(results, figures, force=force)
        say(f"written: {figures} ({len(made)} files)")


@click.group()
def runs() -> None:
    """The log of finished runs, read from the manifests of result folders.

    A RUN is a folder, or its name below the folder of results.
    """


@runs.command("ls")
@click.argument("folders", nargs=-1, type=FOLDER)
@click.option("--command", help="Only runs of this command.")
@click.option("--model", help="Only runs in which a model of this name takes part.")
@shared("json")
def list_(folders: tuple[Path, ...], command: str | None, model: str | None, as_json: bool) -> None:
    """List the runs in FOLDERS, the latest first; without FOLDERS all results."""
    found = [
        one
        for one in library.results_run_log.find_runs(folders or (results_folder(),), notice)
        if command in (None, one.made.command) and (model is None or model in one.models.values())
    ]
    if as_json:
        emit([one.document() for one in found], pretty=True)
    elif not found:
        say("no runs; every command that writes a result folder leaves one")
    else:
        listing([library.screen_listings.COLUMNS, *map(library.screen_listings.columns, found)])


@runs.command()
@click.argument("run", type=RUN)
@shared("json")
def show(run: Path, as_json: bool) -> None:
    """Show all that is recorded of a RUN."""
    found = _read(run, whole=True)
    document = found.document() | {"values": dict(found.values), "manifest": found.manifest}
    answer(document, library.screen_listings.of_run(found), as_json=as_json)


@runs.command()
@click.argument("first", type=RUN)
@click.argument("second", type=RUN)
@shared("json")
def diff(first: Path, second: Path, as_json: bool) -> None:
    """Which option or which content explains that FIRST and SECOND differ?"""
    found = library.results_run_log.compare(_read(first, whole=True), _read(second, whole=True))
    answer(
        found.document(), library.screen_listings.of_comparison(found), as_json=as_json, pretty=True
    )


@runs.command()
@RUNS
@shared("dry_run", "json")
def rm(runs: tuple[Path, ...], dry_run: bool, as_json: bool) -> None:
    """Delete the folders of RUNS: the files that their manifests name, and no others.

    A folder that holds anything else, or a model, stays as it is; what it holds is named.
    """
    found = {one.folder.resolve(): one for one in map(_read, runs)}
    # a run that lies in another goes first
    inmost = [found[one] for one in sorted(found, key=lambda one: -len(one.parts))]
    remove = partial(library.results_run_log.remove, inner=[one.folder for one in inmost])
    # all are looked at before one is gone
    removed = [{"folder": str(one.folder), "n_bytes": remove(one, dry_run=True)} for one in inmost]
    for one in [] if dry_run else inmost:
        remove(one)
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {one['folder']} ({size(one['n_bytes'])})" for one in removed]
    answer({"removed": removed, "dry_run": dry_run}, lines, as_json=as_json)


def _read(place: Path, *, whole: bool = False) -> "library.results_run_log.Run":
    """The run that is meant: a folder, or one below the folder of results."""
    found = next((one for one in (place, results_folder() / place) if one.is_dir()), None)
    if found is None:
        raise InputError(f"{place}: no such run; `lensaudit runs ls` lists them")
    return library.results_run_log.read_run(found, whole=whole)


@click.command()
@RUNS
@click.option(
    "--gate",
    "policy",
    type=FILE,
    help="TOML policy that a model must meet to pass; exit code 4 if one does not.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown", "junit", "github"]),
    help="Format of what --gate prints. [default: text]",
)
@click.option(
    "--calibration",
    type=FILE,
    help="File of `gym table --calibration`. [default: the one that is shipped]",
)
@shared("json")
def verdict(
    runs: tuple[Path, ...],
    policy: Path | None,
    form: str | None,
    calibration: Path | None,
    as_json: bool,
) -> None:
    """Give each model one verdict, from all that was measured of it.

    RUNS: folders of results; folders inside them are read too. What lies beside a model
    does not change its verdict.
    """
    if form and policy is None and form != "markdown":
        raise InputError("--format sets how a gate's result is printed; name a policy with --gate")
    asked = None if policy is None else library.doors_gate.read_policy(policy)
    judged = library.verdict_collect.verdicts(runs, calibration)
    if asked is None and form == "markdown":
        say(library.screen_tables.as_markdown(library.screen_depth.verdict_table(judged)))
        return
    if asked is None:
        answer(judged.document(), library.screen_depth.sentences(judged), as_json=as_json)
        return
    found = library.doors_gate.gate(judged, asked)
    say(library.doors_gate_formats.FORMATS[form or ("json" if as_json else "text")](found))
    if not found.passed:
        raise VerificationError(found.failed)


@click.command("export")
@RUNS
@options(ExportSettings)
@shared("force")
def export_command(runs: tuple[Path, ...], settings: ExportSettings, force: bool) -> None:
    """Write RUNS as every_eval_ever, the Hub, Inspect, CI or UDS read them; nothing is sent.

    RUNS: folders of results; folders inside them are read too. Intervals, content hashes and what
    has no score, with the reason, go along.
    """
    for path in library.export_files.export(runs, settings, force=force):
        written(path)


@click.command("explain")
@click.argument("run", type=RUN)
@click.option("--fact", required=True, metavar="IDX", type=int, help="Which fact, by its idx.")
@shared("json")
def explain_command(run: Path, fact: int, as_json: bool) -> None:
    """Walk through the depth of one fact of a RUN of patch: S1, S2 and UDS with its numbers."""
    found = library.screen_explain.explain(run, fact)
    answer(asdict(found), library.screen_explain.steps(found), as_json=as_json)


@click.command("verify")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER…", type=RUN)
@shared("json")
def verify_command(folders: tuple[Path, ...], as_json: bool) -> None:
    """Compare every file in the FOLDERs with its manifest, seal or checksum.

    Results, models, finished passes, books of scores, and caches; nothing is changed. Exit code 4
    if something is not as it was written, or a FOLDER holds nothing that can be compared.
    """
    found = library.doors_verify.verify(*folders)
    unread = [one for one in found if one.kind == "unread"]
    bad = [one for one in found if one.problems and one not in unread]
    kinds = sorted(Counter(one.kind for one in found if one not in unread).items())
    compared = ", ".join(f"{n} {kind}" for kind, n in kinds) or "nothing"
    lines = [f"{one.place}: {line}" for one in (*bad, *unread) for line in one.problems]
    cannot = f"{len(unread)} cannot be read"
    lines.append(f"compared: {compared}; {len(bad)} damaged" + (f"; {cannot}" if unread else ""))
    answer([asdict(one) for one in found], lines, as_json=as_json, pretty=True)
    if bad:
        raise VerificationError(
            f"{len(bad)} of {len(found)} are no longer as they were written; run again the "
            "commands that made them"
        )
    if unread:
        raise VerificationError(f"{cannot}, so nobody can check whether something was changed")
    for one in folders:
        if not any(Path(checked.place).is_relative_to(one) for checked in found):
            raise VerificationError(
                f"{one}: holds no manifest, seal or checksum, so nobody can check whether it was "
                "changed; run again the command that made it"
            )
