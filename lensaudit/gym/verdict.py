"""One verdict of all that was measured, with a known error.

Views are grouped by what they read, and a group has one voice: the first of its views whose own
control passed. Nothing is averaged. A view is a number in units of its control arm, 0 as `full` and
1 as a model that never saw the facts, so that it travels to other models. How far never-trained
models scatter around 1, and how many models that know a view finds, was measured on the tune half
of the gym (`calibration.json`); the error on mechanisms it was not set on is beside it.

- It **holds** the facts if any group finds them: the chance that a never-trained model lies so low,
  by Student's t for one more model, is at most .05 over the number of groups. Over several runs
  these chances are held to a false discovery rate of .05 (Benjamini and Hochberg 1995).
- They are **erased** only if every group that can see (power .8 on the tune half) was heard, and
  none finds them.
- All else is undecided, and what disagrees is said.
"""

import json
import math
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy.stats import t as student

import lensaudit
from lensaudit.errors import InputError
from lensaudit.files import read_json, read_text
from lensaudit.gym.ledger import GymRow
from lensaudit.gym.table import Share, Unit, in_units, share
from lensaudit.results.reading import number, part
from lensaudit.results.verdict import CALIBRATED_WITHIN, NOT_NEEDED, READABLE_BELOW, Code

GROUPS: Mapping[str, tuple[str, ...]] = {
    "stream": ("uds", "lens", "uds_prefix", "cka"),
    "aligned": ("uds_weakest", "uds_aligned", "probe"),
    "outputs": ("worst_case", "greedy"),
    "training": ("rtt", "relearn_gain"),
}
"""What is read -> views, the voice first."""
ALPHA = 0.05
"""Over all groups, and the false discovery rate over runs."""
POWER = 0.8
"""Share of the tune half's knowing models that a group must find to be waited for."""
LEAST_SPREAD = 0.05
"""Of never-trained models: those of a few seeds are more alike than those to come."""
FEWEST_NULL = 4
"""Never-trained models below which a view has no chance to be held to."""
TELLS = 0.25
"""Least difference between what `full` and `retain` say for outputs to tell anything."""
ROUGH = 0.1
"""Standard error in units of the control arm above which a view that finds nothing did not look."""
_Z = 1.959964
"""Standard errors from the middle to the end of a 95 % interval."""
SHIPPED = Path(lensaudit.__file__).parent / "gym" / "calibration.json"


@dataclass(frozen=True)
class View:
    """One number of one model, in units of its control arm."""

    value: float
    ci95: tuple[float, float] | None = None
    control: bool | None = None
    """Whether its own control passed; None: it has none beside its arms."""

    @property
    def error(self) -> float:
        """Standard error that the interval stands for; 0 where there is none."""
        return 0.0 if self.ci95 is None else (self.ci95[1] - self.ci95[0]) / (2 * _Z)


@dataclass(frozen=True)
class Null:
    """How a view scatters over never-trained models, and what it finds."""

    mean: float
    spread: float
    n: int
    power: float
    """Share of the knowing models of the tune half that it finds."""

    def chance(self, value: float, error: float = 0.0) -> float:
        """That one more never-trained model lies so low; `error` is the value's standard error."""
        spread = max(self.spread, LEAST_SPREAD) * math.sqrt(1 + 1 / self.n)
        return float(student.cdf((value - self.mean) / math.hypot(spread, error), self.n - 1))


Calibration = Mapping[str, Null]
"""View -> its null."""


@dataclass(frozen=True)
class Vote:
    """What one view says."""

    group: str
    chance: float | None
    """None: there is no null for it, or its control failed."""
    finds: bool | None
    is_voice: bool


