"""One direction from two sets of activations, how well it tells them apart, and its file.

On disk it is safetensors for the numbers, JSON beside them for where they come from.

Sources: mean difference arXiv:2507.21509 (persona vectors); probe, gradient: ewernn/trait-interp;
PCA of pairs: arXiv:2310.01405 and IBM/activation-steering (`steering.md` section 1).
"""

import math
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from pydantic import ConfigDict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from scipy.stats import norm, ttest_ind
from torch import Tensor

from lensaudit.errors import InputError
from lensaudit.files import make_folder, read_json, write_bytes
from lensaudit.results.keyed import write_keyed
from lensaudit.results.reading import Length, Number, Whole, checked
from lensaudit.scores.separation import auc
from lensaudit.steer.settings import Method
from lensaudit.text import digest

PROBE_C = 1.0
PROBE_ITERATIONS = 1000
"""trait-interp: L2 with C = 1, lbfgs, at most 1000 iterations, on row-normalised activations."""
GRADIENT_STEPS, GRADIENT_LR, GRADIENT_DECAY = 100, 0.01, 0.01
"""trait-interp: Adam on the separation of projections."""

OUTLIERS = 0.5
"""Share of the squared length in three dimensions from which a direction is called peculiar."""

Rows = Float[Tensor, "_ d_model"]
Vector = Float[Tensor, " d_model"]


def mean_difference(positive: Rows, negative: Rows) -> Vector:
    """Mean of the positive rows minus that of the negative ones; not normalised.

    >>> mean_difference(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    tensor([ 2., -1.])
    """
    return (positive.double().mean(0) - negative.double().mean(0)).float()


def probe(positive: Rows, negative: Rows) -> Vector:
    """Unit weight of a logistic regression on row-normalised activations; its bias is unused."""
    from sklearn.linear_model import LogisticRegression  # takes a second

    rows = torch.cat((positive, negative)).double()
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    labels = np.repeat([1, 0], [len(positive), len(negative)])
    fitted = LogisticRegression(C=PROBE_C, max_iter=PROBE_ITERATIONS).fit(rows.numpy(), labels)
    return _unit(torch.from_numpy(fitted.coef_[0]))


def first_component(positive: Rows, negative: Rows, *, paired: bool) -> Vector:
    """Unit first principal component; its sign is that of most pairs.

    Paired rows are centred on their pair's midpoint, so this is the main axis of the differences.
    Others are centred on the midpoint of the two means, and the means decide the sign.

    Raises:
        ValueError: paired rows of different number.
    """
    if paired and len(positive) != len(negative):
        raise ValueError(f"pca: found {len(positive)} and {len(negative)} rows, wanted pairs")
    if paired:
        votes = centred = positive.double() - negative.double()
    else:
        votes = mean_difference(positive, negative).double().unsqueeze(0)
        midpoint = (positive.double().mean(0) + negative.double().mean(0)) / 2
        centred = torch.cat((positive, negative)).double() - midpoint
    axis = torch.linalg.svd(centred, full_matrices=False).Vh[0]
    agreeing = (votes @ axis).sign().sum()
    return _unit(axis if agreeing >= 0 else -axis)


def gradient(positive: Rows, negative: Rows, *, generator: torch.Generator) -> Vector:
    """Unit vector that Adam finds for the largest distance between mean projections.

    The optimum is the mean difference; kept for comparison with trait-interp.
    """
    gap = mean_difference(positive, negative)
    vector = random_direction(len(gap), generator=generator).requires_grad_()
    optimiser = torch.optim.Adam([vector], lr=GRADIENT_LR)
    for _ in range(GRADIENT_STEPS):
        optimiser.zero_grad()
        loss = GRADIENT_DECAY * vector.norm() - gap @ (vector / vector.norm())
        loss.backward()
        optimiser.step()
    return _unit(vector.detach().double())


def random_direction(d_model: int, *, generator: torch.Generator) -> Vector:
    """A unit vector drawn evenly: the placebo of every direction."""
    return _unit(torch.randn(d_model, generator=generator, dtype=torch.float64))


