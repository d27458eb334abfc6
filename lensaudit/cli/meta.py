"""`lensaudit meta`: which metric can be trusted?"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import emit, notice, say, tell, written
from lensaudit.meta.settings import (
    AggregateSettings,
    FaithfulnessSettings,
    MetaTableSettings,
    RobustnessSettings,
)

if TYPE_CHECKING:
    from lensaudit.screen.tables import Part

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
    from lensaudit.meta.runs import prepare_faithfulness, run_faithfulness
    from lensaudit.screen.meta import faithfulness_table

    prepared = prepare_faithfulness(settings, notice)
    if dry_run:
        say("\n".join(prepared.plan()))
        return
    found = run_faithfulness(settings, prepared)
    _finish(found, [faithfulness_table(found.results)], as_json=as_json)


@meta.command()
@options(RobustnessSettings)
@shared("json", "dry_run")
def robustness(settings: RobustnessSettings, as_json: bool, dry_run: bool) -> None:
    """Does a metric survive quantisation or relearning? Its stability over models that forgot.

    Every metric is judged on the models its own filter leaves; n is always shown, and the value on
    the models that all metrics share.
    """
    from lensaudit.files import read_json
    from lensaudit.meta.runs import prepare_robustness, run_robustness
    from lensaudit.screen.meta import robustness_table

    prepared = prepare_robustness(settings, notice)
    if dry_run:
        say("\n".join(prepared.plan()))
        return
    found = run_robustness(settings, prepared)
    _finish(found, [robustness_table(read_json(found.path))], as_json=as_json)


@meta.command()
@RESULTS
@options(AggregateSettings)
@shared("json")
def aggregate(settings: AggregateSettings, as_json: bool) -> None:
    """Memorisation, privacy, utility and overall of every model; methods ranked.

    RESULTS: folders of lensaudit eval and patch, ep5/ and ep10/ of the UDS repository, or
    method_results.json.
    """
    from lensaudit.meta.documents import run_aggregate
    from lensaudit.screen.meta import aggregate_table, ranking_table

    document = run_aggregate(settings)
    if as_json:
        emit(document)
        return
    tell([ranking_table(document), aggregate_table(document)])
    if settings.out is not None:
        written(settings.out)


@meta.command("table")
@RESULTS
@options(MetaTableSettings)
@shared("json")
def table_(settings: MetaTableSettings, as_json: bool) -> None:
    """One table of all metrics: faithfulness, quantisation, relearning, robustness, overall.

    RESULTS: folders of meta faithfulness and robustness, their files, or meta_eval.json.
    """
    from lensaudit.meta.documents import run_table
    from lensaudit.screen.meta import meta_table

    document = run_table(settings)
    if as_json:
        emit(document)
        return
    tell([meta_table(document)])
    if settings.out is not None:
        written(settings.out)


def _finish(found: Any, shown: "Iterable[Part]", *, as_json: bool) -> None:
    """The document or its table, and the models that are still to do."""
    from lensaudit.files import read_json
    from lensaudit.meta.runs import unfinished

    if as_json:
        emit(read_json(found.path))
    else:
        tell(shown)
        written(found.path.parent)
    if error := unfinished(found):
        raise error
