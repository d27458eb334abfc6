# %% [markdown]
# # A hook experiment in twenty lines
# `demo/full` knows where two people were born. Which attention head brings the person into the
# answer, and does one direction change the town? Three edits of a forward pass: replace the stream,
# replace one head at one position, add a direction.
#
# Runs offline on an embedded model in about half a minute, as a notebook or as a script. The model
# is a `TransformerBridge` of TransformerLens. lensaudit installs the hooks and removes them.

# %%
from pathlib import Path

import torch
from matplotlib import pyplot

import lensaudit as la

OUT = Path("experiments/out/notebooks/hook_experiment")
OUT.mkdir(parents=True, exist_ok=True)
torch.set_grad_enabled(False)
model = la.load_model("demo/full")
facts = {fact.idx: fact for fact in la.forget_set("demo")}

# %% [markdown]
# Two prompts that differ only in the name, token by token. The model continues each with the first
# token of that person's town.

# %%
pair = facts[0], facts[24]
# as scores read it: `to_tokens` begins with a BOS, also where the tokenizer does not
prompts = [la.prompt(fact.question, fact.prefix) for fact in pair]
asked, other = (model.tokenizer(one, return_tensors="pt").input_ids for one in prompts)
assert asked.shape == other.shape
own, wanted = (int(la.logits_of(model, tokens)[0, -1].argmax()) for tokens in (asked, other))
for fact, token in zip(pair, (own, wanted), strict=True):
    begun = model.tokenizer.decode([token])
    print(f"{fact.question} {fact.prefix}{begun}")
    assert fact.entity.startswith(begun.strip())
words = [model.tokenizer.decode([token]) for token in asked[0].tolist()]
LAST, ANSWER = len(words) - 1, words.index("Answer")
print(f"the last position is {LAST}, {words[LAST]!r}; position {ANSWER} is {words[ANSWER]!r}")

# %% [markdown]
# The experiment. `gap` asks about the first person and returns by how many logits the model prefers
# the other person's town. All that is put in comes from one cached run on the other prompt. A batch
# has one row for each head of a layer, so one pass tries them all.
#
# Line by line: the question; the two cached runs; at two positions, each layer's stream and then
# each of its heads replaced; a direction added at the last position, and five random ones of the
# same length as controls.

# %%
N, H, AT, STRENGTHS = model.cfg.n_layers, model.cfg.n_heads, 10, [-1, 0, 0.5, 1, 1.5, 2, 3]


def gap(edits: dict, component: str = "resid") -> torch.Tensor:
    with la.intervening(model, edits, component=component):
        logits = la.logits_of(model, asked.expand(H, -1))[:, -1]
    return logits[:, wanted] - logits[:, own]


_, cache = model.run_with_cache(other.expand(H, -1))
_, plain = model.run_with_cache(asked.expand(H, -1))
streams, heads = {ANSWER: [], LAST: []}, {ANSWER: [], LAST: []}
for at in (ANSWER, LAST):
    here = (torch.arange(len(words)) == at).expand(H, -1)
    one_head = here.unsqueeze(-1) & torch.eye(H, dtype=torch.bool).unsqueeze(1)  # row h: head h
    for n in range(N):
        stream, z = cache[f"blocks.{n}.hook_resid_post"], cache[f"blocks.{n}.attn.hook_z"]
        streams[at].append(float(gap({n: la.replace_at(stream, here)})[0]))
        heads[at].append(gap({n: la.replace_at(z, one_head)}, "head").tolist())
towards = (cache[f"blocks.{AT}.hook_resid_post"] - plain[f"blocks.{AT}.hook_resid_post"])[0, LAST]
noise = torch.randn(5, len(towards), generator=torch.Generator().manual_seed(0))
ways = [towards, *(noise * towards.norm() / noise.norm(dim=1, keepdim=True))]
steered = [[float(gap({AT: la.add(w, strength=s, mask=here)})[0]) for s in STRENGTHS] for w in ways]

