"""Folders: other commands', damaged, moved and renamed ones; names of models and of folders."""

import itertools
import json
import math
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from campaign.bench import EXITS, Bench, slug, well_said
from campaign.calls import Breach, Skipped
from campaign.folders import apart, changes, state
from campaign.recipes import RECIPES, Recipe
from campaign.relation import relation
from campaign.relations.asking import numbers, own, results_apart, start, words_of

MADE = tuple(
    one.name
    for one in RECIPES.values()
    if one.out and one.keeps and one.name not in ("cache", "sweep run", "patch two")
)
"""Recipes with a folder of their own."""
PLAIN = tuple(
    name for name in MADE if name not in ("patch own", "patch lens", "patch em", "eval own")
)
"""Of each kind of folder one."""
SOME = (
    "patch",
    "eval",
    "know",
    "audit",
    "sample",
    "unlearn",
    "quantize",
    "relearn",
    "steer extract",
    "judge",
    "meta faithfulness",
    "sweep plan",
    "rtt",
    "effort",
    "worst",
    "steer eval",
    "steer sweep",
    "meta table",
    "sweep collect",
    "watch",
    "steer audit",
    "meta robustness",
    "meta aggregate",
)


TOGETHER = ("meta ", "steer e", "steer s")
"""How the names of commands begin that may share a folder, each with a manifest of its own."""


def _share(maker: str, other: str) -> bool:
    steer = [name.startswith(TOGETHER[1:]) for name in (maker, other)]
    return all(steer) or all(name.startswith(TOGETHER[0]) for name in (maker, other))


@relation(
    "other's folder",
    "--out at another command's finished folder is refused; nothing there is touched",
)
def others(seed: int) -> Iterator[tuple]:
    for maker in SOME:
        for other in PLAIN:
            if other != maker and not _share(maker, other):
                yield f"{maker} at {other}", partial(_other, RECIPES[maker], other)


def _other(maker: Recipe, other: str, bench: Bench) -> None:
    folder = start(bench, maker, finished=False, warm=False)
    if not (folder / slug(other)).exists():
        bench.bring(other, folder)
    place = folder / slug(other)
    before = state(place, unseen=())
    argv = maker.typed(slug(other))
    for more in (["--dry-run"], []) if maker.dry else ([],):
        done = bench.call([*argv, *more], folder)
        well_said(done, lines=0)
        if what := changes(before, state(place, unseen=())):
            raise Breach(f"{what}, after {done}")
        if done.exit != 2:
            raise Breach(f"taken: {done}")


READERS = (
    ("report", "report {} -o page.html"),
    ("verdict", "verdict {}"),
    ("verify", "verify {}"),
    ("runs show", "runs show {}"),
    ("runs ls", "runs ls {}"),
    ("runs diff", "runs diff patch {}"),
    ("runs rm", "runs rm {} --dry-run"),
    ("export, junit", "export {} --to junit -o x.xml"),
    ("export, eee", "export {} --to eee -o x"),
    ("export, inspect", "export {} --to inspect -o x"),
    ("export, markdown", "export {} --to markdown -o x.md"),
    ("export, model card", "export {} --to model-card -o x.md"),
    ("meta table", "meta table {} --out x"),
    ("meta aggregate", "meta aggregate {} --no-fluency --out x"),
    ("judge run", "judge run {} --by words:idk --out x"),
    ("eval --from-log", "eval --from-log {} --out x"),
    (
        "eval --retain-log",
        "eval --model demo/npo --limit 2 --metric privleak --retain-log {} --out x --dry-run",
    ),
    ("rtt summarize", "rtt summarize {}"),
    ("sweep status", "sweep status {}"),
    ("sweep collect", "sweep collect {} --out x"),
    ("sweep run", "sweep run {} --dry-run"),
    ("sweep gc", "sweep gc {} --dry-run"),
    ("sweep verify", "sweep verify {} --sample 1"),
    ("gym table", "gym table --gym {}"),
    (
        "steer sweep --vectors",
        "steer sweep --model demo/full --trait demo_idk --vectors {}"
        " --judge idk --questions 2 --dry-run --out x",
    ),
    (
        "steer eval --vector",
        "steer eval --model demo/full --trait demo_idk --vector {} --judge idk --dry-run --out x",
    ),
    (
        "meta faithfulness --results",
        "meta faithfulness --pool-knows demo/full --pool-forgot"
        " demo/retain --metric exact_memorization --limit 2 --results {} --out x --dry-run",
    ),
    ("activations import", "activations import {}"),
    (
        "patch --source",
        "patch --source {} --full demo/full --retain demo/retain --data rows.jsonl"
        " --limit 2 --layers 15 --out x --dry-run",
    ),
    ("canaries test", "canaries test {} --canaries canaries-draw --seal 0"),
    ("verdict --calibration", "verdict patch --calibration {}"),
    ("init", "init {} --dry-run"),
    ("patch --data", "patch --source demo/npo --data {} --out x --dry-run"),
    ("--activations", "activations ls --activations {}"),
    ("--project", "patch --source demo/npo --project {} --dry-run"),
    ("--registry", "models --registry {}"),
)
FOLDERS = (*PLAIN, "canaries draw", "export", "report", "annotate")


