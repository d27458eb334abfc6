"""The score books of a run: one per source, all filled by the same engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lensaudit.data.spans import Encoded
from lensaudit.patching.options import Engine, PatchOptions
from lensaudit.patching.score_cache import ScoreBook
from lensaudit.patching.stages import Wanted, all_layers, ke_layers


@dataclass(frozen=True)
class Books:
    """Scores of every source patched into `full`, by content hash of the source's weights."""

    engine: Engine
    """What computed them; it is part of their key."""
    by_weights: Mapping[str, ScoreBook]
    s1: str
    """Weights of `retain`."""
    encoded: Sequence[Encoded]
    options: PatchOptions

    def wanted(self, weights: str) -> Wanted:
        """The layers whose score is wanted of a source: KE layers only, if S1 is known.

        While S1 is incomplete every layer counts as wanted.
        """
        layers = self.options.layers
        if self.options.profile == "full" or weights == self.s1 or self.lacks(self.s1):
            return all_layers(layers)
        return ke_layers(self.by_weights[self.s1], layers, self.options.tau)

    def lacks(self, weights: str) -> bool:
        """Are rows of this source still to be scored?"""
        book, wanted = self.by_weights[weights], self.wanted(weights)
        return any(book.entry(e) is None or book.missing(e, wanted(e, "")) for e in self.encoded)

    def incomplete(self) -> list[str]:
        """The sources with rows still to be scored."""
        return [weights for weights in self.by_weights if self.lacks(weights)]
