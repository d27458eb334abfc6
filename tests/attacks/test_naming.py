"""Naming facts: calibrated under the null, honest where it is out of reach."""

import numpy as np
import pytest
import torch

from lensaudit.attacks.naming import gaps, name_facts, strongest


def null(n_facts, n_placebos, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1 + n_placebos, generator=generator) for _ in range(n_facts)]


def differences(source, retains):
    """D of every candidate."""
    return strongest(gaps(source, retains))


def test_strongest_worked_by_hand():
    # attack 0: mean 2, sd sqrt(2): z = (-1, 0, 1) * 1.2247; attack 1 scores nothing of the fact
    exposure = torch.tensor([[0.5, 2.0, 3.5], [torch.nan] * 3, [1.0, 1.0, 1.0]])
    assert strongest(exposure).tolist() == pytest.approx([0.0, 0.0, 1.2247], abs=1e-4)


def test_a_prior_that_both_arms_share_cancels():
    likely = torch.tensor([[9.0, 0.0, 1.0, 2.0]])
    assert differences(likely, [likely, likely]).tolist() == [0.0] * 4
    # the same entity, likelier in the source alone
    found = differences(
        torch.tensor([[9.0, 0.0, 1.0, 2.0]]), [torch.tensor([[1.5, 0.0, 1.0, 2.0]])]
    )
    assert found.argmax() == 0


def test_arms_are_compared_on_the_attacks_that_score_both():
    gap = torch.tensor([[5.0, 0.0, 1.0], [torch.nan] * 3])
    whole = torch.tensor([[5.0, 0.0, 1.0], [0.0, 7.0, 0.0]])
    assert differences(gap, [whole]).tolist() == [0.0] * 3


def test_an_attack_that_reads_nothing_does_not_drown_one_that_does():
    generator = torch.Generator().manual_seed(4)
    blind = [torch.randn(3, 100, generator=generator) for _ in range(2)]
    seen, prior = torch.randn(2, 1, 100, generator=generator)
    seen[0, 0] = prior[0, 0] + 8
    found = differences(torch.cat((blind[0], seen)), [torch.cat((blind[1], prior))])
    assert found.argmax() == 0
    # worked by hand: of the gaps between two standardised attacks, the larger standardised one
    own, other = torch.tensor([[4.0, 0.0, 2.0]]), torch.tensor([[0.0, 2.0, 4.0]])
    gap = (torch.tensor([2.0, -2, 0]) - torch.tensor([-2.0, 0, 2])) / (8 / 3) ** 0.5
    assert differences(own, [other]).tolist() == pytest.approx(
        ((gap - gap.mean()) / gap.std(correction=0)).tolist()
    )


def test_the_share_of_unknown_facts_sharpens_q():
    facts = null(20, 99, 2)
    for fact in facts[:15]:
        fact[0] = 99.0
    found = name_facts(facts)
    above = sum(p is not None and p > 0.5 for p in found.p)
    # 15 of p .01: q = n p / 15, times the estimated share of unknown facts
    assert found.q[0] == pytest.approx(20 * 0.01 / 15 * (1 + above) / 10)


def test_q_is_benjamini_hochberg():
    facts = null(4, 99, 0)
    for fact, rank in zip(facts, (0, 1, 3, 50), strict=True):
        fact[0] = fact[1:].sort(descending=True).values[rank] - 1e-4 if rank else 99.0
    found = name_facts(facts)
    # p = .01, .03, .05, .52 ... by rank + 1 placebos above; q_i = min over j >= i of n p_j / j
    expected = sorted(p for p in found.p if p is not None)
    by_hand = [min(4 * expected[j] / (j + 1) for j in range(i, 4)) for i in range(4)]
    assert sorted(q for q in found.q if q is not None) == pytest.approx(by_hand)


@pytest.mark.parametrize(("n_facts", "n_placebos"), [(56, 99), (40, 5)])
def test_nobody_is_named_where_nobody_knows(n_facts, n_placebos):
    runs = [any(name_facts(null(n_facts, n_placebos, seed)).named) for seed in range(300)]
    assert sum(runs) / len(runs) <= 0.1 + 2 * (0.1 * 0.9 / 300) ** 0.5


def test_what_is_known_is_named_and_little_else():
    shares = []
    for seed in range(100):
        facts = null(64, 99, seed)
        for fact in facts[:40]:
            fact[0] += 5
        named = name_facts(facts).named
        assert sum(named[:40]) >= 0.8 * 40
        shares.append(sum(named[40:]) / max(1, sum(named)))
    # the rate is .1 in expectation: what 100 runs may say
    assert np.mean(shares) <= 0.1 + 2 * np.std(shares) / len(shares) ** 0.5


def test_few_placebos_compete_with_a_decoy():
    facts = null(40, 5, 3)
    for fact in facts[:20]:
        fact[0] += 9
    found = name_facts(facts)
    assert found.method == "target-decoy"
    assert found.p == (None,) * 40
    assert sum(found.named[:20]) >= 18


def test_a_level_out_of_reach_and_facts_without_placebos_name_nobody():
    facts = null(9, 5, 0)
    for fact in facts:
        fact[0] = 99.0
    found = name_facts(facts)
    assert found.reason is not None
    assert not any(found.named)
    found = name_facts([*null(3, 99, 0), torch.zeros(1), None])
    assert found.p[3:] == (None, None)
    assert name_facts([torch.zeros(1), None]).reason == "no fact has a placebo"
    assert name_facts([None] * 3).reason == "no attack that counts compares candidates"