# %% [markdown]
# Before any reading: what must be equal is equal. No edit and strength 0 change nothing. Strength 1
# of the direction is the other run's stream, so it gives what replacing the stream gives.

# %%
before = float(gap({})[0])
said = la.logits_of(model, other)[0, -1]
goal = float(said[wanted] - said[own])
print(f"asked about the first person {before:.2f}, about the other {goal:.2f}")
assert before < 0 < goal
assert all(abs(row[STRENGTHS.index(0)] - before) < 1e-3 for row in steered)
assert abs(steered[0][STRENGTHS.index(1)] - streams[LAST][AT]) < 1e-3

# %% [markdown]
# Where is the person? At "Answer", the word after the question, the stream of an early layer is
# enough to change the preferred town. In layers 4 and 5 neither position is enough alone. From
# layer 6 on the last position is.

# %%
for at in (ANSWER, LAST):
    enough = [n for n in range(N) if streams[at][n] > 0]
    print(f"the stream at {words[at]!r} alone changes the preferred town in layers {enough}")
assert min(streams[ANSWER][:4]) > 0 > max(streams[ANSWER][4:])
assert min(streams[LAST][6:]) > 0 > max(streams[LAST][:6])

# %% [markdown]
# Which head brings it there? One of layer 0 moves the preference further than any other head at
# these two positions, and it looks most at the name. Alone it does not change the town.

# %%
moved = {(n, h, at): heads[at][n][h] for at in heads for n in range(N) for h in range(H)}
ranked = sorted(moved, key=lambda one: -moved[one])
for n, h, at in ranked[:3]:
    share = (moved[n, h, at] - before) / (goal - before)
    seen = words[int(plain[f"blocks.{n}.attn.hook_pattern"][0, h, at].argmax())]
    print(f"layer {n}, head {h} at {words[at]!r}: {share:.0%} of the way; looks most at {seen!r}")
first = ranked[0]
assert first == (0, 2, ANSWER)
assert moved[first] < 0
assert words[int(plain["blocks.0.attn.hook_pattern"][0, 2, ANSWER].argmax())] == " Ruvimbel"

# %% [markdown]
# The direction changes the preferred town from strength 1 on. The random ones do not at strengths 1
# and 2. But they too weaken the preference, and at strength 3 one cancels it: a strong push along
# any direction does harm. A steering result needs such controls.

# %%
for strength in (1, 2, 3):
    along, *others = (row[STRENGTHS.index(strength)] for row in steered)
    print(f"strength {strength}: direction {along:.2f}, the random ones up to {max(others):.2f}")
    assert along > 0
    assert max(others) < 0 or strength == 3

# %%
figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
for at in (ANSWER, LAST):
    axes[0].plot(streams[at], "o-", label=f"stream replaced at {words[at].strip()!r}")
axes[0].set(xlabel="layer", ylabel="prefers the other town by, logits", title="One position")
shown = axes[1].imshow(torch.tensor(heads[ANSWER]).T, aspect="auto", vmin=before, cmap="viridis")
axes[1].set(xlabel="layer", ylabel="head", yticks=range(H), title="One head at 'Answer'")
figure.colorbar(shown, ax=axes[1])
for n, row in enumerate(steered):
    label = ["difference of the two runs", "random, of its length", *[None] * 4][n]
    axes[2].plot(
        STRENGTHS, row, "o-" if n == 0 else "-", color="C0" if n == 0 else "0.7", label=label
    )
axes[2].set(xlabel="strength", title=f"One direction, layer {AT}")
for ax in (axes[0], axes[2]):
    ax.axhline(0, color="0.7", linewidth=0.8)
    ax.legend(frameon=False, loc="center right" if ax is axes[0] else "upper left")
figure.savefig(OUT / "hooks.png")
print(f"picture: {OUT / 'hooks.png'}")

# %% [markdown]
# This is one pair of prompts. A claim about the model needs many pairs, and heads and layers chosen
# on some of them, tested on others. To ask an unlearned model, name it in `la.load_model`.
