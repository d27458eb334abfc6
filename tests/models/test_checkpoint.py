import hashlib
import json
import os
import random
import shutil

import httpx2
import numpy as np
import pytest
from huggingface_hub import constants
from huggingface_hub import errors as hub_errors
from safetensors.numpy import save_file
from support import refusal
from tokenizers import Tokenizer, models, pre_tokenizers

from lensaudit.errors import InputError, TryAgainError
from lensaudit.models import checkpoint, hashing
from lensaudit.models.checkpoint import (
    load_tokenizer,
    loading,
    open_checkpoint,
    tell_stored_twice,
)
from lensaudit.models.likeness import (
    check_same_shape,
    differing_settings,
    misfit,
    other_tokenizer,
    same_tokenizer,
)
from lensaudit.models.registry import ModelSpec
from lensaudit.text import digest

VOCAB = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4, "Ġ": 5}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 3,
    "hidden_size": 8,
    "vocab_size": 6,
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 2,
    "dtype": "float32",
}

FAR = {"type": "BPE", "vocab": VOCAB | {"Ġ": 9}, "merges": ["a b"]}
"""As many tokens as the model has, and one whose id it lacks."""
OWN_CODE = {"AutoModelForCausalLM": "modeling_my.MyForCausalLM"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hashing, "_known", {})
    return tmp_path / "cache" / "lensaudit" / "hashes"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    write(made / "config.json", CONFIG)
    save_file({"x": np.ones((2, 2), np.float32)}, made / "model.safetensors")
    tokenizer = Tokenizer(models.BPE(VOCAB, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(made / "tokenizer.json"))
    write(
        made / "tokenizer_config.json",
        {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"},
    )
    return made


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def change(path, **changes):
    write(path, json.loads(path.read_text()) | changes)


def spec(folder, name="mine"):
    return ModelSpec(name, str(folder), None, "unlearned", None, local=folder)


def opened(folder, name="mine", **options):
    return open_checkpoint(spec(folder, name), **options)


def split(folder, names=("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")):
    (folder / "model.safetensors").unlink()
    for n, name in enumerate(names):
        save_file({f"x{n}": np.full(2, n, np.float16)}, folder / name)
    weight_map = {f"x{n}": name for n, name in enumerate(names)}
    write(folder / "model.safetensors.index.json", {"weight_map": weight_map})


def test_of_weights_that_are_stored_twice_it_is_said_which_are_read(folder):
    said = []
    tell_stored_twice(opened(folder), notice=said.append)
    assert not said
    write(folder / "model.safetensors.index.json", {"weight_map": {"x": "model-1.safetensors"}})
    before = opened(folder)
    tell_stored_twice(before, notice=said.append)
    assert said == [
        "mine: model.safetensors is read; model.safetensors.index.json beside it and its shards "
        "are not"
    ]
    # and it is true: transformers reads that one, too
    save_file({"x": np.ones(3, np.float32)}, folder / "model.safetensors")
    assert opened(folder).weights != before.weights


def test_weights_follow_content_and_configuration_and_not_place_spelling_or_time(folder, tmp_path):
    before = opened(folder)
    copy = shutil.copytree(folder, tmp_path / "copy")
    change(copy / "config.json", transformers_version="9", _name_or_path="x", dtype="bfloat16")
    change(copy / "config.json", _attn_implementation="sdpa", attn_implementation="sdpa")
    assert opened(copy).weights == before.weights
    change(copy / "config.json", rms_norm_eps=1e-6)
    assert opened(copy).weights != before.weights
    path = folder / "model.safetensors"
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert opened(folder).weights != before.weights


def test_tokenizers_that_do_the_same_have_one_hash(folder, tmp_path):
    before = opened(folder)
    copy = shutil.copytree(folder, tmp_path / "copy")
    tables = json.loads((copy / "tokenizer.json").read_text())
    tables["model"]["merges"] = ["a b"]
    padding = {"strategy": "BatchLongest", "direction": "Right", "pad_id": 0}
    write(copy / "tokenizer.json", tables | {"padding": padding})
    change(copy / "tokenizer_config.json", pad_token="</s>", bos_token={"content": "<s>"})
    assert opened(copy).tokenizer == before.tokenizer
    # a chat template counts the same in its own file
    change(copy / "tokenizer_config.json", chat_template="{{ messages }}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert opened(copy).tokenizer == opened(folder).tokenizer


def test_the_tokenizer_hash_follows_special_tokens_template_and_merges(folder):
    found = [opened(folder).tokenizer]
    tables = json.loads((folder / "tokenizer.json").read_text())
    tables["model"]["merges"] = []
    write(folder / "tokenizer.json", tables)
    for changes in (
        {},
        {"bos_token": "</s>"},
        {"add_eos_token": True},
        {"chat_template": "{{ m }}"},
    ):
        change(folder / "tokenizer_config.json", **changes)
        found.append(opened(folder).tokenizer)
    assert len({*found}) == 5


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"}),
        ("tokenizer_config.json", {"split_special_tokens": True}),
        ("tokenizer_config.json", {"mask_token": "a"}),
        ("tokenizer_config.json", {"extra_special_tokens": ["ab"]}),
        ("config.json", {"model_type": "qwen2"}),
        ("config.json", {"tokenizer_class": "GPT2Tokenizer"}),
        ("added_tokens.json", {"x": 6}),
        ("special_tokens_map.json", {"eos_token": "a"}),
    ],
)
def test_the_tokenizer_hash_follows_all_that_transformers_reads(folder, file, changes):
    if file == "config.json":
        write(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    before = opened(folder).tokenizer
    if not (folder / file).is_file():
        write(folder / file, {})
    change(folder / file, **changes)
    assert opened(folder).tokenizer != before


def test_a_tokenizer_saved_again_is_the_same_and_one_that_cuts_otherwise_is_not(folder, tmp_path):
    older = {"tokenizer_class": "LlamaTokenizerFast", "legacy": False, "model_max_length": 8}
    change(folder / "tokenizer_config.json", **older)
    again = shutil.copytree(folder, tmp_path / "again")
    full = opened(folder, "full")
    load_tokenizer(full).save_pretrained(again)
    found = opened(again, "again")
    assert found.tokenizer != full.tokenizer
    assert same_tokenizer(found, full)
    assert misfit(found, full) is None
    change(again / "tokenizer_config.json", split_special_tokens=True)
    found = opened(again, "again")
    assert not same_tokenizer(found, full)
    assert misfit(found, full) == "its tokenizer is not that of full"
    assert "in how it cuts words" in other_tokenizer(found, full)


@pytest.mark.parametrize(
    ("spoil", "claim"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: write(f / "config.json", "{"), "config.json: line 1 is not JSON"),
        (lambda f: write(f / "config.json", []), "holds list, wanted a JSON object"),
        (lambda f: change(f / "config.json", num_hidden_layers=None), "num_hidden_layers is None"),
        (lambda f: change(f / "config.json", num_attention_heads=0), "num_attention_heads is 0"),
        (lambda f: change(f / "config.json", num_key_value_heads=-1), "num_key_value_heads is -1"),
        (lambda f: change(f / "config.json", model_type="falcon", alibi=True), "with ALiBi; its"),
        (
            lambda f: change(f / "config.json", model_type="gpt2", scale_attn_weights=False),
            "(scale",
        ),
        (
            lambda f: change(f / "config.json", model_type="gemma3_text", attn_logit_softcapping=5),
            "a Gemma 3 with attn_logit_softcapping",
        ),
        (
            lambda f: change(f / "config.json", architectures=["MyForCausalLM"], auto_map=OWN_CODE),
            "MyForCausalLM is code of its own (auto_map)",
        ),
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda f: write(f / "tokenizer.json", "x"), "tokenizer.json: line 1 is not JSON"),
        (lambda f: write(f / "tokenizer_config.json", []), "tokenizer_config.json: holds list"),
        (
            lambda f: change(f / "tokenizer_config.json", fast_tokenizer_files=["x.json"]),
            "tokenizer_config.json: names a tokenizer for each version",
        ),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda f: write(f / "model.safetensors", "version https://git-lfs.x"), "damaged or not"),
        (lambda f: write(f / "adapter_config.json", {}), "holds an adapter"),
        (lambda f: os.truncate(f / "model.safetensors", 40), "damaged or not"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pickles can run"),
    ],
)
def test_a_broken_folder_is_refused_in_one_line(folder, spoil, claim):
    spoil(folder)
    assert claim in refusal(opened, folder)


