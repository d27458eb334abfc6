"""One retraining of a model, read along the way: the loop of `rtt` and `effort`.

Models are held one at a time. A job whose id is in the log is not done again. The learning rate is
constant after its rise, so the model after step s of a long run is that of a run of s steps.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch

from lensaudit.attacks.rtt.log import Finished, Point, Reading
from lensaudit.errors import WorkError
from lensaudit.unlearn.rows import TrainBatch
from lensaudit.unlearn.train import FineTuning, Recipe, TrainingRun, TrainingStep, train


class StartWeights:
    """The weights that every run of a sweep begins with, kept once, in main memory."""

    def __init__(self, model: Any) -> None:
        tensors = (*model.named_parameters(), *model.named_buffers())
        self._kept = {name: one.detach().to("cpu", copy=True) for name, one in tensors}

    def restore(self, model: Any) -> None:
        """Put them back, bit for bit, and let go of gradients that a diverged run left behind."""
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.copy_(self._kept[name])


def read_along(
    model: Any,
    batches: Callable[[int], TrainBatch],
    *,
    recipe: Recipe,
    seed: int,
    at: Collection[int],
    read_v: Callable[[], tuple[Reading, ...]],
    report: Callable[[int], None] = lambda step: None,
) -> Finished:
    """Train `model` in place and read V after the steps `at`, which points count.

    A run that diverges ends with the points before.
    """
    points: list[Point] = []
    losses: list[float] = []
    last = 0

    def after(step: TrainingStep) -> None:
        nonlocal last
        losses.append(step.loss)
        if step.step in at:
            model.eval()
            mean = sum(losses[last:]) / (step.step - last)
            points.append(Point(step.step, read_v(), mean))
            last = step.step
            model.train()
        report(step.step)

    run = TrainingRun(
        FineTuning(), lambda number: batches(number).to(model.device), recipe, identity={}
    )
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)  # models with dropout draw from the global stream
        try:
            train(model, run, report=after)
        except WorkError:
            failure = f"not finite after {len(losses)} of {recipe.n_steps} steps"
            return Finished("", "diverged", tuple(points), reason=failure)
        finally:
            model.eval()
    return Finished("", "ok", tuple(points))
