"""What is there to do? A plan, before anything runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """What a run would do, counted before any model is loaded."""

    lines: tuple[str, ...]
    """For people."""
    n_forward: int = 0
    """Texts still to be run through a model as it is: read, cached or continued."""
    n_rows: int = 0
    """Texts still to be scored with something patched in."""
    n_bytes: int = 0
    """Size of the caches: of `patch` those still to be written, of `cache` all."""
    n_kept: int = 0
    """Finished passes of an evaluation that its folder holds."""
    done: bool = False
    """There is this very result, finished."""
    brief: str = ""
    """All of it in a line, where it is a step of a larger run."""

    def text(self) -> str:
        """The plan, a line for each of its parts."""
        return "\n".join(self.lines)
