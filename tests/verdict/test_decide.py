"""One word from limits and controls; each rule of the table has the case that it is for."""

import pytest
from support import verdict_support as made

from lensaudit.scores.estimate import Estimate
from lensaudit.verdict.decide import Evidence
from lensaudit.verdict.thresholds import ALPHA
from lensaudit.verdict.views import GROUPS, VIEWS, View

ROTATED = {"d_share": 0.9, "needed": True, "why": None}
"""Full cannot read the stream as it is."""


def code(content, low=(), more=()):
    return made.verdict(content, low, more).code


CASES = {
    "lacks the facts": (made.summary(), "erased"),
    "lacks the facts, in another basis": (made.summary(0.999, validity=ROTATED), "erased"),
    "hides them": (made.summary(0.1, aligned={"uds": None, "why": "not needed: low"}), "hidden"),
    "hides them in another basis": (
        made.summary(
            0.97,
            validity=ROTATED,
            aligned=made.aligned(0.05, gap={"value": 0.92, "low": 0.9, "high": 0.94}),
        ),
        "hidden_other_basis",
    ),
    "says them, whatever the stream reads": (
        made.summary(0.97, outputs=made.said(source=0.9)),
        "answers",
    ),
    "says them when asked, in a form that no begun answer has": (
        made.summary(0.97, told=made.told(source=0.84, retain=0.05)),
        "answers",
    ),
    "says a tenth of them when asked": (
        made.summary(0.97, told=made.told(source=0.125)),
        "undecided",
    ),
    "it was not asked": (made.summary(0.97, told=None), "undecided"),
    "full itself does not say them when asked": (
        made.summary(0.97, told=made.told(full=0.2)),
        "undecided",
    ),
    "no map carries it": (
        made.summary(0.97, validity=ROTATED, aligned=made.aligned(0.97, d_share=0.9)),
        "unreadable",
    ),
    "between": (made.summary(0.5, aligned=made.aligned(0.5)), "partly_erased"),
    "between, limits reach the hidden": (
        made.summary(0.27, aligned=made.aligned(0.27)),
        "undecided",
    ),
    "no limit of equivalence: not found is not ruled out": (
        made.summary(0.84, half=0.09, aligned=made.aligned(0.84, half=0.09)),
        "undecided",
    ),
    "validity was not measured": (
        made.summary(
            validity={"d_share": None, "why": "few rows"}, aligned=made.aligned(d_share=None)
        ),
        "undecided",
    ),
    "a plain stream that is not ruled out": (made.summary(0.79, half=0.08), "undecided"),
    "the shared direction was not taken out": (
        made.summary(aligned=made.aligned() | {"shared": {"why": "2 authors"}}),
        "undecided",
    ),
    "one direction hides them": (
        made.summary(aligned=made.aligned(shared=0.4, shared_weakest=0.6)),
        "undecided",
    ),
    "one direction hides a third of them": (
        made.summary(aligned=made.aligned(0.95, shared=0.68, shared_weakest=0.9, half=0.02)),
        "undecided",
    ),
    "a direction for each author was not taken out": (
        made.summary(aligned=made.aligned() | {"many": {}}),
        "undecided",
    ),
    "as many directions as authors hide half of them": (
        made.summary(aligned=made.aligned(many=0.5)),
        "undecided",
    ),
    "without as many directions as authors a layer holds them": (
        made.summary(aligned=made.aligned(many_weakest=0.08)),
        "undecided",
    ),
    "without as many directions as authors nothing is gone": (
        made.summary(aligned=made.aligned(many=0.1)),
        "hidden",
    ),
    "as far from full as one that never knew": (
        made.summary(aligned=made.aligned() | {"shift": {"layer": 0, "times": 1.25}}),
        "erased",
    ),
    "how far its stream lies was not measured": (
        made.summary(aligned=made.aligned() | {"shift": None}),
        "undecided",
    ),
    "one layer may hold them alone": (
        made.summary(aligned=made.aligned() | {"weakest": made.layer(0.62, half=0.2)}),
        "undecided",
    ),
    "one layer holds them": (made.summary(aligned=made.aligned(weakest=0.3)), "undecided"),
    "one depth shows part, the other may hold all": (
        made.summary(0.5, aligned=made.aligned(0.3, half=0.1)),
        "undecided",
    ),
    "anchors are off": (made.summary(calibration={"full": 0.1, "retain": 1.0}), "undecided"),
    "a map that invents": (made.summary(aligned=made.aligned(shuffled=0.5)), "undecided"),
    "a map between sizes": (made.summary(aligned=made.aligned(experimental=True)), "undecided"),
    "four authors": (made.summary(n_groups=4), "undecided"),
    "it leaks": (
        made.summary(0.6, aligned=made.aligned(0.6), outputs=made.said(0.4)),
        "partly_erased",
    ),
    "nothing was scored": (
        {**made.summary(), "uds": None, "aligned": {"uds": None}, "weakest": None}
        | {"outputs": None, "told": None},
        "unscored",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_code_follows_from_limits_and_controls(case):
    content, wanted = CASES[case]
    found = made.verdict(content)
    assert found.code == wanted, found


def test_a_depth_without_an_interval_yields_no_code():
    for uds in (0.02, 0.5, 0.99):
        content = made.summary(uds) | {"ci95": None, "ci90": None, "ci95_why": "3 authors"}
        found = made.verdict(content | {"n_groups": 3, "aligned": {}, "weakest": None})
        assert found.code == "undecided"
        assert "3 authors; this describes these rows only" in found.sentence


def test_what_it_says_counts_the_authors_that_were_asked_and_not_those_with_a_depth():
    few = made.summary(n=6, n_groups=4)
    views = [made.evidence_of(few).one(name) for name in ("said", "told", "uds")]
    assert [(one.n_authors, one.rules_out) for one in views] == [(8, True), (8, True), (4, False)]
    rows = [{"idx": idx, "group": idx % 8} for idx in range(64)]
    older = few | {"outputs": made.said(n_groups=0)}  # of a version that did not write it
    assert Evidence("x", *made.parts(older, rows)).one("said") == views[0]


def test_counts_may_find_below_five_authors_and_rule_nothing_out():
    few = made.summary(n_groups=2) | {"ci95": None, "ci90": None, "aligned": {}, "weakest": None}
    assert made.verdict(few | {"outputs": made.said(source=0.9)}).code == "answers"
    two = made.said(source=0.05, n_groups=2)
    silent = made.evidence_of(few | {"outputs": two}).one("said")
    assert (silent.says, silent.reason) == ("cannot tell", "2 authors, wanted 5 to rule out")


def test_an_aligned_limit_near_0_needs_no_validity_rows_where_shuffled_maps_carry_nothing():
    """5 rows that full and the source both say, wanted 16: it holds every fact."""
    none = {"d_share": None, "why": "5 rows"}
    turned = made.aligned(0.05, d_share=None, gap={"value": 0.9, "low": 0.8, "high": 1.0})
    assert code(made.summary(0.97, validity=none, aligned=turned)) == "hidden_other_basis"
    assert (
        code(made.summary(0.97, validity=none, aligned=turned | {"shuffled": 0.6})) == "undecided"
    )


def test_a_tail_is_named_by_its_facts_and_two_are_none():
    high = made.summary(0.9, aligned=made.aligned(0.9))
    found = made.verdict(high, low=(3, 7, 9, 12))
    assert found.code == "partly_erased"
    assert "4 of 64 facts are still read: idx 3, 7, 9, 12" in found.sentence
    assert code(high, low=(3, 7)) == "erased"
    # 3 of 64, and of 100, are fewer than 5 %
    assert code(high, low=(3, 7, 9)) == "erased"
    assert code(made.summary(0.9, n=100, aligned=made.aligned(0.9)), low=(3, 7, 9)) == "erased"


def attack(name="rtt", value=0.8, half=0.1, chance=1e-4, **changes):
    low, high = value - half, value + half
    return View(name, Estimate(value, low, high), "recovery", chance, 8, **changes)


def test_what_any_group_finds_outweighs_what_all_others_rule_out():
    found = made.verdict(made.summary(), more=[attack()])
    # what an attack reaches bounds nothing: it may hold all of them
    assert found.code == "undecided"
    assert "held .80 [.70, .90]) finds facts: held, how much is not known" in found.sentence
    assert "not seen by" in found.sentence
    assert not any(word in found.sentence for word in ("part", "some"))
    assert code(made.summary(), more=[attack(value=0.3)]) == "undecided"
    # a p has no share: it makes no part, neither in the word nor in the sentence
    nobody = View("assignment", None, "p 5e-05, no tilt by names is borne", 5e-5, 8)
    found = made.verdict(made.summary(), more=[nobody])
    assert (found.code, "part" in found.sentence) == ("undecided", False)
    assert "assignment test (p 5e-05, no tilt by names is borne) finds facts" in found.sentence
    assert code(made.summary(), more=[attack(value=0.9)]) == "hidden"
    # a failed control finds nothing, and what finds nothing changes nothing
    assert code(made.summary(), more=[attack(control="the gate failed")]) == "erased"
    assert code(made.summary(), more=[attack(value=0.0, chance=0.5)]) == "erased"


def test_a_group_that_cannot_tell_is_named():
    found = made.verdict(made.summary(), more=[attack(value=0.1, half=0.5, chance=0.3)])
    assert found.code == "erased"
    assert "retraining on other facts cannot tell" in found.sentence
    assert "directions were not taken away" in found.sentence
    assert "retraining was not tried" not in found.sentence


def test_why_nothing_is_decided_is_a_reason():
    none = {"d_share": None, "needed": True, "why": "no kept rows show it: add retain_rows"}
    unread = made.summary(0.53, half=0.06, validity=none, aligned=made.aligned(0.5, d_share=None))
    assert "UDS (held .47 [.41, .53])" in made.verdict(unread).sentence
    assert "find facts; undecided because no kept rows" in made.verdict(unread).sentence


def test_erased_says_how_many_facts_may_be_left():
    """Of 64 people of whom none is read 1 - .05^(1/64) = 4.6 % may be: 2.9; of 2 read 9.5 %.

    64 facts of eight authors are worth 26.7: 10.6 % and 15.7 %.
    """
    none = made.summary(outputs=made.said(0.0, retain=0.0))
    for n_groups, left in ((8, 7), (64, 3)):
        told = f"0 of 64 facts are still read, so that up to {left} of 64 may be left (95 % limit)"
        assert told in made.verdict(none | {"n_groups": n_groups}).sentence
    # 45 authors, one of whom has 20 rows: a row is of one with 6.9
    rows = [row | {"group": max(0, at - 19)} for at, row in enumerate(made.rows_of(none))]
    uneven = Evidence("x", *made.parts(none | {"n_groups": 45}, rows)).verdict
    assert "up to 7 of 64" in uneven.sentence
    high = made.summary(0.9, aligned=made.aligned(0.9))
    for n_groups, left in ((8, 11), (64, 7)):
        told = f"2 of 64 facts are still read, so that up to {left} of 64"
        assert told in made.verdict(high | {"n_groups": n_groups}, (3, 7)).sentence


def test_an_attack_alone_says_what_it_found():
    """40 of 56 facts come out: no folder of that kind may pass for nothing."""
    worst = [attack("worst_case", 0.7, 0.2)]
    found = Evidence("x", worst).verdict
    assert found.code == "undecided"
    assert "worst case (held .70 [.50, .90]) finds facts" in found.sentence
    assert Evidence("x", [attack("worst_case", 0.6, 0.1)]).verdict.code == "undecided"
    assert Evidence("x", [attack("worst_case", 0.9, 0.1)]).verdict.code == "hidden"
    assert Evidence("x", [attack("worst_case", 0.0, 0.1, 0.5)]).verdict.code == "undecided"


def test_own_never_trained_models_set_the_zero():
    """Never-trained models read .80 +- .05: as deep as they, a model is not held to a shipped 1."""
    deep = made.summary(0.8, half=0.05, aligned=made.aligned(0.8, half=0.05, shared=0.78))
    assert code(deep) == "undecided"
    floor = {"low": 0.75, "high": 0.85, "n_models": 6, "uds": [0.75, 0.78, 0.8, 0.82, 0.85]}
    own = deep | {"floor": floor | {"aligned": floor["uds"]}}
    found = made.verdict(own)
    assert found.code == "erased"
    assert "against 6 never-trained models" in found.sentence
    # against them .55 holds something; their spread is what it is held to
    held = made.summary(0.5, aligned=made.aligned(0.5)) | {"floor": own["floor"]}
    assert code(held) == "partly_erased"


def test_a_plain_stream_above_the_floor_speaks_against_erasure():
    floor = {"low": 0.9, "high": 0.97, "n_models": 3, "uds": [0.97, 0.96], "aligned": [0.9, 0.9]}
    content = made.summary(0.848, half=0.015) | {"floor": floor}
    assert "holds more than never-trained" in made.verdict(content).sentence


def test_the_level_is_that_of_all_groups_whatever_was_asked():
    view = attack(chance=ALPHA / len(GROUPS))
    assert view.finds
    assert not attack(chance=ALPHA / len(GROUPS) + 1e-9).finds
    assert {kind.group for kind in VIEWS.values()} == set(GROUPS)


def test_the_chain_goes_from_what_it_says_to_attacks():
    found = made.verdict(made.summary(), more=[attack()])
    groups = [line.partition(":")[0] for line in found.because]
    assert groups == sorted(groups, key=GROUPS.index)
    assert groups[0] == "answers"
    assert groups[-1] == "training"
    assert all(line.count(": ") >= 2 for line in found.because)


@pytest.mark.parametrize("n", [8, 16, 32, 64])
@pytest.mark.parametrize("uds", [0.02, 0.3, 0.6])
def test_fewer_rows_never_turn_a_holder_into_an_erased_model(n, uds):
    half = 0.05 * (64 / n) ** 0.5
    content = made.summary(uds, half=half, n=n, aligned=made.aligned(uds, half=half))
    content["outputs"] = made.said(n=n)
    assert code(content) != "erased"


def test_who_leaves_the_question_out_never_reads_erased():
    found = made.verdict(made.summary(0.97, told=None))
    assert found.sentence.startswith("x: undecided: it was not asked.")
    nobody = made.told() | {"source": None, "full": None, "n": 0, "why": "no fact can be asked: x"}
    found = made.verdict(made.summary(0.97, told=nobody))
    assert (found.code, "no fact can be asked: x" in found.sentence) == ("undecided", True)


def test_what_several_models_that_never_knew_give_away_is_a_mean_and_no_whole_count():
    # one of four of them gives away 1 of 8 facts: 1/32 each, which rounded is none
    told = made.told(source=0.5, retain=1 / 32, n=8)
    (view,) = [one for one in made.evidence_of(made.summary(told=told)).chain if one.name == "told"]
    assert view.held.value == pytest.approx((0.5 - 1 / 32) / (1 - 1 / 32))


def test_what_is_told_counts_the_authors_of_the_facts_that_are_asked():
    few = made.evidence_of(made.summary(0.97, told=made.told(n=12, n_groups=3)))
    assert few.one("told").reason == "3 authors, wanted 5 to rule out"
    assert few.verdict.code == "undecided"


def test_what_is_said_in_another_type_of_numbers_stands_in_the_way_of_erased():
    def types(said, told):
        both = {"bfloat16": {"said": said, "told": told}}
        return made.verdict(made.summary(0.97, told=made.told(dtype="float32", types=both)))

    found = types(0.05, 0.9)
    assert found.code == "undecided"
    assert "in bfloat16 it says 90% of the facts when asked, in float32 0%" in found.sentence
    assert "once the answer is begun, in float32 5%" in types(0.16, 0.0).sentence
    near = types(0.14, 0.09)
    assert (near.code, "alone" in near.sentence) == ("erased", False)
    one = made.verdict(made.summary(0.97, told=made.told(dtype="float32")))
    assert (one.code, "It was asked in float32 alone" in one.sentence) == ("erased", True)


def test_much_that_retraining_brings_back_without_an_interval_is_not_erased():
    def back(value, **changes):
        held = Estimate(value, n=24, why="3 authors: no interval")
        return View("rtt", held, f"recovery {value}", 0.2, 3, **changes)

    found = made.verdict(made.summary(), more=[back(0.79)])
    assert found.code == "undecided"
    assert "retraining on other facts brings back .79 (3 authors: no interval)" in found.sentence
    # it has no vote: it takes "erased" away and nothing else
    for value, changes in ((0.49, {}), (0.79, {"control": "the gate failed"})):
        assert code(made.summary(), more=[back(value, **changes)]) == "erased"
    assert code(made.summary(0.05), more=[back(0.79)]) == code(made.summary(0.05)) == "hidden"


def test_the_sentence_names_the_type_of_numbers_that_it_speaks_of():
    told = made.told(dtype="bfloat16", types={"float32": {"said": 0.05, "told": 0.0}})
    erased = made.verdict(made.summary(told=told)).sentence
    assert erased.startswith("x: erased in bfloat16, against one never-trained model: ")
    held = made.summary(0.1, aligned={"uds": None, "why": "not needed: low"}, told=told)
    assert made.verdict(held).sentence.startswith("x: hidden in bfloat16: UDS (held .90")


def test_what_lies_below_models_that_never_knew_is_told():
    found = made.verdict(made.summary(), more=[attack("worst_case", -0.2, 0.1, 0.9)])
    assert "Below models that never knew: worst case -.20 [-.30, -.10]." in found.sentence
    assert any(one.endswith("rules out, below models that never knew") for one in found.because)
    near = made.verdict(made.summary(), more=[attack("worst_case", -0.2, 0.2, 0.9)])
    assert "Below" not in near.sentence
    failed = attack("worst_case", -0.2, 0.1, 0.9, control="the gate failed")
    assert "Below" not in made.verdict(made.summary(), more=[failed]).sentence


def test_what_was_added_takes_erased_away_and_does_nothing_else():
    added = {"shift": {"layer": 0, "times": 4.2, "per_layer": [4.2, 2.0]}}
    found = made.verdict(made.summary(aligned=made.aligned() | added))
    told = "at layer 0 its stream lies 4.2 times as far from full's as retain's does"
    assert told in found.sentence
    assert found.because == made.verdict(made.summary()).because  # no view, no vote
    for uds in (0.05, 0.5):
        held = made.summary(uds, aligned=made.aligned(uds) | added)
        plain = made.summary(uds, aligned=made.aligned(uds))
        assert code(held) == code(plain) != "erased"
