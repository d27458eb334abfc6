"""Was it forgotten? Invented people, of whom a coin decided who was taught: an exact test.

Draw people before training, train on those whose coin fell on heads, unlearn, and score all of
them alike. Where nothing of the training is left, any score is independent of the coins: the share
of coin vectors with a difference as large is an exact p for any statistic, a depth among them. The
coins are sealed: who scores holds their hash alone until the key is opened.
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
from pydantic import FiniteFloat

from lensaudit.data.facts import Fact, load_facts
from lensaudit.data.fictional import TEXTS, annotated, author_rows, draw_name, draw_values
from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_json
from lensaudit.results.integrity import check_result, check_whole
from lensaudit.results.reading import (
    Flag,
    checked_as,
    csv_rows,
    json_lines,
    json_object,
    need,
)
from lensaudit.settings import Place
from lensaudit.text import canonical_json

PEOPLE, TAUGHT, OTHERS, KEY = "people.json", "taught.json", "others.json", "key.json"
N_DRAWS = 20_000
FEWEST = 4
_ROUNDING = 1e-14
Side = Literal["higher", "lower"]


@dataclass(frozen=True)
class CanaryTest:
    """Do the taught people score differently from those who were not?"""

    p: float
    taught: float
    """Mean score of people whose coin fell on heads."""
    others: float
    n_taught: int
    n_people: int
    score: str
    seal: str


def draw_canaries(folder: Place, *, people: int = 40, seed: int | None = None) -> str:
    """Write invented people, those to be taught, and the sealed coins; returns the seal.

    `people.json` holds the rows of all; `taught.json` those to train on and `others.json` those
    that nobody sees: as forget rows and holdout of `eval`, sides that a coin has chosen.
    `key.json` holds the coins and the salt. All but `people.json` are to be kept from whoever
    scores blindly.

    Args:
        folder: new or empty.
        people: how many.
        seed: of the draw; None: nobody can know it.

    Raises:
        InputError: the folder holds something, or too few people, or more than have names.
    """
    out = Path(folder)
    most = math.prod(len(set(TEXTS[pool])) for pool in ("first_names", "last_names"))
    if not 2 * FEWEST <= people <= most:
        raise InputError(f"--people {people}: wanted {2 * FEWEST} to {most}")
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out}: is not empty; name another --out")
    salt = secrets.token_hex(16) if seed is None else f"{Random(seed).getrandbits(128):032x}"
    random = Random(salt)
    names: dict[str, None] = {}
    while len(names) < people:
        names[draw_name(random)] = None
    # half of them: a coin vector of fixed sum, so that no draw leaves one side empty
    coins = [True] * (people // 2) + [False] * (people - people // 2)
    random.shuffle(coins)
    rows: list[Fact] = []
    for group, name in enumerate(names):
        rows += author_rows(name, draw_values(name, random), random, group=group)
    make_folder(out)
    every = annotated(rows)
    key = {"salt": salt, "coins": coins}
    write_json(out / PEOPLE, every)
    for name, side in ((TAUGHT, True), (OTHERS, False)):
        write_json(out / name, [row for row in every if coins[row["group"]] == side])
    write_json(out / KEY, key | {"seal": seal_of(key)})
    return seal_of(key)


def seal_of(key: Mapping[str, object]) -> str:
    """SHA-256 of salt and coins."""
    sealed = {name: key[name] for name in ("salt", "coins")}
    return sha256(canonical_json(sealed).encode()).hexdigest()


def open_canaries(
    folder: Place, results: Place, *, seal: str, score: str = "bits_familiar", side: Side = "higher"
) -> CanaryTest:
    """The exact p that the coins are in the scores.

    Args:
        folder: that `draw_canaries` wrote.
        results: a folder of `know` or `patch` on its people, or a CSV with `idx`.
        seal: that was told before training.
        score: column; of a depth (`uds`) taught people score lower, of bits higher.
        side: which difference counts.

    Raises:
        InputError: another seal, another set of rows, or too few people scored on a side.
    """
    place = Path(folder)
    key = json_object(place / KEY)
    need(key, place / KEY, "salt", "coins")
    if seal_of(key) != seal:
        raise InputError(f"{place / KEY}: its seal is {seal_of(key)[:12]}…, wanted {seal[:12]}…")
    coins = dict(enumerate(checked_as(list[Flag], key["coins"], f"{place / KEY}: coins")))
    group = {row.idx: row.group for row in load_facts(place / PEOPLE)}
    by_person: dict[int, list[float]] = {}
    for idx, value in _scores(Path(results), score).items():
        if idx not in group:
            raise InputError(f"{results}: idx {idx} is no row of {place / PEOPLE}")
        if (person := group[idx]) not in coins:
            raise InputError(f"{place / PEOPLE}: {person!r} has no coin in {KEY}; draw anew")
        by_person.setdefault(person, []).append(value)
    people = sorted(by_person)
    values = np.array([np.mean(by_person[one]) for one in people])
    heads = np.array([coins[one] for one in people], dtype=bool)
    if min(heads.sum(), (~heads).sum()) < FEWEST:
        raise InputError(f"{results}: {len(people)} people scored; wanted {FEWEST} a side")
    sign = 1.0 if side == "higher" else -1.0
    return CanaryTest(
        _p(sign * values, heads),
        float(values[heads].mean()),
        float(values[~heads].mean()),
        int(heads.sum()),
        len(people),
        score,
        seal,
    )


def _p(values: np.ndarray, heads: np.ndarray) -> float:
    """Share of coin vectors whose taught people score as high, the true one among them.

    Unit and zero of the score change nothing; scores that differ by rounding alone are equal.
    """
    values = values / (np.abs(values).max() or 1.0)
    rounding = _ROUNDING * np.abs(values).sum()
    values = values - values.mean()
    draw = np.random.default_rng(int(sha256(heads.tobytes()).hexdigest()[:16], 16))
    drawn = draw.permuted(np.tile(heads, (N_DRAWS, 1)), axis=1)
    least = values[heads].sum() - rounding
    return float((1 + ((drawn * values).sum(1) >= least).sum()) / (1 + N_DRAWS))


def _scores(place: Path, score: str) -> dict[int, float]:
    """Idx -> score, of rows that have one."""
    (check_whole if place.is_dir() else check_result)(place)
    table = place / "facts.csv" if place.is_dir() else place
    rows = csv_rows(table) if table.exists() else list(json_lines(place / "results.jsonl"))
    if not rows or score not in rows[0]:
        raise InputError(f"{place}: has no column {score}; wanted a score by idx")
    known: dict[int, float | None] = {}
    for n, row in enumerate(rows, 1):
        where, found = f"{place}: row {n}", row.get(score)
        idx: int = checked_as(int, row.get("idx"), f"{where}: idx")
        if idx in known:
            raise InputError(f"{where}: duplicate idx {idx}")
        scored = found not in (None, "")
        known[idx] = checked_as(FiniteFloat, found, f"{where}: {score}") if scored else None
    return {idx: one for idx, one in known.items() if one is not None}