@dataclass(frozen=True)
class Combined:
    """What may be said of one model."""

    source: str
    code: Code
    sentence: str
    views: Mapping[str, View]
    votes: Mapping[str, Vote]
    disagreement: str | None

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "source": self.source,
            "verdict": {"code": self.code, "sentence": self.sentence},
            "views": {
                name: {
                    "value": view.value,
                    "ci95": None if view.ci95 is None else list(view.ci95),
                    "control": view.control,
                    "vote": _vote(self.votes[name]),
                    "group": self.votes[name].group,
                    "chance": self.votes[name].chance,
                    "voice": self.votes[name].is_voice,
                }
                for name, view in self.views.items()
            },
            "disagreement": self.disagreement,
        }


def _vote(vote: Vote) -> str:
    return {True: "holds", False: "not found", None: "no vote"}[vote.finds]


def combined(
    models: Mapping[str, Mapping[str, View]], calibration: Calibration, *, alpha: float = ALPHA
) -> list[Combined]:
    """The verdict of every model, with the false discovery rate over all of them at `alpha`."""
    voices = {name: _voices(views, calibration) for name, views in models.items()}
    chances = {
        name: min(1.0, len(GROUPS) * min((c for _, c in found.values()), default=1.0))
        for name, found in voices.items()
    }
    level = alpha * _share_rejected(list(chances.values()), alpha)
    return [
        _one(name, views, voices[name], calibration, level / len(GROUPS))
        for name, views in models.items()
    ]


def _share_rejected(chances: Sequence[float], alpha: float) -> float:
    """Benjamini and Hochberg: the largest share k / n with the k-th chance at most alpha k / n.

    Where none is rejected, 1 / n: the level at which the first would be.

    >>> _share_rejected([0.01, 0.02, 0.9, 0.9], 0.05)
    0.5
    >>> _share_rejected([0.9, 0.9], 0.05)
    0.5
    """
    n = len(chances)
    ordered = sorted(chances)
    passing = [k for k, chance in enumerate(ordered, 1) if chance <= alpha * k / n]
    return max(passing, default=1) / n if n else 1.0


def _voices(views: Mapping[str, View], calibration: Calibration) -> dict[str, tuple[str, float]]:
    """Group -> the view that speaks for it, and its chance."""
    found = {}
    for group, names in GROUPS.items():
        for name in names:
            view = views.get(name)
            if view is not None and name in calibration and view.control is not False:
                found[group] = name, _chance(view, calibration[name])
                break
    return found


def _finds(chance: float | None, level: float, view: View) -> bool | None:
    """Whether a view finds the facts; None: it has no null, or is too rough to find nothing."""
    if chance is None or (chance > level and view.error > ROUGH):
        return None
    return chance <= level


def _chance(view: View, null: Null) -> float:
    """That a never-trained model, measured no better than this one, lies so low."""
    return null.chance(view.value, view.error)


def _one(
    source: str,
    views: Mapping[str, View],
    voices: Mapping[str, tuple[str, float]],
    calibration: Calibration,
    level: float,
) -> Combined:
    speakers = {name for name, _ in voices.values()}
    votes = {}
    for group, names in GROUPS.items():
        for name in names:
            if name in views:
                heard = name in calibration and views[name].control is not False
                chance = _chance(views[name], calibration[name]) if heard else None
                finds = _finds(chance, level, views[name])
                votes[name] = Vote(group, chance, finds, name in speakers)
    shown = {name: views[name] for name in votes}
    said = {group: votes[name].finds for group, (name, _) in voices.items()}
    answers = {group: one for group, one in said.items() if one is not None}
    code, because = _decided(answers, calibration)
    heard = [name for name in votes if votes[name].finds is not None]
    told = ", ".join(f"{name} {views[name].value:.2f} {_vote(votes[name])}" for name in heard)
    disagree = len({votes[name].finds for name in heard}) > 1
    return Combined(
        source,
        code,
        f"{source}: {_SAYS[code]}: {because}.",
        shown,
        votes,
        told if disagree else None,
    )


