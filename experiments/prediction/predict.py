"""What does a depth predict? Which scores foretell the facts that come back when somebody tries.

Question: given a model and its facts, does a score rank those that an attack brings back above
          those that it does not? Does it still among facts that the model does not say? And do
          models whose mean reads deeper give less back?
Command:  python -m experiments.prediction.predict benchmarks/predict/*.csv
          (the rows are written by real_model.py and gym.py; --without MODEL leaves a model out)
Takes:    two minutes of one core. Expected: docs/evidence/foretell.md.
Writes:   the tables in Markdown; with --picture one figure, with --out the numbers as JSON.

A fact *comes back* under an attack when the attack hits it on the model, hits it on `full` too, and
on neither of two models that never saw it; where `full` is not hit, or a never-trained model is,
the fact says nothing about this attack and is left out, counted.

The area is stratified by model (concordant pairs of facts of one model over all such pairs, ties
one half), so that a score which only tells models apart reads .5. Limits: the variances of the
delete-one-author jackknife, of the delete-one-model one and, of several seeds, of the
delete-one-seed one are added (a model of one name is left out in all seeds at once); Student's t
with Satterthwaite's degrees of freedom (1946).

A model does not say a fact where nobody heard it say it: a fact that cannot be asked (a Yes or No)
is among these, and counts wherever an attack scores it.
"""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import spearmanr, t
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.prediction.fact_records import ATTACKS, HIGH_FORGOT, SCORES
from lensaudit.attacks.effort.curve import LEAST_GAP
from lensaudit.files import write_json
from lensaudit.groups import grouped
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import share_of
from lensaudit.scores.separation import auc

FEWEST_PAIRS = 30
"""Pairs of facts below which no area is given."""
SAID = ("greedy", "prefix")
"""What a model says anyway: asked, and once its answer is begun."""
OUTCOMES = (*ATTACKS, "any", "planted")
CONTROLS = ("full", "never")
BINS = np.linspace(0, 1, 6)
Statistic = Callable[[pd.DataFrame], float]


def read(paths: Sequence[Path]) -> pd.DataFrame:
    """The rows of several files; a score is turned so that high foretells that the fact is held."""
    rows = pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)
    for name in SCORES:
        rows[name] = rows.get(name, pd.Series(math.nan, rows.index)).astype(float)
    for name in HIGH_FORGOT:
        rows[name] = -rows[name]
    for attack in ATTACKS:
        for column in (attack, *(f"{attack}@{one}" for one in CONTROLS)):
            rows[column] = rows.get(column, pd.Series(math.nan, rows.index))
        rows[f"back_{attack}"] = came_back(rows, attack)
    backs = rows[[f"back_{attack}" for attack in ATTACKS]]
    rows["back_any"] = backs.max(axis=1)  # NaN where no attack says anything
    rows["back_planted"] = rows.get("planted", pd.Series(math.nan, rows.index)).astype(float)
    rows["stratum"] = rows["family"] + " " + rows["seed"].astype(str) + " " + rows["model"]
    return rows


def came_back(rows: pd.DataFrame, attack: str) -> pd.Series:
    """1 brought out, 0 not, NaN where the controls do not decide."""
    known = (rows[f"{attack}@full"] == 1) & (rows[f"{attack}@never"] == 0)
    return rows[attack].where(known)


def within_auc(scores: NDArray[Any], labels: NDArray[Any], strata: NDArray[Any]) -> float:
    """Concordant pairs of facts of one model over all such pairs; NaN where there are too few."""
    agree = pairs = 0.0
    for stratum in np.unique(strata):
        inside = strata == stratum
        back, not_ = scores[inside & (labels == 1)], scores[inside & (labels == 0)]
        if n_pairs := len(back) * len(not_):
            agree += n_pairs * auc(back.tolist(), not_.tolist())
            pairs += n_pairs
    return agree / pairs if pairs >= FEWEST_PAIRS else math.nan


