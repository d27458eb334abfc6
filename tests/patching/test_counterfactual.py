"""Without a retain model: what hides is found, and nothing is ever called erased."""

import json
import shutil

import pytest
import torch
from support import EMBEDDED
from support import verdict_support as made
from support.agreement import agreed
from support.page_reader import Answers
from support.tolerance import NATS
from transformers import AutoTokenizer

import lensaudit as la
from lensaudit.cli.main import run as lensaudit
from lensaudit.doors.gate import Policy, gate
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.kinds.table import record_in
from lensaudit.results.locate import locate
from lensaudit.results.reading import checked
from lensaudit.results.roles import ends_as_sources
from lensaudit.settings import COUNTERFACTUAL
from lensaudit.sweep.collect import _words_of
from lensaudit.verdict.beside import speaking
from lensaudit.verdict.collect import judge_alone, verdicts
from lensaudit.verdict.decide import Evidence
from lensaudit.verdict.thresholds import OTHERS_HIDDEN_BELOW
from lensaudit.verdict.views import read_calibration

TRUTH = {
    "demo/masked_readout": "hidden",
    "demo/masked_upper": "hidden",
    "demo/full": "answers",
    "demo/never": "undecided",
    "demo/retain": "undecided",
    "demo/graddiff": "undecided",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, one_type):
    """Every model in one sweep, and the folder of their results."""
    out = tmp_path_factory.mktemp("alone")
    with ends_as_sources():
        found = la.patch(list(TRUTH), out / "r", retain="none", activations=out / "activations")
    return out, {one.source: one for one in found}


def test_what_hides_is_found_and_what_never_knew_is_not(runs):
    _, found = runs
    assert {name: one.verdict.code for name, one in found.items()} == TRUTH
    assert found["demo/masked_readout"].value == pytest.approx(0, abs=NATS)
    assert found["demo/masked_upper"].ci95[1] < OTHERS_HIDDEN_BELOW < found["demo/never"].ci95[0]
    assert found["demo/full"].summary["calibration"] == {"full": 0.0, COUNTERFACTUAL: 1.0}
    assert "a high number means nothing on this scale" in found["demo/never"].verdict.sentence
    assert not any("erased" in one.verdict.sentence for one in found.values())


def test_the_scale_is_named_wherever_it_is_written(runs):
    _, found = runs
    one = found["demo/never"]
    assert one.summary["anchor"] == one.summary["kind"] == one.score == COUNTERFACTUAL
    assert one.uds is None
    assert "uds" not in one.summary
    assert one.summary["scale"]["hidden_below"] == OTHERS_HIDDEN_BELOW
    manifest = json.loads((one.folder / "manifest.json").read_text())
    assert manifest["options"]["anchor"] == COUNTERFACTUAL
    assert manifest["inputs"]["retain"]["name"] == "none"
    assert manifest["inputs"]["retain"]["weights"] is None
    rows = [json.loads(line) for line in (one.folder / "results.jsonl").read_text().splitlines()]
    assert len(rows) == one.summary["n"] == 64
    assert {row["unscored"] for row in rows if row[COUNTERFACTUAL] is None} == {
        "no other fact has an answer of as many tokens"
    }
    assert set(one.examples["score"]) == {COUNTERFACTUAL}


