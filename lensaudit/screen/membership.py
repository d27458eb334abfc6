"""What membership attacks say of forgotten people, in a line for all that say the same."""

from collections.abc import Iterator

from lensaudit.groups import grouped
from lensaudit.results.kinds.eval import EvaluationResult
from lensaudit.text import printable


def betrayals(found: EvaluationResult) -> Iterator[str]:
    """Of every attack, whether it tells forgotten people from people who were never seen."""
    told = (
        (str(one.betrayal.get("says", "")), name) for name, one in sorted(found.entries.items())
    )
    for says, names in grouped(told).items():
        if says:
            yield printable(f"{', '.join(names)}: {says}")