def controls_of(direction: Vector, seeds: Iterable[int]) -> Iterator[tuple[int, Vector]]:
    """Random directions as long as `direction`, each with the seed that it is drawn by."""
    for seed in seeds:
        drawn = random_direction(len(direction), generator=torch.Generator().manual_seed(seed))
        yield seed, scaled_to(drawn, float(direction.norm()))


def direction_of(
    method: Method, positive: Rows, negative: Rows, *, paired: bool, generator: torch.Generator
) -> Vector:
    """The direction by `method`, as long as the mean difference.

    One length for all makes a coefficient mean the same: 1 moves by the distance of the classes.

    Raises:
        ValueError: no rows on a side, or the two means are equal.
    """
    if not len(positive) or not len(negative):
        raise ValueError(f"direction: found {len(positive)} and {len(negative)} rows, wanted >= 1")
    estimators: dict[Method, Callable[[], Vector]] = {
        "mean_diff": lambda: mean_difference(positive, negative),
        "probe": lambda: probe(positive, negative),
        "pca": lambda: first_component(positive, negative, paired=paired),
        "gradient": lambda: gradient(positive, negative, generator=generator),
        "random": lambda: random_direction(positive.shape[1], generator=generator),
    }
    norm = mean_difference(positive, negative).norm()
    if not bool(norm > 0):
        raise ValueError("direction: positive and negative rows have the same mean")
    return scaled_to(estimators[method](), float(norm))


def scaled_to(vector: Vector, norm: float) -> Vector:
    """The same direction at another length."""
    return (vector.double() * (norm / vector.double().norm())).float()


def top_share(vector: Vector, n: int = 3) -> float:
    """Share of the squared length in the `n` largest entries; near 1: a few outlier dimensions.

    >>> round(top_share(torch.tensor([3.0, 1.0, 1.0, 1.0]), 1), 2)
    0.75
    """
    squares = vector.double() ** 2
    return float(squares.topk(min(n, len(squares))).values.sum() / squares.sum())


def _unit(vector: Float[Tensor, " d_model"]) -> Vector:
    return (vector / vector.norm()).float()


@dataclass(frozen=True)
class Separation:
    """Classification scores of projections on a direction."""

    accuracy: float
    """Share on the right side of the threshold, 0 to 1."""
    auc: float
    """P(positive > negative), ties half; 0.5 is chance."""
    effect_size: float
    """Cohen's d: distance of the means in pooled standard deviations; NaN without spread."""
    overlap: float
    """Shared area of two normals of equal spread at distance d, 2 Phi(-|d| / 2): 1 the same."""
    p: float = math.nan
    """Welch's test of equal means, two-sided; NaN below two projections a side or without spread.
    Of rows that one direction was chosen on it is no evidence: a score like the others."""
    drop: float = math.nan
    """Accuracy on the rows that the direction was estimated from, minus `accuracy`."""


def separation(
    positive: Sequence[float], negative: Sequence[float], *, threshold: float
) -> Separation:
    """Scores of projections; `threshold` is the midpoint of the means they were estimated from.

    Overlap is that of Inman and Bradley (1989) for equal variances.

    >>> round(separation([2.0, 4.0], [0.0, 2.0], threshold=2.0).effect_size, 3)  # 2 / sqrt(2)
    1.414

    Raises:
        ValueError: a side without projections.
    """
    effect = effect_size(positive, negative)
    return Separation(
        accuracy=accuracy(positive, negative, threshold=threshold),
        auc=auc(positive, negative),
        effect_size=effect,
        overlap=float(2 * norm.cdf(-abs(effect) / 2)),
        p=_welch(positive, negative),
    )


def accuracy(positive: Sequence[float], negative: Sequence[float], *, threshold: float) -> float:
    """Share of projections on the right side; one on the threshold counts as negative."""
    right = sum(value > threshold for value in positive)
    right += sum(value <= threshold for value in negative)
    return right / (len(positive) + len(negative))