@pytest.mark.parametrize("changes", [{"scale_attn_weights": None}, {"attn_logit_softcapping": 5}])
def test_a_key_that_the_architecture_does_not_read_refuses_nothing(folder, changes):
    change(folder / "config.json", **changes)
    assert (
        opened(folder).n_layers
        == json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    )


def test_an_infinity_in_a_configuration_counts_as_any_other_value(folder):
    found = [opened(folder).weights]
    for value in (float("inf"), float("-inf"), float("nan")):
        change(folder / "config.json", time_step_limit=[0.0, value])
        found += [opened(folder).weights] * 2
    assert len(set(found)) == 4


def test_shards_are_hashed_together_and_a_missing_one_is_named(folder):
    split(folder)
    before = opened(folder)
    assert before.dtype == "float16"
    save_file({"x1": np.full(2, 7, np.float16)}, folder / "model-00002-of-00002.safetensors")
    assert opened(folder).weights != before.weights
    (folder / "model-00002-of-00002.safetensors").unlink()
    message = refusal(opened, folder)
    assert "1 of 2 shards" in message
    assert "model-00002-of-00002.safetensors" in message


@pytest.mark.parametrize(
    ("index", "claim"),
    [
        ({}, "no weight_map"),
        ({"weight_map": {"x": "../model.safetensors"}}, "outside this folder"),
        ({"weight_map": {"x": 3}}, "outside this folder"),
        ({"weight_map": {"y": "model-00001-of-00002.safetensors"}}, "names y"),
    ],
)
def test_a_wrong_index_is_refused(folder, index, claim):
    split(folder)
    write(folder / "model.safetensors.index.json", index)
    assert claim in refusal(opened, folder)


