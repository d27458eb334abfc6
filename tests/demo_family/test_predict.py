"""The area within models, its limits, and what counts as coming back."""

import functools
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, spearmanr
from sklearn.metrics import roc_auc_score
from support.pages import page

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def predict():
    from experiments.prediction import predict as module

    return module


def facts(seed=0, *, n_models=4, n_authors=8, each=8, signal=1.0, author_effect=0.0):
    """Rows whose score foretells the outcome by `signal`, with a shift of each author's own."""
    draw = np.random.default_rng(seed)
    authors = np.tile(np.repeat(np.arange(n_authors), each), n_models)
    models = np.repeat([f"m{one}" for one in range(n_models)], n_authors * each)
    shift = draw.normal(size=n_authors)[authors] * author_effect
    back = (draw.normal(size=len(authors)) + shift > 0).astype(float)
    score = signal * back + draw.normal(size=len(authors)) + shift * signal
    return pd.DataFrame(
        {
            "stratum": models,
            "seed": 0,
            "author": authors,
            "uds": score,
            "entity_prob": draw.normal(size=len(authors)),
            "back_any": back,
        }
    )


def arrays(rows, score="uds"):
    return rows[score].to_numpy(), rows["back_any"].to_numpy(), rows["stratum"].to_numpy()


def test_the_area_of_one_model_is_that_of_sklearn_and_of_several_weighs_pairs(predict):
    rows = facts()
    one = rows[rows["stratum"] == "m0"]
    assert predict.within_auc(*arrays(one)) == pytest.approx(
        roc_auc_score(one["back_any"], one["uds"])
    )
    agree = pairs = 0
    for _, part in rows.groupby("stratum"):  # by counting
        for high in part.loc[part["back_any"] == 1, "uds"]:
            for low in part.loc[part["back_any"] == 0, "uds"]:
                agree += (high > low) + 0.5 * (high == low)
                pairs += 1
    assert predict.within_auc(*arrays(rows)) == pytest.approx(agree / pairs)


def test_too_few_pairs_have_no_area(predict):
    rows = facts(n_models=1, n_authors=2, each=3)
    rows["back_any"] = [1, 0, 0, 0, 0, 0]
    found = predict.area(rows, "uds", "any")
    assert found.value is None
    assert "few" in found.why


def test_limits_hold_the_truth_where_facts_of_an_author_are_alike(predict):
    """Of 200 draws; a score without signal is known to read a half."""
    held = 0
    for seed in range(200):
        rows = facts(seed, author_effect=0.0, signal=0.0, n_models=2)
        lift = np.random.default_rng(1000 + seed).normal(size=8)
        rows["uds"] = rows["uds"] + lift[rows["author"]]  # author by author, whatever comes back
        found = predict.area(rows, "uds", "any")
        held += found.low <= 0.5 <= found.high
    assert held >= 184  # 92 %


def test_what_is_added_is_nothing_where_the_outputs_know_all(predict):
    rows = facts(signal=1.5)
    told = predict.added(rows, "uds", "any")
    assert told.low > 0.1  # entity_prob is noise, the score is not
    known = predict.added(rows.assign(entity_prob=rows["uds"]), "uds", "any")
    assert abs(known.value) < 0.02
    noise = predict.added(
        rows.assign(entity_prob=rows["uds"], uds=np.random.default_rng(5).normal(size=len(rows))),
        "uds",
        "any",
    )
    assert noise.value < 0.02


def test_what_nobody_can_ask_is_not_said_and_counts(predict):
    rows = pd.DataFrame({"greedy": [1, 0, np.nan, 0.0], "prefix": [0, 0, np.nan, 1.0]})
    assert predict.silent(rows).index.tolist() == [1, 2]


def test_limits_widen_where_the_models_differ(predict):
    """Of one model the score tells, of the others it does not: another model is another answer."""
    rows = facts(signal=0.0, n_models=4)
    told = rows["stratum"] == "m0"
    rows.loc[told, "uds"] = rows.loc[told, "back_any"]
    found = predict.area(rows, "uds", "any")
    by_model = [predict.within_auc(*arrays(part)) for _, part in rows.groupby("stratum")]
    assert max(by_model) == 1.0
    # the least of what eight authors and four models leave: Student's t of three degrees
    assert found.high - found.low > 2 * 3.18 * np.std(by_model, ddof=1) / 4**0.5 / 2


def test_limits_hold_the_truth_where_authors_models_and_seeds_differ(predict):
    """Of 60 draws of nine models of two seeds; each has a reach of its own to tell facts."""
    truth = norm.cdf(np.random.default_rng(1).normal(1, 0.8, 10**6) / 2**0.5).mean()
    held = 0
    for seed in range(60):
        draw = np.random.default_rng(seed)
        of_author, of_model, of_seed = (
            draw.normal(0, spread, n) for spread, n in ((0.5, 8), (0.53, 9), (0.33, 2))
        )
        parts = []
        for at, model in itertools.product(range(2), range(9)):
            author = np.repeat(np.arange(8), 8)
            back = (draw.normal(size=64) > 0).astype(float)
            reach = 1 + of_author[author] + of_model[model] + of_seed[at]
            own = {"stratum": f"{at} {model}", "model": f"{model}", "seed": at, "author": author}
            score = reach * back + draw.normal(size=64)
            parts.append(pd.DataFrame({**own, "uds": score, "back_any": back}))
        found = predict.area(pd.concat(parts, ignore_index=True), "uds", "any")
        held += found.low <= truth <= found.high
    assert held >= 52  # a binomial of .95 falls below that in 3 of 1,000 cases


