"""Every file is complete or not there, and no name leads out of its folder."""

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lensaudit import files, partials, turns
from lensaudit.errors import InputError, TryAgainError, WorkError
from lensaudit.once import once, read_once
from lensaudit.results.appended import read_appended
from lensaudit.text import MOST_NESTED, parse_json, printable, slug

DERANDOMISED = settings(deadline=None, derandomize=True, max_examples=60)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class FailingOS:
    """Stands in for `os`: the nth call of its system calls fails as on a full disk."""

    def __init__(self, real, fail_at, names=("fsync", "replace", "open", "link")):
        self._real, self._left, self._names = real, fail_at, names
        self.reached = False

    def __getattr__(self, name):
        real = getattr(self._real, name)
        if name not in self._names:
            return real

        def call(*args, **options):
            self._left -= 1
            if self._left == 0:
                self.reached = True
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **options)

        return call


def test_a_write_that_fails_at_any_step_leaves_the_old_file_and_no_leftover(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    reached = 0
    for fail_at in range(1, 9):
        files.write_json(path, {"state": "old"})
        with monkeypatch.context() as patch:
            failing = FailingOS(os, fail_at)
            patch.setattr(files, "os", failing)
            with suppress(TryAgainError):
                files.write_json(path, {"state": "new"})
        reached += failing.reached
        assert json.loads(path.read_text())["state"] in ("old", "new")
        assert os.listdir(tmp_path) == ["summary.json"]
    assert reached >= 2


def test_a_writer_killed_in_a_loop_leaves_whole_json(tmp_path):
    path = tmp_path / "summary.json"
    code = f"""
        from pathlib import Path
        from lensaudit.files import write_json
        n = 0
        while True:
            n += 1
            write_json(Path({str(path)!r}), {{"n": n, "filler": "x" * 200_000}})
    """
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
        deadline = time.monotonic() + 20
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert json.loads(path.read_text())["n"] >= 1
    files.make_folder(tmp_path)
    assert os.listdir(tmp_path) == ["summary.json"]


def test_sweeping_spares_living_writers_and_strangers(tmp_path):
    mine = partials.partial_path(tmp_path / "a.json")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    killed = tmp_path / f"b.json.{partials.process_name(dead.pid)}-0123abcd.partial"
    elsewhere = tmp_path / "c.json.ffffffff-1-0123abcd.partial"
    old = tmp_path / "d.json.ffffffff-1-0123abcd.partial"
    users_own = tmp_path / "notes.partial"
    for path in (mine, killed, elsewhere, old, users_own):
        path.touch()
    long_ago = time.time() - partials.PARTIAL_AGE_S - 60
    os.utime(old, (long_ago, long_ago))
    assert sorted(partials.sweep_partials(tmp_path)) == [killed, old]
    assert sorted(tmp_path.iterdir()) == sorted([mine, elsewhere, users_own])


def test_appended_lines_survive_a_torn_one(tmp_path):
    path = tmp_path / "results.jsonl"
    files.append_jsonl(path, [{"idx": 0}])
    with path.open("ab") as stream:
        stream.write(b'{"idx": 1, "uds": 0.')
    files.append_jsonl(path, [{"idx": 2}, {"idx": 3}])
    assert [row["idx"] for row in read_appended(path)] == [0, 2, 3]


def test_an_append_to_a_full_disk_adds_nothing(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "results.jsonl"
    files.append_jsonl(path, [{"idx": 0}])
    before = path.read_bytes()
    code = f"""
        import resource, signal, sys
        from pathlib import Path
        from lensaudit.errors import LensAuditError
        from lensaudit.files import append_jsonl
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            append_jsonl(Path({str(path)!r}), [{{"idx": n, "filler": "x" * 900}} for n in range(9)])
        except LensAuditError:
            sys.exit(7)
    """
    assert resource.RLIMIT_FSIZE
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)]).returncode == 7
    assert path.read_bytes() == before


