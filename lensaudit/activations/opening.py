"""A cache by the name of its model, by its key, or by its folder."""

from pathlib import Path
from typing import Literal

from lensaudit.activations.chosen import check_part
from lensaudit.activations.inventory import check_key
from lensaudit.activations.layers import LayeredActivations
from lensaudit.activations.lookup import find
from lensaudit.activations.naming import is_cache
from lensaudit.activations.presence import check_trusted
from lensaudit.activations.recipe import how_to_fill
from lensaudit.activations.spec import SPEC, Kept, Positions, checked_seal, read_spec
from lensaudit.errors import InputError
from lensaudit.results.reading import place_in
from lensaudit.settings import Place, activations_folder
from lensaudit.turns import in_turn


def open_folder(folder: Path, *, allow_partial: bool = False) -> LayeredActivations:
    """The cache in one folder.

    Raises:
        InputError: it is incomplete and `allow_partial` is not set.
        VerificationError: its spec or seal is damaged, or they contradict each other.
    """
    with in_turn(folder.parent):
        check_trusted(folder)
        spec = read_spec(folder / SPEC)
        if is_cache(folder):
            check_key(folder, spec)
        seal = checked_seal(folder, spec)
        if seal is None and not allow_partial:
            raise InputError(f"{folder}: is not complete; {how_to_fill(spec, folder.parent)}")
        return LayeredActivations(folder, spec, seal)


def open_activations(
    name_or_key_or_path: Place,
    *,
    root: Place | None = None,
    data: Place | None = None,
    limit: int | Literal["all"] | None = None,
    positions: Positions | None = None,
    component: Kept | None = None,
    allow_partial: bool = False,
) -> LayeredActivations:
    """A cache by the model's name, by its key or the beginning of it, or by its folder.

        from lensaudit.activations.opening import open_activations
        cache = open_activations("full", limit=8, positions="span")
        cache.example(0).resid      # Float[Tensor, "layer pos d_model"]

    Args:
        name_or_key_or_path: of a name there may be several caches. A model whose files are here
            means those of its weights as they are now, whatever they were called when cached.
        root: folder of the caches; None: the usual one.
        data: that of these rows: `forget10`, `demo`, or a file, whose rows are compared where the
            model's tokenizer is here.
        limit: that of the first so many rows, or of "all"; None prefers that of all.
        positions: that of the read positions (`span`) or of every token (`all`).
        component: that of `attn`, `mlp`, `resid_mid`, or of all `heads`; None of a name: the
            residual stream. `.resid` of an example is then that component.
        allow_partial: open one that is not complete.

    Raises:
        InputError: none or several match, says in what they differ; or the one that was made of
            other weights or rows than are there now.
    """
    check_part(component)
    wanted = {"data": data, "limit": limit, "positions": positions, "component": component}
    place = place_in("open_activations", name_or_key_or_path)
    folder = find(place, root=Path(root or activations_folder()), wanted=wanted)
    return open_folder(folder, allow_partial=allow_partial)