def settle(folder):
    """Make the files look old enough to be remembered on disk."""
    return lambda: max(path.stat().st_ctime for path in folder.iterdir()) + 60


def test_hashes_are_remembered_for_the_next_process(folder, own_cache, monkeypatch):
    opened(folder)
    assert not own_cache.exists()  # a file changed just now may change again
    monkeypatch.setattr(hashing, "_known", {})
    monkeypatch.setattr(hashing.time, "time", settle(folder))
    before = opened(folder).weights
    memos = list(own_cache.iterdir())
    assert len(memos) == 2
    assert {memo.stat().st_mode & 0o777 for memo in memos} == {0o600}
    monkeypatch.setattr(hashing, "_known", {})
    read = hashing._read_sha256
    monkeypatch.setattr(hashing, "_read_sha256", lambda path: pytest.fail("hashed again"))
    with hashing.looking():
        assert opened(folder).weights == before
    # what a run goes by is hashed again, once
    paths = []
    monkeypatch.setattr(hashing, "_read_sha256", lambda path: paths.append(path) or read(path))
    assert [opened(folder).weights for _ in range(3)] == [before] * 3
    assert [path.name for path in paths] == ["model.safetensors"]


SPOILERS = {
    "a bit": lambda text, other, key, draw: _flipped(text, draw.randrange(8 * len(text))),
    "the end": lambda text, other, key, draw: text[: draw.randrange(len(text))],
    "another file's": lambda text, other, key, draw: other,
    "another file's hash": lambda text, other, key, draw: other[:64] + text[64:],
    "as earlier versions wrote": lambda text, other, key, draw: other[:64],
    "sealed again": lambda text, other, key, draw: (
        f"{(value := other[:64].decode())} {digest([key, value])}".encode()
    ),
}
"""What is done to a memo, given that of another file, its name and a source of chance."""


