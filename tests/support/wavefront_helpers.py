"""The sweep and the oracle on the same batch, for tests."""

import torch

from lensaudit.data.spans import Encoded, make_batch
from lensaudit.models.bridge import embedded, residuals
from lensaudit.models.decoder import decoder_of
from lensaudit.patching import oracle
from lensaudit.patching.layout import layout_of
from lensaudit.patching.wavefront import CleanRun, sweep

NATS = 1e-4


def examples(shapes, seed=7, d_vocab=61):
    """Random tokens; a shape is (n_prompt, start, end, n_tokens)."""
    generator = torch.Generator().manual_seed(seed)
    return [
        Encoded(
            idx,
            idx,
            tuple(torch.randint(3, d_vocab, (n,), generator=generator).tolist()),
            n_prompt,
            start,
            end,
        )
        for idx, (n_prompt, start, end, n) in enumerate(shapes)
    ]


def source_stack(model, encoded, component="resid", last_layer="resid_post"):
    """What the source hands over, at all positions."""
    stack, final_norm = residuals(model, make_batch(encoded).tokens, component=component)
    if last_layer == "reference":
        return torch.cat((stack[:, :-1], final_norm[:, None]), 1)
    return stack


def packed_span(stack, layout):
    """The span positions of a padded stack."""
    return stack[layout.span_example, :, layout.span_pos].movedim(0, 1).contiguous()


def packed_prefix(stack, layout):
    """The prefix positions of a padded stack."""
    return stack[layout.prefix_example, :, layout.prefix_pos].movedim(0, 1).contiguous()


def clean_run(full, encoded, layout):
    """The unpatched run of `full`, packed."""
    tokens = make_batch(encoded).tokens
    stack, stream = residuals(full, tokens)[0], embedded(full, tokens)
    return CleanRun(
        packed_prefix(stack, layout),
        packed_span(stack, layout),
        stream[layout.span_example, layout.span_pos],
        stream[layout.prefix_example, layout.prefix_pos],
    )


def swept(full, stacks, encoded, *, scope="span", joins=None, logit_rows=7, **how):
    """Baseline [batch] and patched scores [source, batch, layer] of the sweep."""
    layout, decoder = layout_of(encoded, scope), decoder_of(full)
    if joins is None:
        joins = torch.ones(len(stacks), len(encoded), len(decoder.blocks), dtype=torch.bool)
    with torch.inference_mode():
        clean, sources = clean_run(full, encoded, layout), [packed_span(s, layout) for s in stacks]
        return sweep(decoder, layout, clean, sources, joins, logit_rows=logit_rows, **how)


def defined(full, stacks, encoded, *, scope="span", **how):
    """The same from the oracle."""
    batch = make_batch(encoded, scope=scope)
    read = {"label_score": how["label_score"]} if "label_score" in how else {}
    layers = range(stacks[0].shape[1])
    scores = [oracle.patched(full, s, batch, layers=layers, **how) for s in stacks]
    return oracle.baseline(full, batch, **read), torch.stack(scores)


def assert_equal(found, wanted, nats=NATS):
    """Every score within `nats`, none missing."""
    baseline, patched = wanted
    assert (found.baseline - baseline).abs().max() <= nats
    assert (found.patched - patched).abs().max() <= nats  # NaN would not pass
