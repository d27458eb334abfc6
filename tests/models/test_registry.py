import json
from collections import Counter
from dataclasses import replace

import pytest
from support import GOLDEN, refusal

from lensaudit.models.checkpoint import open_model
from lensaudit.models.registry import (
    VARIABLE,
    ModelSpec,
    load_registry,
    published,
    resolve,
)

RESULTS = GOLDEN / "published" / "method_results.json"
FORGET10 = "open-unlearning/unlearn_tofu_Llama-3.2-1B-Instruct_forget10_"


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    return load_registry()


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "my model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    return made


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("simnpo_lr2e5_b35_a1_d1_g0125_ep10", FORGET10 + "SimNPO_lr2e-05_b3.5_a1_d1_g0.125_ep10"),
        ("idknll_lr3e5_a1_ep5", FORGET10 + "IdkNLL_lr3e-05_alpha1_epoch5"),
        ("graddiff_lr4e5_a10_ep5", FORGET10 + "GradDiff_lr4e-05_alpha10_epoch5"),
        ("rmu_lr1e5_l5_s100_ep10", FORGET10 + "RMU_lr1e-05_layer5_scoeff100_epoch10"),
        ("undial_lr1e4_b3_a1_ep10", FORGET10 + "UNDIAL_lr0.0001_beta3_alpha1_epoch10"),
        ("full", "open-unlearning/tofu_Llama-3.2-1B-Instruct_full"),
        ("retain99", "open-unlearning/tofu_Llama-3.2-1B-Instruct_retain99"),
        ("retain95_3b", "open-unlearning/tofu_Llama-3.2-3B-Instruct_retain95"),
        ("full_8b", "open-unlearning/tofu_Llama-3.1-8B-Instruct_full"),
        (
            "pos_retain90_forget10_bio_lr3e5_wd001_ep5",
            "open-unlearning/pos_tofu_Llama-3.2-1B-Instruct_retain90_forget10_bio"
            "_lr3e-05_wd0.01_epoch5",
        ),
        (
            "neg_retain90_lr1e5_wd001_ep10",
            "open-unlearning/neg_tofu_Llama-3.2-1B-Instruct_retain90_lr1e-05_wd0.01_epoch10",
        ),
    ],
)
def test_a_short_name_and_its_repository_resolve_to_the_same_checkpoint(registry, name, repository):
    by_name, by_repo = resolve(name, registry), resolve(repository, registry)
    assert by_name.repo == by_repo.repo == repository
    assert by_repo == resolve(repository.removeprefix("open-unlearning/"), registry)
    assert (by_name.role, by_name.method) == (by_repo.role, by_repo.method)
    assert by_name.revision == "main"


def test_every_model_of_the_published_results_has_a_name(registry):
    rows = json.loads(RESULTS.read_text())["models"]
    for row in rows:
        assert resolve(row["model"], registry).name == row["model"]
    assert len(rows) == 152


def test_an_alias_says_what_it_stands_for(registry):
    aliases = {spec.name: spec.alias_of for spec in published() if spec.alias_of}
    assert len(aliases) == 9
    for alias, name in aliases.items():
        assert resolve(alias, registry) == replace(
            resolve(name, registry),
            name=alias,
            alias_of=name,
            elsewhere={"idknll": "idknll_lr4e5_a5_ep10"}.get(alias),
        )


def test_a_short_name_on_which_documents_disagree_names_both_checkpoints(registry):
    (spec,) = [spec for spec in published() if spec.elsewhere]
    assert spec.alias == {"alias_of": "idknll_lr3e5_a1_ep5", "elsewhere": "idknll_lr4e5_a5_ep10"}
    assert resolve(spec.elsewhere, registry).repo.endswith("IdkNLL_lr4e-05_alpha5_epoch10")
    assert resolve("npo", registry).alias == {"alias_of": "npo_lr5e5_b05_a1_ep10"}
    assert resolve("full", registry).alias == {}
    # as a manifest has it
    named = replace(open_model("demo/npo"), spec=spec).named
    assert {**spec.alias, "name": "idknll"}.items() <= named.items()


def test_methods_and_roles_count_and_names_are_unique():
    specs = [spec for spec in published() if spec.alias_of is None]
    methods = Counter(spec.method for spec in specs if spec.role == "unlearned")
    grids = {"GradDiff": 40, "IdkNLL": 40, "SimNPO": 48}
    assert methods == grids | dict.fromkeys(("NPO", "IdkDPO", "AltPO", "RMU", "UNDIAL"), 54)
    assert len({spec.name for spec in specs}) == len({spec.repo for spec in specs}) == 470
    assert Counter(spec.role for spec in specs) == {
        "full": 1,
        "retain": 3,
        "unlearned": 398,
        "scale": 8,
        "pool_knows": 30,
        "pool_forgot": 30,
    }


def test_a_revision_is_carried(registry):
    assert resolve("npo@abc123", registry).revision == "abc123"
    spec = resolve("someone/their-model@refs/pr/2", registry)
    assert (spec.repo, spec.revision) == ("someone/their-model", "refs/pr/2")
    assert resolve("someone/their-model", registry).revision == "main"


