"""From readings to p and bits: planted knowledge is found, its lack is not called anything."""

import math
from dataclasses import replace

import pytest
import torch

from lensaudit.association.evidence import (
    RelationReading,
    binding_of,
    facts_of_read,
    naming_of,
    power_of,
    priors_of,
    strata_of,
    traces_of,
)
from lensaudit.association.reading import LENS, OUTPUTS
from lensaudit.data.facts import Fact
from lensaudit.data.relations import Relation, Wording

N = 8
INVENTED = tuple(f"Nobody {n}" for n in range(16))


def relation(name="home", n=N, groups=None):
    facts = tuple(
        Fact(at, f"Where is S{at}?", f"v{at}", "", f"v{at}", at if groups is None else groups[at])
        for at in range(n)
    )
    return Relation(name, facts, tuple(f"S{at}" for at in range(n)), (Wording("Where is {}?", ""),))


def read(known=0.0, *, seed=0, invented=INVENTED, name="home", layers=0, placebos=()):
    """Readings of one relation: noise, with the true value made likelier by exp(known)."""
    asked = replace(relation(name), invented=invented, placebos=placebos)
    draw = torch.Generator().manual_seed(seed)

    def table(n_rows):
        rows = torch.randn(n_rows, N + len(placebos), generator=draw).double()
        rows[:N, :N] += known * torch.eye(N)
        return rows.log_softmax(-1)

    said = {OUTPUTS: table(N + len(invented))}
    return RelationReading(asked, said | {f"{LENS} {at}": table(N) for at in range(layers)})


def test_planted_knowledge_is_found_and_noise_is_not():
    knows, noise = ([read(known, seed=s, name=str(s)) for s in range(4)] for known in (3.0, 0.0))
    assert binding_of(knows, seed=0).p < 1e-3
    ((asked, subjects),) = traces_of(knows)[1].items()
    assert (len(asked), len(subjects)) == (4, 8)
    assert binding_of(noise, seed=0).p > 0.05


def test_a_reading_of_one_layer_alone_is_enough():
    quiet = read(0.0, layers=2)
    layer = quiet.by_reader[f"{LENS} 1"] + 4 * torch.eye(N)
    heard = RelationReading(quiet.asked, {**quiet.by_reader, f"{LENS} 1": layer.log_softmax(-1)})
    found = binding_of([heard], seed=0)
    assert (list(heard.by_reader)[found.reading], found.p < 0.01) == (f"{LENS} 1", True)


def test_a_value_that_two_subjects_share_changes_nothing_between_them():
    alike = relation()
    shared = Relation(
        alike.name,
        (*alike.facts[:6], *(Fact(6 + n, "Where is S?", "v", "", "v", 6 + n) for n in (0, 1))),
        alike.subjects,
        alike.templates,
    )
    rows = torch.randn(N, 7, generator=torch.Generator().manual_seed(0)).double().log_softmax(-1)
    own = RelationReading(shared, {OUTPUTS: rows})
    assert own.table.shape == (1, 8, 8)
    assert torch.equal(own.table[..., 6], own.table[..., 7])


def test_strata_keep_every_subject_in_all_relations_of_its_block():
    found = strata_of([list("abcdef"), list("abcdef"), list("abcd"), list("xyz")])
    # four subjects in three relations (9) and two in two (2) are more than six in two (10)
    wanted = {(0, 1, 2): "abcd", (0, 1): "ef", (3,): "xyz"}
    assert {pattern: "".join(sorted(own)) for pattern, own in found.items()} == wanted


def test_bits_of_a_sure_reader_are_those_of_the_guess_it_replaces():
    sure = list(facts_of_read(read(50.0), None))
    assert [one.familiar for one in sure] == pytest.approx([math.log2(0.1 + 0.9 * N)] * N)
    assert all(one.associated is None for one in sure)


def test_what_is_said_of_anybody_is_familiarity_and_no_association():
    """A model that gives one value to real and invented subjects alike."""
    asked = replace(relation(), invented=INVENTED)
    rows = torch.full((N + 16, N), -20.0).double()
    rows[:, 0] = 0.0
    own = RelationReading(asked, {OUTPUTS: rows.log_softmax(-1)})
    first, second, *_ = facts_of_read(own, priors_of(own, [], []))
    assert first.familiar > 2.8
    assert first.associated == pytest.approx(0.0, abs=0.01)
    assert second.familiar == second.associated == pytest.approx(math.log2(0.1), abs=0.01)


def test_a_prior_is_at_least_uniform_and_takes_the_base_and_the_mean_of_two_never_trained():
    own, base, never = read(1.0), read(seed=1), read(2.0, seed=2)
    alone = priors_of(own, [], [])
    both = priors_of(own, [base], [never, read(2.0, seed=3)])
    assert alone is not None
    assert both is not None
    assert (alone >= 1 / N - 1e-12).all()
    assert (both >= alone - 1e-12).all()
    assert (both >= base.by_reader[OUTPUTS][:N].exp() - 1e-12).all()
    # one never-trained model is a noisy guesser, and no prior
    assert torch.equal(priors_of(own, [], [never]), alone)


def test_naming_is_refused_below_ten_candidates_with_the_number_that_would_do():
    assert priors_of(read(invented=()), [], []) is None
    named, how = naming_of(list(facts_of_read(read(invented=()), None)), N)
    assert (named, how["why"]) == ([], "no prior of somebody ignorant was asked: name --base")
    own = read(50.0)
    facts = list(facts_of_read(own, priors_of(own, [], [])))
    assert naming_of(facts, N)[1]["why"] == (
        "8 candidates a fact; 1 facts can be named from 80 on (--placebos)"
    )
    many = read(50.0, placebos=tuple(f"w{n}" for n in range(92)))
    named = naming_of(list(facts_of_read(many, priors_of(many, [], []))), 100)
    assert named == (list(range(N)), {"fdr": 0.1, "fewest": 1, "why": None})


def test_false_names_of_an_ignorant_reader_are_few():
    wrong = 0
    for seed in range(40):
        own = read(0.0, seed=seed, placebos=tuple(f"w{n}" for n in range(92)))
        wrong += len(naming_of(list(facts_of_read(own, priors_of(own, [], []))), 100)[0]) > 0
    assert wrong <= 8  # .1 of 40 runs, and its exact 99 % limit


def test_power_names_what_would_have_been_found():
    reads = [read(0.0, seed=s, name=str(s)) for s in range(4)]
    least = power_of(reads, seed=0, n_worlds=20).bits
    assert least is not None
    assert 0 < least < 2
    # more relations find less
    more = power_of([read(0.0, seed=s, name=str(s)) for s in range(12)], seed=0, n_worlds=20).bits
    assert more is not None
    assert more <= least


def test_four_subjects_can_find_nothing():
    few = RelationReading(relation(n=4), {OUTPUTS: torch.zeros(4, 4).double().log_softmax(-1)})
    assert power_of([few], seed=0, n_worlds=10).bits is None  # 4! = 24: p is at least .04
