"""What a unit may take of the machine."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lensaudit.progress import Progress
from lensaudit.sweep.plan import Conditions


@dataclass(frozen=True)
class Room:
    """What a unit may take, and who is told how far it is."""

    activations: Path
    halvings: int = 0
    """Of batch and memory, because it ran out before."""
    report: Callable[[str], None] = lambda line: None
    """Called after each pass; may raise to stop between passes."""

    def tell(self, progress: Progress) -> None:
        """Report a finished piece."""
        self.report(progress.piece)

    def batch_size(self, conditions: Conditions) -> int | None:
        """The planned batch, halved as often as memory ran out."""
        if not self.halvings:
            return conditions.batch_size
        return max(1, (conditions.batch_size or 32) >> self.halvings)