@relation("readers", "every folder to every reader: a known exit, no traceback, nothing changed")
def readers(seed: int) -> Iterator[tuple]:
    for reader, argv in READERS:
        for other in FOLDERS:
            quick = (reader, other) in (("verdict", "eval"), ("runs show", "patch"))
            yield f"{reader} of {other}", partial(_reader, argv, other), quick


def _reader(argv: str, other: str, bench: Bench) -> None:
    folder = bench.folder("patch", warm=False)
    made = bench.bring(other, folder) if other != "patch" else folder / "patch"
    if "canaries-draw" in argv and not (folder / "canaries-draw").exists():
        bench.bring("canaries draw", folder)
    before = state(made, unseen=()) if made.is_dir() else {"": made.read_bytes()}
    done = bench.call(argv.format(made.name).split(), folder)
    well_said(done, exits=EXITS | {1})
    after = state(made, unseen=()) if made.is_dir() else {"": made.read_bytes()}
    if what := changes(before, after):
        raise Breach(f"{what}, after {done}")


DAMAGES = ("cut", "bit", "gone", "number")
DAMAGED = 16
"""Readers of each damaged folder, beside `verify`; other seeds ask others."""


@relation("damage", "a damaged folder: every reader says so, and none believes it")
def damage(seed: int) -> Iterator[tuple]:
    chance = random.Random(seed)
    for other in MADE:
        others = chance.sample(READERS[:2] + READERS[3:], DAMAGED)
        for reader, argv in (READERS[2], *others):
            how = chance.choice(DAMAGES)
            quick = other == "patch" and reader == "verify"
            yield f"{reader} of {other}, {how}", partial(_damaged, argv, other, how), quick


def _damaged(argv: str, other: str, how: str, bench: Bench) -> None:
    folder = bench.folder("patch", warm=False)
    made = bench.bring(other, folder) if other != "patch" else folder / "patch"
    if "canaries-draw" in argv and not (folder / "canaries-draw").exists():
        bench.bring("canaries draw", folder)
    whole = bench.call(argv.format(made.name).split(), folder)
    for name in ("x", "x.md", "x.xml", "x.jsonl", "page.html"):
        place = folder / name
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    harmed = harm(made, how, bench.random)
    if harmed is None:
        raise Skipped("no file to damage")
    done = bench.call(argv.format(made.name).split(), folder)
    well_said(done, exits=EXITS | {1})
    if argv.startswith("verify") and done.exit != 4:
        raise Breach(f"{how} of {harmed.relative_to(folder)} is not told: {done}")
    told = argv.startswith("runs rm")  # it weighs what is there, and believes none of it
    told |= done.exit != 0 or done.stderr != whole.stderr or done.stdout == whole.stdout
    if whole.exit == 0 and not told and how != "gone":
        raise Breach(f"{how} of {harmed.name} changes the answer and is not told: {done}")
    if whole.exit == 0 and done.exit == 0 and done.stdout == whole.stdout:
        return
    if whole.exit != 0 and done.exit == 0:
        raise Breach(f"refused whole, taken with {how} of {harmed.name}: {done}")