def jackknifed(statistic: Statistic, rows: pd.DataFrame) -> Estimate:
    """A statistic with limits by author and by model, and by seed where there are several."""
    value = statistic(rows)
    if math.isnan(value):
        return Estimate(None, n=len(rows), why="too few pairs of facts")
    variance = least = 0.0
    several = rows["seed"].nunique() > 1
    for cluster in ("author", *(("model", "seed") if several else ("stratum",))):
        names = rows[cluster].unique()
        if len(names) < 2:
            if cluster == "author":
                return Estimate(value, n=len(rows), why="one author")
            continue
        without = np.array([statistic(rows[rows[cluster] != name]) for name in names])
        without = without[~np.isnan(without)]
        if len(without) < 2:
            return Estimate(value, n=len(rows), why=f"too few pairs without one {cluster}")
        n = len(without)
        part = (n - 1) / n * float(((without - without.mean()) ** 2).sum())
        variance, least = variance + part, least + part**2 / (n - 1)
    if not variance:
        return Estimate(value, n=len(rows), why="the same without any author")
    half = float(t.ppf(0.975, variance**2 / least)) * math.sqrt(variance)
    return Estimate(value, value - half, value + half, len(rows))


def area(rows: pd.DataFrame, score: str, outcome: str) -> Estimate:
    """How well a score ranks the facts of a model by whether they come back."""
    chosen = rows.dropna(subset=[score, f"back_{outcome}"])

    def statistic(part: pd.DataFrame) -> float:
        return within_auc(
            part[score].to_numpy(float),
            part[f"back_{outcome}"].to_numpy(float),
            part["stratum"].to_numpy(),
        )

    found = jackknifed(statistic, chosen)
    low, high = (
        None if end is None else min(1.0, max(0.0, end)) for end in (found.low, found.high)
    )
    return Estimate(found.value, low, high, found.n, found.why)


def lead(rows: pd.DataFrame, score: str, outcome: str) -> Estimate:
    """Area of a score less that of the entity's own probability, on the same facts."""
    chosen = rows.dropna(subset=[score, "entity_prob", f"back_{outcome}"])

    def statistic(part: pd.DataFrame) -> float:
        labels, strata = part[f"back_{outcome}"].to_numpy(float), part["stratum"].to_numpy()
        own, its = (
            within_auc(part[one].to_numpy(float), labels, strata) for one in (score, "entity_prob")
        )
        return own - its

    return jackknifed(statistic, chosen)


def added(rows: pd.DataFrame, score: str, outcome: str, *, given: str = "entity_prob") -> Estimate:
    """Area of `given` and a score together less that of `given` alone.

    Both by a logistic regression that is fitted on the other authors, on values standardised within
    a model: what the score knows that the outputs do not say.
    """
    chosen = rows.dropna(subset=[score, given, f"back_{outcome}"]).copy()
    label = f"back_{outcome}"
    if chosen[label].nunique() < 2:
        return Estimate(None, n=len(chosen), why="all facts end alike")
    for name in (score, given):
        by = chosen.groupby("stratum")[name]
        chosen[f"z_{name}"] = ((chosen[name] - by.transform("mean")) / by.transform("std")).fillna(
            0.0
        )
    for kind, names in {"alone": [f"z_{given}"], "both": [f"z_{given}", f"z_{score}"]}.items():
        said = pd.Series(0.0, chosen.index)
        for author in chosen["author"].unique():
            held = chosen["author"] == author
            if chosen.loc[~held, label].nunique() < 2:
                return Estimate(None, n=len(chosen), why="all facts of the others end alike")
            fit = make_pipeline(StandardScaler(), LogisticRegression())
            fit.fit(chosen.loc[~held, names], chosen.loc[~held, label])
            said[held] = fit.decision_function(chosen.loc[held, names])
        chosen[kind] = said

    def statistic(part: pd.DataFrame) -> float:
        labels, strata = part[label].to_numpy(float), part["stratum"].to_numpy()
        both, alone = (
            within_auc(part[one].to_numpy(float), labels, strata) for one in ("both", "alone")
        )
        return both - alone

    return jackknifed(statistic, chosen)


def silent(rows: pd.DataFrame) -> pd.DataFrame:
    """Facts that nobody heard the model say, neither asked nor once its answer is begun."""
    return rows[(rows[list(SAID)].max(axis=1) != 1)]


def recovery(rows: pd.DataFrame, attack: str) -> pd.Series:
    """By model, (M - R) / (F - R): 1 all that `full` gives, 0 what a never-trained model gives."""
    shares = rows.groupby("stratum")[[attack, *(f"{attack}@{one}" for one in CONTROLS)]].mean()
    gap = shares[f"{attack}@full"] - shares[f"{attack}@never"]
    return ((shares[attack] - shares[f"{attack}@never"]) / gap).where(gap >= LEAST_GAP)


