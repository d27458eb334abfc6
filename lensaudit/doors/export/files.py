"""Exports: what was found of a model, in files of every_eval_ever, the Hub, Inspect, CI or UDS.

Values come with their intervals, what has none with its reason, models and rows with their content
hashes. Files depend on the results alone: written twice, they are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lensaudit.doors.export.card import hub_results, junit, markdown, model_card
from lensaudit.doors.export.eee import eee
from lensaudit.doors.export.inspect_log import inspect_log
from lensaudit.doors.export.model import HUB_NAME, Exported, Files, exported
from lensaudit.doors.export.uds_runs import uds_runs
from lensaudit.doors.settings import ExportSettings
from lensaudit.errors import InputError
from lensaudit.files import check_output, make_folder, write_bytes
from lensaudit.settings import Place
from lensaudit.verdict.collect import Verdicts, verdicts


def export(runs: Sequence[Place], settings: ExportSettings, *, force: bool = False) -> list[Path]:
    """Write what was found of every model below `runs` in another tool's files.

    Args:
        runs: folders of results; folders inside them are read too.
        settings: whose files, and where to.
        force: write over files that are not ours.

    Returns:
        The files written.

    Raises:
        InputError: nothing to export, a damaged result, a missing package or name, a file of
            somebody else.
    """
    if not HUB_NAME.fullmatch(settings.repo) and (settings.to == "hub-results" or settings.dataset):
        raise InputError(
            f"--dataset: found {settings.dataset!r}, wanted ORG/NAME[@REVISION] of the forget set "
            "on the Hub; hub-results files each number under it"
        )
    if settings.to == "uds-runs":  # of values, which `meta` reads; no verdict is asked for
        files = uds_runs([Path(run) for run in runs])
    else:
        found = verdicts(runs)
        located = list(found.found.values())
        models = [exported(one, located) for one in found.models]
        files = WRITERS[settings.to](models, found, settings)
    out = make_folder(Path(settings.out))
    for name in files:
        check_output(out / name, ours=lambda content: b"lensaudit" in content, force=force)
    for name, content in files.items():
        make_folder((out / name).parent)
        write_bytes(out / name, content)
    return [out / name for name in files]


WRITERS: Mapping[str, Callable[[Sequence[Exported], Verdicts, ExportSettings], Files]] = {
    "eee": eee,
    "hub-results": hub_results,
    "model-card": model_card,
    "inspect": inspect_log,
    "junit": junit,
    "markdown": markdown,
}
