"""The documentation is true: commands run, Python runs, links and files exist.

Blocks marked `sh` and `python` are run page by page, in one folder, from the top. `sh hub` needs
the Hub and must say so in one line without it; `sh yours` names files of the reader's and is only
parsed; `sh fails` ends with 4, as a gate does. A block marked `jsonl NAME`, `toml NAME` or `python
NAME` is a file that later commands read.
"""

import re
import shlex
from pathlib import Path

import click
import pytest
from support.outside import nothing_left
from support.pages import DOCS, ROOT, blocks, commands, page, sections

from lensaudit.cli.main import cli, run
from lensaudit.models.registry import load_registry, resolve

PAGES = (
    "tutorial",
    "gate",
    "own-forget-set",
    "python",
    "terminal",
    "files",
    "uds",
    "evidence/without-retain",
    "evidence/uds-choices",
    "gym",
    "engine",
    "README#Neighbouring tools",
    "sweep",
    "reproduce",
    "attacks#Relearning and rounding",
    "attacks#How many steps does it take?",
    "rtt",
    "steering",
    "traits",
    "directions",
    "metrics#Facts that should be kept",
    "worst_case",
    "know",
    "meta",
    "report",
    "metrics#The suite",
    "plugins",
    "doors/open-unlearning",
    "doors/trainer",
    "doors/caches",
    "doors/export",
    "doors/data",
    "doors/transformer-lens",
    "models",
    "machine",
    "own-model",
    "own-model#Try the project file",
)
"""Pages, and sections of pages, whose blocks are run here; a project file changes what follows."""
FAST = (
    *("doors/open-unlearning", "doors/caches", "doors/export", "doors/data"),
    *("doors/transformer-lens", "gate", "own-model#Try the project file", "own-forget-set"),
    "terminal",
    "files",
    "reproduce",
)
"""Run by default; the others take 5 to 60 seconds each and are `slow`."""


@pytest.fixture(scope="module")
def read_before(tmp_path_factory):
    """A folder of what one page had models read, and the next asks again."""
    return tmp_path_factory.mktemp("activations")


@pytest.mark.parametrize(
    "name", [pytest.param(p, marks=[] if p in FAST else [pytest.mark.slow]) for p in PAGES]
)
def test_the_commands_and_the_python_of_a_page_run_in_order(
    name, tmp_path, read_before, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    if name in FAST:
        monkeypatch.setenv("LENSAUDIT_ACTIVATIONS", str(read_before))
    assert walked(name, capsys) >= 1


@pytest.mark.slow
def test_a_reader_runs_the_pages_one_after_another_in_one_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    whole = [name for name in PAGES if name.partition("#")[0] not in PAGES or "#" not in name]
    for name in ("../README", *whole):
        assert walked(name, capsys) >= 1, name
        Path("lensaudit.toml").unlink(missing_ok=True)  # as own-model.md says


@nothing_left()  # a page enters metrics of its own
def walked(name, capsys):
    """Run the blocks of a page in the working folder; how many."""
    n_run = 0
    for language, kind, content in blocks(page(name)):
        if language == "jsonl" or (language in ("toml", "python") and kind):
            Path(kind).write_text(content)
        elif language == "python":
            exec(compile(content, f"{name}.md", "exec"), {"__name__": "__main__"})
            n_run += 1
        elif language == "sh" and kind in ("", "fails"):
            for command in commands(content):
                code = run(shlex.split(command)[1:])
                said = capsys.readouterr()
                wanted = 4 if kind else 0
                assert (code, name, command) == (wanted, name, command), said.err[-500:]
                assert said.out.strip(), command
                n_run += 1
    return n_run


def commands_of(name, wanted):
    """Of the `sh` blocks of one kind."""
    every = [(kind, content) for language, kind, content in blocks(page(name)) if language == "sh"]
    return [one for kind, content in every if kind == wanted for one in commands(content)]


NEED_MORE = ("judge", "doors/judge-prompts", "general-ability")
"""Pages whose commands run elsewhere, beside a judge or a harness."""
OF_READERS = [name for name in (*PAGES, *NEED_MORE) if commands_of(name, "yours")]
OF_THE_HUB = [name for name in PAGES if commands_of(name, "hub")]


def test_some_pages_have_commands_on_the_readers_files_and_on_the_hubs():
    assert {"own-model", "sweep"} <= {*OF_READERS, *OF_THE_HUB}
    assert OF_READERS
    assert OF_THE_HUB


OF_EVIDENCE = sorted({f"evidence/{path.stem}" for path in DOCS.glob("evidence/*.md")} - {*PAGES})
"""Pages whose commands take minutes to hours."""
TYPED = [(name, "yours") for name in OF_READERS] + [(name, "") for name in OF_EVIDENCE]


@pytest.mark.parametrize(("name", "kind"), TYPED)
def test_commands_that_are_not_run_here_are_well_formed(name, kind):
    for command in commands_of(name, kind):
        found, arguments = cli, shlex.split(command)[1:]
        while isinstance(found, click.Group):
            called, *arguments = arguments
            found = found.get_command(click.Context(found), called)
        assert found is not None, command
        try:
            found.make_context(called, arguments, parent=click.Context(cli))
        except click.BadParameter as error:
            if "does not exist" not in str(error):  # it is the reader's
                raise


@pytest.mark.parametrize("name", OF_THE_HUB)
def test_commands_that_need_the_hub_say_so_in_one_line(name, tmp_path, monkeypatch, capsys):
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for command in commands_of(name, "hub"):
        assert run(shlex.split(command)[1:]) == 2
        said = capsys.readouterr().err
        assert "not in the local cache" in said or "cannot be fetched" in said
        assert len(said.strip().splitlines()) <= 3


WRITTEN = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: p.name)
def test_every_link_leads_somewhere(path):
    targets = re.findall(r"\]\((?!http)([^)\s]+)\)", path.read_text())
    assert [one for one in targets if not leads_somewhere(path, *one.split("#"))] == []


