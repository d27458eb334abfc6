"""Asked again, in another order, alone, as JSON, dry, by Python, by a project: the same answer."""

import csv
import importlib
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from campaign.bench import Bench, document, prepare, slug, unchanged, well_said
from campaign.calls import Breach, Done
from campaign.folders import apart, changes, said, screen, state, times, written
from campaign.recipes import RECIPES, Recipe
from campaign.relation import relation
from campaign.values import commands

QUICK = ("patch", "eval")
"""Recipes whose finished results are read again in the slice."""
NUMBERS_IN = ("summary.json", "TOFU_SUMMARY.json", "know.json")


def start(bench: Bench, recipe: Recipe, *, finished: bool, warm: bool = True) -> Path:
    """A working folder for a recipe, its own result in it or not."""
    names = [*recipe.after, *([recipe.name] if finished else []), *recipe.more.values()]
    folder = bench.folder(*names, warm=warm)
    prepare(recipe, folder, bench.shelf)
    return folder


def finished(bench: Bench, recipe: Recipe) -> Path:
    """A working folder in which the recipe was called to its own folder, here."""
    folder = start(bench, recipe, finished=recipe.keeps and recipe.name != "sweep run")
    bench.done(own(recipe), folder)
    return folder


def own(recipe: Recipe) -> list[str]:
    """The call, its result in the folder that the shelf gives it."""
    return recipe.typed(slug(recipe.name))


@relation("again", "asked again: the same files, byte for byte, no work, nothing written")
def again(seed: int) -> Iterator[tuple]:
    for recipe in RECIPES.values():
        yield recipe.name, partial(_again, recipe), recipe.name in QUICK


def _again(recipe: Recipe, bench: Bench) -> None:
    folder = finished(bench, recipe)
    before, stamps = state(folder, unseen=()), times(folder)
    if recipe.once:
        refused = bench.call(own(recipe), folder)
        well_said(refused, exits=(2,))
        unchanged(before, folder, refused)
        return
    first = bench.done(own(recipe), folder)
    if not recipe.keeps and recipe.out:
        if what := apart(written(before, folder), written(state(folder, unseen=()), folder)):
            raise Breach(f"another file: {what}")
        return
    if what := changes(before, state(folder, unseen=())):
        raise Breach(f"{what}, after {first}")
    found = {path: at for path, at in times(folder).items() if not path.endswith("SEAL.json")}
    moved = [path for path, at in found.items() if stamps.get(path) != at]  # a seal tells last use
    if moved and recipe.out:
        raise Breach(f"written again: {', '.join(moved[:3])}, after {first}")
    second = bench.done(own(recipe), folder)
    if what := apart(screen(first.stdout, folder), screen(second.stdout, folder)):
        raise Breach(f"another screen: {what}")


@relation("dry run", "a dry run writes nothing, ends as the run does, and says what is left to do")
def dry_run(seed: int) -> Iterator[tuple]:
    for recipe in RECIPES.values():
        if recipe.dry:
            yield f"{recipe.name}, cached", partial(_dry_before, recipe), recipe.name in QUICK
            yield f"{recipe.name}, after", partial(_dry_after, recipe)


def _dry(bench: Bench, recipe: Recipe, folder: Path) -> Done:
    before = state(folder, unseen=())
    kept = sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))
    done = bench.done([*own(recipe), "--dry-run"], folder)
    unchanged(before, folder, done)
    if new := set(map(str, (one.relative_to(folder) for one in folder.rglob("*")))) - set(kept):
        raise Breach(f"folders came: {', '.join(sorted(new)[:3])}, after {done}")
    return done


def _dry_before(recipe: Recipe, bench: Bench) -> None:
    _dry(bench, recipe, start(bench, recipe, finished=False))


def _dry_after(recipe: Recipe, bench: Bench) -> None:
    folder = start(bench, recipe, finished=False, warm=False)
    plan = _dry(bench, recipe, folder)
    bench.done(own(recipe), folder)
    left = _dry(bench, recipe, folder)
    if recipe.out and recipe.keeps and plan.stdout == left.stdout:
        raise Breach(f"the plan of a finished run is that of a run to be done: {left.stdout[:300]}")


@relation("json", "--json prints one document, whose numbers are those of files and of the screen")
def as_json(seed: int) -> Iterator[tuple]:
    for recipe in RECIPES.values():
        if recipe.json:
            yield recipe.name, partial(_as_json, recipe), recipe.name in QUICK


