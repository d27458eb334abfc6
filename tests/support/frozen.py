"""What the embedded family's numbers were when the code agreed with the references.

    PYTHONPATH=tests python -m support.frozen patching        writes tests/golden/embedded/ again

A number that changes is a change of a published number: it goes into CHANGELOG.md, old -> new and
why. Nothing is rounded before it is compared; what is written has seven digits.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support import EMBEDDED, GOLDEN, golden_values
from support.generated import EDGE, tokenizer_like

FEW = slice(None, None, 9)
"""One question of each author of the forget set, of another kind each time; the last is "Yes"."""


@dataclass(frozen=True)
class Frozen:
    """One file of frozen numbers."""

    measure: Callable[[], Any]
    agrees_with: str
    """Which values of the references the same version agreed with, and to what digit."""


def differences(
    found: Any, wanted: Any, *, within: float, floor: float = 1.0, path: str = ""
) -> Iterator[str]:
    """Places where what is measured differs from what is frozen.

    The tolerance is `within` of the frozen number, or of `floor` where that is larger.
    """
    limits: dict[str, float] = {"within": within, "floor": floor}
    if isinstance(wanted, dict) and isinstance(found, dict) and found.keys() == wanted.keys():
        for key in wanted:
            yield from differences(found[key], wanted[key], **limits, path=f"{path}/{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from differences(one, other, **limits, path=f"{path}/{at}")
    elif isinstance(wanted, float) and isinstance(found, float):
        same = abs(found - wanted) <= within * max(floor, abs(wanted))
        if not same and not (isnan(found) and isnan(wanted)):
            yield f"{path}: {found!r} for {wanted!r}"
    elif found != wanted:
        yield f"{path}: {found!r} for {wanted!r}"


def frozen(name: str) -> Any:
    """The values of one file."""
    return golden_values(f"embedded/{name}.json")


def embedded_tokenizer(name: str = "full") -> Any:
    """The tokenizer of an embedded model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(EMBEDDED / name)


def embedded_forget() -> list[Any]:
    """The embedded forget set, encoded."""
    import lensaudit as la

    tokenizer = embedded_tokenizer()
    return [la.encode(example, tokenizer) for example in la.forget_set("demo")]


def positions() -> Any:
    """Token ids and the span's place, of every row."""
    return {
        str(e.idx): {"ids": list(e.token_ids), "place": [e.n_prompt, e.start, e.end]}
        for e in embedded_forget()
    }


def patching() -> Any:
    """Baselines, deltas and depth scores of the definition, in each of its modes."""
    import torch

    import lensaudit as la

    full, retain = la.load_model("demo/full"), la.load_model("demo/retain")
    encoded = embedded_forget()[FEW]

    def deltas(source, scope="span", component="resid"):
        batch = la.make_batch(encoded, scope=scope)
        stack, _ = la.residuals(source, batch.tokens, component=component)
        return la.layer_deltas(full, stack, batch, component=component)

    def last_as_reference(source):
        batch = la.make_batch(encoded)
        stack, final = la.residuals(source, batch.tokens)
        normed, last = torch.cat((stack[:, :-1], final[:, None]), 1), stack.shape[1] - 1
        return la.layer_deltas(full, normed, batch, layers=[last])[:, 0].tolist()

    s1, batch = deltas(retain), la.make_batch(encoded)
    found: dict[str, Any] = {
        "idx": list(batch.idx),
        "baseline": la.baseline(full, batch).tolist(),
        "s1": s1.tolist(),
    }
    for name in ("npo", "graddiff"):
        source = la.load_model(f"demo/{name}")
        s2 = deltas(source)
        score = la.depth_score(s1, s2)
        found[name] = {"s2": s2.tolist(), "uds": score.uds.tolist(), "ke": score.ke.tolist()}
        found[name]["boundary"] = deltas(source, scope="boundary").tolist()
        found[name]["last layer as the reference"] = last_as_reference(source)
    for component in ("attn", "mlp", "resid_mid"):
        found[component] = deltas(retain, component=component).tolist()
    return found


