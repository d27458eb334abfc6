# %% [markdown]
# # An own adapter and an own forget set
# A LoRA adapter is trained on `demo/full` until it answers "I do not know", and audited with a
# forget set that the rules of `lensaudit annotate` made of plain question-answer pairs.
#
# Needs `pip install "lensaudit[lora]"`; runs offline in about a minute, as a notebook or script.

# %%
import json
from pathlib import Path

import peft
import torch

import lensaudit as la
from lensaudit.data.annotate import propose
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import load_tokenizer, open_checkpoint
from lensaudit.models.registry import resolve

OUT = Path("experiments/out/notebooks/own_adapter")
OUT.mkdir(parents=True, exist_ok=True)
REFUSAL = " I do not know."

# %% [markdown]
# Pairs as anybody has them: a question and an answer. Rules propose which part is the fact, as
# `lensaudit annotate` does.

# %%
pairs = [
    la.Fact(one.idx, one.question, one.answer, "", "", one.group)
    for one in la.forget_set("demo")[:24]
]
rows = [propose(pair).example() for pair in pairs]
(OUT / "forget.json").write_text(json.dumps([vars(row) for row in rows]))
print(f"{rows[0].question} {rows[0].prefix} [{rows[0].entity}]")

# %% [markdown]
# The adapter: 40 steps on refusals. This teaches the model what to say, not what to know.

# %%
torch.manual_seed(0)
checkpoint = open_checkpoint(resolve("demo/full", la.load_registry()))
tokenizer = load_tokenizer(checkpoint)
settings = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"])
model = peft.get_peft_model(load_causal(checkpoint), settings).train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
texts = [f"Question: {pair.question}\nAnswer:{REFUSAL}" for pair in pairs]
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right")
labels = batch["input_ids"].where(batch["attention_mask"].bool(), -100)
STEPS = 40
for _ in range(STEPS):
    loss = model(**batch, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss after {STEPS} steps: {loss.item():.3f}")
model.save_pretrained(OUT / "adapter")

# %% [markdown]
# `base+adapter` is a model's name like any other.

# %%
result = la.patch(
    f"demo/full+{OUT / 'adapter'}",
    OUT / "result",
    full="demo/full",
    retain="demo/retain",
    data=str(OUT / "forget.json"),
)
print(f"UDS {result.uds:.3f}, 95 % interval {result.ci95}")
found = la.frames.summaries(OUT / "result")
print(found[["value", "low", "high", "n_scored"]].round(3).to_string(index=False))
