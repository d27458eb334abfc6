"""Tiny audits from disk: models, a forget set of nonsense words, and `prepare`."""

import json
from dataclasses import replace

import support

from lensaudit.patching.prepare import prepare
from lensaudit.patching.settings import PatchSettings


def save_family(folder, tokenizer, kind="Llama", names=("full", "retain", "a", "b"), **changes):
    """A random model per name."""
    for seed, name in enumerate(names):
        support.tiny_model_of(kind, seed, **changes).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def save_questions(folder, n=9):
    """Answers of uneven length; entities of one to three words."""
    rows = []
    for idx in range(n):
        words = [f"w{5 + (7 * idx + 3 * k) % 50}" for k in range(6 + idx % 5)]
        low, high = 1 + idx % 3, 2 + idx % 3 + idx % 4
        rows.append(
            {
                "idx": idx,
                "group": f"author {idx}",
                "question": " ".join(f"w{4 + (idx * k) % 50}" for k in range(3 + idx % 4)),
                "answer": " ".join(words),
                "prefix": " ".join(words[:low]),
                "entity": " ".join(words[low:high]),
            }
        )
    (folder / "forget.json").write_text(json.dumps(rows))
    return folder


def anew(audit):
    """The same audit with `fresh`, and nothing held."""
    return replace(audit, settings=replace(audit.settings, fresh=True))


def audit_in(folder, sources=("a",), **settings):
    """An audit of the models in `folder`; its notices are in `notices`."""
    notices = []
    given = {
        "full": str(folder / "full"),
        "retain": str(folder / "retain"),
        "data": str(folder / "forget.json"),
        "activations": folder / "activations",
    }
    names = [str(folder / name) for name in sources]
    asked = PatchSettings(**given | settings)
    return prepare(names, asked, notice=notices.append, maps="align" in settings), notices
