"""`lensaudit steer cross`: what steering one trait does to the judged score of every other."""

import json
import math
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import lines_of
from support.command_cases import TRAITS

from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.judge.items import JudgeVerdict
from lensaudit.judge.programmatic import declines
from lensaudit.judge.prompts import OF_TRAITS
from lensaudit.kinds.steering import CrossedScore
from lensaudit.results.locate import Found, locate
from lensaudit.scores.intervals import clustered_mean
from lensaudit.screen.steer import moves, of_traits
from lensaudit.steer import asking
from lensaudit.steer.crossing import beyond_random
from lensaudit.steer.estimators import SteeringVector, save_vector
from lensaudit.steer.judging import JudgedAnswer
from lensaudit.steer.settings import CrossSettings
from lensaudit.steer.trait import found_in, load_trait
from lensaudit.text import digest

IDK = json.loads((OF_TRAITS / "demo_idk.json").read_text())
HOW = "--judge idk --rollouts 1 --max-new-tokens 8 --positions last_prompt"
CROSS = "cross --model demo/full --trait declines.json,wavers.json --judge idk"
BRIEF = "--set rollouts=1 --set max-new-tokens=8 --set positions=last_prompt"
VECTORS = "experiments/out/steering/demo-full/declines/vectors"


def steer(command):
    return run(["steer", *shlex.split(command)])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two traits of ten questions each; one that steering moves, one along a random direction."""
    place = tmp_path_factory.mktemp("cross")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for name, first in (("declines", 0), ("wavers", 10)):
            own = {"trait_name": name, "questions": IDK["questions"][first : first + 10]}
            write_json(place / f"{name}.json", IDK | own)
            method = "mean_diff" if name == "declines" else "random"
            extract = f"extract --model demo/full --trait {name}.json --position prompt_last"
            assert steer(f"{extract} --layers 8 --method {method}") == 0
        vector = f"{VECTORS}/mean_diff_layer8.safetensors"
        evaluate = f"eval --model demo/full --trait declines.json --vector {vector} {HOW}"
        assert steer(f"{evaluate} --coefficients 0,2") == 0
        sweep = f"sweep --model demo/full --trait wavers.json --method random {HOW}"
        assert steer(f"{sweep} --layers 8 --coefficient 2") == 0
        assert steer(f"{CROSS} {BRIEF} --out out") == 0
    return place


@pytest.fixture
def there(world, monkeypatch):
    monkeypatch.chdir(world)
    return world


def answers(world, asked, level):
    """What was said to the questions of a trait under a direction, in their order."""
    rows = lines_of(world / "out" / asked / "responses" / f"{level}.jsonl")
    return [row["text"] for row in sorted(rows, key=lambda row: row["question"])]


def scores(world, asked, level):
    return [100.0 * declines(text) for text in answers(world, asked, level)]


def test_each_cell_is_what_the_answers_say(there):
    """The numbers made again of the answers that were written, by the word list alone."""
    found = json.loads((there / "out" / "traits.json").read_text())
    evaluated = json.loads((there / VECTORS).with_name("results.json").read_text())
    assert list(found["steered"]) == ["declines"]
    assert found["steered"]["declines"]["coefficient"] == 2.0
    for asked in ("declines", "wavers"):
        cell = found["steered"]["declines"]["judged"][asked]
        base = scores(there, asked, "baseline")
        steered = scores(there, asked, "by_declines")
        drawn = [scores(there, asked, f"random_{n}_by_declines") for n in range(5)]
        control = [fmean(each) for each in zip(*drawn, strict=True)]
        assert len(base) == len(steered) == len(control) == 10
        assert found["baseline"][asked]["mean"] == pytest.approx(fmean(base))
        if asked == "declines":  # its strength was chosen on the other half
            held = evaluated["chosen"]["test_questions"]
            base, steered, control = ([one[at] for at in held] for one in (base, steered, control))
        assert cell["n"] == len(steered)
        assert cell["mean"] == pytest.approx(fmean(steered))
        assert cell["delta"] == pytest.approx(fmean(steered) - fmean(base))
        assert cell["beyond_random"] == pytest.approx(fmean(steered) - fmean(control))
        low, high = cell["delta_ci95"]
        assert low <= cell["delta"] <= high
    # the same direction makes the questions of the other trait declined too
    assert found["steered"]["declines"]["judged"]["wavers"]["delta"] > 40


def test_an_own_cell_leaves_out_the_questions_that_its_setting_was_chosen_on(there):
    """Ten points more on the choosing half alone: the own cell has none, that of another five."""
    from lensaudit.steer.crossing import matrix_of, open_crossing

    settings = CrossSettings(name="demo/full", trait="declines.json,wavers.json", judge="idk")
    jobs = open_crossing(settings, lambda _: None).jobs
    dev = jobs[0].rows[1].dev
    assert len(dev) == 5

    def answered(row):
        scores = [60.0 if row.dev and at in dev else 50.0 for at in range(10)]
        pairs = enumerate(map(JudgeVerdict, scores))
        return replace(row, answers=tuple(JudgedAnswer(*one, JudgeVerdict(90.0)) for one in pairs))

    asked = [replace(one, rows=tuple(map(answered, one.rows))) for one in jobs]
    matrix = matrix_of(asked, {"wavers": "why"}, {"coherent_from": 50.0})
    cells = matrix.steered["declines"].judged
    assert {name: (one.delta, one.beyond_random, one.n) for name, one in cells.items()} == {
        "declines": (0.0, 0.0, 5),
        "wavers": (5.0, 5.0, 10),
    }
    said = "declines on declines: over 5 of 10 answers, those to questions that its setting"
    assert any(str(one).startswith(said) for one in of_traits(matrix))


def test_a_trait_that_nothing_moved_is_asked_and_not_steered_by(there, capsys):
    found = json.loads((there / "out" / "traits.json").read_text())
    why = "in layer_sweep.json no coherent setting moves it"
    assert found["how"]["left_out"] == {"wavers": why}
    assert list(found["baseline"]) == ["declines", "wavers"]
    assert steer(f"{CROSS} {BRIEF} --out out") == 0
    captured = capsys.readouterr()
    assert "nothing to do" in captured.err
    assert f"wavers: nothing is steered by it ({why})" in captured.out
    assert "1 of 1 pairs of two traits move" in captured.out
    assert "declines on wavers" in captured.out


def test_questions_in_another_order_are_not_those_that_were_chosen_on(there, monkeypatch):
    from lensaudit.steer.crossing import chosen_for, open_crossing

    settings = CrossSettings(name="demo/full", trait="declines.json,wavers.json", judge="idk")
    job, trait = open_crossing(settings, print).jobs[0], load_trait("declines.json")
    assert chosen_for(settings, trait, job).dev
    more = replace(trait, questions=(*trait.questions, "And who was it?"))
    assert chosen_for(settings, more, job).dev  # asked the first ten of them
    with pytest.raises(InputError, match=r"other questions than trait declines .* steer eval"):
        chosen_for(settings, replace(trait, questions=trait.questions[::-1]), job)
    # a single question was both chosen on and reported on
    monkeypatch.setattr(sys.modules[chosen_for.__module__], "Found", one_question(trait))
    assert chosen_for(settings, replace(trait, questions=trait.questions[:1]), job).dev == set()


def one_question(trait):
    """What `steer eval` would have recorded of the first question alone."""

    def read(kind, place):
        record = Found(kind, place).record
        chosen = replace(record.chosen, dev_questions=[0], test_questions=[0])
        said = replace(record, chosen=chosen, questions=digest([trait.questions[0]]))
        return SimpleNamespace(record=said)

    return read


def test_a_change_beyond_random_directions_worked_by_hand():
    # mean gaps 2, 7, ... 22: mean 12, sd 7.906; t(4) at .99 is 4.6041; sqrt(1 + 1 / 5)
    first = {0: 1.0, 1: 1.5, 2: 2.0, 3: 2.5, 4: 3.0}
    found = beyond_random([{at: one + by for at, one in first.items()} for by in range(0, 25, 5)])
    questions = clustered_mean([11.0, 11.5, 12.0, 12.5, 13.0], range(5), bounds=(-100.0, 100.0))
    half = math.hypot(questions.high - 12.0, 4.6041 * 62.5**0.5 * 1.2**0.5)
    assert found.value == 12.0
    assert found.ends == pytest.approx((12.0 - half, 12.0 + half), abs=1e-3)
    # means that are alike by chance: as far apart as 5 questions let see; t(2) at .99 is 9.9248
    alike = beyond_random([first] * 3)
    half = math.hypot(questions.high - 12.0, 9.9248 * 20 / 12**0.5 * (4 / 3) ** 0.5)
    assert alike.ends == pytest.approx((2.0 - half, 2.0 + half), abs=1e-3)
    # a direction without any score says nothing
    alone = beyond_random([first, {}])
    assert (alone.value, alone.ends, alone.why) == (2.0, None, "one random direction: no interval")


def test_a_direction_that_is_itself_random_rarely_gets_a_star():
    """Any push moves the score: one control's interval over questions is above 0 in 1 of 3."""
    random = np.random.default_rng(0)
    stars, alone = [], []
    for _ in range(300):
        pushes = random.exponential(20.0, 6)[:, None] + random.normal(0.0, 10.0, (6, 20))
        gaps = [dict(enumerate(own)) for own in (pushes[0] - pushes[1:]).clip(-100, 100)]
        one = clustered_mean([*gaps[0].values()], range(20), bounds=(-100.0, 100.0))
        stars.append(beyond_random(gaps).least > 0)
        alone.append(one.least > 0)
    assert fmean(alone) > 0.3
    assert 0 < fmean(stars) < 0.05


