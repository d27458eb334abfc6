"""Results on disk: `report`, `runs`, `verdict`, `export`, `verify`."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.filesize import decimal as size

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import answer, emit, listing, notice, say, written
from lensaudit.doors.settings import ExportSettings
from lensaudit.errors import InputError, VerificationError
from lensaudit.screen.listings import COLUMNS, columns, of_comparison, of_run
from lensaudit.settings import results_folder


@click.command()
@click.argument(
    "results", nargs=-1, required=True, metavar="RESULTS…", type=click.Path(path_type=Path)
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("audit.html"),
    show_default=True,
    help="The page.",
)
@click.option("--title", help="Heading of the page. [default: what was audited]")
@click.option(
    "--data",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Forget set, for questions that older results do not hold.",
)
@click.option(
    "--figures",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also pictures (PDF, PNG) and LaTeX tables, for a paper.",
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
    from lensaudit.data.facts import load_facts
    from lensaudit.report.render import write_report

    examples = load_facts(data) if data else []
    for one in write_report(results, out, title=title, examples=examples, force=force):
        notice(f"left out {one.path}: {one.reason}")
    written(out)
    if figures is not None:
        from lensaudit.report.figures import write_figures

        made = write_figures(results, figures, force=force)
        say(f"written: {figures} ({len(made)} files)")


if TYPE_CHECKING:
    from lensaudit.results.run_log import Run

RUN = click.argument("run", type=click.Path(path_type=Path))
RUNS = click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))


@click.group()
def runs() -> None:
    """The log of finished runs, read from the manifests of result folders.

    A RUN is a folder, or its name below the folder of results.
    """


@runs.command("ls")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, file_okay=False))
@click.option("--command", help="Only runs of this command.")
@click.option("--model", help="Only runs in which a model of this name takes part.")
@shared("json")
def list_(folders: tuple[Path, ...], command: str | None, model: str | None, as_json: bool) -> None:
    """List the runs in FOLDERS, the latest first; without FOLDERS all results."""
    from lensaudit.results.run_log import find_runs

    found = [
        one
        for one in find_runs(folders or (results_folder(),))
        if command in (None, one.made.command) and (model is None or model in one.models.values())
    ]
    if as_json:
        emit([one.document() for one in found], pretty=True)
    elif not found:
        say("no runs; every command that writes a result folder leaves one")
    else:
        listing([COLUMNS, *map(columns, found)])


@runs.command()
@RUN
@shared("json")
def show(run: Path, as_json: bool) -> None:
    """Tell all that is recorded of a RUN."""
    found = _read(run, whole=True)
    document = found.document() | {"values": dict(found.values), "manifest": found.manifest}
    answer(document, of_run(found), as_json=as_json)


@runs.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@shared("json")
def diff(first: Path, second: Path, as_json: bool) -> None:
    """Which option or which content explains that FIRST and SECOND differ?"""
    from lensaudit.results.run_log import compare

    found = compare(_read(first, whole=True), _read(second, whole=True))
    answer(found.document(), of_comparison(found), as_json=as_json, pretty=True)


@runs.command()
@RUNS
@shared("dry_run", "json")
def rm(runs: tuple[Path, ...], dry_run: bool, as_json: bool) -> None:
    """Delete the folders of RUNS: the files that their manifests name, and no others.

    A folder that holds anything else, or a model, stays as it is; what it holds is named.
    """
    from lensaudit.results.run_log import remove

    found = list(map(_read, runs))
    for one in found:
        remove(one, dry_run=True)  # all are looked at before one is gone
    done = [(one, remove(one, dry_run=dry_run)) for one in found]
    removed = [{"folder": str(one.folder), "n_bytes": n} for one, n in done]
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {one.folder} ({size(n)})" for one, n in done]
    answer({"removed": removed, "dry_run": dry_run}, lines, as_json=as_json)


def _read(place: Path, *, whole: bool = False) -> "Run":
    """The run that is meant: a folder, or one below the folder of results."""
    from lensaudit.results.run_log import read_run

    found = next((one for one in (place, results_folder() / place) if one.is_dir()), None)
    if found is None:
        raise InputError(f"{place}: no such run; `lensaudit runs ls` lists them")
    return read_run(found, whole=whole)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--gate",
    "policy",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML: what must hold for a model to pass; exit code 4 if one does not.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown", "junit", "github"]),
    help="Of what --gate says. [default: text]",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Of `gym table --calibration`. [default: the one that is shipped]",
)
@shared("json")
def verdict(
    runs: tuple[Path, ...],
    policy: Path | None,
    form: str | None,
    calibration: Path | None,
    as_json: bool,
) -> None:
    """One verdict a model, from all that was measured of it.

    RUNS: folders of results, looked into to any depth. Nothing that lies beside a model changes
    what is said of it.
    """
    from lensaudit.screen.depth import sentences
    from lensaudit.screen.gate import FORMATS
    from lensaudit.verdict.collect import verdicts
    from lensaudit.verdict.gate import gate, read_policy

    if form and policy is None:
        raise InputError("--format: is of what a gate says; name a policy with --gate")
    if policy is not None:
        asked = read_policy(policy)
        found = gate(verdicts(runs, calibration), asked)
        say(FORMATS[form or ("json" if as_json else "text")](found))
        if not found.passed:
            failed = [one for one in found.models if not one.passed]
            raise VerificationError(f"{len(failed)} of {len(found.models)} fail the gate")
        return
    judged = verdicts(runs, calibration)
    answer(judged.document(), sentences(judged), as_json=as_json)


@click.command()
@RUNS
@options(ExportSettings)
@shared("force")
def export(runs: tuple[Path, ...], settings: ExportSettings, force: bool) -> None:
    """Write RUNS as every_eval_ever, the Hub, Inspect or CI read them; nothing is sent.

    RUNS: folders of results, looked into to any depth. Intervals, content hashes and what has no
    score, with the reason, go along.
    """
    from lensaudit.doors.export import export as write

    for path in write(runs, settings, force=force):
        written(path)


@click.command()
@click.argument(
    "folders", nargs=-1, required=True, metavar="FOLDER…", type=click.Path(path_type=Path)
)
@shared("json")
def verify(folders: tuple[Path, ...], as_json: bool) -> None:
    """Compare all that lies in the FOLDERs with its manifests, seals and checksums.

    Results, models, finished passes, books of scores, and caches; nothing is changed. Exit code 4
    if something is not as it was written.
    """
    from lensaudit.auditing.verify import verify as compare

    found = compare(*folders)
    bad = [one for one in found if one.problems]
    if as_json:
        emit([asdict(one) for one in found], pretty=True)
    else:
        for one in bad:
            for line in one.problems:
                say(f"{one.place}: {line}")
        counts = Counter(one.kind for one in found)
        parts = [f"{n} {kind}" for kind, n in sorted(counts.items())]
        say(f"compared: {', '.join(parts) or 'nothing'}; {len(bad)} damaged")
    if bad:
        raise VerificationError(
            f"{len(bad)} of {len(found)} are not as they were written; run the commands that made "
            "them again"
        )