def over_models(rows: pd.DataFrame, score: str, attack: str) -> Estimate:
    """Rank correlation over models of the mean score and recovery; limits by Fisher's z."""
    both = pd.DataFrame(
        {"score": rows.groupby("stratum")[score].mean(), "back": recovery(rows, attack)}
    ).dropna()
    n = len(both)
    if n < 5 or both["score"].nunique() < 2 or both["back"].nunique() < 2:
        return Estimate(None, n=n, why="fewer than five models that differ")
    rho = float(spearmanr(both["score"], both["back"]).statistic)
    # Bonett and Wright 2000: the standard error of a rank correlation's z
    half = 1.96 * math.sqrt((1 + rho**2 / 2) / (n - 3))
    middle = math.atanh(min(max(rho, -0.999), 0.999))
    return Estimate(rho, math.tanh(middle - half), math.tanh(middle + half), n)


@dataclass(frozen=True)
class Calibration:
    """Share of facts that came back, by value of a score."""

    low: float
    high: float
    share: Estimate


def calibration(rows: pd.DataFrame, score: str, outcome: str) -> list[Calibration]:
    """Fifths of the scale of a depth (0 gone, 1 held) and the share of facts that came back."""
    chosen = rows.dropna(subset=[score, f"back_{outcome}"])
    held = 1 + chosen[score]  # a depth is turned, so that 0 is intact and -1 is gone
    found = []
    for low, high in itertools.pairwise(BINS):
        last = high >= BINS[-1]
        inside = chosen[(held >= low) & ((held < high) | last)]
        n_back = int(inside[f"back_{outcome}"].sum())
        share = share_of(n_back, len(inside)) if len(inside) else Estimate(None, why="no fact")
        found.append(Calibration(float(low), float(high), share))
    return found