def _welch(positive: Sequence[float], negative: Sequence[float]) -> float:
    spread = len({*positive}) > 1 or len({*negative}) > 1
    if min(len(positive), len(negative)) < 2 or not spread:
        return math.nan
    found: Any = ttest_ind(positive, negative, equal_var=False)
    return float(found.pvalue)


def effect_size(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Cohen's d with the pooled standard deviation (ddof 1); NaN where it is 0 or unknown."""
    n = len(positive) + len(negative) - 2
    if n < 1 or not positive or not negative:
        return math.nan
    squares = sum(((np.asarray(v) - np.mean(v)) ** 2).sum() for v in (positive, negative))
    spread = math.sqrt(squares / n)
    return float((np.mean(positive) - np.mean(negative)) / spread) if spread > 0 else math.nan


def mean_separation(folds: Sequence[Separation]) -> Separation:
    """Each score's mean over the folds that have it; NaN where none has."""
    means = {}
    for name in (field.name for field in fields(Separation)):
        values = [getattr(fold, name) for fold in folds if math.isfinite(getattr(fold, name))]
        means[name] = sum(values) / len(values) if values else math.nan
    return Separation(**means)


LAYER_CONVENTION = "block_output_0based"
"""Layer 16 is the output of block 16. Persona vectors count `hidden_states`: their 17."""
SCHEMA = "steer-vector/1"


@dataclass(frozen=True, kw_only=True)
class SteeringVector:
    """A direction in the residual stream after one block, and how it was found.

    The numbers are in the safetensors file, all else in the `.json` beside it.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    vector: Float[Tensor, " d_model"]
    layer: Whole
    method: str
    position: str
    """Which positions were averaged: `response`, `prompt_last` or `span`."""
    trait: str = ""
    n_pos: Whole = 0
    n_neg: Whole = 0
    resid_norm: Length | None = None
    """Mean length of the stream at those positions: what a ratio is measured in."""
    scores: Mapping[str, Number | None] | None = None
    """Classification scores on rows the direction was not estimated from."""
    model: str = ""
    weights: str = ""
    """Content hash of the model the activations are of."""
    data: str = ""
    """Content hash of the contrast rows."""
    dtype: str = ""
    asked: tuple[str, ...] = ()
    """Hashes of the questions it was estimated from: none of them may be asked to test it."""
    key: str = ""
    """Content hash of all that it was estimated from, and how."""

    @property
    def norm(self) -> float:
        """Length of the vector."""
        return float(self.vector.double().norm())

    @property
    def file_name(self) -> str:
        """File name without suffix: `probe_layer16`."""
        return f"{self.method}_layer{self.layer}"

    @property
    def is_massive(self) -> bool:
        """Whether three dimensions hold most of its squared length, as in massive activations."""
        return len(self.vector) > 16 and top_share(self.vector) > OUTLIERS

    def hash(self) -> str:
        """Content hash of the numbers and of where they are added."""
        return digest([self.layer, self.vector.double().tolist()])

    def strength(self, ratio: float) -> float:
        """The coefficient at which what is added is so long, in lengths of the stream.

        Raises:
            InputError: its file does not know how long the stream is.
        """
        if not self.resid_norm:
            raise InputError(
                f"vector {self.file_name}: does not know the stream's length; give coefficients"
            )
        return strength_of(ratio, self.vector, resid_norm=self.resid_norm)

    def ratio(self, coefficient: float) -> float | None:
        """Length of what is added, in lengths of the stream; None where that is not known."""
        return abs(coefficient) * self.norm / self.resid_norm if self.resid_norm else None

    def document(self) -> dict[str, Any]:
        """Provenance as JSON; the vector itself is in the safetensors file."""
        fields = {key: value for key, value in vars(self).items() if key != "vector"}
        fields["asked"] = list(self.asked)
        return {
            "schema": SCHEMA,
            "layer_convention": LAYER_CONVENTION,
            "hook": "resid_post",
            "norm": self.norm,
            "d_model": len(self.vector),
            "hash": self.hash(),
            **fields,
        }


def save_vector(vector: SteeringVector, folder: Path) -> Path:
    """Write `<method>_layer<L>.safetensors`, and last the `.json` that makes it complete.

    A file that holds the same is left as it is.
    """
    make_folder(folder)
    path = folder / f"{vector.file_name}.safetensors"
    content = save({"vector": vector.vector.float().contiguous()})
    if not path.is_file() or path.read_bytes() != content:
        write_bytes(path, content)
    write_keyed(path.with_suffix(".json"), vector.document())
    return path


def load_vector(path: Path, *, d_model: int, n_layers: int, name: str) -> SteeringVector:
    """A vector for a model of this shape; `.pt` files hold one tensor and name their layer.

    Raises:
        InputError: missing, damaged, not finite, zero, of another width, layer or convention.
    """
    if path.suffix == ".pt":
        vector = _load_legacy(path)
    else:
        vector = _load_own(path.with_suffix(".safetensors"))
    if len(vector.vector) != d_model:
        raise InputError(
            f"{path}: the vector has {len(vector.vector)} numbers, {name} has width {d_model}; "
            "extract it from a model of this family"
        )
    if not 0 <= vector.layer < n_layers:
        raise InputError(f"{path}: is for layer {vector.layer}, {name} has 0 to {n_layers - 1}")
    return vector


def _load_own(path: Path) -> SteeringVector:
    beside = path.with_suffix(".json")
    document = read_json(beside)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{beside}: wanted an object of schema {SCHEMA}")
    convention = document.get("layer_convention")
    if convention != LAYER_CONVENTION:
        raise InputError(
            f"{beside}: layer_convention is {convention!r}, wanted "
            f"{LAYER_CONVENTION!r} (layer 16 = output of block 16 = hidden_states[17])"
        )
    content = {**document, "vector": _checked(_tensor(path), path)}
    found = checked(SteeringVector, content, beside, remedy="extract the vector again")
    if document.get("hash") != found.hash():
        raise InputError(f"{path}: its .json describes another vector; extract it again")
    return found


def _tensor(path: Path) -> Tensor:
    if not path.exists():
        raise InputError(f"{path}: no such file; its .json is there")
    try:
        with safe_open(path, framework="pt") as file:
            if list(file.keys()) != ["vector"]:
                raise InputError(f"{path}: holds {list(file.keys())}, wanted one tensor 'vector'")
            return file.get_tensor("vector")
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file ({error})") from error


def _load_legacy(path: Path) -> SteeringVector:
    """A bare tensor of `torch.save`, read without running what a pickle may hold."""
    named = re.search(r"_layer(\d+)$", path.stem)
    if named is None:
        raise InputError(f"{path}: names no layer; wanted <method>_layer<L>.pt")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        found = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise InputError(f"{path}: holds no plain tensor; a pickle is not run") from error
    if not isinstance(found, Tensor) or found.ndim != 1:
        raise InputError(
            f"{path}: wanted one vector; in a stack of persona vectors, row L + 1 is layer L here"
        )
    method = path.stem[: named.start()]
    return SteeringVector(
        vector=_checked(found, path), layer=int(named[1]), method=method, position="unknown"
    )


def _checked(vector: Tensor, path: Path) -> Float[Tensor, " d_model"]:
    if vector.ndim != 1 or not vector.is_floating_point():
        raise InputError(f"{path}: wanted one axis of numbers, found {list(vector.shape)}")
    if not bool(vector.isfinite().all()):
        raise InputError(f"{path}: the vector holds NaN or infinity; extract it again")
    if not bool(vector.norm() > 0):
        raise InputError(f"{path}: the vector is zero; it cannot steer")
    return vector.float()


def strength_of(ratio: float, direction: Float[Tensor, " d_model"], *, resid_norm: float) -> float:
    """The strength at which what is added is `ratio` times as long as the stream.

    >>> from torch import ones
    >>> strength_of(0.5, ones(4), resid_norm=8.0)  # 0.5 * 8 / 2
    2.0
    """
    return ratio * resid_norm / float(direction.float().norm())