def leads_somewhere(path, target, anchor=None):
    there = path.parent / target if target else path
    return there.exists() and (anchor is None or anchor in anchors(there))


def anchors(path):
    """Of the headings of a page, as GitHub and the site make them; each stands there once."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    found = [re.sub(r"[^\w -]", "", one).strip().lower().replace(" ", "-") for one in headings]
    assert len(set(found)) == len(found), path.name
    return set(found)


def test_the_index_lists_every_page():
    index = (DOCS / "README.md").read_text()
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("*.md")} - {"README.md"}
    pages |= {path.relative_to(DOCS).as_posix() for path in DOCS.glob("evidence/*.md")}
    assert [name for name in pages if f"({name})" not in index] == []


def test_pages_for_users_are_short_and_say_how_long_their_sentences_are(capsys):
    paths = {*DOCS.glob("*.md"), *DOCS.glob("doors/*.md")} - {DOCS / "README.md"}  # the index
    pages = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(paths)}
    counts = {name: len(text.split()) for name, text in pages.items()}
    assert {name: n for name, n in counts.items() if n > 1200} == {}
    assert sum(counts.values()) <= 26_000
    prose = re.sub(r"```.*?```", "", "\n".join(pages.values()), flags=re.S)
    prose = re.sub(r"^[|#].*$", "", prose, flags=re.M)
    lengths = [
        len(one.split()) for one in re.split(r"(?<=[.?!:])\s+|\n\s*\n", prose) if one.strip()
    ]
    with capsys.disabled():  # the mean is told and not judged
        long = sum(n > 40 for n in lengths)
        print(
            f"\ndocs: {len(pages)} pages, {sum(counts.values())} words, {len(lengths)} sentences of"
        )
        print(f"{sum(lengths) / len(lengths):.1f} words on average, {long} of more than 40")


def elsewhere():
    """Pages and sections that another test file takes, by `page("NAME")`."""
    tests = [one.read_text() for one in Path(__file__).parent.glob("*/test_*.py")]
    return {name for text in tests for name in re.findall(r'\bpage\("([^"]+)"\)', text)}


def test_every_section_with_commands_is_run_by_a_test():
    with_commands = {
        (path.relative_to(DOCS).with_suffix("").as_posix(), heading)
        for path in (*DOCS.glob("*.md"), *DOCS.glob("evidence/*.md"))
        for heading, text in sections(path.read_text()).items()
        if any("lensaudit " in content for language, _, content in blocks(text) if language == "sh")
    }
    assert {name for name, _ in with_commands} >= {"steering", "metrics", "tutorial"}
    run_here = {*PAGES, *OF_EVIDENCE, *elsewhere()}
    left = [
        one for one in with_commands if one[0] not in run_here and "#".join(one) not in run_here
    ]
    assert left == []


MENTIONED = sorted(
    (path.name, command)
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"))
    for command in re.findall(
        r"`lensaudit ([a-z][^`]*)`", re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    )
)


def test_commands_and_options_in_the_text_exist():
    assert len(MENTIONED) > 50
    odd = []
    for name, text in MENTIONED:
        found, words = cli, shlex.split(text)
        while isinstance(found, click.Group) and words and re.fullmatch("[a-z][a-z-]*", words[0]):
            found = found.get_command(click.Context(found), words.pop(0))
        known = {option for one in found.params for option in one.opts} if found else set()
        unknown = [word for word in words if word[:2] == "--" and word not in known]
        if found is None or unknown:
            odd.append((name, text))
    assert odd == []


def test_the_exit_codes_of_the_pages_are_those_of_the_errors():
    from lensaudit import errors

    table = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", page("terminal"), re.M))
    codes = {str(kind.exit_code) for kind in vars(errors).values() if hasattr(kind, "exit_code")}
    assert codes | {"0", "130"} == table.keys()


def test_the_agreement_of_the_page_is_that_of_the_experiment():
    stated = (ROOT / "experiments" / "annotation" / "agreement.py").read_text()
    rows = re.findall(r"^(\d+ to \d+) +(\d+)((?: +[\d.]+)+)$", stated, re.M)
    assert [row[0] for row in rows] == ["0 to 9", "10 to 19"]
    for row in rows:
        shares = " | ".join(f"{round(100 * float(share))} %" for share in row[2].split())
        assert f"| {row[0]} | {row[1]} | {shares} |" in page("evidence/annotation")


def test_the_registry_example_is_read_as_the_text_says(tmp_path):
    (example,) = (
        text
        for language, _, text in blocks(page("own-model#What can be named"))
        if language == "toml"
    )
    (tmp_path / "names.toml").write_text(example)
    (tmp_path / "runs" / "my-idknll").mkdir(parents=True)
    (tmp_path / "runs" / "my-idknll" / "config.json").write_text("{}")
    registry = load_registry(tmp_path / "names.toml")
    assert resolve("idknll", registry).local == tmp_path / "runs" / "my-idknll"
    assert resolve("mine", registry).repo == "lab/tofu-npo"
