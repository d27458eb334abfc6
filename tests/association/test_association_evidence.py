"""From readings to p and bits: planted knowledge is found, its lack is not called anything."""

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from support import checkpoint_of

from lensaudit.association.assignment import assignment_test
from lensaudit.association.evidence import (
    LEVEL,
    POWER,
    FactEvidence,
    RelationReading,
    binding_of,
    facts_of_read,
    naming_of,
    outcome_of,
    power_of,
    priors_of,
    strata_of,
    traces_of,
)
from lensaudit.association.opening import Know
from lensaudit.association.reading import LENS, OUTPUTS
from lensaudit.association.settings import KnowSettings
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


def read(
    known=0.0, *, seed=0, invented=INVENTED, name="home", layers=0, placebos=(), n=N, groups=None
):
    """Readings of one relation: noise, with the true value made likelier by exp(known)."""
    asked = replace(relation(name, n, groups), invented=invented, placebos=placebos)
    draw = torch.Generator().manual_seed(seed)

    def table(n_rows):
        rows = torch.randn(n_rows, n + len(placebos), generator=draw).double()
        rows[:n, :n] += known * torch.eye(n)
        return rows.log_softmax(-1)

    said = {OUTPUTS: table(n + len(invented))}
    return RelationReading(asked, said | {f"{LENS} {at}": table(n) for at in range(layers)})


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


def test_strata_hang_on_no_order_of_subjects_or_relations():
    """Pairs of subjects lack one relation each: whichever is joined first takes two others."""
    asked = [list(range(8)), [2, 3, 4, 5, 6, 7], [0, 1, 4, 5, 6, 7], [0, 1, 2, 3, 6, 7]]

    def told(relations, number):
        found = strata_of(relations).items()
        return [(tuple(sorted(number[at] for at in key)), own) for key, own in found]

    wanted = told(asked, range(4))
    for seed in range(6):
        draw = Random(seed)
        number = draw.sample(range(4), 4)
        turned = [draw.sample(asked[at], len(asked[at])) for at in number]
        assert told(turned, number) == wanted


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
    first, second, *_ = facts_of_read(own, priors_of(own, {}, []).rows)
    assert first.familiar > 2.8
    assert first.associated == pytest.approx(0.0, abs=0.01)
    assert second.familiar == second.associated == pytest.approx(math.log2(0.1), abs=0.01)


def test_a_prior_is_at_least_uniform_and_takes_the_base_and_the_mean_of_two_never_trained():
    own, base, never = read(1.0), read(seed=1), read(2.0, seed=2)
    alone = priors_of(own, {}, []).rows
    both = priors_of(own, {"base": base}, [never, read(2.0, seed=3)]).rows
    assert alone is not None
    assert both is not None
    assert (alone >= 1 / N - 1e-12).all()
    assert (both >= alone - 1e-12).all()
    assert (both >= base.by_reader[OUTPUTS][:N].exp() - 1e-12).all()
    # one never-trained model is a noisy guesser, and no prior
    assert torch.equal(priors_of(own, {}, [never]).rows, alone)


@pytest.mark.parametrize(
    ("reader", "n_invented", "names"),
    [
        (OUTPUTS, (16, 16), ["invented namesakes"]),
        (OUTPUTS, (16, 15), ["invented namesakes (1 of 2 relations)"]),
        (OUTPUTS, (0, 0), []),
        # of invented subjects only what the model says is heard
        ("few_shot", (16, 16), []),
    ],
)
def test_the_record_names_the_priors_that_were_asked_and_no_others(reader, n_invented, names):
    own = [
        RelationReading(one.asked, {reader: one.by_reader[OUTPUTS]})
        for one in (read(3.0, name=str(n), invented=INVENTED[:n]) for n in n_invented)
    ]
    never = [replace(read(seed=at), asked=one.asked) for at, one in enumerate(own)]
    asked = [one.asked for one in own]
    alone = outcome_of(asking(asked), [own]).run
    assert alone.priors == ["uniform", *names]
    assert (alone.bits is not None) is bool(names)
    beside = outcome_of(asking(asked, "a", "b", base="c"), [own, never, never, never]).run
    assert beside.priors == ["uniform", "c", *names, "mean of never-trained models"]


