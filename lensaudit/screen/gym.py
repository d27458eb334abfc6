"""The gym: what is planted, and who was fooled by a recipe of somebody's own."""

from collections.abc import Iterator, Sequence

from lensaudit.gym.make import Listed
from lensaudit.gym.submit import Submitted
from lensaudit.screen.cells import number
from lensaudit.screen.tables import Part, row, table


def of_plan(found: Sequence[Listed]) -> Iterator[Part]:
    """A line a model."""
    columns = ["mechanism", "truth", "strength", "seed", "split", "how"]
    shown = table("", columns, left=("mechanism", "truth", "split", "how"))
    for one in found:
        strength = f"{one.strength:g} {one.unit}" if one.unit else ""
        split = "held out" if one.held_out else "tune"
        row(shown, one.mechanism, one.truth, strength, str(one.seed), split, one.how)
    yield shown


def of_submission(found: Sequence[Submitted]) -> Iterator[str]:
    """Each recipe, each auditor's answer, and whether the recipe enters."""
    for one in found:
        yield f"{one.mechanism} ({one.truth}): {one.certificate}; utility {one.utility:.2f} of full"
        for judge in one.auditors:
            says = {True: "fooled", False: "right", None: "no score"}[judge.fooled]
            yield f"  {judge.auditor} {number(judge.value)}: {says}"
        enters = "enters the next version" if one.enters else "does not enter"
        yield f"  best auditor {one.best}; {enters}"