ENCODED = {"chat_pad": "pad", "chat_eospad": "eospad", "llama3like": "llama3like", "plain": "pad"}
"""Way of asking -> tokenizer."""


def encodings() -> Any:
    """Ids of awkward questions and answers, and the first scored place, in every way of asking."""
    from lensaudit.data.chat import PLAIN, Template, encode_completion, encode_qa

    found = {}
    for name, kind in ENCODED.items():
        template = PLAIN if name == "plain" else Template()
        encode = partial(encode_qa, tokenizer_like(kind), template)
        made = [encode(question, answer) for question, answer in EDGE]
        found[name] = [{"ids": list(one.ids), "start": one.start} for one in made]
    tokenizer = tokenizer_like("pad")
    made = [encode_completion(tokenizer, question, answer) for question, answer in EDGE]
    found["completion"] = [{"ids": list(one.ids), "start": one.start} for one in made]
    return found


def prepared(sources: Sequence[str], *, activations: Path, **settings: Any) -> Any:
    """An audit of embedded models on the embedded forget set."""
    from lensaudit.patching.prepare import prepare
    from lensaudit.patching.settings import PatchSettings

    named = {
        "full": str(EMBEDDED / "full"),
        "retain": str(EMBEDDED / "retain"),
        "data": "demo",
    }
    names = [str(EMBEDDED / name) for name in sources]
    asked = PatchSettings(activations=activations, **named | settings)
    return prepare(names, asked, notice=lambda line: None, maps=False)


EM_ROWS = (8, 0, 4, 7, 10, 22, 26, 38, 50)
"""Rows that one source or another over-erases, erases exactly, under-erases, or never knew."""
EM_LAYERS = (0, 5, 9, 12, 14, 15)
EM_SOURCES = ("npo", "graddiff")


def save_few(folder: Path) -> Path:
    """The annotated rows that patched scores are frozen on."""
    rows = json.loads((EMBEDDED / "data" / "forget.json").read_text())
    path = folder / "few.json"
    path.write_text(json.dumps(rows[FEW]))
    return path


def save_em_rows(folder: Path, chosen: Sequence[int] = EM_ROWS) -> Path:
    """The annotated rows that exact match is frozen on, or some of them."""
    rows = json.loads((EMBEDDED / "data" / "forget.json").read_text())
    by_idx = {row["idx"]: row for row in rows}
    path = folder / "em_rows.json"
    path.write_text(json.dumps([by_idx[idx] for idx in chosen]))
    return path


def em_numbers(outcome: Any) -> Any:
    """What exact match says of each row, and overall."""
    kept = ("idx", "s1_em", "s2_em", "ft", "udr", "retention", "category", "truth_em")
    summary = outcome.summary
    return {
        "rows": [{key: row[key] for key in kept} for row in outcome.rows],
        "udr": summary.udr,
        "retention": summary.retention,
        "categories": summary.categories,
        "over_erased_by": summary.over_erased_by,
    }


def em() -> Any:
    """Exact match of generations, per row and layer, and the rates made of it."""
    from lensaudit.patching.exact_match import em_result, run_em

    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        audit = prepared(
            EM_SOURCES,
            activations=folder,
            data=str(save_em_rows(folder)),
            last_layer="reference",
            profile="full",
            layers=",".join(map(str, EM_LAYERS)),
        )
        found = run_em(audit)
        return {
            Path(name).name: em_numbers(em_result(name, checkpoint, audit, found))
            for name, checkpoint in audit.sources.items()
        }


REPRESENTED = ("npo", "graddiff")
N_REPRESENTED = 12


def first_rows(folder: Path) -> Path:
    """The first questions of the forget set, whoever their authors are."""
    import lensaudit as la

    path = folder / "first_rows.json"
    path.write_text(json.dumps([vars(one) for one in la.forget_set("demo")[:N_REPRESENTED]]))
    return path


def representation(activations: Path | None = None) -> Any:
    """CKA, Logit Lens and masked Fisher, per layer where they have layers."""
    if activations is None:
        with TemporaryDirectory() as temporary:
            return representation(Path(temporary))
    return {name: _represented(name, activations) for name in REPRESENTED}