_SAYS: Mapping[Code, str] = {
    "intact": "intact",
    "hidden": "hidden",
    "hidden_other_basis": "hidden in another basis",
    "erased": "erased, as far as these views see",
    "undecided": "undecided",
    "unscored": "no verdict",
}


def _decided(finds: Mapping[str, bool], calibration: Calibration) -> tuple[Code, str]:
    """The code, and what decided it."""
    if not finds:
        return "unscored", "no view with a null and a control that passed"
    found = [group for group, yes in finds.items() if yes]
    if "outputs" in found:
        return "intact", "its outputs give the facts away"
    if finds.get("stream") is False and "aligned" in found:
        return "hidden_other_basis", "the facts are in its stream, in another basis than full's"
    if found:
        return "hidden", f"found by {' and '.join(found)}"
    missing = [group for group in able(calibration) if group not in finds]
    if missing:
        return "undecided", f"nothing is found, and {' and '.join(missing)} was not heard"
    if not any(group in finds for group in able(calibration)):
        return "undecided", "nothing is found by views that seldom find anything"
    return "erased", f"{' and '.join(finds)} find nothing"


def able(calibration: Calibration) -> list[str]:
    """Groups one of whose views finds what is planted."""
    return [
        group
        for group, names in GROUPS.items()
        if any(name in calibration and calibration[name].power >= POWER for name in names)
    ]


# where views come from


def views_of(place: Path) -> dict[str, dict[str, View]]:
    """Model -> its views, of a folder of `patch`, `audit` or `rtt`.

    Raises:
        InputError: there is none of these in it, or one is damaged.
    """
    files = [place] if place.is_file() else [place / "summary.json"]
    if not files[0].is_file():
        files = sorted(
            path
            for pattern in ("*/summary.json", "patch/*/summary.json")
            for path in place.glob(pattern)
        )
    found: dict[str, dict[str, View]] = defaultdict(dict)
    for file in dict.fromkeys(files):
        content = read_json(file)
        for one in content if isinstance(content, list) else [content]:
            if not isinstance(one, Mapping) or not isinstance(_name(one), str):
                raise InputError(f"{file}: not a result of patch, audit or rtt; name no model")
            views = _patched(one, str(file)) if "source" in one else _rtt(one, str(file))
            found[_name(one)] |= dict(views)
    if not found:
        raise InputError(f"{place}: no summary.json; wanted a folder of patch, audit or rtt")
    return dict(found)


def _name(content: Mapping[str, Any]) -> Any:
    return content.get("source") or part(content, "models").get("unlearned")


def _patched(summary: Mapping[str, Any], where: str) -> Iterator[tuple[str, View]]:
    anchors = part(summary, "calibration")
    full, retain = (number(anchors.get(name), where) for name in ("full", "retain"))
    scaled = (
        full is not None
        and retain is not None
        and abs(full) <= CALIBRATED_WITHIN
        and abs(retain - 1) <= CALIBRATED_WITHIN
    )
    uds, prefix = number(summary.get("uds"), where), summary.get("scope") == "prefix"
    for key, name in (("uds", "uds_prefix" if prefix else "uds"), ("lens", "lens")):
        value = number(summary.get(key), where)
        if value is not None:
            ends = summary.get("ci95" if summary.get("score") == key else f"{key}_ci95")
            yield name, View(value, _ends(ends, where), scaled)
    aligned = part(summary, "aligned")
    value, share = (number(aligned.get(name), where) for name in ("uds", "d_share"))
    if value is not None:
        readable = share is not None and share < READABLE_BELOW
        needed = part(summary, "validity").get("needed", True)
        carried = readable or not needed
        yield "uds_aligned", View(value, _ends(aligned.get("ci95"), where), carried)
        weakest = part(aligned, "weakest") if aligned.get("weakest") is not None else {}
        least = number(weakest.get("erasure"), where)
        if least is not None:
            yield "uds_weakest", View(least, _ends(weakest.get("ci95"), where), carried)
    elif str(aligned.get("why")).startswith(NOT_NEEDED) and uds is not None:
        yield "uds_aligned", View(uds, _ends(summary.get("ci95"), where), scaled)
    outputs = part(summary, "outputs")
    said = [number(outputs.get(name), where) for name in ("source", "full", "retain")]
    source, full, retain = said
    if source is not None and full is not None and retain is not None and full > retain:
        yield "greedy", View((full - source) / (full - retain), None, full - retain >= TELLS)