def _as_json(recipe: Recipe, bench: Bench) -> None:
    folder = finished(bench, recipe)
    shown, done = (_shown(bench, recipe, folder, more) for more in ([], ["--json"]))
    found = document(done)
    summary = folder / slug(recipe.name) / "summary.json"
    if summary.is_file() and isinstance(found, dict):
        file = json.loads(summary.read_text())
        for name in found.keys() & file.keys() if isinstance(file, dict) else ():
            if what := apart(found[name], file[name], 0.0, name):
                raise Breach(f"--json and summary.json: {what}")
    known = {f"{one:.3f}".lstrip("-") for one in numbers(found)}
    known |= {f"{1 - one:.3f}".lstrip("-") for one in numbers(found)}
    if recipe.out and (folder / slug(recipe.name)).is_dir():
        for path in (folder / slug(recipe.name)).rglob("*.json"):
            known |= {f"{one:.3f}".lstrip("-") for one in numbers(_read(path))}
    strange = [
        one
        for one in re.findall(r"(?<![\d.:])\d+\.\d{3}(?![\d.])", shown.stdout)
        if one not in known
    ]
    if strange and recipe.name in SHOWN:
        raise Breach(f"on the screen and in no file: {', '.join(strange[:5])}; {shown}")


def _shown(bench: Bench, recipe: Recipe, folder: Path, more: list[str]) -> Done:
    if recipe.once:
        (folder / own(recipe)[-1]).unlink()
    return bench.done([*own(recipe), *more], folder)


SHOWN = ("patch", "patch own", "patch em", "eval", "eval own", "know", "sample", "audit")
"""Commands whose screen shows numbers of their files, to three digits."""


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError:
        return None


def numbers(value: Any) -> Iterator[float]:
    """Every number in a document."""
    if isinstance(value, dict):
        for one in value.values():
            yield from numbers(one)
    elif isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


ORDERS = (
    (
        "patch, sources",
        "patch --source demo/npo --source demo/idknll --limit 4 --layers 15 --out {}",
        "patch --source demo/idknll --source demo/npo --limit 4 --layers 15 --out {}",
        True,
    ),
    (
        "patch, layers",
        "patch --source demo/npo --limit 4 --layers 8,15 --out {}",
        "patch --source demo/npo --limit 4 --layers 15,8 --out {}",
        False,
    ),
    (
        "patch, further retain models",
        "patch --source demo/npo --retain demo/retain --retain demo/never --retain demo/graddiff"
        " --limit 4 --layers 15 --out {}",
        "patch --source demo/npo --retain demo/retain --retain demo/graddiff --retain demo/never"
        " --limit 4 --layers 15 --out {}",
        False,
    ),
    (
        "patch, rows also patched",
        "patch --source demo/npo --limit 4 --layers 15 --also retain --also world --out {}",
        "patch --source demo/npo --limit 4 --layers 15 --also world --also retain --out {}",
        False,
    ),
    (
        "eval, metrics",
        "eval --model demo/npo --limit 2 --metric exact_memorization"
        " --metric extraction_strength --out {}",
        "eval --model demo/npo --limit 2 --metric extraction_strength"
        " --metric exact_memorization --out {}",
        False,
    ),
    (
        "know, readers",
        "know --source demo/npo --limit 8 --reader outputs --reader lens --out {}",
        "know --source demo/npo --limit 8 --reader lens --reader outputs --out {}",
        False,
    ),
    (
        "know, models that never knew",
        "know --source demo/npo --limit 8 --reader outputs --retain demo/retain"
        " --retain demo/never --out {}",
        "know --source demo/npo --limit 8 --reader outputs --retain demo/never"
        " --retain demo/retain --out {}",
        False,
    ),
    (
        "sample, temperatures",
        "sample --source demo/npo --limit 2 --samples 2 --k 1 --k 2 --temperature 0.5"
        " --temperature 1 --max-new-tokens 4 --out {}",
        "sample --source demo/npo --limit 2 --samples 2 --k 2 --k 1 --temperature 1"
        " --temperature 0.5 --max-new-tokens 4 --out {}",
        False,
    ),
    (
        "steer extract, methods",
        "steer extract --model demo/full --trait demo_idk --layers 8 --method mean_diff"
        " --method pca --position prompt_last --out {}",
        "steer extract --model demo/full --trait demo_idk --layers 8 --method pca"
        " --method mean_diff --position prompt_last --out {}",
        False,
    ),
    (
        "meta faithfulness, pools",
        "meta faithfulness --pool-knows demo/full,demo/masked_readout"
        " --pool-forgot demo/retain,demo/never --metric exact_memorization --limit 2"
        " --out {}",
        "meta faithfulness --pool-knows demo/masked_readout,demo/full"
        " --pool-forgot demo/never,demo/retain --metric exact_memorization --limit 2"
        " --out {}",
        False,
    ),
)
"""What is turned round, two calls, and whether each model has a folder of its own."""


