"""`steer extract`, `eval` and `sweep` behind the options: run, write, print."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from lensaudit.activations.fill import CACHE_BATCH
from lensaudit.cli.show_steer import print_eval, print_extract, print_sweep
from lensaudit.cli.steer_setup import (
    Progress,
    Subject,
    asked_trait,
    contrast_trait,
    evaluation_of,
    folder_of,
    grid_of,
    judges,
    samples_of,
    subject_of,
    vectors_in,
)
from lensaudit.files import canonical_json, write_json
from lensaudit.patching.options import parse_layers
from lensaudit.results import manifest
from lensaudit.steer.directions import Method
from lensaudit.steer.elicit import asked
from lensaudit.steer.evaluate import Evaluation, checked_coefficients, evaluate
from lensaudit.steer.extract import Extraction, extract
from lensaudit.steer.sweep import sweep
from lensaudit.steer.trait import Trait
from lensaudit.steer.vector import load_vector, save_vector

Notice = Callable[[str], None]


def run_extract(
    name: str, *, trait: str, out: Path | None, notice: Notice, progress: Progress, as_json: bool,
    dry_run: bool, **options: Any,
) -> None:  # fmt: skip
    """Estimate directions and write them."""
    subject, asked_of = subject_of(name, options), contrast_trait(trait, options)
    folder = folder_of(out, name, asked_of)
    layers = parse_layers(options["layers"], subject.checkpoint.n_layers)
    methods: tuple[Method, ...] = tuple(options["methods"]) or ("mean_diff", "probe")
    if dry_run:
        click.echo(_extract_plan(name, asked_of, options, layers, methods))
        return
    samples = samples_of(asked_of, subject, options, folder, progress)
    job = Extraction(
        subject.checkpoint, tuple(samples), asked_of.name, methods, layers,
        position=options["position"], form=subject.form, dtype=subject.dtype,
        device=subject.device, attn=subject.attn, batch_size=options["batch_size"] or CACHE_BATCH,
        seed=options["seed"], root=options["activations"],
    )  # fmt: skip
    vectors = extract(job, progress)
    for vector in vectors:
        save_vector(vector, folder / "vectors")
    if as_json:
        click.echo(canonical_json([vector.document() for vector in vectors]))
    else:
        print_extract(vectors)
        click.echo(f"written: {folder / 'vectors'}")


def _extract_plan(
    name: str,
    trait: Trait,
    options: dict[str, Any],
    layers: Sequence[int],
    methods: Sequence[Method],
) -> str:
    n_answers = len(trait.positive) + len(trait.negative)
    how = "written"
    if not n_answers and trait.elicitation:
        n_answers, how = len(asked(trait.elicitation, options["n_rollouts"])), "elicited"
    return (
        f"{name}: {n_answers} {how} answers of {trait.name}, {len(layers)} layers, "
        f"{', '.join(methods)} at {options['position']}: {len(layers) * len(methods)} vectors"
    )


def run_eval(
    name: str, *, vector: Path, coefficients: str, as_ratio: bool, dry_run: bool, as_json: bool,
    notice: Notice, progress: Progress, **options: Any,
) -> None:  # fmt: skip
    """Evaluate one vector over its coefficients."""
    started = time.monotonic()
    subject, trait = subject_of(name, options), asked_trait(options)
    found = load_vector(
        vector, d_model=subject.checkpoint.d_model, n_layers=subject.checkpoint.n_layers, name=name
    )
    grid = checked_coefficients(grid_of(coefficients, found, as_ratio=as_ratio))
    if found.weights and found.weights != subject.checkpoint.weights:
        notice(f"{vector}: was extracted from {found.model}, not from {name}")
    if dry_run:
        click.echo(plan_of(name, trait, options, len(grid)))
        return
    with judges(options, progress) as pair:
        job = evaluation_of(name, subject, trait, options, pair, progress)
        results = evaluate(job, found, grid)
    deposit(job, "manifest.json", options, subject, started, {"vector": found.hash()})
    if as_json:
        click.echo(canonical_json(results))
    else:
        print_eval(results)
        click.echo(f"written: {job.out / 'results.json'}")


def run_sweep(
    name: str, *, vectors: Path | None, method: str, layers: str, ratio: float,
    coefficient: float | None, dry_run: bool, as_json: bool, notice: Notice, progress: Progress,
    **options: Any,
) -> None:  # fmt: skip
    """Evaluate one strength over the layers."""
    started = time.monotonic()
    subject, trait = subject_of(name, options), asked_trait(options)
    folder = vectors or folder_of(options["out"], name, trait) / "vectors"
    chosen = parse_layers(layers, subject.checkpoint.n_layers)
    found = vectors_in(folder, method, chosen, subject.checkpoint, explicit=layers != "all")
    if dry_run:
        click.echo(plan_of(name, trait, options, len(found) + 1))
        return
    with judges(options, progress) as pair:
        job = evaluation_of(name, subject, trait, options, pair, progress)
        results = sweep(job, found, ratio=ratio, coefficient=coefficient)
    inputs = {"vectors": [one.hash() for one in found]}
    deposit(job, "layer_sweep_manifest.json", options, subject, started, inputs)
    if as_json:
        click.echo(canonical_json(results))
    else:
        print_sweep(results)
        click.echo(f"written: {job.out / 'layer_sweep.json'}")


def plan_of(name: str, trait: Trait, options: dict[str, Any], n_settings: int) -> str:
    """What a run would do, in one line."""
    n_answers = n_settings * len(trait.questions) * options["n_rollouts"]
    return (
        f"{name}: {n_settings} settings x {len(trait.questions)} questions of {trait.name} x "
        f"{options['n_rollouts']} rollouts = {n_answers} answers of at most "
        f"{options['max_new_tokens']} tokens, {2 * n_answers} judgements by {options['judge']}"
    )


def deposit(
    job: Evaluation,
    file: str,
    options: dict[str, Any],
    subject: Subject,
    started: float,
    inputs: dict[str, Any],
) -> None:
    """Write how the results were made."""
    hidden = ("key_file", "key_env")
    plain = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in options.items()
        if key not in hidden
    }
    made = manifest(
        "steer", options=plain, inputs={**subject.conditions(), **inputs}, device=subject.device,
        started=started,
    )  # fmt: skip
    write_json(job.out / file, dict(vars(made)))
