"""Tiny audits from disk: models, a forget set of nonsense words, and `prepare`."""

import json
from dataclasses import replace
from types import SimpleNamespace

import support
from lensaudit.patching.prepare import prepare
from lensaudit.patching.scoring import scored
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


def run(audit):
    """S1, S2 by source, and what `full` patched into itself changes; and who computed them."""
    outcomes, calibration = scored(audit)
    layers = audit.settings.at_layers
    return SimpleNamespace(
        outcomes=outcomes,
        calibration=calibration,
        baseline=outcomes[0].baseline,
        s1=outcomes[0].s1,
        s2={one.source: one.s2 for one in outcomes},
        self_patch=audit.read(audit.full.weights, audit.encoded, layers),
        engine=audit.settings.computed_with,
        computed_by={one.source: one.computed_by for one in outcomes},
    )