@relation("order", "the order of repeatable options changes no number and no word")
def order(seed: int) -> Iterator[tuple]:
    for of, one, other, several in ORDERS:
        yield of, partial(_order, one, other, several), of == "patch, layers"
    for of, argv, folders in READ:
        yield f"{of}, folders", partial(_folders, argv, folders)
        yield f"{of}, what folders are called", partial(_called, argv, folders)
    yield "patch, further retain models and the score", _anchor
    yield "patch, first retain model and the word", _word


def _order(one: str, other: str, several: bool, bench: Bench) -> None:
    folder = bench.folder()
    calls = [bench.done(argv.format(name), folder) for argv, name in ((one, "one"), (other, "two"))]
    if what := results_apart(folder / "one", folder / "two", ORDERED, only=NO_PAIRS):
        raise Breach(f"{what}; {calls[1]}")


NO_PAIRS = r"^(?!comparison)"
"""A comparison is of the first source with the second: turned round it has the other sign."""
ORDERED = 1e-6
"""Rows and models share batches, whose order may move the last digits of float32."""


def results_apart(
    one: Path, two: Path, tolerance: float = 0.0, *, asked: bool = False, only: str = ""
) -> str | None:
    """Where results differ: numbers and words of their documents, the order of lists of names
    apart."""
    found = [_documents(place, asked=asked, only=only) for place in (one, two)]
    if found[0].keys() != found[1].keys():
        return f"files: {sorted(found[0].keys() ^ found[1].keys())[:4]}"
    if not found[0]:
        return f"no file in {one.name}"
    for path in found[0]:
        if what := apart(found[0][path], found[1][path], tolerance, path):
            return what
    return None


def _documents(place: Path, *, asked: bool, only: str) -> dict[str, Any]:
    files = {
        path: data
        for path, data in state(place).items()
        if path.endswith((".json", ".jsonl", ".csv")) and not path.endswith("manifest.json")
    }
    if only:
        files = {path: data for path, data in files.items() if re.search(only, path)}
    return {path: _unordered(said(path, data, place, asked=asked)) for path, data in files.items()}


def _unordered(value: Any) -> Any:
    """Lists of words, and of rows that name themselves, in one order."""
    if isinstance(value, dict):
        named = ((name, _floor(one) if name == "floor" else one) for name, one in value.items())
        return {name: _unordered(one) for name, one in sorted(named)}
    if isinstance(value, list):
        inner = [_unordered(one) for one in value]
        if all(isinstance(one, str | dict) for one in inner):
            return sorted(inner, key=lambda one: json.dumps(one, sort_keys=True)[:400])
        return inner
    return value


def _floor(value: Any) -> Any:
    """Further retain models stand in the order in which they were named."""
    if not isinstance(value, dict):
        return value
    return {
        name: sorted(one, key=str) if isinstance(one, list) else one for name, one in value.items()
    }


READ = (
    ("verdict", "verdict {}", ("patch", "know", "eval")),
    ("verdict, as JSON", "verdict {} --json", ("patch", "know", "eval")),
    ("report", "report {} -o page.html", ("patch", "eval", "know")),
    ("runs ls", "runs ls {} --json", ("patch", "eval", "know")),
    ("verify", "verify {}", ("patch", "eval", "know")),
    ("meta aggregate", "meta aggregate {} --no-fluency --out table --json", ("audit", "eval own")),
    ("export", "export {} --to markdown -o result", ("patch", "know")),
)
"""Commands that read folders."""


def _folders(argv: str, folders: tuple[str, ...], bench: Bench) -> None:
    folder = bench.folder(*folders)
    names = [slug(one) for one in folders]
    _same_read(bench, argv, folder, names, folder, names[::-1])


