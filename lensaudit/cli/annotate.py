"""`lensaudit annotate`: which part of each answer is the fact that is scored?"""

from pathlib import Path

import click

from lensaudit.cli.options import ModelName, check_names, shared


@click.command()
@click.argument("pairs", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path, dir_okay=False),
    help="The annotated forget set, for --data.",
)  # fmt: skip
@click.option(
    "--review", type=click.Path(path_type=Path, dir_okay=False),
    help="Text file to correct by hand. [default: beside --out, .review.txt]",
)  # fmt: skip
@click.option("--model", type=ModelName(), help="Check every span with this model's tokenizer.")
@click.option(
    "--min-logprob", type=float, metavar="NATS",
    help="Leave out facts to which --model gives less per token, e.g. -2: it never knew them.",
)  # fmt: skip
@shared("registry", "dtype", "device", "json")
def annotate(pairs: Path, out: Path, review: Path | None, **options) -> None:
    """Propose prefix and entity for question-answer pairs, by rules; check every row.

    PAIRS is a JSON or JSONL file of rows with question and answer (and optionally idx, group,
    entity), or a review file written before and corrected since. Rows that cannot be scored are
    left out and listed; all rows stand in the review file, doubtful ones marked CHECK.
    """
    check_names([options["model"]], options["registry"])
    from lensaudit.cli.annotating import annotate_pairs

    annotate_pairs(pairs, out=out, review=review or out.with_suffix(".review.txt"), **options)
