"""What `know` found of one model, as its folder holds it; no model library is imported."""

from lensaudit.results.run import RunResult

COMMAND = "know"


class NamingResult(RunResult):
    """What a run found of single facts of one model, and the folder of this result."""

    @property
    def headline(self) -> str:
        """The finding, in words."""
        return self.record.headline

    @property
    def named(self) -> tuple[int, ...]:
        """Idx of the facts that are named."""
        return tuple(self.record.named)


class KnowResult(NamingResult):
    """The values that one model binds to which subjects, and the folder of this result."""

    @property
    def p(self) -> float:
        """P-value of the assignment test."""
        return self.record.p
