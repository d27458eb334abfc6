import json
import math
import shutil

import pytest
from support import EMBEDDED
from support.frozen import frozen, save_few
from support.tolerance import NATS

from lensaudit.cli.main import run
from lensaudit.data.tofu import forget_set

pytestmark = pytest.mark.usefixtures("one_type")


def patching(family, data, folder):
    """Runs `lensaudit patch` on a family of checkpoints."""

    def call(*arguments: str, source: str = "npo", **replaced: str) -> int:
        named = {
            "--source": str(family / source),
            "--full": str(family / "full"),
            "--retain": str(family / "retain"),
            "--data": str(data),
            "--activations": str(folder / "activations"),
            "--out": str(folder / "out"),
            "--align": "none",  # what it adds is tried in test_evidence and the goldens
        } | {f"--{key}": value for key, value in replaced.items()}
        options = [part for pair in named.items() for part in pair]
        return run(["patch", *options, *arguments])

    return call


@pytest.fixture
def audit(tmp_path):
    """Patches the embedded family on its forget set."""
    return patching(EMBEDDED, "demo", tmp_path)


@pytest.fixture
def few(tmp_path_factory, tmp_path):
    """Patches the embedded family on the questions whose scores are frozen."""
    return patching(EMBEDDED, save_few(tmp_path_factory.mktemp("few")), tmp_path)


@pytest.fixture
def reference(shared, tmp_path):
    """Patches the family in ../shared, which the reference was run on."""
    return patching(shared / "family", shared / "family" / "forget.json", tmp_path)


def summary(folder):
    return json.loads((folder / "out" / "summary.json").read_text())


def rows(folder):
    return [
        json.loads(line) for line in (folder / "out" / "results.jsonl").read_text().splitlines()
    ]


def test_a_run_says_how_many_facts_nobody_looked_at(tmp_path, capsys):
    ours = [vars(one) | {"span": "rule"} for one in forget_set("demo", limit=4)]
    ours[2] |= {"span": "reviewed"}
    del ours[3]["span"]  # annotated elsewhere
    data = tmp_path / "rows.json"
    patch, few_layers = patching(EMBEDDED, data, tmp_path), ("--layers", "14,15")
    data.write_text(json.dumps(ours))
    for more in (few_layers, (*few_layers, "--score", "em")):
        assert patch(*more, out=str(tmp_path / "out")) == 0
        assert "2 of 4 spans by rule, not reviewed" in capsys.readouterr().out
        assert summary(tmp_path)["spans"] == {"rule": 2, "reviewed": 2}
        shutil.rmtree(tmp_path / "out")
    # confirmed: the same run says so, and no score is computed again
    data.write_text(json.dumps([{**one, "span": "reviewed"} for one in ours]))
    assert patch(*few_layers, "--dry-run") == 0
    assert "to score: 0 patched rows" in capsys.readouterr().out
    assert patch(*few_layers) == 0
    assert "by rule" not in capsys.readouterr().out
    assert summary(tmp_path)["spans"] == {"rule": 0, "reviewed": 4}
    assert summary(tmp_path)["n_unpatched"] == 14


def test_a_run_gives_the_scores_that_agreed_with_the_reference_and_reuses_everything(
    few, tmp_path, capsys, monkeypatch
):
    assert few("--profile", "full") == 0
    found, known = summary(tmp_path), frozen("patching")
    assert "n_unpatched" not in found
    scored = [uds for uds in known["npo"]["uds"] if not math.isnan(uds)]
    assert found["uds"] == pytest.approx(sum(scored) / len(scored), abs=NATS)
    assert (found["n"], found["n_scored"]) == (8, len(scored))
    assert found["calibration"]["retain"] == 1.0
    assert found["calibration"]["full"] == pytest.approx(0, abs=NATS)
    assert found["ci95"][0] < found["uds"] < found["ci95"][1]
    assert [row["idx"] for row in rows(tmp_path)] == known["idx"]
    for at, row in enumerate(rows(tmp_path)):
        assert row["baseline"] == pytest.approx(known["baseline"][at], abs=2e-5)
        assert row["s1"] == pytest.approx(known["s1"][at], abs=4e-5)
        assert row["s2"] == pytest.approx(known["npo"]["s2"][at], abs=4e-5)
        assert row["ke"] == [layer for layer, one in enumerate(known["npo"]["ke"][at]) if one]
        assert row["uds"] == pytest.approx(known["npo"]["uds"][at], abs=1e-5)
    table = (tmp_path / "out" / "layers.csv").read_text().splitlines()
    assert len(table) == 1 + 8 * 16
    capsys.readouterr()

    # everything is known now: no model is loaded again, other thresholds cost nothing
    def no_load(*arguments, **options):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("lensaudit.patching.session.load", no_load)
    # every layer of every question encodes less than this: nothing is left to score
    assert few("--profile", "full", "--tau", "9", "--json") == 1
    assert all("no layer encodes" in row["unscored"] for row in rows(tmp_path))
    assert few("--profile", "full", "--tau", "0.5", "--json") == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["tau"] == 0.5