def test_the_versions_are_those_of_the_scale_and_of_the_source(tmp_path, monkeypatch):
    ask = ["patch", "--source", "demo/never", "--retain", "none", "--limit", "16"]
    ask += ["--activations", str(tmp_path / "a"), "--out", str(tmp_path / "out")]

    def versions(now):
        monkeypatch.setattr("lensaudit.patching.score_cache.computed_by", lambda: now)
        assert lensaudit(ask) == 0
        made = json.loads((tmp_path / "out" / "manifest.json").read_text())
        return made["inputs"]["scores_computed_by"]

    (n,) = versions("torch 1").values()
    # another version computes the scale alone again: full's own stream on other rows
    (scale,) = (p for p in (tmp_path / "a" / "scores").glob("*") if " on " in p.read_text())
    scale.unlink()
    shutil.rmtree(tmp_path / "out")
    assert versions("torch 2") == {"torch 1": n // 2, "torch 2": n // 2}  # of as many rows


# idx -> the fact that stands for it, read off the rows by eye: the same question about another
# author, with another answer of as many tokens
PAIRS = {0: 24, 19: 3, 57: 1}


def tokens_by_hand(row):
    """Token ids, and the positions whose logits score the entity."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / "full")
    asked = tokenizer(f"Question: {row['question']}\nAnswer: {row['prefix']}")["input_ids"]
    rest = row["answer"].removeprefix(row["prefix"])
    said = tokenizer(rest, add_special_tokens=False, return_offsets_mapping=True)
    low = rest.index(row["entity"])
    inside = [a < low + len(row["entity"]) and b > low for a, b in said["offset_mapping"]]
    ids = torch.tensor([asked + said["input_ids"]])
    return ids, [len(asked) - 1 + at for at, yes in enumerate(inside) if yes]


def score_by_hand(model, ids, places, hooks=()):
    with torch.no_grad():
        logits = model.run_with_hooks(ids, fwd_hooks=list(hooks))
    logprobs = logits.float().log_softmax(-1)[0]
    return float(torch.stack([logprobs[at, ids[0, at + 1]] for at in places]).mean())


def lost_by_hand(full, ids, places, given):
    """What `full` loses by layer when others' streams stand at these places."""

    def put(stream):
        def hook(resid, hook):
            resid = resid.clone()
            resid[0, places] = stream
            return resid

        return hook

    patched = [
        score_by_hand(full, ids, places, [(f"blocks.{layer}.hook_out", put(stream))])
        for layer, stream in enumerate(given)
    ]
    return score_by_hand(full, ids, places) - torch.tensor(patched)


def streams_by_hand(model, ids, places):
    names = [f"blocks.{layer}.hook_out" for layer in range(len(model.blocks))]
    with torch.no_grad():
        _, cache = model.run_with_cache(ids, names_filter=names)
    return [cache[name][0, places] for name in names]


def test_the_number_by_hand(runs):
    """Streams are exchanged by TransformerLens; tokens, places and the mean are made here."""
    (_, found), name = runs, "demo/never"
    rows = {row["idx"]: row for row in json.loads((EMBEDDED / "data" / "forget.json").read_text())}
    full, source = la.load_model("demo/full"), la.load_model(name)
    table = found[name].examples.set_index("idx")
    for idx, other in PAIRS.items():
        (ids, places), (foreign, away) = tokens_by_hand(rows[idx]), tokens_by_hand(rows[other])
        s1 = lost_by_hand(full, ids, places, streams_by_hand(full, foreign, away))
        s2 = lost_by_hand(full, ids, places, streams_by_hand(source, ids, places))
        ke = s1 > 0.05
        value = s2[ke].clamp(min=0).minimum(s1[ke]).sum() / s1[ke].sum()
        assert table.loc[idx, "value"] == pytest.approx(float(value), abs=1e-4)


def content(depth=0.45, half=0.08, says=0.05, **changes):
    return {
        "kind": COUNTERFACTUAL,
        "score": COUNTERFACTUAL,
        "source": "x",
        COUNTERFACTUAL: depth,
        "n": 61,
        "n_scored": 61,
        "n_groups": 8,
        "calibration": {"full": 0.0, COUNTERFACTUAL: 1.0},
        "outputs": {"source": says, "full": 1.0, "n": 61},
    } | ({"ci95": [max(0.0, depth - half), min(1.0, depth + half)]} | changes)


def word(one):
    return judge_alone(checked(PatchSummary, one, "x"), read_calibration()).code


@pytest.mark.parametrize("says", [0.0, 0.1, 0.3, 0.5, 0.6, 1.0])
def test_no_number_is_ever_read_as_erasure(says):
    found = {word(content(at / 50, half, says)) for at in range(51) for half in (0.01, 0.1, 0.3)}
    assert found <= {"hidden", "answers", "undecided"}
    assert ("answers" in found) == (says > 0.6)


def test_hidden_needs_an_upper_limit_below_the_threshold():
    edge = OTHERS_HIDDEN_BELOW
    assert word(content(ci95=[0.0, edge - 1e-6], **{COUNTERFACTUAL: 0.1})) == "hidden"
    assert word(content(ci95=[0.0, edge], **{COUNTERFACTUAL: 0.1})) == "undecided"
    assert word(content(0.0, ci95=None, ci95_why="4 authors: no interval")) == "undecided"
    # a scale on which `full` itself does not read 0 says nothing
    assert word(content(0.0, 0.01, calibration={"full": 0.1, COUNTERFACTUAL: 1.0})) == "undecided"
    assert word(content(**{COUNTERFACTUAL: None}, ci95=None, outputs={**ZERO})) == "unscored"


ZERO = {"source": 0.0, "full": 0.0, "n": 61}


def views_in(summary):
    record = record_in(COUNTERFACTUAL, summary, "x")
    return speaking()[COUNTERFACTUAL](record, read_calibration())


def test_beside_other_evidence_it_can_only_find(tmp_path):
    high = views_in(content(0.95, 0.02))
    low = views_in(content(0.01, 0.02))
    assert all(view.says == "cannot tell" for view in high)
    erased, hidden = made.summary(), made.summary(0.05, aligned=made.aligned(0.05))
    for one in (erased, hidden, made.summary(0.5, half=0.05, aligned=made.aligned(0.5))):
        alone = made.verdict(one).code
        beside = made.evidence_of(one)
        own = {view.name for view in beside.views}
        more = [view for view in high if view.name not in own]
        assert Evidence("x", [*beside.views, *more], beside.stream).verdict.code == alone
    # what hides by this scale is not erased by another
    assert made.verdict(erased).code == "erased"
    more = [view for view in low if view.name == COUNTERFACTUAL]
    assert made.verdict(erased, more=more).code == "hidden"


def test_the_verdict_room_never_takes_it_for_uds(runs, tmp_path, capsys):
    _, found = runs
    never, hides = found["demo/never"].folder, found["demo/masked_readout"].folder
    assert [one.kind for one in locate([never])[0]] == [COUNTERFACTUAL]
    told = verdicts([never, hides])
    assert {one.source: one.code for one in told.models} == {
        "demo/never": "undecided",
        "demo/masked_readout": "hidden",
    }
    assert all(one.judged[0].one("uds") is None for one in told.models)
    # the gate asks for what was not measured, whatever it may pass
    for passing in (("erased",), ("erased", "undecided", "hidden")):
        for _, why in gate(told, Policy(passing)).models:
            assert "it was not patched" in why
    policy = tmp_path / "policy.toml"
    policy.write_text("")
    assert lensaudit(["verdict", str(never), "--gate", str(policy)]) == 4
    assert "erased" not in capsys.readouterr().out.replace('pass = ["erased"]', "")
    place = tmp_path / "results" / "v" / "m"
    shutil.copytree(never, place / "patch")
    words = _words_of(locate([place])[0], read_calibration())
    assert [one.code for one in words] == ["undecided"]


def test_the_page_shows_it_on_its_own_scale_and_never_as_erasure(runs, tmp_path):
    _, found = runs
    assert lensaudit(["report", str(found["demo/never"].folder), "--out", str(tmp_path / "p")]) == 0
    data, answers = made.page_data(tmp_path / "p"), Answers(tmp_path / "p")
    ((depth,), (condition,)) = data["depths"], data["conditions"]
    assert depth["because"].startswith(found["demo/never"].verdict.sentence)
    assert (depth["verdict"], condition["score"]) == ("undecided", COUNTERFACTUAL)
    assert len(condition["examples"]) == 64
    assert data["attacks"] == []
    row = answers.models["demo/never"]
    assert "UDS" not in row
    assert row["depth from inside"].startswith(f"{depth['value']:.2f}".removeprefix("0"))
    assert [name for name in answers.models if "demo/full" in name] == ["full · demo/full"]
    low, high = condition["scale"]["never_saw"]
    lede = answers.page.every("p", class_="lede")[0].text
    assert f"Models that never saw the facts read {low:.2f} to {high:.2f} on this scale" in lede
    assert "it never shows that they are erased" in lede
    text = answers.page.text
    assert "Depth = Σ s1" in text
    # spans by rule and rows without authors are said as on any page
    assert any(one["by_rule"] for one in [condition]) == ("spans by rule" in text)


def test_page_terminal_and_gate_agree_without_a_retain_model(runs, tmp_path):
    names = ("demo/never", "demo/masked_readout")
    words = agreed(tmp_path, *(runs[1][name].folder for name in names))
    assert words == {"demo/never": "undecided", "demo/masked_readout": "hidden"}


def test_it_is_shown_apart_from_depths_against_retain(runs, capsys):
    out, found = runs
    uds = la.patch("demo/never", out / "uds", limit=4, align="none", activations=out / "a")
    la.show([found["demo/never"], uds])
    said = capsys.readouterr().out
    assert said.index("Depth beside another question's stream") < said.index("Unlearning depth")
    assert "an upper limit below 0.22 shows that they are held" in said


def test_a_dry_run_counts_the_anchor_and_a_second_run_computes_nothing(runs, capsys):
    out, _ = runs
    again = ["patch", "--source", "demo/never", "--retain", "none", "--dry-run", "--activations"]
    assert lensaudit([*again, str(out / "activations")]) == 0
    assert "to score: 0 patched rows" in capsys.readouterr().out
    assert lensaudit([*again, str(out / "empty"), "--limit", "16"]) == 0
    said = capsys.readouterr().out
    n = int(said.split("examples: ")[1].split(";")[0].split(" ")[0])
    assert n == 16
    assert "models: full demo/full, source demo/never\n" in said
    assert "anchor: counterfactual" in said