def _called(argv: str, folders: tuple[str, ...], bench: Bench) -> None:
    first, second = bench.folder(*folders), bench.folder()
    # no name is that of a command, which is on the screen too
    names = [f"r{at}-{slug(one)[::-1]}" for at, one in enumerate(folders)]
    others = [f"x{at} {name[::-1]}" for at, name in enumerate(names)]
    for recipe, name, other in zip(folders, names, others, strict=True):
        (first / slug(recipe)).rename(first / name)
        bench.bring(recipe, second, other)
    _same_read(bench, argv, first, names, second, others)


def _same_read(
    bench: Bench, argv: str, first: Path, names: list[str], second: Path, others: list[str]
) -> None:
    """What a reader says of the same folders, in another order or under other names."""
    said_of = []
    for folder, asked in ((first, names), (second, others)):
        for made in [one for one in map(folder.joinpath, WRITTEN) if one.is_file()]:
            made.unlink()
        parts = [part for one in argv.split() for part in (asked if one == "{}" else [one])]
        done = bench.call(parts, folder)
        well_said(done)
        text = done.stdout
        for name in sorted(asked, key=len, reverse=True):
            text = text.replace(name, "FOLDER")
        said_of.append({"exit": done.exit, "words": words_of(text)})
    if what := apart(*said_of):
        raise Breach(what)


WRITTEN = ("page.html", "table", "result")


def words_of(text: str) -> list[str]:
    """Every number and word of a screen, in one order."""
    plain = re.sub(r"FOLDER\d", "FOLDER", text)
    plain = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.+Z]+", "<date>", plain)
    return sorted(re.findall(r"[\w.]+", plain))


def _anchor(bench: Bench) -> None:
    """The first retain model is the anchor: its word may not move."""
    folder = bench.folder()
    base = "patch --source demo/npo --limit 4 --layers 15"
    bench.done(f"{base} --retain demo/retain --out one", folder)
    bench.done(f"{base} --retain demo/retain --retain demo/never --out two", folder)
    one, two = (json.loads((folder / name / "summary.json").read_text()) for name in ("one", "two"))
    if what := apart(
        {name: one[name] for name in ("uds", "calibration", "per_layer")},
        {name: two[name] for name in ("uds", "calibration", "per_layer")},
    ):
        raise Breach(f"a second retain model moves the score: {what}")


def _word(bench: Bench) -> None:
    """Another anchor may move the score, not the word."""
    folder = bench.folder()
    base = "patch --source demo/masked_upper --limit 8 --layers 4,8,15 --align none"
    for name, first, second in (("one", "retain", "never"), ("two", "never", "retain")):
        argv = f"{base} --retain demo/{first} --retain demo/{second} --out {name}"
        bench.done(argv, folder)
    words = [
        json.loads((folder / name / "summary.json").read_text())["verdict"]["code"]
        for name in ("one", "two")
    ]
    if words[0] != words[1]:
        raise Breach(f"retain first: {words[0]}; never first: {words[1]}")


AMONG = (
    (
        "patch",
        "patch --source demo/npo --limit 4 --layers 15 --profile ke --out alone",
        "patch --source demo/idknll --source demo/npo --source demo/never --limit 4 --layers 15"
        " --out among",
        "demo-npo",
    ),
    (
        "audit",
        "audit --source demo/npo --limit 4 --suite none --association none --align none"
        " --out alone",
        "audit --source demo/idknll --source demo/npo --limit 4 --suite none --association none"
        " --align none --out among",
        "demo-npo",
    ),
    (
        "eval, a metric",
        "eval --model demo/npo --limit 2 --metric extraction_strength --out alone",
        "eval --model demo/npo --limit 2 --metric exact_memorization"
        " --metric extraction_strength --metric mia_loss --out among",
        "extraction_strength",
    ),
    (
        "know, a reader",
        "know --source demo/npo --limit 8 --reader outputs --out alone",
        "know --source demo/npo --limit 8 --reader outputs --reader lens --out among",
        "outputs",
    ),
    (
        "sample, a temperature",
        "sample --source demo/npo --limit 2 --samples 2 --k 2 --temperature 3 --max-new-tokens 4"
        " --out alone",
        "sample --source demo/npo --limit 2 --samples 2 --k 2 --temperature 0.5 --temperature 3"
        " --max-new-tokens 4 --out among",
        "3.0",
    ),
    (
        "steer extract, a layer",
        "steer extract --model demo/full --trait demo_idk --layers 8 --method mean_diff"
        " --position prompt_last --out alone",
        "steer extract --model demo/full --trait demo_idk --layers 7-8 --method random"
        " --method mean_diff --position prompt_last --out among",
        "mean_diff_layer8",
    ),
)


