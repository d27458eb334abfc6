"""How often does the 95 % interval hold the truth? Simulated, by kind of score and of groups.

Command: python -m benchmarks.coverage [--runs 2000] (about 6 minutes of one core), writes
benchmarks/coverage.md. Values are normal, beta(.3, .3), or 0 in nine rows of ten and 1 (`ones`)
or uniform (`uniform`) in the tenth; a row takes its author's value with probability sqrt(ICC), so
that two rows of an author correlate by ICC and every row has the same distribution.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lensaudit.scores.areas import clustered_auc_limits
from lensaudit.scores.excess import clustered_excess
from lensaudit.scores.intervals import clustered_mean
from lensaudit.scores.pools import auc_limits

PAGE = Path(__file__).parent / "coverage.md"
KINDS: dict[str, tuple[Callable[[np.random.Generator, int], NDArray], float]] = {
    "normal": (lambda rng, n: rng.normal(size=n), 0.0),
    "beta(.3, .3)": (lambda rng, n: rng.beta(0.3, 0.3, size=n), 0.5),
    "90 % zeros, ones": (lambda rng, n: (rng.random(n) < 0.1).astype(float), 0.1),
    "90 % zeros, uniform": (lambda rng, n: rng.random(n) * (rng.random(n) < 0.1), 0.05),
}
"""How a row is drawn, and the true mean."""
WANTED = {"normal": 0.92, "beta(.3, .3)": 0.92}
"""From 5 groups on; skewed kinds: .88."""
GROUPS = (3, 5, 8, 10, 20)
SIZES = ((2, 2), (2, 20), (20, 20))
ICC = (0.0, 0.2, 0.5)


def sample(
    rng: np.random.Generator, kind: str, n_groups: int, sizes: tuple[int, int], icc: float
) -> tuple[NDArray, NDArray]:
    """Rows and their groups."""
    draw = KINDS[kind][0]
    groups = np.repeat(
        np.arange(n_groups), rng.integers(sizes[0], sizes[1], size=n_groups, endpoint=True)
    )
    shared, own = draw(rng, n_groups)[groups], draw(rng, len(groups))
    return np.where(rng.random(len(groups)) < np.sqrt(icc), shared, own), groups


def covered(kind: str, n_groups: int, sizes: tuple[int, int], icc: float, runs: int) -> list[float]:
    """Coverage and mean width of the interval; coverage of the percentile bootstrap."""
    rng, truth = np.random.default_rng(1), KINDS[kind][1]
    bounds = None if kind == "normal" else (0.0, 1.0)
    hits, widths, old = 0, 0.0, 0
    for run in range(runs):
        rows, groups = sample(rng, kind, n_groups, sizes, icc)
        found = clustered_mean(rows, groups.tolist(), bounds=bounds)
        if found.ends:
            hits += found.least <= truth <= found.most
            widths += found.most - found.least
        if run < runs // 10:  # it is slow, and only shown beside
            low, high = percentiles(rng, rows, groups)
            old += low <= truth <= high
    return [hits / runs, widths / runs, old / (runs // 10)]


def percentiles(
    rng: np.random.Generator, rows: NDArray, groups: NDArray, n_resamples: int = 500
) -> tuple[float, float]:
    """The bootstrap that was: whole groups drawn again, the middle 95 % of their means."""
    sums, sizes = np.bincount(groups, weights=rows), np.bincount(groups)
    drawn = rng.integers(len(sums), size=(n_resamples, len(sums)))
    low, high = np.quantile(sums[drawn].sum(1) / sizes[drawn].sum(1), [0.025, 0.975])
    return float(low), float(high)


def clustered_areas(
    n_groups: tuple[int, int], size: int, icc: float, shift: float, runs: int
) -> tuple[float, float, float]:
    """As `areas`, where rows of an author correlate by ICC on both sides."""
    from scipy.stats import norm

    rng, truth = np.random.default_rng(3), float(norm.cdf(shift / np.sqrt(2)))
    hits, separated = 0, 0
    for _ in range(runs):
        sides = []
        for n, mean in zip(n_groups, (shift, 0.0), strict=True):
            shared = np.repeat(rng.normal(size=n), size) * np.sqrt(icc)
            own = rng.normal(size=n * size) * np.sqrt(1 - icc)
            sides.append((mean + shared + own, np.repeat(np.arange(n), size).tolist()))
        (knows, one), (forgot, other) = sides
        found = clustered_auc_limits(knows, forgot, one, other)
        assert found.ends
        hits += found.least <= truth <= found.most
        separated += knows.min() > forgot.max()
    return truth, hits / runs, separated / runs


def areas(n_knows: int, n_forgot: int, shift: float, runs: int) -> tuple[float, float, float]:
    """True area, coverage of the interval of the area, and the share of separated pools."""
    from scipy.stats import norm

    rng, truth = np.random.default_rng(2), float(norm.cdf(shift / np.sqrt(2)))
    hits, separated = 0, 0
    for _ in range(runs):
        knows, forgot = rng.normal(shift, size=n_knows), rng.normal(size=n_forgot)
        found = auc_limits(knows, forgot)
        assert found.ends
        hits += found.least <= truth <= found.most
        separated += knows.min() > forgot.max()
    return truth, hits / runs, separated / runs


def excesses(
    n_groups: int, size: int, icc: float, shares: tuple[float, float], runs: int
) -> tuple[float, float, float]:
    """Coverage of an excess and its mean width; how often the one-sided upper limit is too low."""
    from scipy.stats import norm

    rng, groups = np.random.default_rng(4), np.repeat(np.arange(n_groups), size)
    cuts, truth = norm.ppf(shares), shares[0] - shares[1]
    hits, below, width = 0, 0, 0.0
    for _ in range(runs):
        shared = np.sqrt(icc) * rng.normal(size=n_groups)[groups]
        alone = np.sqrt(1 - icc) * rng.normal(size=(2, len(groups)))
        own, others = (shared + alone < cuts[:, None]).astype(float)
        found = clustered_excess(own, others, groups.tolist())
        assert found.ends
        assert found.one_sided
        hits += found.least <= truth <= found.most
        below += found.one_sided[1] < truth
        width += found.most - found.least
    return hits / runs, below / runs, width / runs


def page(runs: int) -> str:
    lines = [
        "# Coverage of the intervals",
        "",
        f"`python -m benchmarks.coverage --runs {runs}`. `clustered_mean` at a nominal .95, its"
        " mean width, and the percentile bootstrap by authors that it replaced. Below 5 authors"
        " there is no interval.",
        "",
        "| values | ICC | authors | rows each | coverage | width | bootstrap |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    worst: dict[str, float] = {}
    for kind in KINDS:
        for icc in ICC:
            for n_groups in GROUPS:
                for sizes in SIZES:
                    hit, width, old = covered(kind, n_groups, sizes, icc, runs)
                    rows = f"{sizes[0]} to {sizes[1]}" if sizes[0] < sizes[1] else str(sizes[0])
                    shown = f"{hit:.3f} | {width:.3f}" if n_groups >= 5 else "none | "
                    head = f"| {kind} | {icc:g} | {n_groups} | {rows} |"
                    lines.append(f"{head} {shown} | {old:.2f} |")
                    if n_groups >= 5:
                        worst[kind] = min(worst.get(kind, 1.0), hit)
    lines += ["", "| values | worst coverage from 5 authors on | wanted |", "| --- | --- | --- |"]
    lines += [
        f"| {kind} | {low:.3f} | {WANTED.get(kind, 0.88):.2f} |" for kind, low in worst.items()
    ]
    return "\n".join([*lines, *area_lines(runs), *excess_lines(runs)]) + "\n"


def area_lines(runs: int) -> list[str]:
    """Of the area under the curve, by models and by authors."""
    lines = [
        "",
        "Area under the ROC curve (`auc_limits`), normal scores:",
        "",
        "| know | forgot | true area | coverage | pools separated |",
        "| --- | --- | --- | --- | --- |",
    ]
    for n_knows, n_forgot in ((12, 3), (6, 6), (17, 8), (30, 30)):
        for shift in (0.0, 1.0, 2.0, 3.0):
            truth, hit, separated = areas(n_knows, n_forgot, shift, runs)
            lines.append(f"| {n_knows} | {n_forgot} | {truth:.3f} | {hit:.3f} | {separated:.2f} |")
    lines += [
        "",
        "The same with authors on both sides (`clustered_auc_limits`), 20 rows each:",
        "",
        "| authors that know | that forgot | ICC | true area | coverage | pools separated |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for n_groups in ((5, 5), (10, 10), (20, 20), (20, 5)):
        for icc in ICC:
            for shift in (0.0, 1.0, 3.0):
                truth, hit, separated = clustered_areas(n_groups, 20, icc, shift, runs)
                head = f"| {n_groups[0]} | {n_groups[1]} | {icc:g} |"
                lines.append(f"{head} {truth:.3f} | {hit:.3f} | {separated:.2f} |")
    return lines


def excess_lines(runs: int) -> list[str]:
    """Of how much more comes out of one model than of another."""
    lines = [
        "",
        "Excess of what comes out of a model over what comes out of another (`clustered_excess`),"
        " the same facts, authors alike in both:",
        "",
        "| authors | facts each | ICC | shares | coverage | upper limit too low (wanted .05) |"
        " width |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for n_groups, size in ((5, 8), (8, 7), (20, 1), (20, 20)):
        for icc in (0.0, 0.2, 0.4):
            for shares in ((0.02, 0.0), (0.2, 0.0), (0.25, 0.05), (0.9, 0.05)):
                hit, below, width = excesses(n_groups, size, icc, shares, runs)
                head = f"| {n_groups} | {size} | {icc:g} | {shares[0]:g}, {shares[1]:g} |"
                lines.append(f"{head} {hit:.3f} | {below:.3f} | {width:.3f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    PAGE.write_text(page(parser.parse_args().runs))
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
