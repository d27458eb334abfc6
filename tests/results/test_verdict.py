from dataclasses import replace

import pytest
from lensaudit.results.verdict import (
    ERASED_FROM,
    HIDDEN_BELOW,
    Evidence,
    Floor,
    Measured,
    Outputs,
    Weakest,
    decide,
    verdict_of,
)


def around(value: float, half: float = 0.03) -> Measured:
    return Measured(value, value - half, value + half, value - 0.8 * half)


SILENT = Outputs(source=0.05, full=1.0, retain=0.05, n=64)
READ = Evidence(
    uds=around(0.97),
    aligned=around(0.95),
    gap=around(0.02),
    outputs=SILENT,
    readable=True,
    readable_aligned=True,
)
"""A model that full reads, and that lacks the facts."""
TURNED = replace(READ, readable=False, aligned=around(0.05), gap=around(0.92))
"""Another basis, the facts in it."""
FLOOR = Floor(0.86, 0.93, 2)

CASES = {
    "lacks the facts, one retain": (READ, "erased"),
    "lacks the facts, in another basis": (replace(READ, readable=False), "erased"),
    "hides them": (replace(READ, uds=around(0.1), aligned=around(0.08)), "hidden"),
    "hides them, no controls at all": (Evidence(around(0.1)), "hidden"),
    "hides them in another basis": (TURNED, "hidden_other_basis"),
    "says them, whatever the stream reads": (
        replace(TURNED, outputs=replace(SILENT, source=0.9)),
        "intact",
    ),
    "aligned near 0 and UDS hardly above": (
        replace(READ, uds=around(0.26), aligned=around(0.2), gap=around(0.06)),
        "hidden",
    ),
    "no alignment carries it": (
        replace(TURNED, readable_aligned=False, aligned=around(0.97)),
        "unreadable",
    ),
    "a map that carries nothing shows no hiding": (
        replace(TURNED, readable_aligned=False),
        "unreadable",
    ),
    "between": (replace(READ, uds=around(0.5), aligned=around(0.5)), "partly_erased"),
    "between, limits reach the hidden": (
        replace(READ, uds=around(0.3), aligned=around(0.27)),
        "undecided",
    ),
    "high, limits reach down": (replace(READ, aligned=around(0.76, 0.05)), "undecided"),
    "validity was not measured": (
        replace(READ, readable=None, readable_aligned=None),
        "undecided",
    ),
    "alignment was not tried": (replace(READ, aligned=None, gap=None), "undecided"),
    "as low as never-trained models": (
        replace(READ, aligned=around(0.88), floor=FLOOR, to_floor=around(-0.01)),
        "erased",
    ),
    "proven to lie below the floor": (
        replace(READ, aligned=around(0.6), floor=FLOOR, to_floor=around(-0.3)),
        "partly_erased",
    ),
    "a wide interval is no proof of erasure": (
        replace(READ, aligned=around(0.85, 0.2), floor=FLOOR, to_floor=around(-0.04, 0.2)),
        "undecided",
    ),
    "one layer may hold them alone": (
        replace(READ, weakest=Weakest(15, around(0.33))),
        "undecided",
    ),
    "one layer may hold them alone, as deep as never-trained models": (
        replace(READ, floor=FLOOR, to_floor=around(-0.01), weakest=Weakest(15, around(0.52, 0.05))),
        "undecided",
    ),
    "no layer holds them": (replace(READ, weakest=Weakest(3, around(0.8))), "erased"),
    "nothing was scored": (Evidence(None), "unscored"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_code_follows_from_limits_and_controls(case):
    evidence, code = CASES[case]
    assert decide(evidence)[0] == code


def test_a_layer_is_named_only_where_it_is_what_decides():
    held = replace(READ, weakest=Weakest(15, around(0.33)))
    assert "layer 15 may hold the facts alone (erasure there 0.330" in decide(held)[1]
    wide = replace(held, aligned=around(0.76, 0.05))
    assert decide(wide) == ("undecided", "the limits hold more than one answer")


def test_rotated_full_is_never_called_erased_whatever_is_missing():
    full = replace(TURNED, uds=around(0.999), aligned=around(0.001, 0.001))
    for evidence in (
        full,
        replace(full, aligned=None, gap=None, readable_aligned=None),
        replace(full, readable=None, readable_aligned=None),
        replace(full, outputs=None),
    ):
        assert decide(evidence)[0] not in ("erased", "partly_erased")


@pytest.mark.parametrize("n", [4, 64])
def test_rotated_retain_is_never_called_hidden_or_intact(n):
    outputs = Outputs(source=0.06, full=1.0, retain=0.06, n=n)
    evidence = replace(READ, uds=around(0.999), readable=False, outputs=outputs)
    assert decide(evidence)[0] == "erased"
    assert decide(replace(evidence, aligned=None, readable_aligned=None))[0] == "undecided"


def test_without_limits_the_point_decides_and_the_sentence_says_so():
    why = "3 authors: no interval below 5"
    found = verdict_of("x", Evidence(Measured(0.1, why=why)))
    assert found.code == "hidden"
    assert found.sentence.endswith(f"UDS 0.100. {why}; this describes these rows only.")


def test_a_wide_floor_widens_the_margin_only_from_three_models_on():
    assert Floor(0.7, 0.95, 2).margin == pytest.approx(0.10)
    assert Floor(0.7, 0.95, 3).margin == pytest.approx(0.25)


def test_nobody_says_what_full_and_retain_say_alike():
    assert not Outputs(source=1.0, full=0.5, retain=0.5, n=10).give_away
    assert Outputs(source=0.55, full=1.0, retain=0.1, n=10).give_away
    assert not Outputs(source=0.54, full=1.0, retain=0.1, n=10).give_away


def test_one_never_trained_model_is_named_as_one():
    assert "against one never-trained model" in verdict_of("x", READ).sentence
    with_floor = replace(READ, floor=FLOOR, to_floor=around(0.0))
    assert "against 2 never-trained models" in verdict_of("x", with_floor).sentence


@pytest.mark.parametrize("edge", [HIDDEN_BELOW, ERASED_FROM])
def test_limits_on_a_threshold(edge):
    at = Measured(edge, edge, edge, edge)
    assert decide(replace(READ, uds=at, aligned=at))[0] == (
        "erased" if edge == ERASED_FROM else "partly_erased"
    )
