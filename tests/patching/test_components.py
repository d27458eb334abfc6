"""Components are patched in from a cache, which a run makes where it is not there."""

import pytest
from support.audit_helpers import anew, audit_in, run, save_family, save_questions

from lensaudit.doors.cache_fill import cache_into, plan_cache
from lensaudit.doors.settings import CacheSettings
from lensaudit.errors import InputError

COMPONENTS = {"attn": "attn", "mlp": "mlp", "resid_mid": "resid_mid", "head:1": "heads"}


@pytest.fixture(scope="module")
def family(tmp_path_factory, tiny_tokenizer):
    """Heads are 12 wide, four of them 48; the stream is 32."""
    folder = tmp_path_factory.mktemp("qwen")
    return save_questions(save_family(folder, tiny_tokenizer, "Qwen3", head_dim=12))


def cached(family, root, names, **settings):
    """The components of some models, in a store."""
    how = CacheSettings(data=str(family / "forget.json"), activations=root, **settings)
    return [cache_into(str(family / name), how) for name in names]


@pytest.fixture
def loaded(monkeypatch):
    """The models that were loaded to patch, by name."""
    from lensaudit.patching import session as module

    names, plain = [], module.load

    def loading(checkpoint, **how):
        names.append(checkpoint.spec.name.rpartition("/")[2])
        return plain(checkpoint, **how)

    monkeypatch.setattr(module, "load", loading)
    return names


@pytest.mark.parametrize(
    ("component", "settings", "positions"),
    [
        ("attn", {"engine": "oracle"}, "span"),
        ("resid_mid", {}, "span"),
        ("mlp", {"scope": "boundary"}, "all"),
        ("head:1", {"scope": "prefix"}, "all"),
    ],
)
def test_a_component_is_cached_once_by_a_run_or_by_the_command(
    family, tmp_path, loaded, component, settings, positions
):
    settings = settings | {"component": component}
    own = run(audit_in(family, activations=tmp_path / "own", **settings)[0])
    assert {"full", "retain", "a"} == set(loaded)
    loaded.clear()
    run(anew(audit_in(family, activations=tmp_path / "own", **settings)[0]))
    assert loaded == ["full"]
    root = tmp_path / "cached"
    part = COMPONENTS[component]
    made = cached(family, root, ("full", "retain", "a"), component=part, positions=positions)
    assert {one.parts[part].folder.parent for one in made} == {root}
    loaded.clear()
    found = run(audit_in(family, activations=root, **settings)[0])
    assert loaded == ["full"]
    source = next(iter(own.s2))
    for wanted, got in [(own.s1, found.s1), (own.s2[source], found.s2[source])]:
        assert (wanted - got).abs().max() <= 1e-5
        assert wanted.abs().max() > 1e-3
    assert found.self_patch.abs().max() <= 1e-5


def test_other_positions_another_component_or_type_are_another_cache(family, tmp_path, loaded):
    cached(family, tmp_path, ("full", "retain", "a"), component="mlp")
    # the span's positions are not all
    for other in ({"scope": "prefix"}, {"component": "attn"}, {"dtype": "bfloat16"}):
        loaded.clear()
        run(audit_in(family, activations=tmp_path, **{"component": "mlp"} | other)[0])
        assert set(loaded) == {"full", "retain", "a"}


@pytest.mark.parametrize("positions", ["span", "all"])
def test_the_plan_counts_the_bytes_that_are_written(family, tmp_path, positions):
    settings = CacheSettings(
        component=("heads", "attn", "resid", "attn"),
        positions=positions,
        data=str(family / "forget.json"),
        activations=tmp_path,
        dtype="bfloat16",
    )
    plan = plan_cache(str(family / "a"), settings)
    found = cache_into(str(family / "a"), settings)
    assert plan.n_forward == 3 * found.n
    assert list(found.parts) == ["resid", "attn", "heads"]
    for part, made in found.parts.items():
        audit = audit_in(family, activations=tmp_path, dtype="bfloat16")[0]
        with audit.there(audit.sources[str(family / "a")], audit.encoded, positions, part) as cache:
            rows = [cache.example(idx) for idx in cache.idx]
        n_bytes = sum(2 * (row.resid.numel() + row.final_norm.numel()) for row in rows)
        assert n_bytes == made.n_bytes
        assert cache.folder == made.folder
    widths = {part: made.key for part, made in found.parts.items()}
    assert len(set(widths.values())) == 3
    assert found.summary["parts"]["heads"]["bytes"] == found.parts["heads"].n_bytes
    assert found.n_bytes == plan.n_bytes
    assert plan_cache(str(family / "a"), settings).n_forward == 0


def test_a_component_that_the_bridge_lacks_is_one_line(tmp_path, tiny_tokenizer):
    folder = save_family(tmp_path, tiny_tokenizer, "GPTNeoX", names=("a",))
    save_questions(folder)
    with pytest.raises(InputError, match=r"no hook .*resid_mid; choose another --component"):
        cached(folder, tmp_path / "store", ("a",), component="resid_mid")
