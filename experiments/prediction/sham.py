"""What does a change of the same size do that aims at nothing?

Each matrix of the model is moved from `full`'s by as much as the method moved it (Frobenius norm),
in a random direction of `full`'s own adapter: both of its factors are moved, so that the sham has
the rank of the method and is retrained like it.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lensaudit.files import make_folder
from lensaudit.models.adapter import CONFIG, WEIGHTS

DOWN, UP = ".lora_A.", ".lora_B."


def change(down: Tensor, up: Tensor, start: tuple[Tensor, Tensor]) -> float:
    """Frobenius norm of the change of the matrix, alpha / rank left out."""
    return float((up @ down - start[1] @ start[0]).norm())


def sham_of(down: Tensor, up: Tensor, size: float, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Both factors, moved by noise until their product has moved by `size`."""
    noise = [
        torch.randn(one.shape, generator=draw) * one.norm() / one.numel() ** 0.5
        for one in (down, up)
    ]
    least, most = 0.0, 1.0

    def moved(by: float) -> tuple[Tensor, Tensor]:
        return down + by * noise[0], up + by * noise[1]

    while change(*moved(most), (down, up)) < size:
        most *= 2
    for _ in range(40):
        middle = (least + most) / 2
        if change(*moved(middle), (down, up)) < size:
            least = middle
        else:
            most = middle
    return moved(most)


def write_sham(full: Path, method: Path, out: Path, *, seed: int) -> None:
    """An adapter beside `full`'s that is as far from it, matrix by matrix, as the method's."""
    start, end = (
        {n: t.float() for n, t in load_file(one / WEIGHTS).items()} for one in (full, method)
    )
    draw = torch.Generator().manual_seed(seed)
    found = dict(start)
    for name in sorted(one for one in start if DOWN in one):
        pair = name, name.replace(DOWN, UP)
        down, up = (start[one] for one in pair)
        size = change(end[pair[0]], end[pair[1]], (down, up))
        found |= zip(pair, sham_of(down, up, size, draw), strict=True)
    make_folder(out)
    (out / CONFIG).write_bytes((full / CONFIG).read_bytes())
    stored = {name: one.to(torch.bfloat16).contiguous() for name, one in found.items()}
    save_file(stored, out / WEIGHTS, metadata={"format": "pt"})