def contradicted(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Models called erased of which an attack brings facts back, with the facts."""
    found = []
    for stratum, part in rows[rows["verdict"] == "erased"].groupby("stratum"):
        for attack in ATTACKS:
            back = part.loc[part[f"back_{attack}"] == 1, "idx"].tolist()
            if back:
                n = int(part[f"back_{attack}"].notna().sum())
                found.append({"model": stratum, "attack": attack, "facts": back, "of": n})
    return found


def cell(found: Estimate) -> str:
    """A number with its limits, or a dash."""
    if found.value is None:
        return "–"
    limits = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.value:.2f}{limits}"


def markdown(
    title: str, found: dict[str, dict[str, Estimate]], wanted: Sequence[str] = OUTCOMES
) -> str:
    """Scores by outcomes; an outcome without a number is left out, and named with the reason."""
    columns = {
        name: [row[name] for row in found.values()]
        for name in next(iter(found.values()))
        if name in wanted
    }
    outcomes = [
        name for name, cells in columns.items() if any(one.value is not None for one in cells)
    ]
    lines = [title]
    if outcomes:
        lines += ["", f"| score | {' | '.join(outcomes)} |", "|---" * (len(outcomes) + 1) + "|"]
    lines += [
        f"| {score} | {' | '.join(cell(row[one]) for one in outcomes)} |"
        for score, row in found.items()
        if any(row[one].value is not None for one in outcomes)
    ]
    missing = grouped(
        (" or ".join(dict.fromkeys(str(one.why) for one in cells)), name)
        for name, cells in columns.items()
        if name not in outcomes
    )
    for why, names in missing.items():
        lines += ["", f"{why[0].upper()}{why[1:]}: {', '.join(sorted(names))}."]
    return "\n".join(lines)


def counts(rows: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Of every outcome: facts that came back, that did not, and that say nothing."""
    found = {}
    for outcome in OUTCOMES:
        marks = rows[f"back_{outcome}"]
        found[outcome] = {
            "back": int((marks == 1).sum()),
            "not": int((marks == 0).sum()),
            "left out": int(marks.isna().sum()),
        }
    return found


def tables(rows: pd.DataFrame) -> dict[str, Any]:
    """Everything that is said of one family."""
    quiet = silent(rows)
    return {
        "models": sorted(rows["stratum"].unique()),
        "counts": {"all": counts(rows), "silent": counts(quiet)},
        "all": {one: {out: area(rows, one, out) for out in OUTCOMES} for one in SCORES},
        "silent": {one: {out: area(quiet, one, out) for out in OUTCOMES} for one in SCORES},
        "lead": {
            one: {out: lead(quiet, one, out) for out in OUTCOMES}
            for one in SCORES
            if one != "entity_prob"
        },
        "added": {
            one: {out: added(rows, one, out) for out in OUTCOMES}
            for one in SCORES
            if one != "entity_prob"
        },
        "over_models": {
            one: {attack: over_models(rows, one, attack) for attack in ATTACKS} for one in SCORES
        },
        "calibration": {
            one: calibration(rows, one, "any") for one in ("uds", "aligned", "weakest", "lens")
        },
        "contradicted": contradicted(rows),
    }


TITLES = {
    "all": "Area within models, all facts",
    "silent": "Area within models, facts that the model does not say (asked, or answer begun)",
    "lead": "The same less that of the entity's own probability",
    "added": "Area added to the entity's own probability, all facts",
    "over_models": "Rank correlation over models with recovery",
}


def draw(found: dict[str, dict[str, Any]], picture: Path) -> None:
    """Areas with limits, silent facts beside all, and the calibration of the depths."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(found), 2, figsize=(11, 4.2 * len(found)), squeeze=False)
    for (family, one), (left, right) in zip(found.items(), axes, strict=True):
        names = [name for name in SCORES if one["all"][name]["any"].value is not None]
        for shift, (kind, mark) in enumerate((("all", "o"), ("silent", "s"))):
            for at, name in enumerate(names):
                area_ = one[kind][name]["any"]
                if area_.value is None:
                    continue
                y = at + 0.3 * shift
                left.plot([area_.low, area_.high], [y, y], color=f"C{shift}", lw=1.5)
                label = {"all": "all facts", "silent": "facts it does not say"}[kind]
                left.plot(area_.value, y, mark, color=f"C{shift}", label=label if not at else None)
        left.axvline(0.5, color="0.6", lw=1)
        left.set_yticks(range(len(names)), names)
        left.set_xlim(0, 1)
        left.set_xlabel("area within models: does any attack bring the fact back?")
        left.set_title(family)
        left.legend(loc="lower left")
        for name, bins in one["calibration"].items():
            read_ = [bin_ for bin_ in bins if bin_.share.value is not None]
            middles = [(bin_.low + bin_.high) / 2 for bin_ in read_]
            right.plot(middles, [bin_.share.value for bin_ in read_], "o-", label=name)
        right.plot([0, 1], [0, 1], color="0.6", lw=1)
        right.set_xlabel("held: 1 less the depth of the fact")
        right.set_ylabel("share that came back")
        right.legend()
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--outcome",
    "wanted",
    multiple=True,
    default=OUTCOMES,
    type=click.Choice(OUTCOMES),
    help="Only these columns. Repeatable.",
)
@click.option("--together", is_flag=True, help="All rows as one family: several seeds of it.")
@click.option("--without", multiple=True, help="Leave this model out. Repeatable.")
@click.option("--picture", type=click.Path(path_type=Path), help="SVG or PNG.")
@click.option("--out", type=click.Path(path_type=Path), help="All numbers, as JSON.")
def main(
    files: tuple[Path, ...],
    wanted: tuple[str, ...],
    together: bool,
    without: tuple[str, ...],
    picture: Path | None,
    out: Path | None,
) -> None:
    """Print the tables of every family in the files."""
    rows = read(files)
    rows = rows[~rows["model"].isin(without)]
    if together:
        rows = rows.assign(family="together")
    found = {family: tables(part) for family, part in rows.groupby("family")}
    for family, one in found.items():
        n_models = len(one["models"])
        click.echo(f"\n## {family}: {n_models} models\n")
        shown = {name: n["back"] for name, n in one["counts"]["all"].items() if n["back"]}
        click.echo(f"Facts that came back: {shown}\n")
        n_open = int(silent(rows[rows["family"] == family])[list(SAID)].isna().all(axis=1).sum())
        click.echo(f"Of the facts that a model does not say {n_open} cannot be asked.\n")
        for kind, title in TITLES.items():
            click.echo(markdown(f"### {title}", one[kind], wanted) + "\n")
        for row in one["contradicted"]:
            click.echo(
                f"Called erased, and {row['attack']} brings back {len(row['facts'])} of "
                f"{row['of']}: {row['model']} ({row['facts']})"
            )
    if out is not None:
        write_json(out, _plain(found))
    if picture is not None:
        draw(found, picture)


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate | Calibration):
        return _plain(vars(value))
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return json.loads(json.dumps(value, default=float))


if __name__ == "__main__":
    main()