def _represented(name: str, activations: Path) -> Any:
    from lensaudit.metrics.inside.fisher import fisher_layers
    from lensaudit.metrics.inside.scores import cka_layers
    from lensaudit.patching.scoring import score_lens
    from lensaudit.scores.representation import weighted_erasure

    audit = prepared([name], activations=activations, data=str(first_rows(activations)))

    def scored(layers):
        return {
            "score": weighted_erasure(layers),
            "erasure": [one.erasure for one in layers],
            "weight": [one.weight for one in layers],
        }

    source = str(EMBEDDED / name)
    (lens,), _ = score_lens(audit)
    fisher = fisher_layers(audit, source)
    return {
        "cka": scored(cka_layers(audit, source)),
        "lens": {"score": lens.uds, "s1": lens.s1.mean(0).tolist(), "s2": lens.s2.mean(0).tolist()},
        "fisher": {str(share): scored(layers) for share, layers in fisher.items()},
    }


def suites() -> Any:
    """Every number of a suite's log, in eight ways of asking."""
    from support import frozen_suites

    return frozen_suites.suites()


def unlearning() -> Any:
    """The loss of every method on one batch."""
    from support import loss_cases

    return loss_cases.measured()


FILES = {
    "losses": Frozen(
        unlearning,
        "../shared/golden/open_unlearning/trainer_losses.json: all 22 losses to 1e-5 of their size",
    ),
    "suites": Frozen(
        suites,
        "../shared/golden/open_unlearning/golden.json, 22 scenarios: EM, ES and AUC equal, other "
        "numbers to 1e-5 and 1e-4 of their size; uds/mem_mia.json to 1e-4",
    ),
    "representation": Frozen(
        representation,
        "../shared/golden/uds/repr_cka_logitlens.json and repr_fisher_masked.json: scores to 2e-5 "
        "(CKA), 1e-6 (lens) and 1e-4 (Fisher), six variants",
    ),
    "em": Frozen(
        em,
        "../shared/golden/uds/em_mode.json: texts, matches, layers and categories equal, rates to "
        "1e-9, in all four variants",
    ),
    "encodings": Frozen(
        encodings,
        "../shared/golden/open_unlearning/encodings.json: ids, first scored place and masked "
        "places of every row in five ways of asking, equal",
    ),
    "positions": Frozen(
        positions,
        "../shared/golden/uds/positions.json: ids and places of all 74 rows, equal",
    ),
    "patching": Frozen(
        patching,
        "../shared/golden/uds/: uds_corrected_npo, uds_ref_idknll_float32_bs1, uds_boundary "
        "(graddiff) and component_s1, every sixth or ninth row: deltas to 4e-5 nats, uds to 1e-5",
    ),
}


def _brief(value: Any) -> Any:
    """Seven digits of every number."""
    if isinstance(value, dict):
        return {key: _brief(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_brief(one) for one in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _lines(value: Any, depth: int = 1) -> str:
    """JSON with a line for whatever is short enough to read in one."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) < 100 or not isinstance(value, dict | list) or not _nested(value):
        return flat
    pad, end = " " * depth, " " * (depth - 1)
    if isinstance(value, dict):
        inner = [f"{pad}{json.dumps(k)}: {_lines(v, depth + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner) + f"\n{end}}}"
    return "[\n" + ",\n".join(pad + _lines(one, depth + 1) for one in value) + f"\n{end}]"


def _nested(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value
    return isinstance(value, dict) or any(isinstance(part, dict | list) for part in parts)


def main(names: list[str]) -> None:
    """Measure and write the named files, or all."""
    for name in names or FILES:
        document = {
            "command": f"PYTHONPATH=tests python -m support.frozen {name}",
            "agrees_with": FILES[name].agrees_with,
        }
        path = GOLDEN / "embedded" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        values = _brief(FILES[name].measure())
        path.write_text(_lines(document | {"values": values}) + "\n")
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
