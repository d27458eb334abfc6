"""The worst case on models of known truth: what is hidden comes out, what is absent does not."""

import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def experiment():
    """The module `experiments/worst_case.py`."""
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        import worst_case

        yield worst_case
    finally:
        sys.path.remove(str(EXPERIMENTS))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Caches that the tests share."""
    return tmp_path_factory.mktemp("planted")


def run(experiment, place, name, n_control=1):
    one = next(one for one in experiment.all_models() if one.name == name)
    source = str(experiment.folder_of(one, place))
    compared = experiment.run_one(
        source, place, retain=experiment.control_of(name, place, n_control)
    )
    return experiment.row_of(one, compared), compared


@pytest.mark.slow
def test_a_model_that_never_knew_has_no_excess_and_names_nobody(experiment, place):
    row, _ = run(experiment, place, "never")
    low, high = row["ci95"]
    assert low <= 0 <= high
    assert row["swapped"] <= 0.1 + 2 * (0.1 * 0.9 / 200) ** 0.5


@pytest.mark.slow
def test_of_a_partial_model_the_facts_it_holds_are_named(experiment, place):
    row, _ = run(experiment, place, "partial_1", n_control=2)
    assert row["fdp"] <= 0.1
    assert row["power"] >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked_upper", "permuted_readout"])
def test_hidden_facts_come_out(experiment, place, name):
    row, compared = run(experiment, place, name)
    assert row["excess"] >= 0.6
    # each attack dropped in turn
    for attack, gain in row["gains"].items():
        assert compared.without(attack).excess == pytest.approx(row["excess"] - gain)
