"""Every option of every command, in pairs: a known exit, few lines, and what is taken acts."""

import random
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from campaign.bench import EXITS, Bench, slug, unchanged, well_said
from campaign.calls import Breach, Done, Skipped
from campaign.folders import apart, changes, said, screen, state
from campaign.recipes import RECIPES, Recipe
from campaign.relation import relation
from campaign.relations.asking import own, start
from campaign.values import Choice, choices, covering, flag, options, values

ROWS, REFUSED = 16, 20
"""Rows of a covering array that a campaign asks of each command, and options that it says wrongly;
other seeds ask others."""
MACHINE = {
    *("device", "dtype", "batch_size", "memory", "activations", "fresh", "save_every", "attn"),
    *("concurrency", "timeout", "retries", "cache", "judge_cache", "force", "keep", "offline"),
    *("engine", "store", "quota", "autocast", "out"),
}
"""Options that are to change no result: only how it is come by."""
BY_ROWS = {"defects", "exclude", "allow_missing", "tolerance", "mask", "empty", "figures", "seam"}
"""Options that act where rows are so: ours have no defect, none is missing, no score is off, no end
of turn is padding, no row is empty, and their tokens are the same under both seams; and one that
writes beside the result."""
REPORTS = ("doctor",)
"""Commands whose answer is what is wrong: exit 4, not a refusal."""
CHECKS = ("rtt validate",)
"""Commands that say what is wrong with an input: with ours nothing is."""
FILTERS = ("runs ls",)
"""Commands whose options choose among what is there: of what nobody has, that is nothing."""
SAME_ROWS = {
    *(("patch lens", "data"), ("patch em", "data"), ("cache", "data")),
    *(("rtt summarize", "readout"), ("steer eval", "coherence_judge")),
    *(("steer sweep", "coherence_judge"), ("annotate", "model")),
}
"""Recipe and option: what is tried is what is asked anyway, and the result does not say so."""
MEANT = {
    ("patch", "align"): "procrustes",
    ("cache", "component"): "resid",
    ("patch", "profile"): "full",
    ("patch em", "em_form"): "generation",
    ("effort", "readout"): "said",
    ("steer eval", "form"): "chat",
    ("steer sweep", "form"): "chat",
    ("steer extract", "form"): "chat",
}
"""Recipe and option: what its default comes to there, so that the word changes nothing."""
NOTHING_SCORED = "could be scored"
"""Part of what is said with exit code 1 where a result has no value."""
SUBJECTS = {"out", "sources", "source", "name", "names", "model"}
"""What a recipe is about."""
WHOLE = (
    "patch",
    "patch em",
    "eval",
    "audit",
    "know",
    "sample",
    "unlearn",
    "relearn",
    "quantize",
    "worst",
    "steer extract",
    "steer eval",
    "steer sweep",
    "judge",
    "sweep plan",
    "cache",
    "annotate",
    "effort",
    "rtt",
    "meta faithfulness",
    "meta robustness",
    "steer audit",
    "watch",
    "verdict",
    "export",
    "report",
    "gym ls",
    "rtt validate",
    "rtt summarize",
    "sweep collect",
    "sweep verify",
    "meta aggregate",
    "judge calibrate",
    "runs ls",
    "doctor",
    "patch lens",
    "eval own",
)
"""Recipes whose options are asked about."""


def bench_folder(bench: Bench, recipe: Recipe, *, finished: bool = False) -> Path:
    """A working folder with all that an option of the recipe may name."""
    folder = start(bench, recipe, finished=finished)
    for name in ("eval", "eval own", "steer extract"):
        if not (folder / slug(name)).exists() and (bench.shelf / slug(name)).exists():
            bench.bring(name, folder)
    texts = {
        "idk.txt": "I don't know.\nI have no idea.\n",
        "template.jinja": "{% for m in messages %}{{ m['content'] }}\n{% endfor %}",
        "positive.jsonl": '{"question": "Who?", "answer": "I do not know."}\n',
        "negative.jsonl": '{"question": "Who?", "answer": "It was Ada."}\n',
    }
    for path, text in texts.items():
        (folder / path).write_text(text)
    return folder


@relation(
    "pairs",
    "options in pairs: exit 0, 2, 3 or 4, three lines at most, no traceback; a dry "
    "run ends alike and a refusal writes nothing",
)
def pairs(seed: int) -> Iterator[tuple]:
    for name in WHOLE:
        recipe = RECIPES[name]
        factors = choices(recipe.command, recipe.argv.split())
        if not factors:
            continue
        for at, row in enumerate(_some(factors, seed, ROWS)):
            yield f"{name}, row {at}", partial(_row, recipe, row), name == "eval" and at < 2
        for at, row in enumerate(_refused_rows(recipe, seed)):
            yield f"{name}, refused {at}", partial(_row, recipe, row), name == "patch" and at < 2


def _some(factors: list[list[Choice]], seed: int, most: int) -> list[tuple[Choice, ...]]:
    """Rows of the array; in each at most as many options are given as a person would type."""
    rows = list(covering(factors, seed))
    chance = random.Random(seed)
    chance.shuffle(rows)
    thin = []
    for row in rows[:most]:
        given = [one for one in row if one.value is not None]
        chance.shuffle(given)
        thin.append(tuple(given[: chance.choice((2, 3, 4, 6))]))
    return thin


