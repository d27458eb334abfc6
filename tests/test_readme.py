"""The README is true: its commands and its Python run, its links exist, each claim has a test."""

import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants
from support.command_golden import CENTRED, normal, stored
from support.pages import ROOT, blocks, commands

import lensaudit

README = (ROOT / "README.md").read_text()
MOST_WORDS = 900

CLAIMS = {
    "puts it into the model before unlearning": (
        "patching/test_wavefront.py::test_components_and_scopes_of_every_architecture_equal_the_oracle"
    ),
    "for the TOFU checkpoints of open-unlearning": (
        "models/test_registry.py::test_every_model_of_the_published_results_has_a_name"
    ),
    "No network is needed once pip has finished": ("test_readme.py::test_the_python_runs_in_order"),
    "audits nine small models": "test_readme.py::test_the_demo_has_nine_models",
    "trained on fictional authors, so the truth is known": (
        "demo_family/test_embedded_family.py::test_models_that_never_saw_the_facts_do_not_know_them"
    ),
    "The audit gets all three right": (
        "demo_family/test_embedded_family.py::test_depth_tells_the_planted_truth"
    ),
    "audits [a pretrained model]": "models/test_real_family.py::test_the_planted_truth_is_found",
    "can be found, erasure cannot": (
        "patching/test_counterfactual.py::test_page_terminal_and_gate_agree_without_a_retain_model"
    ),
    "no model is called *erased* or *partly erased*": (
        "verdict/test_decide.py::test_the_code_follows_from_limits_and_controls"
    ),
    "in four commands": (
        "cli/test_cli_project.py::test_four_commands_lead_from_own_files_to_a_page"
    ),
    "goes on where it was": (
        "cli/test_cli_patch.py::test_an_interrupted_run_keeps_its_batches_and_has_no_summary"
    ),
    "two anchors, which every run scores too": (
        "cli/test_cli_demo.py::test_the_calibration_rows_read_zero_and_one"
    ),
    "as out of its own. The knowledge is there": (
        "demo_family/test_embedded_family.py::test_depth_tells_the_planted_truth"
    ),
    "`full` reads no more than out of a model that never saw": (
        "scores/test_depth.py::test_uds_lies_in_the_unit_interval_and_retain_scores_one"
    ),
    "joins all that was measured into one word": (
        "verdict/test_decide.py::test_what_any_group_finds_outweighs_what_all_others_rule_out"
    ),
    "or the reason why there is none": (
        "patching/test_patch_outcome.py::test_a_summary_of_few_authors_says_why_it_has_no_interval"
    ),
    "*unscored*, never 0": "scores/test_depth.py::test_tau_is_exclusive_and_only_ke_layers_count",
    "a ruined model scores 1 too": "scores/test_depth.py::test_worked_by_hand",
    "early layers, which weigh less": "scores/test_depth.py::test_worked_by_hand",
    "A changed basis is caught": (
        "gym/test_planted_truth.py::test_a_permutation_is_seen_through_and_a_guard_is_not"
    ),
    "A model trained to beat this score is not": (
        "gym/test_shipped_ledger.py::test_the_counts_of_the_first_sentence_are_those_of_the_table"
    ),
    "no `retain` needed": (
        "association/test_know_refusals.py::test_a_model_of_ones_own_needs_no_other_and_no_network"
    ),
    "keywords are the command's options": (
        "ask/test_door.py::test_keywords_are_the_fields_of_the_settings"
    ),
    "an intervention a pure function of the stream": (
        "steer/test_interventions.py::test_interventions_do_not_write_into_the_stream"
    ),
    "Weights are read from safetensors only": (
        "models/test_checkpoint.py::test_a_broken_folder_is_refused_in_one_line"
    ),
    "nothing is sent anywhere but to a judge": (
        "judge/test_keys.py::test_a_key_is_not_sent_unencrypted"
    ),
}
"""What the README says, and the test that would fail if it were not so."""
NO_CLAIM = (
    "A language model was made to",
    "![The page",
    "Picture: ",
    "You need the model before",
    "More: ",
    "The **Unlearning Depth Score**",
    "What it cannot see:",
    "Options: ",
)
"""Beginnings of the paragraphs that ask, name or lead elsewhere; links are tested by themselves."""


def test_it_is_short():
    assert len(README.split()) <= MOST_WORDS


@pytest.mark.parametrize("claim", CLAIMS)
def test_each_claim_stands_there_and_has_its_test(claim):
    assert claim in README.replace("\n", " ")
    file, _, test = CLAIMS[claim].partition("::")
    assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text()


def test_each_paragraph_has_a_claim_with_a_test():
    prose = re.sub(r"^```.*?^```$|^[#|][^\n]*$", "", README, flags=re.M | re.S)
    paragraphs = [one.strip() for one in re.split(r"\n\n|^- ", prose, flags=re.M) if one.strip()]
    assert len(paragraphs) > 15
    left = [one for one in paragraphs if not any(claim in one for claim in CLAIMS)]
    assert [one for one in left if not one.startswith(NO_CLAIM)] == []


def test_the_python_runs_in_order(tmp_path, monkeypatch, one_type):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    sources = [content for language, _, content in blocks(README) if language == "python"]
    assert sources
    for source in sources:
        exec(compile(source, "README.md", "exec"), {})
    assert (tmp_path / "idknll.html").stat().st_size > 10_000


def test_the_four_commands_are_those_of_the_project_files_test():
    """They run in cli/test_cli_project.py, on own models and rows; no option is needed."""
    (block,) = [content for _, kind, content in blocks(README) if kind == "project"]
    assert commands(block) == [
        f"lensaudit {name}" for name in ("init", "annotate", "audit", "report")
    ]


def test_the_end_of_the_demo_is_what_the_demo_ends_with():
    """To renew the block: paste the end of `lensaudit demo`, from any line on, into the README.

    The golden is what `lensaudit demo` printed (`tests/golden/make_commands.py demo`); widths of
    tables do not count.
    """
    (block,) = [content for _, kind, content in blocks(README) if kind == "demo"]
    shown = normal(block.replace("experiments/out/demo/", "out/"), Path(), (CENTRED,))
    shown = [line.strip() for line in shown if line.strip()]
    printed = [line.strip() for line in stored("demo")["stdout"] if line.strip()]
    assert len(shown) >= 9
    assert shown == printed[-len(shown) :]


def test_the_demo_has_nine_models():
    rows = [line for line in stored("demo")["stdout"] if line.startswith(" demo/")]
    assert len(rows) == 9


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    shell = "\n".join(content for language, _, content in blocks(README) if language == "sh")
    targets = re.findall(r"make (\w+)", shell + "".join(re.findall(r"`([^`\n]+)`", README)))
    assert {"demo", "test"} <= set(targets)
    assert [one for one in targets if not re.search(rf"^{one}:", makefile, re.M)] == []


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited.keys() >= {"cff-version", "message", "title", "authors"}
    assert cited["version"] == lensaudit.__version__
    assert cited["license"] == "Apache-2.0"
