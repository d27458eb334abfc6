# %% [markdown]
# # Where is it, and can it be brought back?
# `demo/masked_readout` does not say the forgotten answers. Its own stream at some layer, put into
# `demo/full`, makes `full` say them: the knowledge is there, and only its way out is blocked.
#
# Runs offline on the embedded family in about half a minute, as a notebook or as a script.

# %%
from pathlib import Path

import torch
from matplotlib import pyplot

import lensaudit as la

OUT = Path("experiments/out/notebooks/where_is_it")
OUT.mkdir(parents=True, exist_ok=True)
full, hidden = la.load_model("demo/full"), la.load_model("demo/masked_readout")
never = la.load_model("demo/retain")

# %% [markdown]
# One question, as tokens: `predict_at` marks the positions whose logits score the entity.

# %%
example = la.forget_set("demo")[0]
batch = la.make_batch([la.encode(example, full.tokenizer)])
print(example.question, "->", example.entity)


def says(model: object) -> float:
    """Log-probability of the entity, nats per token."""
    logits = la.logits_of(model, batch.tokens)
    return float(la.span_logprob(logits, batch.tokens, batch.predict_at)[0])


print(f"full says it with {says(full):.2f} nats per token, masked_readout with {says(hidden):.2f}")
assert says(full) > says(hidden) + 1

# %% [markdown]
# The residual stream after every layer of the silent model, patched into `full` one layer at a
# time: `layer_deltas` is how much of the answer is lost. Beside it the same of `demo/retain`, which
# never saw the answer: that much would be lost if it were gone.

# %%
with torch.no_grad():
    stream, _ = la.residuals(hidden, batch.tokens)
    foreign, _ = la.residuals(never, batch.tokens)
lost = la.layer_deltas(full, stream, batch)[0]
gone = la.layer_deltas(full, foreign, batch)[0]
print("lost by layer:      ", [round(value, 2) for value in lost.tolist()])
print("if it had been gone:", [round(value, 2) for value in gone.tolist()])
assert gone.max() > 1 > lost.abs().mean()

# %% [markdown]
# By hand, with one hook: the stream of layer 8, and what `full` then says.

# %%
patch = la.replace_at(stream[:, 8], batch.predict_at)
with la.intervening(full, {8: patch}):
    revived = says(full)
print(f"with its layer 8 in full: {revived:.2f} nats per token")
assert revived > says(hidden) + 1

# %%
figure, ax = pyplot.subplots(layout="constrained")
layers = range(len(lost))
ax.plot(layers, gone.tolist(), "--", color="black", label="retain: never saw the answer")
ax.plot(layers, lost.tolist(), "o-", label="masked_readout: does not say it")
ax.fill_between(layers, lost.tolist(), gone.tolist(), alpha=0.15, label="still there")
ax.axhline(0, color="0.7", linewidth=0.8)
ax.set(xlabel="layer whose stream is put into full", ylabel="answer lost, nats per token")
ax.set_title(f"{example.question} {example.entity}")
ax.legend(frameon=False)
figure.savefig(OUT / "lost.png")
print(f"picture: {OUT / 'lost.png'}")
