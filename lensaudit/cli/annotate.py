"""`lensaudit annotate`: which part of each answer is the fact that is scored?"""

from collections import Counter
from pathlib import Path

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import emit, notice, say
from lensaudit.evaluation.settings import AnnotationSettings

SHOWN = 20


@click.command()
@click.argument("pairs", type=click.Path(path_type=Path, dir_okay=False))
@options(AnnotationSettings)
@shared("json")
def annotate(settings: AnnotationSettings, as_json: bool) -> None:
    """Propose prefix and entity for question-answer pairs, by rules; check every row.

    PAIRS is a JSON or JSONL file of rows with question and answer (and optionally idx, group,
    entity), or a review file written before and corrected since. Rows that cannot be scored are
    left out and listed; all rows stand in the review file, doubtful ones marked CHECK.
    """
    from lensaudit.evaluation.annotation import annotate as write

    found, review = write(settings), settings.review_file
    if as_json:
        result = {
            "out": str(settings.out),
            "review": str(review),
            "n": len(found.kept),
            "left_out": {str(idx): why for idx, why in found.left_out.items()},
            "to_check": sorted(found.remarks),
            "rules": dict(Counter(one.rule for one in found.proposals)),
        }
        emit(result)
        return
    say(f"written: {settings.out} ({len(found.kept)} of {len(found.proposals)} rows)")
    say(f"review: {review} ({len(found.remarks)} rows marked CHECK)")
    for idx, why in list(found.left_out.items())[:SHOWN]:
        notice(f"idx {idx} left out: {why}")
    if len(found.left_out) > SHOWN:
        notice(f"{len(found.left_out) - SHOWN} more left out; see {review}")
