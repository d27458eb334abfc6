"""`lensaudit activations` says what it found, and its exit code agrees."""

import json

import pytest
from support.store_cases import BASE, fill, flip

from lensaudit.cli.main import run
from lensaudit.cli.options import ByteSize
from lensaudit.files import write_jsonl
from lensaudit.results.ledger import Ledger
from lensaudit.text import digest


@pytest.fixture
def call(tmp_path, capsys):
    """Runs `lensaudit activations …` on the store; exit code, stdout, stderr."""

    def calling(*words):
        code = run(["activations", *words, "--activations", str(tmp_path / "store")])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return calling


def test_ls_of_no_store_says_so(call):
    assert call("ls") == (0, "no caches; `lensaudit cache` makes one\n", "")
    assert json.loads(call("ls", "--json")[1]) == []


def test_verify_covers_the_books_beside_the_caches(folder, call):
    root = folder.parent
    book = Ledger(root / "scores" / f"npo--{digest({'full': 'f'})}.jsonl", "scores", {"full": "f"})
    book.append([{"example": "x", "baseline": -1.25, "scores": {"0": -2.0}}])
    code, out, _ = call("verify")
    assert code == 0
    assert "1 books, 1 lines checked" in out
    whole = book.path.read_bytes()
    book.path.write_bytes(whole.replace(b"-1.25", b"-9.25"))
    code, out, err = call("verify")
    assert code == 4
    assert f"{book.path}: 1 of 1 lines are damaged" in out
    assert err.startswith("lensaudit: 1 of 1 books are damaged")
    assert call("verify", "full")[0] == 0
    found = json.loads(call("verify", "--json")[1])
    assert [one.get("kind") for one in found] == [None, "scores"]
    other = root / "scores" / f"npo--{digest({'full': 'g'})}.jsonl"
    other.write_bytes(whole)
    book.path.write_bytes(whole)
    assert "is named for key" in call("verify")[1]
    other.unlink()
    write_jsonl(book.path, [{"key": {"full": "f"}}, {"example": "x", "baseline": -1.25}])
    code, out, _ = call("verify")
    assert code == 4
    assert "its first line is not a header; it is written again when used" in out


@pytest.mark.parametrize("words", [("verify", "nobody"), ("gc", "--max-size", "big"), ("frob",)])
def test_wrong_usage_is_2_and_one_line(folder, call, words):
    code, _, err = call(*words)
    assert (code, len(err.splitlines())) == (2, 1)


def test_hostile_names_are_printed_harmless(tmp_path, call):
    fill(tmp_path / "store", name="evil\x1b]52;c;cm0=\x07\u202e", n=1)
    for words in (("ls",), ("info", BASE.key()), ("verify",), ("repair",)):
        out = call(*words)[1]
        assert "\x1b" not in out
        assert "\u202e" not in out


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("0", 0), ("200GB", 200e9), ("64GiB", 64 * 2**30), ("1.5 k", 1500), ("7b", 7), ("2T", 2e12)],
)
def test_sizes_are_read_in_powers_of_1000_or_1024(text, n_bytes):
    assert ByteSize().convert(text, None, None) == n_bytes


def test_repair_names_no_command_where_the_cache_does_not_tell_one(tmp_path, capsys):
    for name, made in (("a", {"made_by": "lensaudit steer audit", "model": "x"}), ("b", {"m": 1})):
        folder = fill(tmp_path / name, provenance=made)
        flip(folder / "shard-000001.h5", 5000)
        assert run(["activations", "repair", "--activations", str(folder.parent)]) == 0
    said = capsys.readouterr().out
    assert "to fill it, run again `lensaudit steer audit`, which made it" in said
    assert "to fill it, run again the command that made it" in said
    assert "lensaudit cache" not in said
