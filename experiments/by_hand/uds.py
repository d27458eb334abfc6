"""One row of UDS from cached tensors, step by step, with hooks: nothing is hidden in the engine.

Question: does the number that `lensaudit patch` writes follow from its definition?
Command:  python -m experiments.by_hand.uds --source demo/npo --idx 3
Takes:    seconds on a CPU. Expected: the two lines it prints agree to 1e-5.
"""

from pathlib import Path

import click
import torch

import lensaudit as la
from lensaudit.scores.depth import TAU


@click.command()
@click.option("--source", default="demo/npo", show_default=True)
@click.option("--full", default="demo/full", show_default=True)
@click.option("--retain", default="demo/retain", show_default=True)
@click.option("--data", default=None, help="Forget set; default as in `lensaudit patch`.")
@click.option("--idx", type=int, default=None, help="Example; the first one by default.")
@click.option("--activations", type=click.Path(path_type=Path), default=Path("activations"))
def main(source, full, retain, data, idx, activations):
    # the engine's answer
    audit = la.prepare(
        [source],
        la.PatchSettings(full=full, retain=retain, data=data, tau=TAU, activations=activations),
    )
    outcome = la.score_all(audit)[0][0]
    at = 0 if idx is None else [e.idx for e in audit.encoded].index(idx)
    example = audit.encoded[at]

    # the same from its definition, and the streams that the engine read
    model = la.load_model(full)
    batch = la.make_batch([example])
    baseline = la.span_logprob(la.logits_of(model, batch.tokens), batch.tokens, batch.predict_at)
    deltas = {}
    for stage, name in (("s1", retain), ("s2", source)):
        cache = la.cache(name, activations, data=audit.settings.data)
        thoughts = la.open_activations(cache.folder).example(example.idx)
        n_layers, _, d_model = thoughts.resid.shape
        rows = []
        for layer in range(n_layers):
            stream = torch.zeros(1, batch.tokens.shape[1], d_model)
            stream[0, thoughts.positions] = thoughts.resid[layer]
            with la.intervening(model, {layer: la.replace_at(stream, batch.patch_at)}):
                logits = la.logits_of(model, batch.tokens)
            rows.append(baseline - la.span_logprob(logits, batch.tokens, batch.predict_at))
        deltas[stage] = torch.stack(rows, dim=1)
    s1, s2 = deltas["s1"][0], deltas["s2"][0]
    ke = s1 > TAU
    by_hand = float((s2.clamp(min=0).minimum(s1) * ke).sum() / (s1 * ke).sum())

    click.echo(f"example {example.idx} of {source}: {int(ke.sum())} KE layers of {len(ke)}")
    click.echo(f"by hand: UDS {by_hand:.6f}")
    click.echo(f"engine:  UDS {float(outcome.depth.uds[at]):.6f}")


if __name__ == "__main__":
    main()
