"""No damage changes a number in silence: every file below a finished run, spoilt in every way."""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import lay_out, lines_of

import lensaudit as la
from lensaudit.activations.upkeep import BOOKS, MAPS
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.cli.main import run
from lensaudit.errors import LensAuditError
from lensaudit.evaluation.store import _found
from lensaudit.files import read_json, write_json
from lensaudit.patching.settings import PatchSettings
from lensaudit.results.keyed import read_marked, write_keyed
from lensaudit.results.kinds.eval import read_eval
from lensaudit.results.kinds.patch import read_patch
from lensaudit.results.manifest import manifest
from lensaudit.results.reading import json_object

METRICS = ("forget_Q_A_Prob", "exact_memorization")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two sources patched and one model evaluated, with caches and books."""
    from lensaudit.auditing.evaluate import evaluate_into
    from lensaudit.auditing.patch import patch_into

    root = tmp_path_factory.mktemp("made")
    patching = PatchSettings(limit=3, activations=root / "activations")
    patch_into(["demo/npo", "demo/graddiff"], patching, root / "patch")
    asked = EvaluateSettings(limit=3, metrics=METRICS, activations=root / "activations")
    evaluate_into("demo/npo", asked, root / "eval")
    return root


def kind_of(path: Path) -> str:
    """What of a run a file is."""
    if path.suffix == ".npz":
        return "pass"
    if path.parent.name in BOOKS:
        return "book"
    if path.parent.name == MAPS:
        return "map"
    if "--" in path.parent.name:
        return "cache"
    return "manifest" if path.name == "manifest.json" else "result"


def flipped(content: bytes, draw: random.Random) -> bytes:
    """One bit."""
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]


def redigited(content: bytes, draw: random.Random) -> bytes:
    """One digit is another one."""
    places = [at for at, byte in enumerate(content) if 48 <= byte <= 57]
    at = draw.choice(places or [0])
    return content[:at] + str((content[at] - 47) % 10).encode() + content[at + 1 :]


def truncated(content: bytes, draw: random.Random) -> bytes:
    """The end is gone."""
    return content[: draw.randrange(len(content))]


WAYS = (flipped, redigited, truncated)


def values(path: Path) -> Any:
    """What a reader makes of a file; equal values are no harm, and no values are computed again."""
    kind = kind_of(path)
    if kind == "map":
        # named for its key, which a reader knows from elsewhere
        key = json_object(path.with_suffix(".json")).get("key", "")
        return read_marked(path.with_suffix(".safetensors"), key if key[:32] == path.stem else "")
    if kind == "pass":
        known = path.stem.rpartition("-")[2]
        with np.load(path) as file:
            key = str(file["key"])
        assert key.startswith(known)
        rows = _found(path, key) or []
        return [{name: row[name].tolist() for name in row} for row in rows]
    if kind == "book":
        return lines_of(path)
    if kind == "manifest":
        return read_json(path)
    return path.read_bytes()


def shown(root: Path) -> list[Any]:
    """What a page would show; a folder that is refused shows nothing."""
    found: list[Any] = []
    readers: list[tuple[Path, Callable[[Path], Any]]] = [
        *((path, lambda path: read_patch(path, {})) for path in root.glob("patch/*/summary.json")),
        *((path, read_eval) for path in root.glob("eval/TOFU_EVAL.json")),
    ]
    for path, read in readers:
        try:
            one = read(path)
        except LensAuditError:
            continue
        found.append((one.folder, one.estimate if hasattr(one, "estimate") else one.entries))
    return found


def outcome(root: Path, path: Path, content: bytes) -> str:
    """What one spoilt file leads to; the file is as before afterwards."""
    before, known, page = path.read_bytes(), values(path), shown(root)
    if kind_of(path) == "book":
        # a line is bound to the key of its book, not to the name before it
        alike = path.parent.glob(f"*--{path.stem.rpartition('--')[2]}.jsonl")
        known = [row for book in alike for row in lines_of(book)]
    path.write_bytes(content)
    try:
        top = root / path.relative_to(root).parts[0]
        if any(one.problems for one in la.verify(top)):
            wrong = [one for one in shown(root) if one not in page]
            return f"found, and still shown: {wrong} for {page}" if wrong else "detected"
        now = values(path)
        # what is gone is computed again; what is there is as it was
        if kind_of(path) == "book":
            same = all(row in known for row in now)
        else:
            same = now == known or (now is None and kind_of(path) == "map")
        if same and shown(root) == page:
            return "harmless"
        return f"silent: {now} for {known}, {shown(root)} for {page}"
    finally:
        path.write_bytes(before)


def drive(root: Path, n: int, seed: int) -> Counter[tuple[str, str]]:
    """`n` spoilt files of each kind; a quarter of the time another file of the kind is put there.

    Whatever is silent ends it, with the file, what it held and what was put there.
    """
    draw = random.Random(seed)
    by_kind: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        named = not path.name.startswith(".") and ".locks" not in path.parts
        if path.is_file() and path.stat().st_size and named:
            by_kind.setdefault(kind_of(path), []).append(path)
    found: Counter[tuple[str, str]] = Counter()
    for kind, paths in sorted(by_kind.items()):
        for _ in range(n):
            path = draw.choice(paths)
            content = path.read_bytes()
            others = [p.read_bytes() for p in paths if p.suffix == path.suffix and p != path]
            spoilt = (
                draw.choice(others)
                if others and draw.random() < 0.25
                else draw.choice(WAYS)(content, draw)
            )
            if spoilt != content:
                how = outcome(root, path, spoilt)
                assert how in ("detected", "harmless"), f"{path}: {how}\n{content}\n{spoilt}"
                found[kind, how] += 1
    return found


def test_a_whole_run_has_nothing_to_say(made, capsys):
    found = la.verify(made)
    assert [one.problems for one in found if one.problems] == []
    assert {one.kind for one in found} == {"result", "pass", "book", "cache", "tensors"}
    assert all(one.n_files for one in found)
    assert len(shown(made)) == 3
    assert run(["verify", str(made)]) == 0
    assert capsys.readouterr().out.endswith("; 0 damaged\n")


def test_documents_of_others_with_a_check_of_their_own_are_passed_over(tmp_path):
    write_json(tmp_path / "lint.json", {"check": "passed", "errors": 0})
    write_json(tmp_path / "health.json", {"name": "store", "check": True})
    write_json(tmp_path / "sums.json", {"check": "0" * 32, "file": "a.bin"})
    assert la.verify(tmp_path) == []
    path = write_keyed(tmp_path / "ours.json", {"key": "a"})
    assert [one.problems for one in la.verify(tmp_path)] == [()]
    write_json(path, {**read_json(path), "key": "b", "check": "?" * 32})
    assert [len(one.problems) for one in la.verify(tmp_path)] == [1]


@pytest.mark.parametrize("name", [*BOOKS, MAPS, "passes", "manifests/x", f"x--{'0' * 32}"])
def test_no_name_of_a_folder_makes_a_whole_result_damaged(name, tmp_path):
    place = lay_out("patch:out", tmp_path / name)
    write_json(place / "notes.json", {"mine": 1})
    (place / "notes.npz").write_text("mine")
    (found,) = la.verify(tmp_path)
    assert (found.kind, found.n_files, found.problems) == ("result", 3, ())
    (place / "layers.csv").write_text("")
    (found,) = la.verify(tmp_path)
    assert "layers.csv" in found.problems[0]


@pytest.mark.parametrize("of", ["patch/demo-npo", "eval"])
def test_a_result_whose_manifest_is_gone_is_told_unless_its_run_goes_on(of, made, tmp_path):
    place = Path(shutil.copytree(made / of, tmp_path / "out"))
    (place / "comparison.csv").write_text("a,b\n")  # of other results, with a manifest of its own
    beside = manifest("patch comparison", options={}, inputs={}, device="cpu", started=0.0)
    beside.write(place, ("comparison.csv",), "comparison_manifest.json")
    assert not [one for one in la.verify(tmp_path) if one.problems]
    (place / "manifest.json").unlink()
    (bad,) = [one for one in la.verify(tmp_path) if one.problems]
    assert (bad.kind, Path(bad.place).parent) == ("result", place)
    assert "its manifest.json is gone" in bad.problems[0]
    write_json(place / "begun.json", {"command": "patch"})
    assert not [one for one in la.verify(tmp_path) if one.problems]


def test_a_folder_in_which_nothing_can_be_compared_is_no_whole_one(tmp_path, capsys):
    for name in ("mine", "ours"):
        (tmp_path / name).mkdir()
    write_json(tmp_path / "mine" / "summary.json", {"mine": 1})
    write_json(tmp_path / "mine" / "TOFU_EVAL.json", {"forget_quality": {"agg_value": 1.0}})
    write_keyed(tmp_path / "ours" / "ours.json", {"key": "a"})
    assert run(["verify", str(tmp_path)]) == 0
    assert run(["verify", str(tmp_path / "ours"), str(tmp_path / "mine")]) == 4
    error = capsys.readouterr().err
    assert error.startswith(f"lensaudit: {tmp_path / 'mine'}: holds no manifest, seal or checksum")


def test_a_change_is_named_and_ends_in_four(made, capsys):
    path = made / "patch" / "demo-npo" / "results.jsonl"
    before = path.read_bytes()
    path.write_bytes(redigited(before, random.Random(1)))
    try:
        assert run(["verify", str(made)]) == 4
        assert "results.jsonl: was changed after the run wrote it" in capsys.readouterr().out
    finally:
        path.write_bytes(before)


def test_no_damage_of_a_slice_is_silent(made):
    found = drive(made, 7, seed=17)
    assert {kind for kind, _ in found} == {"result", "manifest", "pass", "book", "cache", "map"}
    assert sum(n for (_, how), n in found.items() if how == "detected") > 25


@pytest.mark.slow
def test_no_damage_of_a_thousand_is_silent(made, capsys):
    found = drive(made, 200, seed=1)
    with capsys.disabled():
        for kind in sorted({kind for kind, _ in found}):
            counts = {how: found[kind, how] for how in ("detected", "harmless")}
            print(f"\n{kind}: {sum(counts.values())} {counts}", end="")
    assert sum(found.values()) >= 1000


@pytest.mark.slow
def test_a_spoilt_book_or_cache_gives_the_same_numbers_again(made):
    draw = random.Random(3)
    arguments = ["patch", "--source", "demo/npo", "--limit", "3"]
    arguments += ["--activations", str(made / "activations"), "--out"]
    number = read_json(made / "patch" / "demo-npo" / "summary.json")["uds"]
    kinds = ("book", "cache")
    paths = [p for p in sorted((made / "activations").rglob("*")) if p.is_file()]
    chosen = [p for p in paths if kind_of(p) in kinds and p.stat().st_size]
    for trial in range(30):
        path = draw.choice(chosen)
        before = path.read_bytes()
        path.write_bytes(draw.choice(WAYS)(before, draw))
        code = run([*arguments, str(made / f"again-{trial}")])
        if code == 0:
            again = read_json(made / f"again-{trial}" / "summary.json")["uds"]
            assert again == pytest.approx(number, abs=1e-9)
        path.write_bytes(before)
