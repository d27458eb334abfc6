"""What `know` found of one model, as its folder holds it; no model library is imported."""

from lensaudit.results.run import RunResult

COMMAND = "know"


class KnowResult(RunResult):
    """Which values one model binds to which subjects, and where it is written."""

    @property
    def headline(self) -> str:
        """The finding, in words."""
        return self.record.headline

    @property
    def p(self) -> float:
        """Of the assignment test."""
        return self.record.p

    @property
    def named(self) -> tuple[int, ...]:
        """Idx of the facts that are named."""
        return tuple(self.record.named)
