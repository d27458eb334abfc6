"""The verdict over all views: a sentence a model, and the chain that led to it."""

from collections.abc import Iterator

from lensaudit.verdict.collect import Verdicts


def sentences(found: Verdicts) -> Iterator[str]:
    """What may be said of each model, what decided it, and of which other rows it was asked."""
    for one in found.models:
        yield one.verdict.sentence
        yield from (f"  {line}" for line in one.verdict.because)
        for other in one.judged[1:]:
            where = "" if other.run is None else f" ({other.run.folder})"
            yield f"  on other rows{where}: {other.verdict.code}"
        if len(found.models) > 1:
            yield f"  among {len(found.models)} models: q {found.q[one.weights]:.2g}"
    for one in found.left_out:
        yield f"not read: {one.path}: {one.reason}"