def _flipped(text, n):
    return text[: n // 8] + bytes([text[n // 8] ^ 1 << n % 8]) + text[n // 8 + 1 :]


def spoilt_memos(places, memos, monkeypatch):
    """40 memos spoilt in each way: wrong hashes of who looks and of who runs, by the way."""
    draw, wrong = random.Random(0), {}
    right = [(path, hashing.file_sha256(path)) for path in places]
    kept = [(memo, memo.read_bytes()) for memo in sorted(memos.iterdir())]
    for way, spoil in SPOILERS.items():
        wrong[way] = [0, 0]
        for _ in range(40):
            (memo, text), (_, other) = draw.sample(kept, 2)
            memo.write_bytes(spoil(text, other, memo.name, draw))
            monkeypatch.setattr(hashing, "_known", {})
            with hashing.looking():
                wrong[way][0] += any(hashing.file_sha256(path) != was for path, was in right)
            monkeypatch.setattr(hashing, "_known", {})
            wrong[way][1] += any(hashing.file_sha256(path) != was for path, was in right)
            assert memo.read_bytes() == text  # whoever runs writes it again
    return wrong


def test_no_spoilt_memo_gives_a_run_a_wrong_hash(folder, own_cache, monkeypatch):
    monkeypatch.setattr(hashing.time, "time", settle(folder))
    places = [folder / "model.safetensors", folder / "config.json", folder / "tokenizer.json"]
    wrong = spoilt_memos(places, own_cache, monkeypatch)
    # one that fits its own checksum is believed by who only looks
    assert wrong.pop("sealed again") == [40, 0]
    assert wrong == {way: [0, 0] for way in wrong}
    assert len(wrong) == len(SPOILERS) - 1


def test_a_cache_folder_that_cannot_be_written_does_not_matter(folder, own_cache, monkeypatch):
    monkeypatch.setattr(hashing.time, "time", settle(folder))
    own_cache.parent.parent.mkdir(parents=True)
    own_cache.parent.write_text("a file where the folder should be")
    assert opened(folder).weights.startswith("sha256:")


def test_code_beside_a_class_of_transformers_is_left_aside(folder):
    before = opened(folder).architecture
    change(folder / "config.json", auto_map=OWN_CODE)
    assert opened(folder).architecture == before == "LlamaForCausalLM"


def test_a_blob_of_the_hub_cache_is_read_once_and_a_damaged_one_refused(folder, monkeypatch):
    content = (folder / "model.safetensors").read_bytes()
    before = opened(folder).weights
    blob = folder.parent / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir()
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    assert opened(folder).weights == before
    with monkeypatch.context() as patch:
        patch.setattr(hashing, "_read_sha256", lambda path: pytest.fail("hashed again"))
        assert opened(folder).weights == before
    # the name still says the old content
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    message = refusal(opened, folder)
    assert "damaged blob" in message
    assert f"delete {blob}" in message


def test_models_of_one_shape_pass_and_others_are_named(folder, tmp_path):
    full, same = opened(folder, "full"), opened(folder, "same")
    check_same_shape(full, same)
    other = shutil.copytree(folder, tmp_path / "other")
    change(other / "config.json", num_hidden_layers=4, hidden_size=16, vocab_size=7)
    change(other / "tokenizer_config.json", bos_token="a")
    message = refusal(check_same_shape, full, same, opened(other, "other"), n_lines=3)
    assert "other: layers 4, but full has 3" in message
    for label in ("width 16", "vocabulary 7"):
        assert label in message
    assert "same" not in message.splitlines()[0]


def test_tokenizers_that_differ_are_said_to_differ_in_n_tokens_with_the_remedy(folder, tmp_path):
    full, other = opened(folder, "full"), shutil.copytree(folder, tmp_path / "other")
    tables = json.loads((other / "tokenizer.json").read_text())
    vocab = tables["model"]["vocab"]
    first, second, third = [one for one in vocab if len(one) == 1][:3]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (other / "tokenizer.json").write_text(json.dumps(tables))
    remedy = f"copy the tokenizer files of {folder} into {other}"
    message = refusal(check_same_shape, full, opened(other, "other"), n_lines=3)
    assert "other: its tokenizer differs from that of full in 2 tokens; if" in message
    assert remedy in message
    assert other_tokenizer(full, opened(folder, "same")) is None
    shutil.copy(folder / "tokenizer.json", other)
    change(other / "tokenizer_config.json", bos_token=third)
    told = other_tokenizer(opened(other, "other"), full)
    assert told.startswith("its tokenizer differs from that of full in no token, but in how")
    assert told.endswith(remedy)


def test_settings_that_change_the_function_are_told_and_others_not(folder, tmp_path):
    full = opened(folder, "full")
    inert = shutil.copytree(folder, tmp_path / "inert")
    same = {"dtype": "bfloat16", "use_cache": False, "attention_dropout": 0.1, "eos_token_id": 3}
    change(inert / "config.json", **same)
    assert differing_settings(full, opened(inert, "inert")) is None
    change(folder / "config.json", rope_theta=5e5)
    respelled = shutil.copytree(folder, tmp_path / "respelled")
    change(respelled / "config.json", rope_theta=None)
    rope = {"rope_type": "default", "rope_theta": 5e5}
    change(respelled / "config.json", rope_parameters=rope)
    assert differing_settings(opened(folder, "full"), opened(respelled, "respelled")) is None
    other = shutil.copytree(respelled, tmp_path / "other")
    change(other / "config.json", rms_norm_eps=1e-6, hidden_act="gelu")
    said = differing_settings(opened(folder, "full"), opened(inert), opened(other, "other"))
    assert "other has hidden_act 'gelu', full 'silu'" in said
    assert "other has rms_norm_eps 1e-06, full 1e-05" in said
    assert "mine has rope_parameters" in said
    assert "other has rope" not in said
    assert len(said.splitlines()) == 1


def test_the_tokenizer_gives_offsets_and_a_slow_one_is_refused(folder, monkeypatch):
    from transformers import AutoTokenizer

    tokenizer = load_tokenizer(opened(folder))
    encoded = tokenizer("ab a", return_offsets_mapping=True, add_special_tokens=False)
    assert encoded["offset_mapping"][0] == (0, 2)
    slow = type("Slow", (), {"is_fast": False})()
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *args, **options: slow)
    with pytest.raises(InputError, match="no character offsets"):
        load_tokenizer(opened(folder))