def test_naming_is_refused_below_ten_candidates_with_the_number_that_would_do():
    assert priors_of(read(invented=()), {}, []).rows is None
    named, how = naming_of(list(facts_of_read(read(invented=()), None)))
    assert (named, how["why"]) == (
        [],
        "no model that never knew was asked for a prior: name one with --base",
    )
    own = read(50.0)
    facts = list(facts_of_read(own, priors_of(own, {}, []).rows))
    why = "each fact has 8 candidates; to name 1 facts takes 80"
    assert naming_of(facts)[1]["why"] == f"{why} (--placebos)"
    assert naming_of(facts, more=False)[1]["why"] == why
    many = read(50.0, placebos=tuple(f"w{n}" for n in range(92)))
    named = naming_of(list(facts_of_read(many, priors_of(many, {}, []).rows)))
    assert named == (list(range(N)), {"fdr": 0.1, "fewest": 1, "why": None})


@pytest.mark.parametrize(
    ("n", "caps", "named"),
    [
        # 22 / (.1 * 40) = 5.5 of the twenty are enough, whatever the two can reach
        ([20, 2], [40, 2], (20, 6, None)),
        # of five with forty candidates 25 / (.1 * 5) = 50 is wanted; of all, of two candidates, 10
        ([5, 20], [40, 2], (0, None, "facts have 2 to 40 candidates; to name 2 facts takes 125")),
    ],
)
def test_what_can_be_named_is_reckoned_from_each_facts_own_candidates(n, caps, named):
    sizes = [cap for many, cap in zip(n, caps, strict=True) for _ in range(many)]
    facts = [
        FactEvidence(at, at, "home", 0.0, 0.0, 0.95 * cap, cap) for at, cap in enumerate(sizes)
    ]
    found, how = naming_of(facts, more=False)
    assert (len(found), how["fewest"], how["why"]) == named


@pytest.mark.parametrize(("wanted", "advice"), [(0, " (--placebos)"), (32, "")])
def test_no_placebos_are_advised_where_none_are_to_be_had(wanted, advice):
    own = read(3.0)
    know = replace(asking([own.asked]), settings=KnowSettings(placebos=wanted))
    why = outcome_of(know, [[own]]).run.naming["why"]
    assert why == f"each fact has 8 candidates; to name 1 facts takes 80{advice}"


def test_false_names_of_an_ignorant_reader_are_few():
    wrong = 0
    for seed in range(40):
        own = read(0.0, seed=seed, placebos=tuple(f"w{n}" for n in range(92)))
        wrong += len(naming_of(list(facts_of_read(own, priors_of(own, {}, []).rows)))[0]) > 0
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


@pytest.mark.parametrize("apart", [0, N], ids=["same people", "other people"])
def test_power_is_that_of_facts_planted_in_five_relations(apart):
    def reads(seed, known):
        people = (range(at * apart, at * apart + N) for at in range(5))
        return [read(known, seed=5 * seed + at, groups=one) for at, one in enumerate(people)]

    bits = power_of(reads(0, 0.0), seed=0).bits
    share = 2**bits / N  # of the true value, that bits add to a uniform guess
    nats = math.log(share / (1 - share) * (N - 1))
    draw = np.random.default_rng(0)
    planted = (traces_of(reads(seed, nats))[0] for seed in range(1, 61))
    found = [assignment_test(one, generator=draw, n_draws=400).p <= LEVEL for one in planted]
    # 60 draws: three standard deviations are .15, and the factors stand on a grid
    assert np.mean(found) == pytest.approx(POWER, abs=0.2)


@pytest.mark.parametrize(
    ("n", "names", "promised"),
    [(N, (), False), (N, ("retain",), True), (16, (), True)],
    ids=["four pairs", "four pairs beside a retain", "eight pairs"],
)
def test_power_is_of_what_finds_and_not_of_a_small_p_alone(n, names, promised):
    def judged_at(known, seed):
        own, retain = (
            [read(one, seed=seed + at + 9 * who, name=str(at), n=n) for at in range(4)]
            for who, one in enumerate((known, 0.0))
        )
        heard = [own, *([retain] * len(names))]
        return outcome_of(asking([one.asked for one in own], *names), heard).run

    quiet = judged_at(0.0, 0)
    assert (quiet.power.bits is not None) is promised
    assert ("so few subjects show nothing without" in quiet.headline) is not promised
    nats = 4.0
    if quiet.power.bits is not None:
        share = 2**quiet.power.bits / n
        nats = math.log(share / (1 - share) * (n - 1))
    found = [judged_at(nats, 100 * seed) for seed in range(1, 11)]
    assert sum(one.p <= LEVEL for one in found) >= 6
    # of ten draws at a power of .8, fewer than six have a chance of .03
    assert (sum(one.finds for one in found) >= 6) is promised


