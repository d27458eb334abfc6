"""What is a model called on the page, and what was it made with?"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePath

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.models.registry import shipped
from lensaudit.results.reading import part

_EPOCH = re.compile(r"(?:^|[_-])(?:ep|epoch)_?(\d+)(?=$|[_-])")


@dataclass(frozen=True)
class Made:
    """Method and epochs, where the registry or the folder's manifest says them."""

    method: str | None
    epoch: str | None
    role: str | None


def made_with(name: str) -> Made:
    """What a name of the registry stands for; of a folder what its manifest says.

    A folder may have any name: nothing is read off it.

    >>> made_with("npo_lr5e5_b05_a1_ep10")
    Made(method='NPO', epoch='10', role='unlearned')
    >>> made_with("runs/npo_lr5e5_b05_a1_ep10"), made_with("demo/retain").role
    (Made(method=None, epoch=None, role=None), 'retain')
    """
    spec = shipped().get(name)
    if spec is None:
        return _from_manifest(Path(name))
    found = _EPOCH.search(spec.alias_of or spec.name)
    return Made(spec.method, found[1] if found else None, spec.role)


def _from_manifest(folder: Path) -> Made:
    """What `lensaudit unlearn` wrote beside the weights; nothing of a folder that is not there."""
    try:
        content = read_json(folder / "manifest.json")
    except InputError:
        return Made(None, None, None)
    method = part(content, "inputs").get("method")
    return Made(method if isinstance(method, str) else None, None, None)


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