def test_a_fact_comes_back_only_where_both_controls_decide(predict):
    rows = pd.DataFrame(
        {
            "nf4": [1.0, 0.0, 1.0, 1.0, np.nan],
            "nf4@full": [1.0, 1.0, 0.0, 1.0, 1.0],
            "nf4@never": [0.0, 0.0, 0.0, 1.0, 0.0],
        }
    )
    found = predict.came_back(rows, "nf4")
    assert found[:2].tolist() == [1.0, 0.0]
    assert found[2:].isna().all()


def test_recovery_is_a_share_of_what_full_gives_beyond_the_never_trained(predict):
    n = 10
    rows = pd.DataFrame(
        {
            "stratum": ["a"] * n + ["b"] * n,
            "nf4": [1.0] * 6 + [0.0] * 4 + [1.0] + [0.0] * 9,
            "nf4@full": [1.0] * 2 * n,
            "nf4@never": ([1.0] + [0.0] * 9) * 2,
        }
    )
    found = predict.recovery(rows, "nf4")
    assert found["a"] == pytest.approx(0.5 / 0.9)
    assert found["b"] == 0


def test_an_outcome_without_a_number_is_named_with_its_reason(predict):
    few, alike = (
        predict.Estimate(None, n=9, why=why)
        for why in ("too few pairs of facts", "all facts end alike")
    )
    value = predict.Estimate(0.75, 0.5, 1.0, 9)
    found = {
        "uds": {"nf4": value, "greedy": few, "prefix": few, "planted": alike},
        "lens": {"nf4": few, "greedy": few, "prefix": few, "planted": few},
    }
    table = ["", "| score | nf4 |", "|---|---|", "| uds | 0.75 [0.50, 1.00] |", ""]
    reasons = ["Too few pairs of facts: greedy, prefix.", ""]
    reasons += ["All facts end alike or too few pairs of facts: planted."]
    assert predict.markdown("# Area", found).split("\n") == ["# Area", *table, *reasons]
    bare = predict.markdown("# Area", found, wanted=("greedy", "planted")).split("\n")
    assert bare[:3] == ["# Area", "", "Too few pairs of facts: greedy."]
    assert "|" not in "".join(bare)


def test_models_that_are_too_few_are_said_to_be(predict):
    rows = facts(n_models=4).assign(**{"nf4": 1.0, "nf4@full": 1.0, "nf4@never": 0.0})
    text = predict.markdown("# Rank", {"uds": {"nf4": predict.over_models(rows, "uds", "nf4")}})
    assert text == "# Rank\n\nFewer than five models that differ: nf4."


def test_calibration_counts_facts_by_fifths_of_the_depth(predict):
    rows = pd.DataFrame({"uds": [-1.0, -0.9, -0.05, 0.0, 0.0], "back_any": [0, 1, 1, 1, 1.0]})
    bins = predict.calibration(rows, "uds", "any")
    assert [one.share.n for one in bins] == [2, None, None, None, 3]
    assert bins[0].share.value == 0.5
    assert bins[-1].share.value == 1


@pytest.fixture(scope="module")
def told(predict):
    """The rows of the published files, by family, and the page that tells of them."""
    folder = ROOT / "benchmarks" / "predict"
    rows = predict.read([folder / f"{name}.csv" for name in ("real", "planted", "second")])
    return dict([*rows.groupby("family")]), page("evidence/foretell")


SEEDS = ("SmolLM2", "SmolLM2, seed 1", "SmolLM2, seed 2")