def asking(asked, *retains, base=None, kept=()):
    """What `know` was asked of a model x, beside others of these names."""
    full = checkpoint_of("demo/full")

    def named(name):
        return replace(full, spec=replace(full.spec, name=name))

    return Know(
        settings=KnowSettings(),
        source=named("x"),
        base=named(base) if base else None,
        retains=tuple(map(named, retains)),
        asked=tuple(asked),
        kept=tuple(kept),
        people=(),
        unscored={},
        readers=(OUTPUTS,),
        shots=(),
        texts=(),
        remarks=(),
        dtype="float32",
        device="cpu",
    )


def turned(own):
    """The same reading where the people stand in the opposite order."""
    asked, rows = own.asked, own.by_reader[OUTPUTS]
    facts, subjects = asked.facts[::-1], asked.subjects[::-1]
    rows = torch.cat([rows[:N].flip(0), rows[N:]]).flip(1)
    return RelationReading(replace(asked, facts=facts, subjects=subjects), {OUTPUTS: rows})


def test_whether_a_prior_is_fair_hangs_on_no_order_of_people_in_a_relation():
    """Two never-trained models of which names give some authors' facts away."""
    tilt = torch.linspace(-2, 3, N)
    heard = [[read(one, seed=at), read(one, seed=9 + at)] for at, one in enumerate((0, tilt, tilt))]
    other = [[first, turned(second)] for first, second in heard]
    found = (outcome_of(asking([r.asked for r in own[0]], "a", "b"), own) for own in (heard, other))
    straight, turned_over = (one.run.controls[-1] for one in found)
    assert straight.name == "fair prior"
    assert straight == turned_over


def judged(*, base=None, retain=None, n=N, asks_kept=True):
    """What is said of a source that knows, beside a base and a retain: (values, kept facts) known.

    None: not asked.
    """
    heard, kept = [(3.0, 3.0), base, retain], [read(n=n, name="kept").asked] * asks_kept
    know = asking(
        [read(n=n, name=str(at)).asked for at in range(4)],
        *["retain"] * (retain is not None),
        base=None if base is None else "base",
        kept=kept,
    )
    reads = [
        [read(values, seed=at, name=str(at), n=n) for at in range(4)]
        + [read(known, seed=9, name="kept", n=n)] * asks_kept
        for values, known in filter(None, heard)
    ]
    return outcome_of(know, reads).run


@pytest.mark.parametrize(
    ("beside", "finds", "said"),
    [
        ({}, False, "no tilt by names is borne, and no never-trained model"),
        # a base shows nothing of what training on kept rows ties to names
        ({"base": (0.0, 3.0)}, False, "no tilt by names is borne, and no never-trained model"),
        ({"retain": (0.0, 0.0)}, False, "no never-trained model of the same kept rows"),
        ({"retain": (0.0, 3.0)}, True, "8 subjects, no tilt by names is borne)"),
        ({"base": (0.0, 0.0), "retain": (0.0, 3.0)}, True, "no tilt by names is borne)"),
        ({"retain": (3.0, 3.0)}, False, "retain binds the values too"),
        ({"retain": (0.0, 0.0), "asks_kept": False}, True, "no tilt by names is borne)"),
        # of forty people a tilt is borne, and nobody is needed beside it
        ({"n": 40}, True, "survives cues that tilt odds by up to"),
    ],
)
def test_below_a_tilt_that_is_borne_only_a_model_taught_alike_lets_it_find(beside, finds, said):
    """Eight people are four pairs: p of 1/16 at best, so that names may give all away."""
    found = judged(**beside)
    assert found.p <= 1e-3
    assert (found.gamma > 1) is ("n" in beside)
    assert (found.finds, said in found.headline) == (finds, True), found.headline


def test_four_subjects_can_find_nothing():
    few = RelationReading(relation(n=4), {OUTPUTS: torch.zeros(4, 4).double().log_softmax(-1)})
    assert power_of([few], seed=0, n_worlds=10).bits is None  # 4! = 24: p is at least .04