def test_a_run_reproduces_the_corrected_reference(reference, golden, tmp_path):
    # the reference asks nothing; what models say is in tests/patching/test_asking.py
    assert reference("--ask", "none") == 0
    found, wanted = summary(tmp_path), golden("uds_corrected_npo.json")
    assert found["uds"] == pytest.approx(wanted["avg_uds"], abs=NATS)
    assert (found["n"], found["n_scored"]) == (74, 73)
    assert list(found["unscored"]) == ["345"]
    assert found["calibration"]["retain"] == 1.0
    assert found["calibration"]["full"] == pytest.approx(0, abs=NATS)
    assert (found["ci95"], found["ci95_why"]) == (None, "4 authors: no interval")
    of_idx = {row["idx"]: row for row in wanted["examples"]}
    for row in rows(tmp_path):
        want = of_idx[row["idx"]]
        assert row["baseline"] == pytest.approx(want["full_score"], abs=2e-5)
        assert row["s1"] == pytest.approx(want["s1_deltas"], abs=4e-5)
        assert row["s2"] == pytest.approx(want["s2_deltas"], abs=4e-5)
        assert row["ke"] == want["ke_layers"]
        if want["uds"] is None:
            assert row["uds"] is None
            assert "no layer encodes" in row["unscored"]
        else:
            assert row["uds"] == pytest.approx(want["uds"], abs=1e-5)
            assert row["unscored"] is None
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["inputs"]["source"]["weights"] != manifest["inputs"]["full"]["weights"]
    assert manifest["options"]["last_layer"] == "resid_post"


def test_reference_mode_patches_the_normed_stream_at_the_last_layer_alone(few, tmp_path):
    assert few("--last-layer", "reference", "--profile", "full") == 0
    known = frozen("patching")
    for at, row in enumerate(rows(tmp_path)):
        assert row["s2"][:-1] == pytest.approx(known["npo"]["s2"][at][:-1], abs=4e-5)
        last = known["npo"]["last layer as the reference"][at]
        assert row["s2"][-1] == pytest.approx(last, abs=4e-5)
    assert summary(tmp_path)["calibration"]["full"] > 1e-6


BAD = [
    (["--data", "no.json"], "no.json: no such file"),
    (["--layers", "0-16"], "layers 0 to 15"),
    (["--layers", "7-0"], "7-0 names no layer; wanted the lower first"),
    (["--layers", "7-0:-1"], "not a layer specification"),
    (["--layers", "9" * 5000], "not a layer specification"),
    (["--component", "neuron"], "--component neuron"),
    (["--component", "head:³"], "--component head:³"),
    (["--tau", "nan"], "--tau nan"),
    (["--memory", "lots"], "--memory lots"),
    (["--device", "tpu"], "--device tpu"),
    (["--retain", "demo/full"], "same weights"),
    (["--component", "mlp", "--last-layer", "reference"], "resid only"),
    # facts to keep
    (["--also", "nonsense"], "--also nonsense: no such file; wanted one, or retain, world"),
    (["--base", "demo/retain"], "--base: needs --also"),
    (["--also", "world", "--score", "em"], "--also: needs --score uds"),
    (["--also", "world", "--also", "world"], "--also world: named twice"),
    (["--also", "retain", "--base", "demo/npo"], "source demo/npo and base demo/npo have"),
    # without a retain model
    (
        ["--retain", "none", "--retain", "demo/never"],
        "--retain none: is named together with models",
    ),
    (["--retain", "none", "--score", "lens"], "was not measured with --score lens; leave that out"),
    (["--retain", "none", "--tau", "0.1"], "--tau 0.1"),
    (["--retain", "none", "--also", "world"], "--also world"),
    (
        ["--retain", "none", "--align", "affine"],
        "--align: acts beside a model that never saw the facts",
    ),
    (["--retain", "none", "--limit", "1"], "none of 1 facts can take the place of another"),
]


@pytest.mark.parametrize(("more", "said"), BAD, ids=lambda one: " ".join(one[:60]))
def test_bad_input_is_one_line_exit_2_and_leaves_nothing(more, said, tmp_path, capsys):
    command = ["patch", "--source", "demo/npo", "--limit", "8", *more]
    places = ["--activations", str(tmp_path / "a"), "--out", str(tmp_path / "out")]
    for dry in ([], ["--dry-run"]):
        assert run([*command, *places, *dry]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.strip().splitlines()) <= 3
    assert not (tmp_path / "out").exists()


def test_nan_weights_stop_the_run_with_the_example(audit, tmp_path, capsys):
    import torch
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(EMBEDDED / "npo", broken)
    broken.chmod(0o755)
    weights = broken / "model.safetensors"
    weights.chmod(0o644)
    tensors = load_file(weights)
    tensors["model.layers.3.mlp.down_proj.weight"].fill_(torch.nan)
    save_file(tensors, weights, metadata={"format": "pt"})
    assert audit(source=str(broken)) == 1
    error = capsys.readouterr().err
    assert "not finite" in error
    assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize("every", [0.0, math.inf])
def test_an_interrupted_run_keeps_its_batches_and_has_no_summary(
    audit, tmp_path, capsys, monkeypatch, every
):
    from lensaudit.patching import stages
    from lensaudit.patching.score_cache import ScoreCache

    add, entries, kept, begun = ScoreCache.add, stages._entries, [], []

    def adding(self, scored):
        add(self, scored)
        kept.append(len(scored))

    def interrupted(*args):
        begun.append(args)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return entries(*args)

    with monkeypatch.context() as patch:
        patch.setattr(stages, "KEPT_EVERY", every)
        patch.setattr(ScoreCache, "add", adding)
        patch.setattr(stages, "_entries", interrupted)
        assert audit("--batch-size", "5", "--limit", "25") == 130
    assert sum(kept) >= 2 * 5
    assert "run the same command again" in capsys.readouterr().err
    assert not (tmp_path / "out" / "summary.json").exists()
    assert audit("--dry-run", "--limit", "25") == 0
    left = capsys.readouterr().out
    assert f"to score: {25 * 3 * 16 - sum(kept) * 16} " in left
    assert audit("--limit", "25") == 0
    assert summary(tmp_path)["n"] == 25