def test_the_page_says_what_the_rows_say(predict, told):
    rows, page = told
    real, again, third = (rows[one] for one in SEEDS)
    parts = {
        **{"real": real, "again": again, "third": third, "every": pd.concat([real, again, third])},
        **{name: rows[f"{name} family"] for name in ("embedded", "second")},
    }
    quiet = {name: predict.silent(part) for name, part in parts.items()} | {"gym": rows["gym"]}

    @functools.cache
    def area(name, score, outcome):
        return predict.area(quiet[name], score, outcome)

    for name, outcome, scores in (
        ("real", "retrained_T", ("uds", "aligned", "entity_prob", "rouge")),
        *(
            (one, outcome, predict.SCORES)
            for one in ("again", "third", "every")
            for outcome in ("leak64", "nf4", "retrained_T", "any")
        ),
        ("embedded", "retrained_T", ("uds", "entity_prob")),
        ("gym", "planted", ("uds", "entity_prob")),
        ("second", "any", predict.SCORES),
        ("second", "retrained_T", predict.SCORES),
    ):
        for score in scores:
            found = predict.cell(area(name, score, outcome))
            assert "[" in found
            assert found in page, (name, score, outcome, found)

    def areas(name, outcome):
        return [area(name, one, outcome).value for one in predict.SCORES]

    for one, other, outcome, rank in (
        *(("real", "second", "any", "0.81"), ("real", "second", "retrained_T", "0.58")),
        *(("real", "again", "any", "0.89"), ("real", "again", "retrained_T", "0.89")),
        *(("again", "third", "any", "0.81"), ("again", "third", "retrained_T", "0.71")),
    ):
        found = spearmanr(areas(one, outcome), areas(other, outcome)).statistic
        assert f"{found:.2f}" == rank
        assert rank in page
    assert not predict.contradicted(third)
    assert not predict.contradicted(again)
    for score in ("uds", "entity_prob"):
        found = predict.cell(area("every", score, "retrained_T"))
        assert found in (ROOT / "docs" / "real_model.md").read_text(encoding="utf-8")
    others = real[~real["model"].isin(["simnpo", "idknll", "idk_top", "trigger"])]
    for part, score in ((real, "uds"), (real, "entity_prob"), (others, "uds")):
        assert predict.cell(predict.over_models(part, score, "retrained_T")) in page
    back = real.groupby("model")["retrained_T"].mean()
    assert back["rmu"] > 0.5 > back["masked_top"] > back["absent"]
    (erased,) = predict.contradicted(real)  # by one sample of 64, as guessing does
    assert (erased["attack"], erased["facts"], erased["of"]) == ("leak64", [43], 47)


def test_the_lead_of_depth_is_as_sure_as_the_page_says(predict, told):
    rows, page = told
    real, again, third = (rows[one] for one in SEEDS)
    second, every = rows["second family"], pd.concat([real, again, third])
    less = every[every["model"] != "rmu"]
    shams = every["model"].str.startswith("sham_")
    shared = set.intersection(*(set(one["model"]) for one in (real, again, third)))
    same = every["model"].isin(shared)
    for part in (real, third, second, real[real["model"] != "rmu"], every[~shams], every[same]):
        lead = predict.lead(predict.silent(part), "uds", "retrained_T")
        assert lead.low < 0 < lead.high  # suggested, and not shown
        assert predict.cell(lead) in page
    for outcome in ("retrained_T", "any"):
        lead = predict.lead(predict.silent(less), "uds", outcome)
        assert lead.low < 0 < lead.high
        assert predict.cell(lead).replace("0.", ".") in page.split("**Its limits.**")[0]
    lead = predict.lead(predict.silent(every), "uds", "retrained_T")
    assert lead.low < 0
    assert f"{predict.cell(lead)} counting authors, models and seeds" in page
    brief = (ROOT / "docs" / "real_model.md").read_text(encoding="utf-8")
    assert f"The lead of {predict.cell(lead)} may be chance" in brief
    for part, outcome in ((pd.concat([real, again]), "retrained_T"), (every, "any")):
        lead = predict.lead(predict.silent(part), "uds", outcome)
        assert lead.low > 0
        assert predict.cell(lead) in page


@pytest.mark.parametrize("at", [1, 2])
def test_the_table_of_another_seed_says_what_the_rows_say(predict, at):
    rows = predict.read([ROOT / "benchmarks" / "predict" / "real.csv"])
    page = (ROOT / "docs" / "evidence" / "real-model.md").read_text(encoding="utf-8")
    again = page.split(f"#### Seed {at}\n")[1].split("#### Seed")[0]
    lines = {
        line.split("`")[1]: [cell.strip() for cell in line.strip("|").split("|")]
        for line in again.split("### What carries over")[0].splitlines()
        if line.startswith("| `") and "missing" not in line
    }
    seed = rows[rows["seed"] == at].assign(stratum=lambda one: one["model"])
    assert set(lines) == set(seed["model"])
    attacks = ("greedy", "prefix", "few_shot", "leak64", "nf4", "retrained_T")
    columns = dict(zip(attacks, (7, 9, 10, 11, 12, 13), strict=True))
    back = {one: predict.recovery(seed, one) for one in attacks}
    first = rows[rows["seed"] == 0].groupby("model")["verdict"].first()
    for name, cells in lines.items():
        own = seed[seed["model"] == name]
        assert float(cells[3].split()[0]) == pytest.approx(-own["uds"].mean(), abs=0.0051)
        assert cells[-1] == own["verdict"].iloc[0].replace("_", " ")
        for attack, column in columns.items():
            assert float(cells[column]) == pytest.approx(back[attack][name], abs=0.0051)
        if name in first:
            assert own["verdict"].iloc[0] == first[name]
        if name.startswith("sham_"):
            assert 0 <= float(cells[3].split()[0]) <= 0.02
            assert cells[2] == "92%"