@pytest.mark.parametrize(
    ("file", "changes", "said"),
    [
        ("config.json", {"vocab_size": 5}, "has token ids up to 5, the model 5 tokens"),
        ("tokenizer.json", {"model": FAR}, "has token ids up to 9, the model 6 tokens"),
        ("tokenizer.json", {"model": {"type": "Nonsense"}}, "tokenizer cannot be loaded"),
        ("config.json", {"num_attention_heads": 3}, "cannot be loaded"),
    ],
)
def test_a_tokenizer_that_does_not_fit_or_cannot_be_read_is_refused(folder, file, changes, said):
    change(folder / file, **changes)
    assert said in refusal(load_tokenizer, opened(folder))


HUB = ModelSpec("npo", "open-unlearning/npo-model", "v2", "unlearned", "NPO")


def http(kind, status):
    request = httpx2.Request("GET", "https://huggingface.co/secret?token=hf_secret")
    return kind("hf_secret", response=httpx2.Response(status, request=request))


@pytest.mark.parametrize(
    ("error", "claim"),
    [
        (http(hub_errors.RepositoryNotFoundError, 401), "no such repository on the Hub"),
        (http(hub_errors.GatedRepoError, 403), "is gated"),
        (http(hub_errors.RevisionNotFoundError, 404), "has no revision 'v2'"),
        (http(hub_errors.HfHubHTTPError, 401), "refuses access"),
        (http(hub_errors.HfHubHTTPError, 503), "HTTP 503"),
        (hub_errors.LocalEntryNotFoundError("hf_secret"), "no network"),
        (httpx2.ConnectError("hf_secret"), "no network"),
        (hub_errors.HFValidationError("hf_secret"), "not a name the Hub accepts"),
    ],
)
def test_each_failure_of_the_hub_has_its_line(monkeypatch, error, claim):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    message = refusal(open_checkpoint, HUB)
    assert message.startswith("npo (open-unlearning/npo-model): ")
    assert claim in message
    assert "hf_secret" not in message


def test_a_full_disk_while_fetching_says_try_again(monkeypatch):
    def fail(*args, **options):
        raise OSError(28, "No space left on device", "/models/x")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(TryAgainError, match="/models/x: no space left"):
        open_checkpoint(HUB)


def test_offline_mode_says_so_without_a_request(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        open_checkpoint(HUB)


def test_pickles_are_named_where_there_are_some_or_the_hub_was_asked(folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **how: str(folder))
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(checkpoint, "reachable", lambda: True)
    assert "pickles can run code" in refusal(open_checkpoint, HUB)
    monkeypatch.setattr(checkpoint, "reachable", lambda: False)
    assert "its weights are not in the local cache" in refusal(open_checkpoint, HUB)
    (folder / "pytorch_model.bin").touch()
    assert "pickles can run code" in refusal(open_checkpoint, HUB)


def test_a_fetched_repository_opens_like_a_folder(folder, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda repo, **how: asked.update(how, repo=repo) or str(folder),
    )
    assert open_checkpoint(HUB).weights == opened(folder).weights
    assert (asked["repo"], asked["revision"]) == ("open-unlearning/npo-model", "v2")
    assert not any("bin" in pattern for pattern in asked["allow_patterns"])


def test_a_library_that_breaks_over_an_interrupt_is_interrupted_not_broken():
    with pytest.raises(InputError, match="x: cannot be loaded"), loading("x: cannot be loaded"):
        raise RuntimeError("release unlocked lock")

    class Lock:
        def __enter__(self):
            raise KeyboardInterrupt

        def __exit__(self, *_):
            pass

    def broken_over_it():
        try:
            with Lock():
                pass
        except KeyboardInterrupt:
            raise RuntimeError("release unlocked lock")  # noqa: B904  # as a lock's exit does

    with pytest.raises(KeyboardInterrupt), loading("x: cannot be loaded"):
        broken_over_it()
