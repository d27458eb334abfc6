"""What a person reads of a patching run, whatever the score."""

from collections.abc import Mapping, Sequence
from typing import Any

from lensaudit.auditing.patched import Patched
from lensaudit.cli.show import print_audit
from lensaudit.cli.show_em import print_em
from lensaudit.cli.terminal import emit, interval, number, row, show, table, written
from lensaudit.errors import VerificationError, WorkError


def report(found: Patched, *, as_json: bool) -> None:
    """Results on stdout, and where their files are.

    Raises:
        VerificationError: the scale is off.
        WorkError: nothing could be scored of a model.
    """
    summaries = [one.summary for one in found.results]
    if as_json:
        emit(summaries[0] if len(summaries) == 1 else summaries)
    else:
        if found.results[0].score == "em":
            print_em(summaries)
        else:
            print_audit(summaries, found.comparison)
            print_collateral(summaries)
        for one in found.results:
            written(one.folder)
    if off := next(filter(None, (one.off for one in found.results)), None):
        raise VerificationError(off)
    if empty := [one for one in found.results if one.found_nothing]:
        raise WorkError(f"{', '.join(one.source for one in empty)}: {empty[0].reason}")


def print_collateral(summaries: Sequence[Mapping[str, Any]]) -> None:
    """What was lost of facts to keep, where that was asked."""
    if not any(one.get("collateral") for one in summaries):
        return
    made = table(
        "facts to keep: depth 0 kept, 1 lost; selectivity: UDS minus depth",
        ("source", "facts", "depth", "95 % interval", "scored", "selectivity", "beyond", "against"),
        left=("source", "facts", "95 % interval", "against"),
    )
    for summary in summaries:
        for facts, one in summary.get("collateral", {}).items():
            row(
                made,
                summary["source"],
                facts,
                number(one["depth"]),
                interval(one["ci95"]),
                f"{one['n_scored']}/{one['n']}",
                number(one["selectivity"]["value"]),
                number(one["over_erasure_nats"]),
                one["anchor"],
            )
    show(made)