@relation("alone", "what is asked alone is answered as among others")
def alone(seed: int) -> Iterator[tuple]:
    for of, one, many, name in AMONG:
        yield of, partial(_alone, one, many, name)


def _alone(one: str, many: str, name: str, bench: Bench) -> None:
    folder = bench.folder()
    bench.done(one, folder)
    done = bench.done(many, folder)
    places = [folder / "alone", folder / "among"]
    found = [_answers(place, name) for place in places]
    if not found[0] or not found[1]:
        raise Breach(f"no answer about {name} in {[p.name for p in places]} after {done}")
    common = found[0].keys() & found[1].keys()
    if not common:
        raise Breach(f"nothing in common: {sorted(found[0])[:3]} and {sorted(found[1])[:3]}")
    for one_of in sorted(common):
        if what := apart(found[0][one_of], found[1][one_of], 0.0, one_of):
            raise Breach(f"{what}; {done}")


def _answers(place: Path, name: str) -> dict[str, Any]:
    """What a folder says about a name: files in a folder of it, or entries under it."""
    inside = [one for one in place.rglob(name) if one.is_dir()]
    alone = place / "patch" if (place / "patch").is_dir() else place
    if inside or ((alone / "summary.json").is_file() and "-" in name):
        base = inside[0] if inside else alone
        docs = _documents(base, asked=False, only=r"(summary\.json|results\.jsonl|layers\.csv)$")
        return {path: value for path, value in docs.items() if "/" not in path} or docs
    if files := [one for one in place.rglob(f"{name}*") if one.is_file()]:
        return {one.name: one.read_bytes() for one in files if one.suffix == ".safetensors"}
    found: dict[str, Any] = {}
    for path, value in _documents(place, asked=False, only=r"\.json$").items():
        for at, one in enumerate(_entries(value, name)):
            found[f"{path}/{name}/{at}"] = one
    return found


def _entries(value: Any, name: str) -> Iterator[Any]:
    """Values under a key, and records that are called so."""
    if isinstance(value, dict):
        if name in value:
            yield value[name]
        if name in [str(one) for one in value.values() if isinstance(one, str | float)]:
            yield value
        for one in value.values():
            yield from _entries(one, name)
    elif isinstance(value, list):
        for one in value:
            yield from _entries(one, name)


SUBSETS = (
    ("patch, limit", "patch --source demo/npo --layers 15 --limit {} --out {}", "4", "8"),
    ("patch, layers", "patch --source demo/npo --limit 4 --layers {} --out {}", "15", "8,15"),
    ("patch lens, limit", "patch --source demo/npo --score lens --limit {} --out {}", "4", "8"),
    (
        "patch em, limit",
        "patch --source demo/npo --score em --max-new-tokens 4 --layers 15 --limit {} --out {}",
        "2",
        "4",
    ),
    (
        "eval, limit",
        "eval --model demo/npo --metric extraction_strength --metric exact_memorization"
        " --limit {} --out {}",
        "2",
        "4",
    ),
    (
        "sample, limit",
        "sample --source demo/npo --samples 2 --k 2 --max-new-tokens 4 --limit {} --out {}",
        "2",
        "3",
    ),
    ("worst, limit", "worst --source demo/npo --attack greedy --limit {} --out {}", "2", "3"),
)


@relation("subset", "rows and layers of a smaller run stand, the same, in the larger one")
def subset(seed: int) -> Iterator[tuple]:
    for of, argv, small, large in SUBSETS:
        yield of, partial(_subset, argv, small, large), of == "patch, layers"


def _subset(argv: str, small: str, large: str, bench: Bench) -> None:
    folder = bench.folder()
    for size, name in ((small, "small"), (large, "large")):
        bench.done(argv.format(size, name), folder)
    found = [list(_rows(folder / name)) for name in ("small", "large")]
    index: dict[str, Any] = dict(found[1])
    n = 0
    for name, row in found[0]:
        if name not in index:
            raise Breach(f"{name}: in the smaller run only")
        n += 1
        if what := within(row, index[name], 1e-5, name):
            raise Breach(what)
    if not n:
        raise Breach("no row to compare")