def test_a_folder_is_taken_by_path(registry, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    for name in (str(folder), "./my model", "my model", "~/my model", "my model/"):
        spec = resolve(name, registry)
        assert (spec.local, spec.revision, spec.name) == (folder, None, name)


def test_a_registry_name_wins_over_a_folder_of_that_name(registry, folder, monkeypatch):
    assert "no config.json" in refusal(resolve, str(folder.parent), registry)
    assert "is a file" in refusal(resolve, str(folder / "config.json"), registry)
    folder.rename(folder.with_name("full"))
    monkeypatch.chdir(folder.parent)
    assert resolve("full", registry).local is None
    assert resolve("./full", registry).local == folder.with_name("full")


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("idknl", "nearest: idknll"),
        ("zzzzzz", "unknown model 'zzzzzz'; `lensaudit models`"),
        ("a b/c", "unknown model"),
        ("x" * 5000, "unknown model"),
        ("a\0b", "unknown model"),
        ("./nothing", "./nothing: no such folder"),
        ("a/b/c", "no such folder"),
        ("org/name@", "'' is not a revision"),
    ],
)
def test_a_name_that_means_nothing_is_refused(registry, name, claim):
    assert claim in refusal(resolve, name, registry)


@pytest.mark.parametrize("suffix", [".toml", ".json", ".registry"])
def test_a_registry_file_adds_and_overrides_names(tmp_path, folder, suffix):
    entries = {
        "idknll": "my model",
        "mine": {"repo": "me/mine", "revision": "v2", "role": "retain", "method": "NPO"},
        "other": "me/other@v3",
        "abs": {"path": str(folder)},
        "gone": {"path": "gone"},
    }
    path = tmp_path / f"names{suffix}"
    if suffix == ".toml":
        lines = (
            'idknll = "my model"',
            'other = "me/other@v3"',
            f'abs.path = "{folder}"',
            'gone.path = "gone"',
            'mine = { repo = "me/mine", revision = "v2", role = "retain", method = "NPO" }',
        )
        path.write_text("\n".join(lines))
    else:
        path.write_text(json.dumps(entries))
    registry = load_registry(path)
    overridden = resolve("idknll", registry)
    wanted = (folder, "unlearned", "IdkNLL", None)
    assert (overridden.local, overridden.role, overridden.method, overridden.alias_of) == wanted
    assert resolve("mine", registry) == ModelSpec("mine", "me/mine", "v2", "retain", "NPO")
    assert resolve("other", registry).revision == "v3"
    assert resolve("abs", registry).local == folder
    assert resolve("npo", registry).repo.startswith("open-unlearning/")
    # a folder of the file is checked when it is asked for
    assert f"gone: no such folder: {tmp_path / 'gone'}" in refusal(resolve, "gone", registry)
    assert "has no revisions" in refusal(resolve, "gone@v1", registry)


def test_the_variable_names_the_file_and_the_option_wins(tmp_path, monkeypatch):
    for n in (1, 2):
        (tmp_path / f"{n}.json").write_text(json.dumps({f"name{n}": "me/mine"}))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "1.json"))
    assert "name1" in load_registry()
    assert "name1" not in load_registry(tmp_path / "2.json")
    monkeypatch.setenv(VARIABLE, "")
    assert "name1" not in load_registry()


@pytest.mark.parametrize(
    ("name", "content", "claim"),
    [
        ("a.toml", "x = ", "not TOML"),
        ("a.json", "{", "line 1 is not JSON"),
        ("a.json", "[]", "holds list, wanted a JSON object"),
        ("a.json", '{"x": 3}', "'x': found int, wanted text or a table"),
        ("a.json", '{"x": {}}', "'x': wanted either repo or path"),
        ("a.json", '{"x": {"repo": "a/b", "rev": "c"}}', "'x': unknown key 'rev'"),
        ("a.json", '{"x": {"repo": 3}}', "'x': repo is not text"),
        ("a.json", '{"x": {"path": "c", "revision": "d"}}', "'x': a folder has no revision"),
        ("a.json", '{"x": {"repo": "a/b", "role": "teacher"}}', "role is 'teacher', wanted one of"),
        ("a.json", '{"x@y": "a/b"}', "'x@y': not usable as a name"),
    ],
)
def test_a_wrong_registry_file_is_refused(tmp_path, name, content, claim):
    (tmp_path / name).write_text(content)
    assert claim in refusal(load_registry, tmp_path / name, n_lines=3)


def test_all_problems_of_a_registry_file_are_listed_and_a_missing_one_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"x": 3, "y": {}, "z": "me/mine", "w": {"repo": "a/b", "role": "r"}}')
    message = refusal(load_registry, path, n_lines=3)
    assert all(f"'{name}':" in message for name in "xyw")
    assert "'z'" not in message
    assert "no such file" in refusal(load_registry, tmp_path / "none.toml", n_lines=3)
