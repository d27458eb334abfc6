"""Refuse options that cannot act: what each option needs is checked once, before any work.

A settings record says of its fields what they need (`settings.Needs`). An option that cannot act is
refused in one line, from the command line and from Python alike: accepted, it would stand in the
manifest as if it had. Records that are made inside are not asked.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints, runtime_checkable

from lensaudit.choices import in_commas, option_in
from lensaudit.errors import InputError
from lensaudit.models.registry import load_registry, shipped, usual_anchor
from lensaudit.settings import NO_RETAIN_MODEL, OF_A_LOG, Needs, several

T = TypeVar("T")


@runtime_checkable
class KnowsIdle(Protocol):
    """A record that says of its fields what no need can: what hangs on a file that it names."""

    def idle(self) -> Mapping[str, str]:
        """Fields that were chosen and cannot act -> the option, and why."""
        ...


@dataclasses.dataclass(frozen=True)
class ChosenOption:
    """A field of a settings record, or of one inside it."""

    name: str
    flag: str
    value: Any
    default: Any
    needs: tuple[Needs, ...]

    @property
    def is_given(self) -> bool:
        """Whether the value differs from the default and does more than turn something off."""
        return self.value != self.default and self.value not in (None, (), "", "none")


def choices(
    settings: Any, needs: Mapping[str, tuple[Needs, ...]] | None = None
) -> Iterator[ChosenOption]:
    """Every field of a record, and of those inside it, that is an option.

    Args:
        settings: the record.
        needs: of fields by name, what the record around this one says of them.
    """
    record = type(settings)
    hints = get_type_hints(record, include_extras=True)
    beside = dict(needs or {})
    for group in reversed(record.__mro__):
        for name, more in vars(group).get("needs", {}).items():
            beside[name] = (*beside.get(name, ()), *more)
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        if dataclasses.is_dataclass(value):
            yield from choices(value, beside)
        elif (words := option_in(hints[one.name])) is not None:
            every = (*words.needs, *beside.get(one.name, ()))
            yield ChosenOption(one.name, words.flags(one.name)[0], value, one.default, every)


def idle(settings: Any, beside: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Fields that were chosen and cannot act -> the option, and what would make it act.

    Args:
        settings: the record.
        beside: what is chosen beside it, by name: `source`.
    """
    known = {one.name: one for one in choices(settings)}
    for name, value in (beside or {}).items():
        known[name] = ChosenOption(name, f"--{name}", value, None, ())
    found = {}
    for one in known.values():
        if one.is_given:
            for need in one.needs:
                other = known.get(need.field)
                if other is not None and not _holds(need, other, known):
                    found[one.name] = f"{one.flag}: {_wanted(need, other, known)}"
                    break
    return {**settings.idle(), **found} if isinstance(settings, KnowsIdle) else found


def acting(settings: T, beside: Mapping[str, Any] | None = None) -> T:
    """The settings, if everything that was chosen acts.

    Raises:
        InputError: names the first option that cannot, and what would make it act.
    """
    for line in idle(settings, beside).values():
        raise InputError(line)
    return settings


def _holds(need: Needs, other: ChosenOption, known: Mapping[str, ChosenOption]) -> bool:
    beside = need.unless and known.get(need.unless.field)
    if need.unless is not None and beside is not None and _holds(need.unless, beside, known):
        return True
    many = isinstance(other.value, list | tuple)
    values = [*other.value] or [()] if many else [other.value]
    if need.reads:
        given = _brought(need, known)
        left = {*need.reads}.difference(given)
        return bool(need.but and not given) or _is_read(left, other.value, known)
    if need.own or need.never:
        return _fits_models(need, values, known)
    if need.a_file is not None:
        return need.a_file == any(one and Path(str(one)).expanduser().is_file() for one in values)
    if need.address:
        return any("://" in str(one) for one in values)
    if need.one_of:
        return any(one in need.one_of for one in values)
    if need.none_of:
        return not any(one in need.none_of for one in values)
    return other.is_given