def test_the_controls_are_as_long_and_point_elsewhere(there):
    from lensaudit.steer.crossing import open_crossing

    settings = CrossSettings(name="demo/full", trait="declines.json,wavers.json", judge="idk")
    job = open_crossing(settings, print).jobs[0]
    base, level, *controls = job.rows
    assert base.coefficient == 0.0
    assert len({one.vector.hash() for one in controls}) == len(controls) == 5
    for one in controls:
        assert one.vector.norm == pytest.approx(level.vector.norm, rel=1e-6)
        assert (one.vector.layer, one.coefficient) == (level.vector.layer, level.coefficient)
        cosine = torch.cosine_similarity(one.vector.vector, level.vector.vector, dim=0)
        assert abs(float(cosine)) < 0.5
    assert found_in(settings, load_trait("declines.json")).name == "declines"


def test_a_cut_run_goes_on_and_a_finished_one_asks_nobody(there, tmp_path, monkeypatch, capsys):
    copied = shutil.copytree(there / "out", tmp_path / "out")
    log = copied / "wavers" / "responses" / "by_declines.jsonl"
    before = json.loads((copied / "traits.json").read_text())
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:4]) + lines[4][:10])
    (copied / "traits.json").unlink()
    assert steer(f"{CROSS} {BRIEF} --out {copied} --dry-run") == 0
    assert capsys.readouterr().out.endswith("; 133 answers kept from before\n")
    assert steer(f"{CROSS} {BRIEF} --out {copied}") == 0
    assert json.loads((copied / "traits.json").read_text()) == before
    monkeypatch.setattr(asking, "load", None)
    assert steer(f"{CROSS} {BRIEF} --out {copied}") == 0


