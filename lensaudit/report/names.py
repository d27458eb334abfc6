"""What is a model called on the page, and what was it made with? From its name alone."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePath

from lensaudit.models.published import published

_EPOCH = re.compile(r"(?:^|[_-])(?:ep|epoch)_?(\d+)(?=$|[_-])")


@dataclass(frozen=True)
class Made:
    """Method and epochs, where a name says them."""

    method: str | None
    epoch: str | None
    role: str | None


def made_with(name: str) -> Made:
    """What a published name means; of another, what can be read off it.

    >>> made_with("npo_lr5e5_b05_a1_ep10")
    Made(method='NPO', epoch='10', role='unlearned')
    >>> made_with("runs/mine_epoch3"), made_with("demo/retain").role
    (Made(method=None, epoch='3', role=None), 'retain')
    """
    last = PurePath(name).name
    spec = _SPECS.get(name) or _SPECS.get(last)
    found = _EPOCH.search(spec.alias_of or spec.name if spec else last)
    epoch = found[1] if found else None
    if spec is None:
        return Made(None, epoch, None)
    return Made(spec.method, epoch, spec.role)


def labels(names: Iterable[str]) -> dict[str, str]:
    """Short names for a table: a folder's last part, where that is not ambiguous.

    >>> labels(["demo/npo", "runs/a/npo", "/data/b", "/data/full"])["/data/b"]
    'b'
    """
    known = list(dict.fromkeys(names))
    last = {name: PurePath(name).name for name in known if name[:1] in ("/", ".", "~")}
    taken = [last.get(name, name) for name in known]
    return {
        name: short if taken.count(short) == 1 else name
        for name, short in zip(known, taken, strict=True)
    }


def told_apart(folders: Sequence[Path]) -> list[str]:
    """The first part of each path in which they all differ; numbers where there is none.

    >>> told_apart([Path("out/base/npo/patch"), Path("out/nf4/npo/patch")])
    ['base', 'nf4']
    """
    for parts in zip_longest(*(folder.parts for folder in folders), fillvalue=""):
        if len(set(parts)) == len(parts):
            return list(parts)
    return [str(n) for n in range(1, len(folders) + 1)]


_SPECS = {spec.name: spec for spec in published()}
