"""How long a text may be is the configuration's word."""

import pytest
import transformers

from lensaudit.models.sizes import ContextWindow, context_of


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0} | more}


@pytest.mark.parametrize(
    ("kind", "changes", "wanted"),
    [
        ("Llama", {"max_position_embeddings": 512}, ContextWindow(512)),
        ("Llama", rope("linear") | {"max_position_embeddings": 512}, ContextWindow(512)),
        # frequencies change once the longest text of a batch is longer
        (
            "Llama",
            rope("dynamic") | {"max_position_embeddings": 512},
            ContextWindow(512, fixed=True),
        ),
        (
            "Llama",
            rope(
                "longrope",
                short_factor=[1.0] * 64,
                long_factor=[2.0] * 64,
                original_max_position_embeddings=64,
            )
            | {"max_position_embeddings": 512},
            ContextWindow(64, fixed=True),
        ),
        ("GPT2", {"n_positions": 256}, ContextWindow(256, fixed=True)),
        ("OPT", {"max_position_embeddings": 256}, ContextWindow(256, fixed=True)),
        ("Gemma3Text", {"max_position_embeddings": 256}, ContextWindow(256)),
        ("Mamba", {}, ContextWindow(None, fixed=True)),
        ("Bloom", {}, ContextWindow(None, fixed=True)),
    ],
)
def test_the_limit_is_read_from_the_configuration(kind, changes, wanted):
    assert context_of(getattr(transformers, f"{kind}Config")(**changes)) == wanted


def test_what_is_generated_counts_where_positions_are_fixed():
    assert ContextWindow(8).too_long(8, 4) is None
    assert ContextWindow(8, fixed=True).too_long(4, 4) is None
    said = ContextWindow(8, fixed=True).too_long(5, 4)
    assert said == "5 tokens with 4 to generate, longer than the model's context of 8"
    assert ContextWindow(None, fixed=True).too_long(10**6) is None