def _rtt(study: Mapping[str, Any], where: str) -> Iterator[tuple[str, View]]:
    found = part(study, "main", "recovery_adjusted")
    value, low, high = (number(found.get(name), where) for name in ("value", "low", "high"))
    if value is not None:
        ends = None if low is None or high is None else (1 - high, 1 - low)
        yield "rtt", View(1 - value, ends, bool(part(study, "gate").get("passed", True)))


def _ends(ends: Any, where: str) -> tuple[float, float] | None:
    if not isinstance(ends, list) or len(ends) != 2:
        return None
    low, high = (number(one, where) for one in ends)
    return None if low is None or high is None else (low, high)


# from the gym


def gym_views(rows: Sequence[GymRow]) -> dict[str, dict[str, Unit]]:
    """Auditor -> model -> its score in units of the control arm, with its control."""
    by_auditor: dict[str, list[GymRow]] = defaultdict(list)
    for row in rows:
        # no score where the auditor's own control failed
        if row["score"] is not None and row["control"] is not False:
            by_auditor[row["auditor"]].append(row)
    views = {name for names in GROUPS.values() for name in names}
    return {
        name: {one.model: one for one in in_units(own)}
        for name, own in by_auditor.items()
        if name in views
    }


def calibrated(
    views: Mapping[str, Mapping[str, Unit]], chosen: Iterable[str], *, alpha: float = ALPHA
) -> dict[str, Null]:
    """The null of every view, on the models of these mechanisms."""
    wanted, found = set(chosen), {}
    for name, units in views.items():
        own = [one for one in units.values() if one.mechanism in wanted]
        null = [one.value for one in own if not one.knows]
        knows = [one.value for one in own if one.knows]
        if len(null) < FEWEST_NULL or not knows:
            continue
        mean = sum(null) / len(null)
        spread = math.sqrt(sum((one - mean) ** 2 for one in null) / (len(null) - 1))
        made = Null(mean, spread, len(null), 0.0)
        power = sum(made.chance(one) <= alpha / len(GROUPS) for one in knows) / len(knows)
        found[name] = Null(mean, spread, len(null), power)
    return found


@dataclass(frozen=True)
class Confusion:
    """How often the verdict was right, on models whose truth is known."""

    known: Mapping[str, Share]
    """Of models that know: said to hold, said to be erased, undecided; exact bounds."""
    absent: Mapping[str, Share]
    """Of models that never saw the facts: the same."""

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            side: {name: asdict(one) for name, one in shares.items()}
            for side, shares in (("knows", self.known), ("absent", self.absent))
        }


def left_out_error(rows: Sequence[GymRow]) -> Confusion:
    """The verdict on each mechanism, calibrated on all others."""
    views = gym_views(rows)
    mechanisms = {one.mechanism for units in views.values() for one in units.values()}
    found = []
    for name in sorted(mechanisms):
        null = calibrated(views, mechanisms - {name})
        found += _judged(views, null, {name})
    return _confusion(found)


def held_out_error(rows: Sequence[GymRow]) -> tuple[Confusion, dict[str, Null]]:
    """The verdict on the held-out half, calibrated on the tune half; and that calibration."""
    views = gym_views(rows)
    every = [one for units in views.values() for one in units.values()]
    null = calibrated(views, {one.mechanism for one in every if not one.held_out})
    found = _judged(views, null, {one.mechanism for one in every if one.held_out})
    return _confusion(found), null


