"""What a list of attacks says, from hits whose answer is known."""

import csv
from dataclasses import replace
from operator import attrgetter

import pytest
import torch

from lensaudit.attacks.arm import AttackFindings, Hit
from lensaudit.attacks.comparison import FACTS, NONE_COUNTS, compare
from lensaudit.attacks.elicit import chosen, list_hash
from lensaudit.data.candidates import facts_of, kind_of, shots_of
from lensaudit.data.facts import Fact
from lensaudit.errors import InputError
from lensaudit.files import write_csv
from lensaudit.groups import own_group
from lensaudit.kinds.worst import WorstFact
from lensaudit.results.reading import checked
from lensaudit.scores.recovery import Arms

ATTACKS = chosen("cheap", ("greedy", "chat", "prefix"))


def fact(idx):
    return Fact(idx, "Who?", f"It is E{idx}.", "It is", f"E{idx}", idx // 2)


def arm(**hits):
    """By attack, the facts it hits of ten; the exposure of `prefix` singles them out."""
    made = {}
    for one in ATTACKS:
        said = {n: Hit(n in hits.get(one.name, ()), 0.0, "") for n in range(10)}
        rows = {}
        if one.name == "prefix":
            rows = {n: torch.randn(100, generator=torch.Generator().manual_seed(n)) for n in said}
            for n in hits.get("prefix", ()):
                rows[n][0] = 30.0
        made[one.name] = AttackFindings(said, rows, {}, 1.0, 2, 3)
    return made


FULL = arm(greedy=range(10), prefix=range(10))
FACTS_ = [fact(n) for n in range(10)]


ASKED = {"source": "m", "full": "f", "retain": ["r"], "data": "d", "tier": "cheap"}


def outcome(source, *retains, unscored=()):
    arms = Arms(source, FULL, retains)
    return compare(FACTS_, dict(unscored), ATTACKS, arms, **ASKED)


def test_excess_counts_and_names_worked_by_hand():
    # source: 0 1 2 by greedy, 2 3 by prefix; control: fact 0 of one of two models
    found = outcome(arm(greedy=(0, 1, 2), prefix=(2, 3)), arm(greedy=(0,)), arm())
    assert (found.n_out, found.full_out) == (4, 10)
    assert (found.authors, found.per_author) == (5, 2)
    assert found.expected == pytest.approx(0.5)
    assert found.excess == pytest.approx((4 - 0.5) / 10)
    assert found.excess_share == pytest.approx(found.excess / 0.95)
    assert found.facts[2].attacks == "greedy;prefix"
    by_name = {row.name: row for row in found.attacks}
    assert (by_name["greedy"].only, by_name["prefix"].only) == (2, 1)
    # without greedy 2 and 3 are left, and no control: .35 - .2
    assert by_name["greedy"].gain == pytest.approx(0.15)
    assert by_name["prefix"].gain == pytest.approx(0.1)
    found = outcome(arm(chat=range(10)), arm())
    assert found.n_out == 0
    row = next(row for row in found.attacks if row.name == "chat")
    assert (row.counts, row.control, row.source, row.gain) == (False, 0.0, 1.0, None)
    same = arm(greedy=range(8), prefix=(0, 1))
    found = outcome(same, same)
    assert (found.n_out, found.excess, found.named) == (8, 0, [])
    one, two = outcome(arm(prefix=range(8)), arm()), outcome(arm(prefix=range(8)), arm(), arm())
    assert one.named == list(range(8))
    assert "8 can be named at a false discovery rate of 10 %" in two.headline
    assert "relative to one never-trained model" in one.headline
    assert "relative" not in two.headline


def test_what_rows_bring_counts_where_any_model_understands_it():
    asked = [replace(one, asks="two_hop") if one.name == "chat" else one for one in ATTACKS]
    for source, never, excess in ((range(6), (0, 1), 0.4), ((), (0, 1), -0.2), ((), (), 0.0)):
        arms = Arms(arm(chat=source), FULL, (arm(chat=never),))
        found = compare(FACTS_, {}, asked, arms, **ASKED)
        assert found.excess == pytest.approx(excess)
        row = next(row for row in found.attacks if row.name == "chat")
        assert (row.counts, row.control) == (bool(source or never), 0.0)


def without(found, idx, name="greedy"):
    """The same arm, whose attack broke on some facts."""
    hits = {at: one for at, one in found[name].hits.items() if at not in idx}
    return {**found, name: replace(found[name], hits=hits)}


def test_an_attack_counts_for_facts_that_it_scored_on_every_model():
    asked = ATTACKS[:1]
    source, never, few = arm(greedy=range(6)), arm(greedy=(0,)), range(4)
    whole = compare(FACTS_, {}, asked, Arms(source, FULL, (never,)), **ASKED)
    assert (whole.n_out, whole.expected, whole.full_out) == (6, 1, 10)
    for arms in ((without(source, few), never), (source, without(never, few))):
        some = compare(FACTS_, {}, asked, Arms(arms[0], FULL, arms[1:]), **ASKED)
        assert (some.n_out, some.expected, some.full_out) == (2, 0, 6)
        assert some.facts[0].attacks == ""
        lost = [without(one, range(10)) for one in arms]
        none = compare(FACTS_, {}, asked, Arms(lost[0], FULL, (lost[1],)), **ASKED)
        assert (none.full_out, none.headline, none.attacks[0].counts) == (0, NONE_COUNTS, False)
    full = Arms(source, without(FULL, few), (never,))
    assert compare(FACTS_, {}, asked, full, **ASKED).full_out == 6


def test_a_row_for_every_fact_and_why_one_is_unscored():
    why = {9: "its own question holds the entity"}
    rows = outcome(arm(prefix=range(8)), arm(), unscored=why).facts
    assert [row.idx for row in rows] == list(range(10))
    assert (rows[0].attacks, rows[8].attacks) == ("prefix", "")
    assert (rows[9].unscored, rows[9].p) == (why[9], None)


def test_the_numbers_of_a_fact_are_numbers_and_text_of_an_earlier_version_is_read(tmp_path):
    facts = outcome(arm(prefix=range(8)), arm(prefix=(9,))).facts
    assert facts[9].statistic < 0 < facts[0].statistic
    table = write_csv(tmp_path / "facts.csv", FACTS, map(attrgetter(*FACTS), facts))
    with table.open(newline="") as lines:
        assert [float(row["statistic"]) for row in csv.DictReader(lines)] == [
            one.statistic for one in facts
        ]
    old = {"idx": 3, "statistic": "-1.08861", "p": "", "q": "0.25"}
    assert checked(WorstFact, old, "x") == WorstFact(3, statistic=-1.08861, q=0.25)
    for text in ("many", "nan"):
        with pytest.raises(InputError, match="x: q"):
            checked(WorstFact, {"idx": 3, "q": text}, "x")


def test_every_attack_has_a_line_and_the_hash_follows_the_list():
    every = chosen("full")
    assert all(one.about for one in every)
    assert len({one.hash for one in every}) == len(every)
    assert list_hash(ATTACKS) != list_hash(ATTACKS[:2])
    assert list_hash(ATTACKS) == list_hash(chosen("cheap", ("prefix", "chat", "greedy")))
    with pytest.raises(InputError, match="known are greedy"):
        chosen("cheap", ("nonsense",))
    every = {one.name: one for one in chosen("full")}
    for kind in ("qa", "qa_chat", "cloze", "choice_letter", "choice_inline", "binary"):
        assert f"probe_{kind}" in every
        assert every[f"patched_{kind}"].tier == "full"


def example(idx, question, answer, entity, group=0):
    prefix = answer[: answer.index(entity)].rstrip()
    return Fact(idx, question, answer, prefix, entity, group)


def test_facts_that_cannot_be_asked_say_why(tmp_path):
    rows = [
        example(0, "Was it so?", "Yes, it was.", "Yes"),
        example(1, "Who is Ada Byron?", "It is Ada Byron.", "Ada Byron"),
        example(2, "When?", "In 1931 it was.", "1931"),
        example(3, "Who?", "It is Eve Moor.", "Eve Moor", 1),
        example(4, "Who else?", "It is Ann Fell.", "Ann Fell", own_group(4)),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join('{"question": "none"}' for _ in rows))
    facts, why = facts_of(str(path), rows)
    assert list(why) == [0, 1, 2]
    assert "coin" in why[0]
    assert "own question" in why[1]
    assert "no placebo" in why[2]
    assert set(facts[3].placebos) == {"Ada Byron", "Ann Fell"}
    # the solved questions are other authors' and do not hold the entity
    assert all("Eve Moor" not in said for _, said in shots_of(facts)[3])
    with pytest.raises(InputError, match="none of the 1 facts"):
        facts_of(str(path), rows[:1])


def test_placebos_are_of_the_same_kind_and_not_the_entity():
    from lensaudit.data.tofu import forget_set

    for one in facts_of("demo", forget_set("demo")[:16])[0]:
        assert {kind_of(text) for text in one.placebos} <= {kind_of(one.entity)}
        assert one.entity not in one.placebos
        assert len(set(one.placebos)) == len(one.placebos)