def harm(made: Path, how: str, chance: random.Random) -> Path | None:
    """Damage one file that a manifest names; which one."""
    files = (
        [
            one
            for one in sorted(made.rglob("*"))
            if one.is_file()
            and not one.is_symlink()
            and one.stat().st_size > 60
            and one.suffix in (".json", ".jsonl", ".csv", ".safetensors")
            and "activations" not in one.parts
            and "claims" not in one.parts
            and "attempts" not in one.parts
        ]
        if made.is_dir()
        else []
    )
    named = _named_by_manifests(made)
    files = [one for one in files if str(one) in named or one.name == "manifest.json"]
    if not files:
        return None
    path = chance.choice(files)
    data = path.read_bytes()
    path.unlink()
    if how == "gone":
        return path
    if how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "bit":
        at = len(data) // 2
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    else:
        digit = next((at for at in range(len(data) // 3, len(data)) if 49 <= data[at] <= 56), None)
        if digit is None:
            path.write_bytes(data)
            return None
        path.write_bytes(data[:digit] + bytes([data[digit] + 1]) + data[digit + 1 :])
    return path


def _named_by_manifests(made: Path) -> set[str]:
    found = set()
    for one in made.rglob("manifest.json"):
        try:
            files = json.loads(one.read_text()).get("files") or {}
        except ValueError:
            continue
        found |= {str(one.parent / name) for name in files}
    return found


@relation("moved", "moved or renamed, a result is the same to every reader and to its own command")
def moved(seed: int) -> Iterator[tuple]:
    for name in MADE:
        yield f"{name}, asked again", partial(_moved_again, name), name == "patch"
        yield f"{name}, verify", partial(_moved_read, name, "verify {}")
        yield f"{name}, runs show", partial(_moved_read, name, "runs show {}")
    for name in ("patch", "eval", "know", "audit", "worst", "sample"):
        yield f"{name}, verdict", partial(_moved_read, name, "verdict {}")


def _moved_again(name: str, bench: Bench) -> None:
    recipe = RECIPES[name]
    folder = start(bench, recipe, finished=False)
    bench.done(own(recipe), folder)
    place = folder / slug(name)
    other = folder / "kept" / "as it is now"
    other.parent.mkdir()
    place.rename(other)
    before = state(other, unseen=())
    done = bench.done(recipe.typed("kept/as it is now"), folder)
    if what := changes(before, state(other, unseen=())):
        raise Breach(f"{what}, after {done}")


def _moved_read(name: str, argv: str, bench: Bench) -> None:
    folder = bench.folder(name, warm=False)
    place = folder / slug(name)
    first = bench.call([one.format(slug(name)) for one in argv.split()], folder)
    other = folder / "kept" / "as-it-is-now"
    other.parent.mkdir()
    place.rename(other)
    second = bench.call([one.format("kept/as-it-is-now") for one in argv.split()], folder)
    well_said(second, lines=0)
    if first.exit != second.exit:
        raise Breach(f"{first} {second}")
    texts = [
        first.stdout.replace(slug(name), "FOLDER"),
        second.stdout.replace("kept/as-it-is-now", "FOLDER").replace("as-it-is-now", "FOLDER"),
    ]
    if what := apart(words_of(texts[0]), words_of(texts[1].replace(slug(name), "FOLDER"))):
        raise Breach(f"{what}; {second}")


NAMES = ("name", "folder", "relative", "slash", "link", "registry", "home")


@relation("one model", "six names of one model are one model: the same numbers, counted once")
def one_model(seed: int) -> Iterator[tuple]:
    for how in NAMES[1:]:
        yield f"patch, {how}", partial(_named, how, "patch"), how == "slash"
        yield f"patch, {how}, named twice", partial(_twice, how)
        yield f"know, {how}", partial(_named, how, "know")
        yield f"eval, {how}", partial(_named, how, "eval")
        yield f"verdict, {how}", partial(_one_verdict, how)


def called(how: str, folder: Path) -> tuple[str, dict[str, str | None], list[str]]:
    """A name of demo/npo, the environment and the options it needs."""
    import lensaudit

    package = Path(lensaudit.__file__).parent / "embedded"
    own_copy = folder / "models" / "npo"
    if not own_copy.exists():
        shutil.copytree(package / "npo", own_copy)
    if how == "folder":
        return str(own_copy), {}, []
    if how == "relative":
        return "models/../models/npo", {}, []
    if how == "slash":
        return "models/npo/", {}, []
    if how == "link":
        (folder / "alias").symlink_to(own_copy, target_is_directory=True)
        return "alias", {}, []
    if how == "registry":
        (folder / "names.toml").write_text('mine = "models/npo"\n')
        return "mine", {}, ["--registry", "names.toml"]
    if how == "home":
        return "~/models/npo", {"HOME": str(folder)}, []
    return "demo/npo", {}, []


CALLS = {
    "patch": "patch --source {} --full demo/full --retain demo/retain --data demo --limit 4"
    " --layers 8,15 --out {}",
    "know": "know --source {} --base demo/never --retain demo/retain --data demo --limit 8"
    " --reader outputs --out {}",
    "eval": "eval --model {} --data demo --limit 2 --metric extraction_strength --out {}",
}


def _named(how: str, command: str, bench: Bench) -> None:
    folder = bench.folder()
    name, env, more = called(how, folder)
    bench.done(CALLS[command].format("demo/npo", "one"), folder)
    done = bench.done([*CALLS[command].format(name, "two").split(), *more], folder, env=env)
    for place in ("one", "two"):
        for path in (folder / place).rglob("*.json*"):
            if path.suffix in (".json", ".jsonl") and path.name != "manifest.json":
                text = path.read_text()
                for one in sorted(
                    {name, name.rstrip("/"), "demo/npo", str(folder / "models/npo")},
                    key=len,
                    reverse=True,
                ):
                    text = text.replace(f'"{one}"', '"MODEL"')
                path.write_text(text)
    if what := results_apart(folder / "one", folder / "two", 1e-9, only=r"json"):
        if "demo/npo" in what or name.strip("/~") in what:
            return
        raise Breach(f"{what}; {done}")


def _twice(how: str, bench: Bench) -> None:
    folder = bench.folder()
    name, env, more = called(how, folder)
    argv = f"patch --source demo/npo --source {name} --full demo/full --retain demo/retain"
    argv += " --data demo --limit 4 --layers 15 --out out --json"
    done = bench.call([*argv.split(), *more], folder, env=env)
    well_said(done, lines=0)
    n = len(list((folder / "out").rglob("summary.json")))
    if done.exit == 0 and n != 1:
        raise Breach(f"one model counted {n} times: {done}")


def _one_verdict(how: str, bench: Bench) -> None:
    folder = bench.folder()
    name, env, more = called(how, folder)
    bench.done(CALLS["patch"].format("demo/npo", "one"), folder)
    bench.done([*CALLS["eval"].format(name, "two").split(), *more], folder, env=env)
    done = bench.call(["verdict", "one", "two", "--json"], folder)
    well_said(done, lines=0)
    found = json.loads(done.stdout)
    models = found.get("models", found) if isinstance(found, dict) else found
    if len(models) != 1:
        raise Breach(f"{len(models)} models of one: {done}")


ROLES = (
    (
        "patch",
        "patch --source {source} --full {full} --retain {retain} --data rows.jsonl --limit 4"
        " --layers 15 --out out",
        ("source", "full", "retain"),
    ),
    (
        "patch --base",
        "patch --source {source} --full {full} --base {base} --retain none"
        " --data rows.jsonl --limit 4 --layers 15 --out out",
        ("source", "full", "base"),
    ),
    (
        "audit",
        "audit --source {source} --full {full} --retain {retain} --data rows.jsonl --limit 4"
        " --suite none --association none --align none --out out",
        ("source", "full", "retain"),
    ),
    (
        "know",
        "know --source {source} --base {base} --retain {retain} --data rows.jsonl --limit 8"
        " --reader outputs --out out",
        ("source", "base", "retain"),
    ),
    (
        "sample",
        "sample --source {source} --full {full} --retain {retain} --data rows.jsonl"
        " --limit 2 --samples 2 --k 2 --max-new-tokens 2 --out out",
        ("source", "full", "retain"),
    ),
    (
        "eval",
        "eval --model {source} --full {full} --retain {retain} --reference {reference}"
        " --data rows.jsonl --holdout holdout.jsonl --limit 2 --metric uds --metric mia_reference"
        " --out out",
        ("source", "full", "retain", "reference"),
    ),
    (
        "meta faithfulness",
        "meta faithfulness --pool-knows {knows} --pool-forgot {forgot}"
        " --full {full} --retain {retain} --metric exact_memorization --limit 2"
        " --out out",
        ("knows", "forgot", "full", "retain"),
    ),
    (
        "steer audit",
        "steer audit --source {source} --full {full} --retain {retain}"
        " --data rows.jsonl --kept demo --layers 12 --n-retain 4 --set folds=2"
        " --set randoms=1 --max-new-tokens 2 --experiment ablate --out out --dry-run",
        ("source", "full", "retain"),
    ),
    (
        "relearn",
        "relearn --source {source} --full {full} --retain {retain} --data rows.jsonl"
        " --epochs 0.05 --batch-size 2 --accumulate 1 --audit --out out",
        ("source", "full", "retain"),
    ),
    (
        "rtt run",
        "rtt run --source {source} --full {full} --retain {retain} --data mcq.jsonl"
        " --splits 2 --out out --dry-run",
        ("source", "full", "retain"),
    ),
    (
        "effort",
        "effort --source {source} --full {full} --retain {retain} --data mcq.jsonl --limit 4"
        " --steps 1 --out out --dry-run",
        ("source", "full", "retain"),
    ),
    (
        "worst",
        "worst --source {source} --full {full} --retain {retain} --data rows.jsonl --limit 2"
        " --attack greedy --out out --dry-run",
        ("source", "full", "retain"),
    ),
    (
        "sweep plan",
        "sweep plan {source} --full {full} --retain {retain} --data rows.jsonl"
        " --metric exact_memorization --limit 2 --out out",
        ("source", "full", "retain"),
    ),
)
USUAL = {
    "source": "demo/npo",
    "full": "demo/full",
    "retain": "demo/retain",
    "base": "demo/never",
    "reference": "demo/never",
    "knows": "demo/masked_readout",
    "forgot": "demo/never",
}


REFUSED = (
    {"source", "full"},
    {"source", "retain"},
    {"source", "base"},
    {"full", "retain"},
    {"knows", "retain"},
    {"knows", "forgot"},
    {"forgot", "full"},
)
"""Roles that no two models of the same weights may have; of others a number means something."""


@relation("roles", "two roles with the same weights: a refusal, or a number that means something")
def roles(seed: int) -> Iterator[tuple]:
    for of, argv, names in ROLES:
        for one, other in itertools.combinations(names, 2):
            quick = of == "rtt run" and (one, other) == ("source", "full")
            yield f"{of}, {one} = {other}", partial(_roles, argv, one, other), quick


def _roles(argv: str, one: str, other: str, bench: Bench) -> None:
    folder = bench.folder()
    given = USUAL | {other: USUAL[one] if one != "source" or other == "base" else USUAL[other]}
    if one == "source":
        given = USUAL | {"source": USUAL[other]}
    done = bench.call(argv.format(**given).split(), folder)
    well_said(done, lines=0)
    for path in (folder / "out").rglob("*.json"):
        text = path.read_text()
        if "NaN" in text or "Infinity" in text:
            raise Breach(f"{path.name} holds NaN or an infinity: {done}")
        if any(not math.isfinite(number) for number in numbers(json.loads(text))):
            raise Breach(f"{path.name} holds no finite number: {done}")
    if {one, other} in REFUSED and done.exit != 2:
        raise Breach(f"taken: {done}")