def test_two_appending_processes_do_not_mix_their_lines(tmp_path):
    path = tmp_path / "results.jsonl"
    code = f"""
        import sys
        from pathlib import Path
        from lensaudit.files import append_jsonl
        for n in range(100):
            append_jsonl(Path({str(path)!r}), [{{"who": sys.argv[1], "n": n, "x": "y" * 3000}}])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    children = [subprocess.Popen([*command, who]) for who in "ab"]
    assert [child.wait() for child in children] == [0, 0]
    rows = list(read_appended(path))
    for who in "ab":
        assert [row["n"] for row in rows if row["who"] == who] == list(range(100))


@DERANDOMISED
@given(value=JSON)
@example({"model": "caf\udce9"})  # what Python makes of a Latin-1 file name
def test_json_round_trips(tmp_path_factory, value):
    path = files.write_json(tmp_path_factory.mktemp("json") / "value.json", value)
    assert files.read_json(path) == value


def test_nan_is_refused_before_the_file_is_touched(tmp_path):
    path = files.write_json(tmp_path / "r.json", {"uds": 0.5})
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"uds": float("nan")})
    assert files.read_json(path) == {"uds": 0.5}


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "disk").mkdir()
    link = tmp_path / "report.json"
    link.symlink_to(tmp_path / "disk" / "real.json")
    files.write_json(link, 1)
    assert link.is_symlink()
    assert (tmp_path / "disk" / "real.json").read_text() == "1\n"


def test_a_small_file_does_not_unpack_to_more_than_is_read(tmp_path):
    path, half = tmp_path / "lensaudit.toml", b"#" * (1 << 19)
    path.write_bytes(gzip.compress(half) + gzip.compress(half))  # read whole, in two parts
    assert files.read_text(path, most=1 << 20).encode() == 2 * half
    assert files.read_toml(path) == {}
    path.write_bytes(path.read_bytes() + gzip.compress(b"#"))
    with pytest.raises(InputError, match="unpacked it has more than 1 MB"):
        files.read_toml(path)


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@x", "\t=1"])
def test_text_that_a_spreadsheet_would_run_is_quoted(tmp_path, value):
    path = files.write_csv(tmp_path / "t.csv", ["text", "number"], [[value, -1.5]])
    assert path.read_text().splitlines()[1] == f"'{value},-1.5"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, TryAgainError),
        (errno.EDQUOT, TryAgainError),
        (errno.ENOLCK, TryAgainError),
        (errno.EACCES, InputError),
        (errno.EROFS, InputError),
        (errno.EISDIR, InputError),
        (errno.EIO, WorkError),
        (errno.ESTALE, WorkError),
    ],
)
def test_errors_of_the_system_have_an_exit_code(tmp_path, number, kind):
    error = files.os_error(OSError(number, os.strerror(number)), tmp_path)
    assert type(error) is kind
    assert str(tmp_path) in str(error)


@DERANDOMISED
@given(name=st.text(max_size=300))
@example("../x")
@example("/etc/passwd")
@example("a/../../b")
@example("a\nb")
@example("\u202egpj")
def test_no_name_leads_out_of_its_folder(tmp_path_factory, name):
    root = tmp_path_factory.getbasetemp()
    text = slug(name)
    assert (root / text).resolve().parent == root.resolve()
    assert 0 < len(text.encode()) <= 40
    assert not text.startswith((".", "-"))
    assert text.isascii()
    assert not set(text) & set("/\\\n")


def test_terminal_escapes_are_not_printed():
    hostile = "ok\x1b]52;c;cm0gLXJm\x07\x9b31m\u202eabc\r"
    assert printable(hostile) == "ok]52;c;cm0gLXJm31mabc"


def test_a_file_where_a_folder_is_wanted_and_deeply_nested_json_are_input_errors(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is a file"):
        files.make_folder(path)
    with pytest.raises(InputError):
        files.read_json(path)


def test_links_and_pipes_are_no_files_of_a_folder_whatever_their_names(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    assert files.files_below(tmp_path, lambda path: True) == [tmp_path / "a" / "b" / "c"]
    (tmp_path / "file").symlink_to(tmp_path / "a" / "b" / "c")
    (tmp_path / "a" / "folder").symlink_to("/")
    (tmp_path / "gone").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        InputError, match=r"holds file, gone, pipe, a/folder, which no record of its own names"
    ):
        files.files_below(tmp_path, lambda path: True)
    for n in range(4):
        (tmp_path / f"link{n}").symlink_to("nowhere")
    with pytest.raises(InputError, match="and 3 more"):
        files.files_below(tmp_path, lambda path: True)


def test_files_go_one_by_one_and_folders_only_when_they_are_empty(tmp_path):
    for name in ("top/a", "top/in/b", "top/in/new"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(WorkError, match="not empty"):
        files.remove_files(
            tmp_path / "top", [tmp_path / "top" / "a", tmp_path / "top" / "in" / "b"]
        )
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["new"]


def test_in_its_turn_a_thread_may_ask_again_and_others_wait(tmp_path):
    told, seen = [], []

    def other():
        with turns.in_turn(tmp_path, lambda: told.append("waits")):
            seen.append("other")

    with turns.in_turn(tmp_path), turns.in_turn(tmp_path, lambda: told.append("never")):
        waiting = threading.Thread(target=other)
        waiting.start()
        while not told:
            assert waiting.is_alive()
        seen.append("own")
    waiting.join()
    assert (told, seen) == (["waits"], ["own", "other"])
    with turns.in_turn(tmp_path, lambda: told.append("free")):
        assert told == ["waits"]


def test_what_is_opened_once_is_read_again_after_the_block(tmp_path):
    path, read = tmp_path / "a", []

    @once
    def lines(place, *, limit=None):
        read.append(limit)
        return place.read_text().split()[:limit]

    path.write_text("one two")
    with read_once():
        assert [lines(path), lines(path), lines(path, limit=1)] == [["one", "two"]] * 2 + [["one"]]
        lines(path).append("three")  # a caller's own list
        path.write_text("other")
        assert lines(path) == ["one", "two"]
        with read_once():
            assert lines(path) == ["other"]
    assert lines(path) == ["other"]
    assert read == [None, 1, None, None]


@pytest.mark.parametrize("turn", [turns.alone, turns.in_turn])
def test_nobody_waits_for_a_pipe_in_the_place_of_a_folder(tmp_path, turn):
    """Opening a pipe waits for a writer, which never comes."""
    os.mkfifo(tmp_path / "pipe")
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("waits for a writer"))
    signal.alarm(5)
    try:
        with suppress(OSError, InputError), turn(tmp_path / "pipe"):
            pass
    finally:
        signal.alarm(0)


@pytest.mark.parametrize("as_read", [str, str.encode])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_json_is_read_down_to_a_depth_and_refused_below_it(opened, closed, as_read):
    def text(depth):
        return as_read(opened * depth + "1" + closed * depth)

    assert parse_json(text(MOST_NESTED))
    with pytest.raises(ValueError, match=f"more than {MOST_NESTED} deep"):
        parse_json(text(MOST_NESTED + 1))
