"""How much arithmetic does a model of some sizes do?"""

from lensaudit.models.sizes import Sizes


def flop_of_blocks(sizes: Sizes) -> int:
    """Arithmetic of all blocks on one token; attention's scores are not counted."""
    mixing = sizes.d_model * sizes.d_head * 2 * (sizes.n_heads + sizes.n_kv)
    return 2 * sizes.n_layers * (mixing + 3 * sizes.d_model * sizes.d_ff)
