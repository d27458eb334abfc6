"""What a person reads of steering: vectors, coefficients, layers."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from lensaudit.cli.show import number
from lensaudit.steer.directions import top_share
from lensaudit.steer.vector import SteeringVector

WIDTH = 110
OUTLIERS = 0.5
"""Share of the squared length in three dimensions from which a direction is called peculiar."""


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def print_extract(vectors: Sequence[SteeringVector]) -> None:
    """One row per vector: length, and how well it tells held-out answers apart."""
    table = Table(title="Held-out scores are proxies; steering is the test")
    for name in ("method", "layer", "length", "of stream", "accuracy", "AUC", "effect", "overlap"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for one in vectors:
        scores = one.scores or {}
        shown = [number(scores.get(key)) for key in ("accuracy", "auc", "effect_size", "overlap")]
        table.add_row(
            one.method, str(one.layer), number(one.norm), number(one.ratio(1.0), 2), *shown
        )
    console = _console()
    console.print(table)
    odd = [one for one in vectors if len(one.vector) > 16 and top_share(one.vector) > OUTLIERS]
    if odd:
        console.print(
            f"{len(odd)} vectors have over half of their squared length in 3 dimensions "
            f"(first {odd[0].file_name}): massive activations, not the trait.",
            markup=False,
        )


def print_eval(results: Mapping[str, Any]) -> None:
    """One row per coefficient, then what the questions held back say."""
    table = Table(title=f"{results['trait']}, layer {results['layer']}, {results['method']}")
    for name in ("coefficient", "ratio", "score", "95 % interval", "coherence", "scored"):
        table.add_column(name, justify="right")
    for key, row in results["coefficients"].items():
        sound = results["coherence"][key]["mean"]
        table.add_row(
            key, number(row["ratio"], 2), number(row["mean"], 1), _interval(row["ci95"]),
            number(sound, 1), f"{row['n']}/{row['n_total']}",
        )  # fmt: skip
    console = _console()
    console.print(table)
    console.print(
        f"slope {number(results['slope'], 1)} points per unit, Spearman "
        f"{number(results['spearman'], 2)}, controllability (Pearson) "
        f"{number(results['controllability'], 2)}, largest change "
        f"{number(results['max_delta_coherent'], 1)} (coherent)",
        markup=False,
    )
    _print_chosen(console, "coefficient", results["chosen"])


def print_sweep(results: Mapping[str, Any]) -> None:
    """One row per layer, then what the questions held back say."""
    table = Table(title=f"{results['trait']}, {results['method']} at every layer")
    for name in ("layer", "coefficient", "ratio", "score", "95 % interval", "coherence", "scored"):
        table.add_column(name, justify="right")
    for key, row in results["layers"].items():
        strength = [number(row[name], 2) for name in ("coefficient", "ratio")]
        scored = f"{row['n']}/{row['n_total']}"
        sound = number(row["coherence_mean"], 1)
        table.add_row(key, *strength, number(row["mean"], 1), _interval(row["ci95"]), sound, scored)
    console = _console()
    console.print(table)
    console.print(f"baseline {number(results['baseline_mean'], 1)}", markup=False)
    _print_chosen(console, "layer", results["chosen"])


def _print_chosen(console: Console, what: str, chosen: Mapping[str, Any] | None) -> None:
    if chosen is None:
        console.print(f"No coherent {what} beats the baseline.", markup=False)
        return
    console.print(
        f"Chosen on half of the questions: {what} {chosen.get(what, chosen.get('setting'))}; "
        f"on the other half {number(chosen['test_mean'], 1)} against "
        f"{number(chosen['test_baseline'], 1)}, change {number(chosen['test_delta'], 1)} "
        f"{_interval(chosen['test_delta_ci95'])}",
        markup=False,
    )


def _interval(pair: Sequence[float] | None) -> str:
    return f"[{pair[0]:.1f}, {pair[1]:.1f}]" if pair else ""