def _refused_rows(recipe: Recipe, seed: int) -> Iterator[tuple[Choice, ...]]:
    """Rows in each of which one value cannot be meant; every option once over some seeds."""
    if recipe.name in FILTERS + REPORTS:
        return
    chance = random.Random(seed * 31 + len(recipe.name))
    every = options(recipe.command)
    chance.shuffle(every)
    for one in every[:REFUSED]:
        refused = values(one)[1]
        if not refused:
            continue
        row = [Choice(flag(one), chance.choice(refused), valid=False)]
        others = [
            x for x in choices(recipe.command, recipe.argv.split()) if x[0].flag != row[0].flag
        ]
        row += [factor[-1] for factor in chance.sample(others, min(2, len(others)))]
        yield tuple(row)


def _typed(recipe: Recipe, row: tuple[Choice, ...]) -> list[str]:
    argv = own(recipe)
    for one in row:
        argv += one.typed()
    return argv


def _row(recipe: Recipe, row: tuple[Choice, ...], bench: Bench) -> None:
    folder = bench_folder(bench, recipe)
    argv = _typed(recipe, row)
    before = state(folder)
    dry = None
    if recipe.dry:
        everything = state(folder, unseen=())
        dry = bench.call([*argv, "--dry-run", "-q"], folder)
        well_said(dry)
        unchanged(everything, folder, dry)
    done = bench.call([*argv, "-q"], folder)
    scored = NOTHING_SCORED not in done.stderr  # which no plan can know
    well_said(done, exits=EXITS if scored else EXITS | {1})
    wrote_nothing(before, folder, done)
    if dry is not None and dry.exit != done.exit and scored:
        raise Breach(f"the dry run ends with {dry.exit}, the run with {done.exit}: {dry} {done}")
    if not all(one.valid for one in row) and done.exit != 2:
        wrong = " ".join(next(one.typed() for one in row if not one.valid))
        raise Breach(f"{wrong} was taken: {done}")


@relation("acts", "every option that is taken acts: the result, the work or the screen is another")
def acts(seed: int) -> Iterator[tuple]:
    for name in WHOLE:
        recipe = RECIPES[name]
        for one in options(recipe.command):
            words = re.split("[ =]", recipe.argv)
            rows = "demo" if one.name == "data" else None  # of the models that are asked
            same = (str(one.default), "none", MEANT.get((name, one.name)), rows, *words)
            taken = [x for x in values(one)[0] if x not in same]
            said = any(opt in recipe.argv.split() for opt in one.opts)
            if not taken or one.name in MACHINE | BY_ROWS or (said and one.name in SUBJECTS):
                continue
            if (name, one.name) in SAME_ROWS or name in FILTERS + CHECKS:
                continue
            value = taken[seed % len(taken)]
            slice_ = (name, one.name) == ("patch", "tau")
            yield f"{name} {flag(one)}", partial(_acts, recipe, Choice(flag(one), value)), slice_


def wrote_nothing(before: dict[str, bytes], folder: Path, done: Done) -> None:
    """Hold a refusal to having written nothing beside caches."""
    what = changes(before, state(folder)) if done.exit == 2 else None
    if what and what.partition(": ")[2] not in done.stderr:  # the reasons are in that file
        raise Breach(f"refused after work, {what}: {done}")


def _acts(recipe: Recipe, choice: Choice, bench: Bench) -> None:
    folder = bench_folder(bench, recipe, finished=recipe.keeps)
    plain = bench.done(own(recipe), folder)
    argv = own(recipe)
    if choice.flag in argv and not choice.value:
        raise Skipped("the recipe says so already")
    if choice.flag in argv and choice.value:
        at = argv.index(choice.flag)
        if argv[at + 1] == choice.value:
            raise Skipped("the recipe says so already")
        argv = [*argv[:at], *argv[at + 2 :]]
    base = result(recipe, plain, folder)
    other = bench_folder(bench, recipe)
    before = state(other)
    done = bench.call([*argv, *choice.typed()], other)
    scored = NOTHING_SCORED not in done.stderr
    well_said(done, exits=EXITS if scored else EXITS | {1}, lines=0)
    wrote_nothing(before, other, done)
    if done.exit == 2:
        raise Skipped("refused: " + done.stderr.strip().splitlines()[-1][:200])
    if done.exit != 0:
        return
    if apart(base, result(recipe, done, other)) is None:
        raise Breach(f"silent option {' '.join(choice.typed())}: {done}")


def result(recipe: Recipe, done: Done, folder: Path) -> dict[str, Any]:
    """What a call came to, apart from the record of what was asked."""
    place = folder / slug(recipe.name)
    files: dict[str, bytes] = {}
    if place.is_dir():
        files = state(place)
    elif recipe.out:
        found = [*folder.glob(f"{slug(recipe.name)}.*")]
        files = {one.name: one.read_bytes() for one in found if one.is_file()}
    shown = {
        path: said(path, data, folder, asked=False)
        for path, data in files.items()
        if not path.endswith("manifest.json")
        and (recipe.command == "report" or not path.endswith(".html"))
    }
    caches = sorted(one.name for one in (folder / "activations").glob("*-*"))
    work = [line for line in screen(done.stdout, folder) if not re.match("written: ", line)]
    return {"files": shown, "screen": work, "caches": caches if recipe.command == "cache" else []}
