import json
import shutil
from dataclasses import replace

import pytest
import torch
from support.audit_helpers import audit_in, run
from support.tolerance import NATS

from lensaudit.cli.main import run as lensaudit
from lensaudit.errors import InputError
from lensaudit.patching.scoring import as_lens, score_all, score_lens


def audit(folder, tmp_path, *sources, **settings):
    return audit_in(folder, sources or ("a",), activations=tmp_path / "act", **settings)[0]


def test_scores_equal_the_reference(shared, golden, tmp_path):
    reference = golden("repr_cka_logitlens.json")
    names = ("idknll", "graddiff", "npo", "simnpo")
    outcomes, calibration = score_lens(audit(shared / "family", tmp_path, *names))
    for outcome, name in zip(outcomes, names, strict=True):
        wanted = reference["variants"][name]
        assert outcome.uds == pytest.approx(wanted["logit_lens"]["score"], abs=NATS)
        assert len(outcome.scored) == wanted["logit_lens"]["n_examples_scored"]
        for layer, row in enumerate(outcome.layer_rows()):
            full, retain = (torch.tensor(reference[f"ll_{m}"][str(layer)]) for m in ("full", "ret"))
            source = torch.tensor(wanted["ll_logprobs"][str(layer)])
            assert torch.allclose(outcome.s1[:, layer], full - retain, atol=4e-5)
            assert torch.allclose(outcome.s2[:, layer], full - source, atol=4e-5)
            assert row["n_ke"] == wanted["logit_lens"]["per_layer"][str(layer)]["n_ft_examples"]
    assert calibration == {"full": 0.0, "retain": 1.0}


def test_at_the_last_layer_reading_is_patching(tiny_family, tmp_path):
    patched = run(audit(tiny_family, tmp_path, "a", "b", profile="full"))
    read, _ = score_lens(audit(tiny_family, tmp_path, "a", "b"))
    assert torch.allclose(read[0].s1[:, -1], patched.s1[:, -1], atol=1e-5)
    for outcome in read:
        assert torch.allclose(outcome.s2[:, -1], patched.s2[outcome.source][:, -1], atol=1e-5)
        # and below it is something else
        assert (outcome.s1[:, 0] - patched.s1[:, 0]).abs().max() > 1e-3
    assert torch.allclose(read[0].baseline, patched.baseline, atol=1e-5)


def test_an_audit_leaves_nothing_to_run_for_the_lens(tiny_family, tmp_path, monkeypatch):
    score_all(audit(tiny_family, tmp_path))
    calls = []
    monkeypatch.setattr("lensaudit.activations.fill.residuals", lambda *a, **k: calls.append(a))
    assert score_lens(audit(tiny_family, tmp_path))[0][0].uds is not None
    assert calls == []

    def no_load(*arguments, **options):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("lensaudit.patching.session.load", no_load)
    score_lens(audit(tiny_family, tmp_path))


@pytest.mark.parametrize(
    "changed", [{"component": "mlp"}, {"scope": "boundary"}, {"last_layer": "reference"}]
)
def test_options_without_meaning_for_it_are_refused(changed, tiny_family, tmp_path):
    (name,), session = changed, audit(tiny_family, tmp_path)
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')}"):
        as_lens(replace(session, settings=replace(session.settings, **changed)))


@pytest.fixture
def command(tiny_family, tmp_path):
    def call(*arguments):
        named = {name: str(tiny_family / name) for name in ("full", "retain")} | {
            "data": str(tiny_family / "forget.json"),
            "activations": str(tmp_path / "act"),
            "out": str(tmp_path / "out"),
        }
        options = [part for key, value in named.items() for part in (f"--{key}", value)]
        return lensaudit(["patch", "--source", str(tiny_family / "a"), *options, *arguments])

    return call


def read(folder):
    summary = json.loads((folder / "out" / "summary.json").read_text())
    lines = (folder / "out" / "results.jsonl").read_text().splitlines()
    return summary, [json.loads(line) for line in lines]


def test_the_lens_stands_beside_uds_and_in_its_place_only_when_asked(command, tmp_path, capsys):
    assert command() == 0
    summary, rows = read(tmp_path)
    assert summary["score"] == "uds"
    assert not any("lens" in key for key in (*summary, *rows[0]))
    assert command("--lens") == 0
    both, rows = read(tmp_path)
    assert both["uds"] == summary["uds"]
    assert all({"uds", "lens"} <= set(row) for row in rows)
    capsys.readouterr()
    shutil.rmtree(tmp_path / "out")  # a folder holds results of one kind
    assert command("--score", "lens") == 0
    alone, rows = read(tmp_path)
    assert alone["lens"] == both["lens"] != both["uds"]
    assert "uds" not in alone
    assert "uds" not in rows[0]
    said = capsys.readouterr().out
    assert "Logit Lens depth" in said
    assert "UDS" not in said


def test_every_token_is_kept_and_their_mean_is_what_is_scored(tiny_family, tmp_path):
    read, _ = score_lens(audit(tiny_family, tmp_path, "a", "b"))
    again, _ = score_lens(audit(tiny_family, tmp_path, "a", "b"))  # from the books
    for outcome, other in zip(read, again, strict=True):
        assert outcome.by_token == other.by_token
        for at, e in enumerate(outcome.encoded):
            tokens = torch.tensor(outcome.by_token[at])
            assert tokens.shape == (len(outcome.settings.at_layers), e.n_span)
            # s2 is full's mean minus this one
            own = outcome.s2[at] + tokens.mean(1)
            assert own[-1] == pytest.approx(float(outcome.baseline[at]), abs=2e-3)
    longest = max(e.n_span for e in read[0].encoded)
    assert longest > min(e.n_span for e in read[0].encoded)
