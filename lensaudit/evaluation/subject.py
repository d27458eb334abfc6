"""What is asked, how, and what comes back: the plain data of the passes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from lensaudit.data.chat import Cleanup
from lensaudit.evaluation.generate import Classifier
from lensaudit.models.conditions import Conditions
from lensaudit.models.sizes import Sizes

T = TypeVar("T")


@dataclass(frozen=True)
class Measured(Generic[T]):
    """The rows of one pass over one view."""

    rows: Mapping[int, tuple[T, ...]]
    """idx -> one value per alternative."""
    unscored: Mapping[int, str]
    listed: bool


@dataclass(frozen=True)
class Texts:
    """What was asked, what was wanted, what was said."""

    input: str
    ground_truth: str
    generation: str


@dataclass(frozen=True)
class Rated:
    """A generation and how fluent a classifier finds it, 0 to 1."""

    score: float
    generation: str


@dataclass
class Subject:
    """A model to ask: what decides its numbers, and the weights once they are needed."""

    name: str
    conditions: Conditions
    """What a pass depends on beside texts. Batches are not part of a pass's key: a run that did
    not fit into memory goes on with smaller ones, and finds its finished passes."""
    open: Callable[[], Any]
    obeyed: Mapping[str, Any] = field(default_factory=dict)
    """What its generation configuration changes about a greedy continuation; part of its key."""
    in_blocks: bool = False
    """It does not fit, and is brought block by block: there are no gradients."""
    sizes: Sizes | None = None
    """What tells how many texts fit into memory at once; None: not known."""
    _model: Any = field(default=None, repr=False)

    @property
    def weights(self) -> str:
        """Content hash of the checkpoint."""
        return self.conditions.weights

    @property
    def model(self) -> Any:
        """The model in eval mode, loaded on first use."""
        if self._model is None:
            self._model = self.open().eval()
        return self._model

    def release(self) -> None:
        """Forget the weights; they are loaded again if they are needed again."""
        self._model = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class PassOptions:
    """How passes are run."""

    batch_size: int | None = None
    """None: as large as fits, from `AUTO_BATCH` down."""
    memory_bytes: int = 2 << 30
    """Above the weights; batches that nobody named follow from it."""
    max_new_tokens: int | None = None
    """None: what the split says."""
    cleanup: Cleanup = "upstream"
    classifier: Classifier | None = None
    classifier_tokens: int = 32
