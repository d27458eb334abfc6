"""The documentation as a site: strict, searchable, whole, and nothing fetched from elsewhere."""

import contextlib
import json
import re
import sys

import click
import pytest
from click.testing import CliRunner
from support.hostile import commands
from support.pages import DOCS, ROOT

import lensaudit as la
from lensaudit.cli.main import COMMANDS

DOORS = ["I have checkpoints", "I do interpretability", "I run a cluster", "I gate a release"]
PAGES = sorted(path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    from mkdocs.__main__ import cli

    folder = tmp_path_factory.mktemp("site")
    words = ["build", "--strict", "-d", str(folder)]
    with contextlib.chdir(ROOT), pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.setattr(sys, "path", [*sys.path])
        done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    return folder


def html_of(site, page):
    name = "index" if page.name == "README" else page.name
    return (site / page.parent / f"{name}.html").read_text()


def test_every_page_is_there_with_its_code(site):
    assert len(PAGES) > 20
    for page in PAGES:
        html = html_of(site, page)
        assert "```" not in re.sub(r"<code>.*?</code>", "", html, flags=re.S), page
        n_blocks = len(re.findall(r"^```\w", (DOCS / f"{page}.md").read_text(), re.M))
        assert html.count('<div class="highlight">') >= n_blocks, page


def test_every_page_is_in_the_navigation_and_found_by_a_search(site):
    index = (site / "index.html").read_text()
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    searched = {one["location"].partition("#")[0] for one in found}
    for page in PAGES:
        place = "index.html" if page.name == "README" else f"{page}.html"
        assert place in searched
        assert page.name == "README" or f'href="{place}"' in index


def test_links_that_are_names_of_files_are_titles(site):
    html = (site / "index.html").read_text()
    assert '<a href="uds.html">What the Unlearning Depth Score means</a>' in html
    assert ".md</a>" not in html


def test_a_program_reads_llms_txt_and_the_markdown_beside_each_page(site):
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\): \S", (site / "llms.txt").read_text(), re.M)
    assert set(listed) >= {f"{page}.md" for page in PAGES if page.name != "README"}
    assert [one for one in listed if not (site / one).is_file()] == []


def test_notebooks_stand_there_with_what_they_print_and_draw(site):
    html = (site / "notebooks" / "first_audit.html").read_text()
    assert "demo/masked_readout: UDS 0.000" in html
    assert html.count("<img") >= 3
    assert "<th>erasure</th>" in html


def test_nothing_is_fetched_from_elsewhere(site):
    sources = r'<(?:script|img|link|iframe)[^>]* (?:src|href)="(https?:[^"]+)"'
    fetched = [
        one for path in site.rglob("*.html") for one in re.findall(sources, path.read_text())
    ]
    assert fetched == []


def test_every_option_and_every_public_name_has_its_place(site):
    """Of the pages that are made with the site."""
    made = [site / "reference" / "commands" / f"{name}.md" for name in COMMANDS]
    text = "\n".join(path.read_text() for path in made)
    parts = re.split(r"^#{1,2} (.+)$", text, flags=re.M)[1:]
    shown = dict(zip(parts[::2], parts[1::2], strict=True))
    for path, command in commands():
        options = [one for one in command.params if isinstance(one, click.Option)]
        named = {one.opts[-1] for one in options if not one.hidden}
        said = shown[f"lensaudit {path}"]
        assert [one for one in named if not re.search(rf"{one}\b", said)] == [], path
    names = set(
        re.findall(r"^### la\.(\w+)$", (site / "reference" / "python.md").read_text(), re.M)
    )
    assert [one for one in la.__all__ if one not in names and callable(getattr(la, one))] == []
    index = (site / "index.html").read_text()
    listed = (site / "llms.txt").read_text()
    for one in ("commands", "python", *(f"commands/{name}" for name in COMMANDS)):
        assert f'href="reference/{one}.html"' in index
        assert f"](reference/{one}.md): " in listed


def test_the_first_page_has_a_picture_a_line_to_install_and_four_doors(site):
    html = (site / "index.html").read_text()
    first = html.partition(">Tutorial<a")[0]
    assert 'src="img/verdict.png"' in first
    assert "make demo" in re.sub("<[^>]+>", "", first)
    doors = re.findall(r"<td><strong>([^<]+)</strong></td>\n<td>(.*?)</td>", first)
    assert [name for name, _ in doors] == DOORS
    assert all(3 <= pages.count("<a ") <= 4 for _, pages in doors)
