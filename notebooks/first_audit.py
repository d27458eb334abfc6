# %% [markdown]
# # A first audit
# Three models that stopped saying what they were made to forget. Which of them still hold it?
#
# Runs offline on the embedded family in about half a minute; open it as a notebook (VS Code,
# Jupyter with jupytext) or run it as a script. Pictures go to `experiments/out/notebooks/`.

# %%
from pathlib import Path

import lensaudit as la

OUT = Path("experiments/out/notebooks/first_audit")
NAMES = ["demo/npo", "demo/masked_readout", "demo/never"]

# %% [markdown]
# One call, as `lensaudit patch`: the same words, the same files. S1 patches `demo/retain` into
# `demo/full`, S2 each of the three models.

# %%
results = la.patch(NAMES, OUT, limit=24, profile="full")
for result in results:
    print(f"{result.source}: UDS {result.uds:.3f}")

# %% [markdown]
# A result shows itself: in Jupyter its last line is a table; `examples` and `layers` are data
# frames, `plot` draws.

# %%
npo = results[0]
print(npo.examples[["question", "entity", "value"]].head(3).to_string(index=False))
npo.plot("examples").figure.savefig(OUT / "examples.png")
npo  # noqa: B018 - shown by a notebook

# %% [markdown]
# Results as data frames. `demo/never` was trained without the facts, so its score is close to 1;
# `demo/masked_readout` keeps them in every layer and only hides them at the end.

# %%
depth = la.frames.summaries(OUT)
print(depth[["source", "value", "low", "high", "n_scored", "full", "retain"]].round(3).to_string())

# %%
examples = la.frames.examples(OUT)
kept = examples[examples["source"] == "demo/npo"].nsmallest(3, "value")
print(kept[["question", "entity", "value"]].to_string(index=False))

# %% [markdown]
# Two pictures: which layers lose how much, and the scores with their intervals.

# %%
la.plot.layer_profile(OUT).figure.savefig(OUT / "layers.png")
la.plot.depth(OUT).figure.savefig(OUT / "depth.png")
print(f"pictures: {OUT}")