def test_a_run_of_other_settings_says_what_it_replaces(there, tmp_path, capsys):
    copied = shutil.copytree(there / "out", tmp_path / "out")
    assert steer(f"{CROSS} {BRIEF} --set seed=7 --out {copied} --dry-run") == 0
    said = capsys.readouterr()
    assert f"{copied}: held the result of another run (seed: 0, here 7); it is replaced" in said.err
    assert "120 answers" not in said.out
    assert "= 140 answers" in said.out


def test_the_picture_shows_the_matrix(there, tmp_path):
    pytest.importorskip("matplotlib")
    from lensaudit.doors import plot
    from lensaudit.doors.figures import write_figures

    assert {"traits.pdf", "traits.png"} <= {one.name for one in (there / "out").iterdir()}
    (found,) = locate([there / "out"])[0]
    axes = plot.traits(found.record)
    cells = [one.get_text() for one in axes.texts]
    deltas = [one.delta for one in found.record.steered["declines"].judged.values()]
    assert cells == [f"{one:.0f}" for one in deltas]
    assert [one.get_text() for one in axes.get_yticklabels()] == ["declines"]
    made = write_figures([there / "out"], tmp_path)
    assert [one.name for one in made] == ["traits.pdf", "traits.png"]


@pytest.mark.parametrize(
    ("delta", "beyond", "moved"),
    [
        ((5.0, 9.0), (1.0, 9.0), True),
        ((-9.0, -5.0), (-9.0, -1.0), True),
        ((5.0, 9.0), (-1.0, 9.0), False),
        ((-1.0, 9.0), (5.0, 9.0), False),
        ((5.0, 9.0), (-9.0, -5.0), False),
        ((5.0, 9.0), None, False),
        (None, None, False),
    ],
)
def test_a_pair_moves_where_both_intervals_leave_out_0_on_one_side(delta, beyond, moved):
    assert moves(CrossedScore(delta_ci95=delta, beyond_random_ci95=beyond)) is moved


