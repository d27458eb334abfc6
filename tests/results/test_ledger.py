import json
import random
import time
from pathlib import Path
from threading import Thread

import pytest

from lensaudit.errors import InputError, TryAgainError
from lensaudit.files import append_jsonl, write_jsonl
from lensaudit.results.ledger import Ledger
from lensaudit.results.ledger_check import verify_ledger

KEY = {"weights": "a", "stop": (1, 2)}
ROWS = [{"example": "x", "value": 0.25}, {"example": "y", "value": -1.5, "text": "é\ud800"}]


def ledger(folder, key=KEY, **options):
    """A ledger and what it said when it was opened."""
    said = []
    return Ledger(folder / "one.jsonl", "scores", key, notice=said.append, **options), said


def lines(folder):
    return (folder / "one.jsonl").read_bytes().splitlines(keepends=True)


@pytest.fixture
def written(tmp_path):
    """A folder with a ledger of two lines, added one by one."""
    for row in ROWS:
        ledger(tmp_path)[0].append([row])
    return tmp_path


def test_lines_come_back_as_they_were_added(written):
    found, said = ledger(written)
    assert found.rows == ROWS
    assert said == []
    assert len(lines(written)) == 3
    assert json.loads(lines(written)[0])["key"] == {"weights": "a", "stop": [1, 2]}


def test_nothing_is_written_before_a_line_is_added(tmp_path):
    found, _ = ledger(tmp_path / "new")
    found.append([])
    assert not (tmp_path / "new").exists()


def test_a_damaged_line_costs_itself_and_is_told(written):
    header, first, second = lines(written)
    (written / "one.jsonl").write_bytes(header + first.replace(b"0.25", b"0.35") + second)
    found, said = ledger(written)
    assert found.rows == ROWS[1:]
    (line,) = said
    assert "1 of 2 lines are damaged" in line
    found.append([ROWS[0]])
    again, said = ledger(written)
    assert again.rows == [ROWS[1], ROWS[0]]
    assert said == []


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "null", "[" * 100_000])
def test_a_value_that_nobody_wrote_is_not_taken(written, value):
    header, first, second = lines(written)
    edited = first.replace(b"0.25", value.encode())
    (written / "one.jsonl").write_bytes(header + edited + second)
    assert ledger(written)[0].rows == ROWS[1:]


def test_a_ledger_that_is_read_and_not_computed_again_is_whole(written):
    header, first, second = lines(written)
    (written / "one.jsonl").write_bytes(header + first.replace(b"0.25", b"0.35") + second)
    found, _ = ledger(written)
    with pytest.raises(InputError, match="1 of 2 lines are damaged, edited or of another run; x"):
        found.check("x")
    found.append([ROWS[0]])
    ledger(written)[0].check("x")


def test_the_ledger_of_another_key_counts_for_nothing_and_is_replaced(tmp_path, written):
    other = tmp_path / "other"
    other.mkdir()
    (other / "one.jsonl").write_bytes((written / "one.jsonl").read_bytes())
    found, said = ledger(other, key={**KEY, "weights": "b"})
    assert found.rows == []
    assert "of another run" in said[0]
    found.append([ROWS[0]])
    assert ledger(other, key={**KEY, "weights": "b"})[0].rows == ROWS[:1]
    assert len(lines(other)) == 2


def test_a_line_moved_into_another_ledger_is_foreign(tmp_path):
    mine, _ = ledger(tmp_path / "mine")
    other, _ = ledger(tmp_path / "other", key={**KEY, "weights": "b"})
    mine.append([ROWS[0]])
    other.append([{"example": "y", "value": 9.0}])
    with mine.path.open("ab") as stream:
        stream.write(lines(tmp_path / "other")[1])
    found, said = ledger(tmp_path / "mine")
    assert found.rows == ROWS[:1]
    assert "1 of 2 lines" in said[0]


def test_good_lines_outlive_a_damaged_header(written):
    header, *rest = lines(written)
    (written / "one.jsonl").write_bytes(b"".join([header[:20] + b"\n", *rest]))
    found, said = ledger(written)
    assert found.rows == ROWS
    assert len(said) == 1
    found.append([{"example": "z", "value": 1.0}])
    assert json.loads(lines(written)[0]) == found.header
    assert ledger(written)[0].rows == [*ROWS, {"example": "z", "value": 1.0}]


def test_two_headers_of_two_first_writers_are_one(written):
    path = written / "one.jsonl"
    path.write_bytes(lines(written)[0] + path.read_bytes())
    found, said = ledger(written)
    assert found.rows == ROWS
    assert said == []


