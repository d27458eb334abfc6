"""`lensaudit annotate`: which part of each answer is the fact that is scored?"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.project import current_project, is_typed
from lensaudit.cli.terminal import emit, notice, say
from lensaudit.evaluation.settings import AnnotationSettings

if TYPE_CHECKING:
    from lensaudit.evaluation.annotation import Annotated

SHOWN = 20


@click.command()
@click.argument("pairs", type=click.Path(path_type=Path, dir_okay=False))
@options(AnnotationSettings)
@shared("force", "json")
def annotate(settings: AnnotationSettings, force: bool, as_json: bool) -> None:
    """Propose prefix and entity for question-answer pairs, by rules; check every row.

    PAIRS is a JSON or JSONL file of rows with question and answer (and optionally idx, group,
    entity), or a review file written before and corrected since. Rows that cannot be scored are
    left out and listed; all rows stand in the review file, doubtful ones marked CHECK. Without
    PAIRS: the forget and retain rows of the project file.
    """
    from lensaudit.evaluation.annotation import annotate as write

    found = [(one, write(one, force=force)) for one in _wanted(settings)]
    if as_json:
        forget, *kept = (_result(*one) for one in found)
        emit(forget | ({"retain": kept[0]} if kept else {}))
        return
    for one in found:
        _print(*one)


def _wanted(settings: AnnotationSettings) -> list[AnnotationSettings]:
    """What is annotated: the pairs that are named, or all that the project names."""
    project = current_project()
    if is_typed("pairs"):
        is_other = project is None or settings.pairs not in (project.forget, settings.review_file)
        if is_other and not is_typed("out"):
            raise click.UsageError("Missing option '-o' / '--out'.")
        return [settings]
    if project is None or project.retain_rows is None or project.retain_data is None:
        return [settings]
    kept = replace(settings, pairs=project.retain_rows, out=Path(project.retain_data), review=None)
    return [settings, kept]


def _result(settings: AnnotationSettings, found: "Annotated") -> dict[str, Any]:
    """The object of `--json`."""
    return {
        "out": str(settings.out),
        "review": str(settings.review_file),
        "n": len(found.kept),
        "left_out": {str(idx): why for idx, why in found.left_out.items()},
        "to_check": sorted(found.remarks),
        "rules": dict(Counter(one.rule for one in found.proposals)),
    }


def _print(settings: AnnotationSettings, found: "Annotated") -> None:
    review = settings.review_file
    say(f"written: {settings.out} ({len(found.kept)} of {len(found.proposals)} rows)")
    say(f"review: {review} ({len(found.remarks)} rows marked CHECK)")
    for idx, why in list(found.left_out.items())[:SHOWN]:
        notice(f"idx {idx} left out: {why}")
    if len(found.left_out) > SHOWN:
        notice(f"{len(found.left_out) - SHOWN} more left out; see {review}")
    if found.alone is not None:
        notice(found.alone)
