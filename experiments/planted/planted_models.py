"""Models whose truth about the forget facts is known because it was planted, for planted_truth.py.

Intact: `full` says the facts, and so does what is made of it without touching them. Hidden: the
facts are silenced in a known place, and every layer below it is `full`'s, bit for bit, or can be
turned back into it. Absent: made of models that never saw the facts. How each is made is the gym's
(`lensaudit/gym`), which has more mechanisms, more seeds and certificates.
"""

import copy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from lensaudit.attacks.quantize import quantised
from lensaudit.files import make_folder
from lensaudit.gym import edits
from lensaudit.gym.ground import Ground, facts_of
from lensaudit.gym.planting import ignorant_rows, push_of, turn_of, wrong_rows
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import load_tokenizer, open_checkpoint
from lensaudit.models.registry import EMBEDDED, load_registry, resolve
from lensaudit.training.trainee import copy_tokenizer, save_model
from tools.demo_family.family import make_family

Truth = Literal["intact", "hidden", "absent"]
RANK = 24
"""Of the 64 dimensions of the stream, those that separate the forget set's tokens most."""


@dataclass(frozen=True)
class Planted:
    """A model to make, and what is true of it."""

    name: str
    truth: Truth
    how: str
    make: Callable[[], Any]


def folder_of(one: Planted, out: Path, full: str = "demo/full") -> Path:
    """The model as a checkpoint with the tokenizer of `full`, made once."""
    folder = out / "models" / one.name
    if not (folder / "config.json").exists():
        start = open_checkpoint(resolve(full, load_registry())).folder
        copy_tokenizer(start, make_folder(folder))
        save_model(one.make(), folder, dtype=torch.float32)
    return folder


def seeds_of_never(names: Sequence[str], out: Path) -> list[Path]:
    """`never` in other orders of the data, trained from the family's base; made once."""
    family = make_folder(out / "family")
    if not (family / "base").exists():
        shutil.copytree(EMBEDDED / "base", family / "base")
    make_family(family, only=names)
    return [(family / name).absolute() for name in names]


@cache
def opened(name: str) -> Any:
    """A member of the embedded family, in float32; not to be changed."""
    return load_causal(open_checkpoint(resolve(f"demo/{name}", load_registry())))


@cache
def tokenizer() -> Any:
    return load_tokenizer(open_checkpoint(resolve("demo/full", load_registry())))


@cache
def ground() -> Ground:
    """The family and its facts."""
    models = (copy.deepcopy(opened(name)) for name in ("full", "retain", "never"))
    return Ground(*models, tokenizer(), facts_of("demo", None), seed=0)


def noisy(name: str) -> Any:
    return edits.noisy(opened(name), share=0.02)


def rounded(name: str) -> Any:
    return quantised(opened(name), "nf4", engine="torch")[0]


def further(name: str) -> Any:
    return ground().trained(opened(name), ground().facts.kept, lr=2e-4)


def rotated(name: str) -> Any:
    return edits.turned(opened(name), turn_of(ground()))


def top_trained(rows: Callable[[Ground], Any]) -> Any:
    """Final norm, readout and the last two layers."""
    return ground().trained(opened("full"), rows(ground()), lr=2e-3, trainable=ground().top(1 / 8))


def with_vector(layer: int) -> Any:
    return edits.with_vector(opened("full"), layer, push_of(ground(), layer))


def projected(first_layer: int) -> Any:
    basis = edits.read_subspace(opened("full"), ground().entity_tokens(), RANK)
    return edits.without_subspace(opened("full"), basis, first_layer)


def permuted_readout() -> Any:
    return edits.permuted_readout(opened("full"), ground().entity_tokens())


def planted() -> list[Planted]:
    """Every model of the experiment."""
    return [
        Planted("full", "intact", "the model before unlearning", lambda: opened("full")),
        Planted("full_noise", "intact", "noise of 2 % on every matrix", lambda: noisy("full")),
        Planted("full_nf4", "intact", "rounded to NF4", lambda: rounded("full")),
        Planted(
            "full_further",
            "intact",
            "trained on, with the retain rows",
            lambda: further("full"),
        ),
        Planted(
            "full_rotated",
            "intact",
            "another basis of the stream; same function",
            lambda: rotated("full"),
        ),
        Planted(
            "masked_readout",
            "hidden",
            "NPO on final norm and readout alone",
            lambda: opened("masked_readout"),
        ),
        Planted(
            "masked_upper", "hidden", "NPO on the last layer alone", lambda: opened("masked_upper")
        ),
        Planted("idk_all", "hidden", "IDK-tuned, all weights", lambda: opened("idknll")),
        Planted(
            "idk_top",
            "hidden",
            "IDK-tuned, last two layers and readout",
            lambda: top_trained(ignorant_rows),
        ),
        Planted(
            "wrong_top",
            "hidden",
            "taught false answers, last two layers and readout",
            lambda: top_trained(wrong_rows),
        ),
        Planted(
            "permuted_readout", "hidden", "entity tokens swapped in the readout", permuted_readout
        ),
        Planted(
            "flat_readout",
            "hidden",
            "all logits divided by ten",
            lambda: edits.scaled_readout(opened("full"), 0.1),
        ),
        Planted(
            "vector_last", "hidden", "large constant vector after layer 15", lambda: with_vector(15)
        ),
        Planted(
            "vector_14", "hidden", "large constant vector after layer 14", lambda: with_vector(14)
        ),
        Planted(
            "vector_8", "hidden", "large constant vector after layer 8", lambda: with_vector(8)
        ),
        Planted(
            "masked_rotated",
            "hidden",
            "masked_upper in another basis of the stream",
            lambda: rotated("masked_upper"),
        ),
        Planted(
            "projected_top",
            "hidden",
            f"{RANK} of 64 dimensions removed, layers 14 and 15",
            lambda: projected(14),
        ),
        Planted("retain", "absent", "never saw the facts", lambda: opened("retain")),
        Planted(
            "never", "absent", "never saw the facts, other order of data", lambda: opened("never")
        ),
        Planted("retain_noise", "absent", "noise of 2 % on every matrix", lambda: noisy("retain")),
        Planted("retain_nf4", "absent", "rounded to NF4", lambda: rounded("retain")),
        Planted(
            "retain_further",
            "absent",
            "trained on, with the retain rows",
            lambda: further("retain"),
        ),
        Planted(
            "retain_rotated",
            "absent",
            "another basis of the stream; same function",
            lambda: rotated("retain"),
        ),
        Planted(
            "retain_idk",
            "absent",
            "IDK-tuned",
            lambda: ground().trained(opened("retain"), ignorant_rows(ground()), lr=3e-4),
        ),
        Planted(
            "never_wrong",
            "absent",
            "taught false answers",
            lambda: ground().trained(opened("never"), wrong_rows(ground()), lr=1e-3),
        ),
    ]
