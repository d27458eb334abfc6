"""Options of one metric: `NAME:key=value`, read, and held against what the metric declares."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lensaudit.errors import InputError
from lensaudit.settings import Option


@dataclass(frozen=True)
class Choice:
    """What may be chosen: a number in a range, a word of several, or a text."""

    default: Any = None
    kind: type[int] | type[float] | type[str] = str
    least: float | int | None = None
    most: float | int | None = None
    above: float | int | None = None
    one_of: tuple[str, ...] = ()
    field: bool = False
    """It names the field of a row's record that is averaged."""

    def read(self, text: Any, where: str) -> Any:
        """The value that a text says.

        Raises:
            InputError: it is of another kind, or not in the range.
        """
        try:
            value = self.kind(text)
        except ValueError:
            value, wanted = None, "a whole number" if self.kind is int else "a number"
        else:
            ranged = Option(least=self.least, most=self.most, above=self.above)
            wanted = "" if isinstance(value, str) else ranged.wanted(value)
        if self.one_of and value not in self.one_of:
            wanted = " or ".join(self.one_of)
        if wanted or value == "":
            raise InputError(f"{where}: found {text!r:.40}, wanted {wanted or 'a value'}")
        return value


def parsed(name: str) -> tuple[str, dict[str, str]]:
    """A metric's name, and the options that stand behind it.

    >>> parsed("mia_min_k:k=0.2:batch_size=8"), parsed("uds")
    (('mia_min_k', {'k': '0.2', 'batch_size': '8'}), ('uds', {}))

    Raises:
        InputError: what stands behind the name is no `key=value`, or a key stands there twice.
    """
    plain, *parts = name.split(":")
    said: list[str] = []
    for part in parts:
        if "=" in part or not said:
            said.append(part)
        else:
            said[-1] += f":{part}"  # of a place
    pairs = [one.partition("=") for one in said]
    keys = [key for key, _, _ in pairs]
    if not all(key and equals for key, equals, _ in pairs) or len({*keys}) < len(keys):
        raise InputError(f"--metric {name}: wanted NAME:key=value:key=value, each key once")
    return plain, {key: value for key, _, value in pairs}


def named_with(name: str, values: Mapping[str, Any]) -> str:
    """The name with options more, by key: one way to say the same.

    >>> named_with("mia_min_k:k=0.2", {"batch_size": 8})
    'mia_min_k:batch_size=8:k=0.2'
    """
    plain, said = parsed(name)
    every = sorted({**said, **values}.items())
    return ":".join([plain, *(f"{key}={value}" for key, value in every)])


def with_rest(names: Iterable[str]) -> list[str]:
    """Names in which a comma parted the options of one: `m:k=0.2,batch_size=8`.

    >>> with_rest(["m:k=0.2", "batch_size=8", "uds"])
    ['m:k=0.2:batch_size=8', 'uds']
    """
    found: list[str] = []
    for name in names:
        if found and "=" in name and ":" not in name.partition("=")[0]:
            found[-1] += f":{name}"
        else:
            found.append(name)
    return found