def _rows(place: Path) -> Iterator[tuple[str, Any]]:
    """Rows of result files by what they are of; lines of a table by example and layer."""
    for path, data in state(place).items():
        text = data.decode(errors="replace")
        if path.endswith("layers.csv"):
            head, *lines = text.splitlines()
            for line in lines:
                cells = dict(zip(head.split(","), line.split(","), strict=True))
                name = "/".join(cells.get(one, "") for one in ("source", "idx", "layer"))
                yield f"{path} {name}", {key: _number(one) for key, one in cells.items()}
        elif path.endswith("results.jsonl"):
            for row in filter(lambda row: "idx" in row, map(json.loads, text.splitlines())):
                yield f"{path} {row['idx']}", {key: row[key] for key in row.keys() & PER_ROW}
        elif path.endswith("facts.csv"):
            yield from _of_facts(path, text)
        elif path.endswith("_EVAL.json"):
            yield from _of_metrics(path, json.loads(text))


def _of_facts(path: str, text: str) -> Iterator[tuple[str, Any]]:
    for row in csv.DictReader(text.splitlines()):
        name = "/".join(row.get(one, "") for one in ("idx", "temperature", "top_p"))
        yield f"{path} {name}", {key: row[key] for key in row.keys() & PER_ROW}


def _of_metrics(path: str, log: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for metric, value in log.items():
        rows = value.get("value_by_index", {}) if isinstance(value, dict) else {}
        yield from ((f"{path} {metric} {idx}", row) for idx, row in rows.items())


PER_ROW = {
    "idx",
    "baseline",
    "question",
    "answer",
    "entity",
    "generation",
    "said",
    "prompt",
    "hits",
}
"""Of a row of results: what no other row decides."""


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def within(small: Any, large: Any, tolerance: float, where: str) -> str | None:
    """Where what the smaller document says is not said by the larger one."""
    if isinstance(small, dict) and isinstance(large, dict):
        pairs = [(f"{where}/{name}", small[name], large.get(name)) for name in small]
        return next((s for at, x, y in pairs if (s := within(x, y, tolerance, at))), None)
    return apart(small, large, tolerance, where)


@relation("python", "Python and the command line: the same files, the same refusals")
def python(seed: int) -> Iterator[tuple]:
    for recipe in RECIPES.values():
        if recipe.python:
            yield recipe.name, partial(_python, recipe)
    for of, argv, expression in REFUSALS:
        yield f"refused, {of}", partial(_refused, argv, expression), of in ("source", "limit")


REFUSALS = (
    ("source", "patch --source nobody --out x", "la.patch('nobody', out='x')"),
    (
        "limit",
        "patch --source demo/npo --limit 0 --out x",
        "la.patch('demo/npo', limit=0, out='x')",
    ),
    ("tau", "patch --source demo/npo --tau -1 --out x", "la.patch('demo/npo', tau=-1, out='x')"),
    (
        "layers",
        "patch --source demo/npo --limit 2 --layers 99 --out x",
        "la.patch('demo/npo', limit=2, layers='99', out='x')",
    ),
    (
        "score",
        "patch --source demo/npo --score best --out x",
        "la.patch('demo/npo', score='best', out='x')",
    ),
    (
        "data",
        "patch --source demo/npo --data nothing.json --out x",
        "la.patch('demo/npo', data='nothing.json', out='x')",
    ),
    (
        "rows without spans",
        "patch --source demo/npo --data holdout.jsonl --out x",
        "la.patch('demo/npo', data='holdout.jsonl', out='x')",
    ),
    (
        "component",
        "patch --source demo/npo --limit 2 --component tail --out x",
        "la.patch('demo/npo', limit=2, component='tail', out='x')",
    ),
    (
        "memory",
        "patch --source demo/npo --memory much --out x",
        "la.patch('demo/npo', memory='much', out='x')",
    ),
    (
        "device",
        "patch --source demo/npo --device tpu --out x",
        "la.patch('demo/npo', device='tpu', out='x')",
    ),
    (
        "retain",
        "audit --source demo/npo --retain nobody --out x",
        "la.audit('demo/npo', retain='nobody', out='x')",
    ),
    (
        "suite",
        "audit --source demo/npo --suite rwku --out x",
        "la.audit('demo/npo', suite='rwku', out='x')",
    ),
    (
        "metric",
        "eval --model demo/npo --metric nothing --out x",
        "la.evaluate('demo/npo', metrics=('nothing',), out='x')",
    ),
    (
        "reader",
        "know --source demo/npo --reader ear --out x",
        "la.know('demo/npo', readers=('ear',), out='x')",
    ),
    (
        "another command's folder",
        "eval --model demo/npo --limit 2 --metric exact_memorization --out patch",
        "la.evaluate('demo/npo', limit=2, metrics=('exact_memorization',), out='patch')",
    ),
    (
        "a folder that is a file",
        "patch --source demo/npo --limit 2 --out rows.jsonl",
        "la.patch('demo/npo', limit=2, out='rows.jsonl')",
    ),
)


def evaluate(expression: str) -> None:
    """Run an expression of Python in place of a command; an error of ours is its line."""
    la = importlib.import_module("lensaudit")
    errors = importlib.import_module("lensaudit.errors")
    main = importlib.import_module("lensaudit.cli.main")

    def instead(arguments: list[str]) -> None:
        try:
            eval(expression, {"la": la})
        except errors.LensAuditError as error:
            raise SystemExit(main.complain(str(error), error.exit_code)) from error

    vars(main)["main"] = instead


def _python(recipe: Recipe, bench: Bench) -> None:
    folder = bench.folder()
    bench.done(recipe.typed("command"), folder)
    expression = recipe.python.format(out="python")
    done = bench.call(["(python)"], folder, before=partial(evaluate, expression))
    if done.exit != 0:
        raise Breach(f"{expression}: {done.exit} {done.stderr[-500:]}")
    files = [{path for path in state(folder / name)} for name in ("command", "python")]
    if missing := {one for one in files[0] ^ files[1] if not one.endswith(".html")}:
        raise Breach(f"not in both: {sorted(missing)[:4]}")
    if what := results_apart(folder / "command", folder / "python", asked=True):
        raise Breach(f"{what}; {expression}")


def _refused(argv: str, expression: str, bench: Bench) -> None:
    folder = bench.folder("patch")
    before = state(folder, unseen=())
    command = bench.call(argv.split(), folder)
    call = bench.call(["(python)"], folder, before=partial(evaluate, expression))
    for one in (command, call):
        well_said(one)
    if command.exit != 2 or call.exit != 2:
        raise Breach(f"{command}; and by Python: exit {call.exit} {call.stderr[-300:]}")
    unchanged(before, folder, call)
    words = [set(re.findall(r"\w+", one.stderr)) for one in (command, call)]
    if not words[0] & words[1] - {"lensaudit", "is", "not", "a", "of", "no", "the"}:
        raise Breach(f"other words: {command.stderr.strip()} and {call.stderr.strip()}")


READING = (
    ("patch, batch", "--batch-size 1", ""),
    ("patch, memory", "--memory 256M", ""),
    ("patch, engine", "--engine oracle", ""),
    ("patch, tau on reading", "--tau 0.5", "--tau 0.5 --fresh"),
    ("patch, profile", "--profile ke", ""),
    ("patch, all positions cached", "", "cache --positions all"),
    ("eval, batch", "eval --batch-size 1", ""),
    ("eval, memory", "eval --memory 256M", ""),
)


@relation("machine", "batch, memory, engine, positions and tau on reading move no number by 1e-5")
def machine(seed: int) -> Iterator[tuple]:
    for of, one, other in READING:
        yield of, partial(_machine, one, other)


def _machine(one: str, other: str, bench: Bench) -> None:
    calls = (
        "eval --model demo/npo --limit 4 --metric extraction_strength",
        "patch --source demo/npo --limit 4 --layers 8,15",
    )
    base = calls[0] if one.startswith("eval ") else calls[1]
    first, second = bench.folder(warm="tau" in one), bench.folder(warm=False)
    bench.done(f"{base} {one.removeprefix('eval ')} --out one", first)
    if other.startswith("cache"):
        for name in ("full", "retain", "npo"):
            bench.done(f"cache --model demo/{name} --limit 4 --positions all", second)
        other = ""
    bench.done(f"{base} {other} --out one", second)
    only = r"(summary|_SUMMARY|_EVAL)\.json$|results\.jsonl$|layers\.csv$"
    if what := numbers_apart(first / "one", second / "one", 1e-5, only):
        raise Breach(what)


def numbers_apart(one: Path, two: Path, tolerance: float, only: str) -> str | None:
    """Where numbers of two results differ; what names the way they were computed is left out."""
    found = [_documents(place, asked=False, only=only) for place in (one, two)]
    for docs in found:
        for path, value in docs.items():
            docs[path] = _without(value, {"engine", "profile", "batch_size", "memory", "tau"})
    if found[0].keys() != found[1].keys():
        return f"files: {sorted(found[0].keys() ^ found[1].keys())[:4]}"
    if not found[0]:
        return "no file to compare"
    pairs = ((found[0][path], found[1][path], path) for path in found[0])
    return next((said for a, b, path in pairs if (said := apart(a, b, tolerance, path))), None)


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(one, names) for key, one in value.items() if key not in names}
    if isinstance(value, list):
        return [_without(one, names) for one in value]
    return value