def _judged(
    views: Mapping[str, Mapping[str, Unit]], null: Calibration, chosen: set[str]
) -> list[tuple[bool, Code]]:
    """Of every model: does it know, and what is said of it alone."""
    models: dict[str, dict[str, View]] = defaultdict(dict)
    knows = {}
    for name, units in views.items():
        for model, one in units.items():
            if one.mechanism in chosen:
                models[model][name] = View(one.value)
                knows[model] = one.knows
    found = (combined({model: own}, null)[0] for model, own in models.items())
    return [(knows[one.source], one.code) for one in found]


def _confusion(found: Sequence[tuple[bool, Code]]) -> Confusion:
    def side(knows: bool) -> dict[str, Share]:
        codes = [code for truth, code in found if truth is knows]
        holds = sum(code in ("intact", "hidden", "hidden_other_basis") for code in codes)
        erased = codes.count("erased")
        rest = len(codes) - holds - erased
        return {
            "holds": share(holds, len(codes)),
            "erased": share(erased, len(codes)),
            "undecided": share(rest, len(codes)),
        }

    return Confusion(side(True), side(False))


def read_calibration(path: Path | None) -> dict[str, Null]:
    """The nulls of a file that `gym table --calibration` wrote; None: those that are shipped.

    Raises:
        InputError: no such file, or another shape.
    """
    content = read_json(path or SHIPPED)
    try:
        found = {name: Null(**one) for name, one in content["views"].items()}
        numbers = [float(value) for one in found.values() for value in vars(one).values()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a calibration of the gym ({error})") from error
    if not all(map(math.isfinite, numbers)) or any(one.n < 2 for one in found.values()):
        raise InputError(f"{path}: not a calibration of the gym; a number is out of range")
    return found


# gates


@dataclass(frozen=True)
class Gate:
    """Which verdicts pass."""

    fail: tuple[str, ...] = ("intact", "hidden", "hidden_other_basis")
    require: tuple[str, ...] = ()
    """Only these codes pass; empty: all but those that fail."""
    views: tuple[str, ...] = ()
    """Views that must have voted."""

    def problem(self, one: Combined) -> str | None:
        """Why a model does not pass."""
        if one.code in self.fail or (self.require and one.code not in self.require):
            return one.sentence
        silent = [v for v in self.views if v not in one.votes or one.votes[v].finds is None]
        return f"{one.source}: {', '.join(silent)} did not vote" if silent else None


def read_gate(path: Path) -> Gate:
    """The `[gate]` table of a policy: `fail` and `require`, lists of codes; `views`, of views.

    Raises:
        InputError: no TOML, or something in it that is none of these.
    """
    try:
        content = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML ({error})") from error
    policy = content.get("gate", {})
    views = [name for names in GROUPS.values() for name in names]
    known = {"fail": list(_SAYS), "require": list(_SAYS), "views": views}
    if extra := sorted(set(content) - {"gate"}) or sorted(set(policy) - set(known)):
        raise InputError(f"{path}: {extra[0]!r} is unknown; wanted [gate] with {', '.join(known)}")
    for key, value in policy.items():
        wrong = value if not isinstance(value, list) else [v for v in value if v not in known[key]]
        if wrong:
            raise InputError(
                f"{path}: gate.{key} is {json.dumps(value, default=str)}; wanted a list of "
                f"{', '.join(known[key])}"
            )
    return Gate(**{key: tuple(value) for key, value in policy.items()})


def verdicts(runs: Sequence[Path], calibration: Path | None = None) -> list[Combined]:
    """What may be said of every model of some result folders.

    Raises:
        InputError: a folder is none of patch, audit or rtt.
    """
    models: dict[str, dict[str, View]] = defaultdict(dict)
    for place in runs:
        for name, views in views_of(place).items():
            models[name] |= views
    return combined(models, read_calibration(calibration))