@pytest.mark.parametrize(
    ("traits", "said"),
    [
        ("declines.json", "wanted two traits or more, with commas"),
        ("declines.json,declines.json", "declines.json is named twice"),
        ("declines.json,copy.json", "two traits have the same name"),
        ("declines.json,nothing", "no such trait or file"),
        ("declines.json,refusal", "was not steered; run `lensaudit steer eval`"),
    ],
)
@pytest.mark.parametrize("dry", ["", "--dry-run"])
def test_bad_input_is_one_line_before_any_work(there, capsys, traits, said, dry):
    shutil.copy("declines.json", "copy.json")
    assert steer(f"cross --model demo/full --trait {traits} --judge idk --out x {dry}") == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert not (there / "x").exists()


@pytest.mark.parametrize(("by", "file"), [("eval", "results.json"), ("sweep", "layer_sweep.json")])
def test_a_vector_that_became_another_is_refused(there, tmp_path, monkeypatch, capsys, by, file):
    shutil.copytree(there, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    if by == "sweep":
        sweep = f"sweep --model demo/full --trait declines.json {HOW} --questions 4"
        assert steer(f"{sweep} --layers 8 --coefficient 2") == 0
        (Path(VECTORS).parent / "results.json").unlink()
    assert steer(f"{CROSS} --out x --dry-run") == 0
    other = SteeringVector(
        vector=torch.ones(64), layer=8, method="mean_diff", position="prompt_last"
    )
    save_vector(other, tmp_path / "world" / VECTORS)
    assert steer(f"{CROSS} --out x") == 2
    told = capsys.readouterr().err
    assert f"is not the vector of {Path(VECTORS).parent / file}" in told
    assert f"run `lensaudit steer {by}` again" in told


def test_the_plan_counts_the_answers(there, capsys):
    assert steer(f"{CROSS} --out y --dry-run") == 0
    said = capsys.readouterr().out
    assert "asked under 1 directions, 5 random ones for each and none = 420 answers" in said
    assert TRAITS.keys() == {"declines.json", "wavers.json"}
