"""The log of runs: a line each, all about one, and why two differ."""

from collections.abc import Iterator

from lensaudit.results.run_log import Comparison, Run
from lensaudit.screen.cells import brief, fields, name
from lensaudit.settings import results_folder

COLUMNS = ("RUN", "COMMAND", "MODEL", "DATA", "SCORE", "FINISHED")


def columns(run: Run) -> tuple[str, ...]:
    """A line of `runs ls`."""
    base = results_folder()
    shown = run.folder.relative_to(base) if run.folder.is_relative_to(base) else run.folder
    score = "–" if run.score is None else f"{run.score} {brief(run.value)}"
    if run.score is None and run.values:
        score = f"{len(run.values)} values"
    when = run.finished[:16].replace("T", " ")
    return str(shown), run.command, run.model, run.data or "–", score, when


def of_run(run: Run) -> Iterator[str]:
    """All that is recorded, one thing to a line."""
    yield from fields(
        {
            "run": run.folder,
            "command": run.command,
            **run.models,
            "data": run.data or "–",
            "finished": run.finished,
            "seconds": brief(run.seconds),
        }
    )
    for title, part in (("values", run.values), ("options", run.manifest.get("options"))):
        if part:
            yield f"{title}:"
            given = {key: one for key, one in dict(part).items() if one is not None}
            yield from fields(given, indent="  ")


def of_comparison(found: Comparison) -> Iterator[str]:
    """Values of both, and what explains that they differ."""
    for key, (one, other) in found.values.items():
        yield f"{name(key)}: {brief(one)} -> {brief(other)}"
    for weight in ("explains", "may explain", "does not matter"):
        if rows := found.of(weight):
            yield f"{weight}:"
            for row in rows:
                yield f"  {name(row)}"
    yield name(found.sentence())