def test_another_process_that_cleaned_first_loses_nothing(written):
    header, first, second = lines(written)
    (written / "one.jsonl").write_bytes(header + first[:-5] + b"\n" + second)
    one, _ = ledger(written)
    two, _ = ledger(written)
    one.append([{"example": "a"}])
    two.append([{"example": "b"}])
    assert [row["example"] for row in ledger(written)[0].rows] == ["y", "a", "b"]


def test_lines_of_two_writers_that_begin_a_ledger_at_once_stay(tmp_path, monkeypatch):
    one, two = (ledger(tmp_path)[0] for _ in range(2))
    opened, waiting = Path.open, [two]

    def slowly(path, mode="r", *options, **more):
        stream = opened(path, mode, *options, **more)
        if mode in ("ab+", "xb") and waiting:  # opened, and nothing is written yet
            waiting.pop().append(ROWS[1:])
        return stream

    monkeypatch.setattr(Path, "open", slowly)
    one.append(ROWS[:1])
    found, said = ledger(tmp_path)
    assert found.rows == ROWS[::-1]
    assert said == []
    assert len(lines(tmp_path)) == 3


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_line_that_another_adds_while_the_ledger_is_replaced_stays(
    written, is_sound, monkeypatch
):
    def slowly(path, rows):
        time.sleep(0.2)
        append_jsonl(path, rows)

    monkeypatch.setattr("lensaudit.results.ledger.append_jsonl", slowly)
    header, first, second = lines(written)
    content = [header, first, second, first, b"" if is_sound else b"{}\n"]
    (written / "one.jsonl").write_bytes(b"".join(content))
    one, _ = ledger(written)
    two, _ = ledger(written)
    late = Thread(target=two.append, args=([{"example": "late"}],))

    def of(row):
        if late.ident is None:
            late.start()
            late.join(0.3)  # time enough to be in the way
        return row["example"]

    def slower(rows):
        time.sleep(0.4)  # longer than it takes to add a line
        return rows[::-1]

    one.keep_last(of)
    ledger(written)[0].exchange(slower)  # the file that was waited for is gone
    late.join()
    found, said = ledger(written)
    assert sorted(row["example"] for row in found.rows) == ["late", "x", "y"]
    assert said == []


def test_a_rewritten_ledger_holds_the_new_lines_alone(written):
    found, _ = ledger(written)
    found.rewrite(ROWS[::-1])
    assert ledger(written)[0].rows == found.rows == ROWS[::-1]


def test_a_full_disk_keeps_the_lines_there_are(written, monkeypatch):
    def full(path, rows):
        raise TryAgainError("no space left")

    monkeypatch.setattr("lensaudit.results.ledger.append_jsonl", full)
    found, _ = ledger(written)
    with pytest.raises(TryAgainError):
        found.append([{"example": "z"}])
    assert found.rows == ROWS
    assert ledger(written)[0].rows == ROWS


def test_any_damage_leaves_out_lines_and_never_changes_one(written):
    """Seeded: every line that is read back is one that was written."""
    path, random_ = written / "one.jsonl", random.Random(0)
    more = [{"example": str(n), "value": random_.gauss(0, 1), "at": {"3": n}} for n in range(20)]
    ledger(written)[0].append(more)
    whole, wanted = path.read_bytes(), [*ROWS, *more]
    n_left_out = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(random_.choice((1, 1, 4))):
            damaged[random_.randrange(len(damaged))] ^= 1 << random_.randrange(8)
        path.write_bytes(damaged[: random_.choice((len(damaged), random_.randrange(len(damaged))))])
        found = Ledger(path, "scores", KEY)
        assert all(row in wanted for row in found.rows)
        n_left_out += len(found.rows) < len(wanted)
    assert n_left_out > 200


def test_verify_names_what_is_wrong(written):
    path = written / "one.jsonl"
    assert verify_ledger(path).problems == ()
    assert verify_ledger(path).n_lines == 2
    header, first, second = lines(written)
    path.write_bytes(header + first + second.replace(b"1.5", b"2.5"))
    assert "1 of 2 lines" in verify_ledger(path).problems[0]
    path.write_bytes(header.replace(b'"a"', b'"b"') + first + second)
    assert "header is damaged" in verify_ledger(path).problems[0]
    path.write_bytes(first + second)
    assert "not a header" in verify_ledger(path).problems[0]
    write_jsonl(path, [{"key": KEY}, *ROWS])
    assert "not a header" in verify_ledger(path).problems[0]
    with pytest.raises(InputError):
        verify_ledger(written)


def test_verify_compares_the_key_with_the_name_of_the_file(written):
    right = written / "x--b47a5f5f2dcb3c6ad51f3a5a5b32ee1c.jsonl"
    right.write_bytes((written / "one.jsonl").read_bytes())
    assert "is named for key b47a5f5f" in verify_ledger(right).problems[0]