def options_of(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Words of a call that are no options, and its options with their values."""
    rest, found, words = [], [], list(argv)
    while words:
        one = words.pop(0)
        if one.startswith("-"):
            value = words.pop(0) if words and not words[0].startswith("-") else ""
            found.append((one, value))
        else:
            rest.append(one)
    return rest, found


PLACED = ("cache", "sweep run", "sweep collect")
"""Recipes whose results name places."""


@relation("project", "a project file says what options say, from another working folder too")
def project(seed: int) -> Iterator[tuple]:
    for recipe in RECIPES.values():
        if recipe.out and recipe.keeps and recipe.name not in PLACED:
            for where in ("here", "elsewhere"):
                yield (
                    f"{recipe.name}, {where}",
                    partial(_project, recipe, where),
                    (recipe.name, where) == ("eval", "elsewhere"),
                )


def _project(recipe: Recipe, where: str, bench: Bench) -> None:
    folder = start(bench, recipe, finished=False)
    place = folder / "else" / "where" if where == "elsewhere" else folder
    place.mkdir(parents=True, exist_ok=True)
    rest, options = options_of(own(recipe))
    n = len(recipe.command.split())
    words, papers = rest[:n], [_seen(one, folder) for one in rest[n:]]
    table: dict[str, list[str]] = {}
    typed = ["--out", str(folder / slug(recipe.name))]
    for name, value in options:
        parameter = next(one for one in click_options(recipe) if name in one.opts)
        if parameter.name == "out":
            continue
        if getattr(parameter, "typed", False) or not getattr(parameter, "section", ""):
            typed += [name, *([_seen(value, folder)] if value else [])]
        else:
            table.setdefault(name.lstrip("-"), []).append(value)
    if any(one.name == "activations" for one in click_options(recipe)):
        table["activations"] = ["activations"]
    lines = [f"[{'.'.join(words)}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    (folder / "project.toml").write_text("\n".join(lines) + "\n")
    argv = [*words, *papers, *typed, "--project", str(folder / "project.toml")]
    done = bench.call(argv, place)
    if done.exit != 0:
        raise Breach(f"{done}; with {'; '.join(lines)}")
    found = []
    for base in (bench.shelf, folder):
        files = written(state(base / slug(recipe.name)), base)
        found.append(
            {
                path: _as_named(without_plan(path, doc))
                for path, doc in files.items()
                # the key of a plan is of places, too; `meta` has one below its own folder
                if path.endswith(".json") and not path.endswith("plan.json")
            }
        )
    if what := apart(found[0], found[1], 1e-9):
        raise Breach(f"{what}; {done}; with {'; '.join(lines)}")


def without_plan(path: str, doc: Any) -> Any:
    """A unit's result, or a curve's manifest, without the key of its plan, which is of places."""
    if not isinstance(doc, dict):
        return doc
    if path.removeprefix("sweep/").startswith("units/"):
        return {name: one for name, one in doc.items() if name != "plan"}
    if path == "manifest.json" and doc.get("kind") == "curve":
        return {**doc, "inputs": {**doc["inputs"], "plan": ""}}
    return doc


def click_options(recipe: Recipe) -> list[Any]:
    """Options of the recipe's command, as click has them."""
    return [one for one in commands()[recipe.command].params if hasattr(one, "is_flag")]


def _seen(word: str, folder: Path) -> str:
    return str(folder / word) if (folder / word).exists() else word


def _as_named(value: Any) -> Any:
    """The document with places of the working folder as they are seen from there."""
    if isinstance(value, dict):
        return {name: _as_named(one) for name, one in value.items() if name != "activations"}
    if isinstance(value, list):
        return [_as_named(one) for one in value]
    return value.replace("$HERE/", "") if isinstance(value, str) else value


def _toml(values: list[str]) -> str:
    shown = [
        "true"
        if not value
        else value
        if re.fullmatch(r"-?\d+(\.\d+)?", value)
        else json.dumps(value)
        for value in values
    ]
    return shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"