def _fits_models(need: Needs, values: Sequence[Any], known: Mapping[str, ChosenOption]) -> bool:
    """Whether the sources are the user's own, or a model that never saw their facts is known."""
    registry = load_registry(known["registry"].value if "registry" in known else None)
    if need.own:
        ours = shipped().values()
        return not all(registry.get(one) in ours for one in values)
    sources = several(known["source"].value) if "source" in known else ()
    retain = [*filter(None, values)] or several(usual_anchor("retain", sources, registry))
    return bool(retain) and NO_RETAIN_MODEL not in retain


def _brought(need: Needs, known: Mapping[str, ChosenOption]) -> dict[str, ChosenOption]:
    """Of what a need reads, what does not count -> the option that brings it."""
    pairs = ((read, known[field]) for read, field in need.but if field in known)
    return {read: one for read, one in pairs if one.is_given}


def _is_read(wanted: Collection[str], asked: Any, known: Mapping[str, ChosenOption]) -> bool:
    """Whether a metric that is asked for reads one of these; True for unknown metric names."""
    from lensaudit.metrics.registry import ordered, retain_names  # half a second to import

    suite = known["suite"].value if "suite" in known else "tofu"
    try:
        metrics = ordered(suite, in_commas(asked) if isinstance(asked, str) else asked)
    except InputError:
        return True
    reads = [each for one in metrics for each in one.reads[suite]]
    read = {name for one in reads for name in (one.kind, one.of, one.field)}
    return not read.isdisjoint(wanted) or (OF_A_LOG in wanted and bool(retain_names(metrics)))


def _wanted(need: Needs, other: ChosenOption, known: Mapping[str, ChosenOption]) -> str:
    said = _said(need, other)
    if need.but:
        flags = " and ".join(dict.fromkeys(one.flag for one in _brought(need, known).values()))
        return f"no metric that is asked for{_here(other)} reads other rows than {flags}{_OUT}"
    beside = need.unless and known.get(need.unless.field)
    if need.unless is not None and beside is not None and said.startswith("needs "):
        return f"{said.removesuffix(_OUT)}, or {_said(need.unless, beside).removeprefix('needs ')}"
    return said


_OUT = "; leave it out"


def _here(other: ChosenOption) -> str:
    here = ", ".join(map(str, other.value)) if isinstance(other.value, tuple) else other.value
    return "" if here in (None, "") else f" (here {here})"


def _said(need: Needs, other: ChosenOption) -> str:
    """What an option needs of another one, in words."""
    found = _here(other)
    if need.own or need.never:
        who = "of your own" if need.own else f"that never saw the facts ({other.flag})"
        return f"acts beside a model {who}{found}{_OUT}"
    if need.a_file is not None:
        return f"needs {other.flag}, a file of rows{found}{_OUT}"
    if need.reads:
        what = " or ".join(dict.fromkeys(SAID.get(one, one) for one in need.reads))
        return f"no metric that is asked for{found} {what}; leave it out, or ask for one that does"
    if need.address:
        return f"acts where {other.flag} is an address (http://…){found}; leave it out"
    if need.one_of == (None,):
        return f"does nothing beside {other.flag}{found}; leave one of them out"
    if need.one_of:
        wanted = " or ".join(str(one) for one in need.one_of if one not in (None, ()))
        return f"needs {other.flag} {wanted}{found}; leave it out"
    if need.none_of:
        return f"does nothing with {other.flag} {other.value}; leave it out"
    return f"needs {other.flag}, which is not given"


SAID: Mapping[str, str] = {
    "text": "generates",
    "jailbreak": "generates",
    "fluency": "generates",
    "retain": "reads rows to keep",
    "holdout": "reads rows that no model saw",
    "reference": "reads a reference model",
    "controls": "looks inside through a map (uds_aligned, uds_validity)",
    "patched": "looks inside",
    OF_A_LOG: "is compared with a retain model's",
}
"""What a metric reads -> how a message says it."""
