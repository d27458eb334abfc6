"""What a teacher-forced pass tells of one text: the unit that membership scores read."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Trace:
    """The scored tokens of one text, the closing one included; nats."""

    log_prob: NDArray[np.float32]
    hit: NDArray[np.bool_]
    """The token is the model's first choice."""
    mean: NDArray[np.float32]
    """Expected log-probability under the model's own next-token distribution."""
    variance: NDArray[np.float32]
    """Variance of the log-probability under that distribution."""

    @property
    def loss(self) -> float:
        """Mean negative log-probability over all scored tokens."""
        total = -self.log_prob.sum(dtype=np.float32)
        return float(total / np.float32(len(self.log_prob)))

    @property
    def content(self) -> "Trace":
        """Without the last token, which upstream takes for the end token."""
        return Trace(*(getattr(self, one.name)[:-1] for one in fields(self)))

    def __len__(self) -> int:
        return len(self.log_prob)
