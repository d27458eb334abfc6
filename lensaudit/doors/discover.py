"""What lies in a folder that a project file could name? Models by role, rows by their columns.

Nothing is loaded: models are hashed, manifests and the first rows read. A role is known from the
manifest of a run, else from the registry, else from the folder's name; what none of them says is
left open, with its candidates.
"""

import gzip
import json
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from lensaudit.data.annotate import Fields, read_pairs
from lensaudit.data.facts import load_facts
from lensaudit.data.rows import NO_LIST, read_rows
from lensaudit.data.tables import TABLES, table_rows
from lensaudit.errors import InputError
from lensaudit.files import check_plain, read_json
from lensaudit.groups import GROUPS
from lensaudit.models.checkpoint import open_checkpoint, place_of
from lensaudit.models.likeness import check_same_shape
from lensaudit.models.registry import ModelSpec, load_registry, resolve
from lensaudit.project import ROWS, Project, annotated_beside
from lensaudit.results.locate import folders_below
from lensaudit.results.manifest import MANIFEST
from lensaudit.results.reading import part
from lensaudit.results.roles import ModelRole, check_roles
from lensaudit.settings import several
from lensaudit.text import printable

DEPTH = 4
"""Levels of folders below the first that are searched."""
MOST_FILES = 500
READ_BYTES = 1 << 20
"""Of a large file of rows, to see its columns."""
_LARGE = 4 << 20
"""Bytes of a file, unpacked, that are read whole."""
_CLOSED = {"activations", "experiments", "node_modules", "passes", "venv", "__pycache__"}
_ROLES: Mapping[str, re.Pattern[str]] = {
    "full": re.compile(r"^(full|finetuned?|ft|original|target)$"),
    "retain": re.compile(r"^(retain\d*|retrain(ed)?)$"),
}
_SETS: Mapping[str, re.Pattern[str]] = {
    "forget": re.compile(r"^(forget\d*|unlearn|forgotten)$"),
    "retain_rows": re.compile(r"^(retain\d*|kept|keep)$"),
    "holdout": re.compile(r"^(holdout\d*|heldout|unseen)$"),
}
_COLUMNS: Mapping[str, Sequence[str]] = {
    "question": ("question", "prompt", "query", "instruction", "input"),
    "answer": ("answer", "response", "completion", "output", "target"),
    "group": ("group", "author", "subject", "person", "topic", "document", "title", "name"),
}
"""Field -> what it may be called, the likeliest first."""
_USUAL = Fields(group="author")
"""Fields of rows that nothing annotates."""
_UNREAD = (".parquet", ".xlsx")
_NO_ROWS = "no list of JSON objects, no JSON object a line, no table"
_TOO_LARGE = "too large to look into; `lensaudit annotate FILE` reads all of it"
_WITHIN = re.compile(r'\s*\{\s*"[^"\\\[]*"\s*:\s*\[\s*\{')
"""An object that begins with a list of objects."""
_GAP = re.compile(r"[ ,\r\n\t]*")


@dataclass(frozen=True)
class Discovered:
    """What a folder holds."""

    chosen: Mapping[str, Any]
    """Key of the project file -> value, where there is no doubt."""
    open: Mapping[str, tuple[str, ...]]
    """Key without a certain value -> candidates, perhaps none."""
    strange: Mapping[str, str]
    """What was looked at and not understood -> what it lacks."""
    because: Mapping[str, str]
    """Model -> the reason for its role."""

    def with_answer(self, key: str, value: str) -> "Discovered":
        """The discovery with a person's answer put in."""
        sources = tuple(one for one in self.chosen.get("sources", ()) if one != value)
        chosen = {**self.chosen, key: (value,) if key == "retain" else value}
        if "sources" in chosen:
            chosen["sources"] = sources
        left = {name: found for name, found in self.open.items() if name != key}
        return replace(self, chosen=chosen, open=left)

    def text(self) -> str:
        """Content of the project file."""
        lines = [*_HEAD]
        for key, words in _WORDS.items():
            if key in self.chosen:
                value = self.chosen[key]
                because = self.because.get(value if isinstance(value, str) else [*value, ""][0])
                why = f"  # {because}" if because and key in ("full", "retain") else ""
                # TOML's basic strings escape as JSON's do
                lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}{why}")
            elif key in self.open:
                # what an adapter's author wrote must not end the comment
                found = " ".join(printable(", ".join(self.open[key])).split())
                lines.append(f"# {key} = …  # {words}" + (f"; perhaps {found}" if found else ""))
        return "\n".join([*lines, *_TAIL, ""])


_HEAD = (
    "# What lensaudit audits. Places are relative to this file; options of a command override it.",
)
_WORDS = {
    "full": "the model before unlearning",
    "retain": "models that never saw the forget rows",
    "sources": "unlearned models to audit",
    "forget": "question/answer rows that were unlearned; `lensaudit annotate` marks their facts",
    "data": "annotated forget rows",
    "retain_rows": "question/answer rows that should be kept",
    "retain_data": "annotated retain rows",
    "holdout": "rows no model saw, for membership attacks",
    "question": "field that is asked",
    "answer": "field that answers",
    "group": "field that names the author: what intervals resample",
}
_TAIL = (
    '# device = "auto"',
    '# out = "experiments/out"',
    "# [patch]                        # options of one command alone",
    "# tau = 0.05",
)


def discover(folder: Path) -> Discovered:
    """What a folder holds, as far as its files say.

    Raises:
        InputError: it is no folder.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; name the one with models and rows")
    strange: dict[str, str] = {}
    roles, rows = _models(folder, strange), _rows(folder, strange)
    named = {role: tuple(found) for role, found in roles.items()}
    left = {role: named["sources"] for role, found in named.items() if not found}
    chosen: dict[str, Any] = {role: found for role, found in named.items() if found}
    if len(named["full"]) == 1:
        chosen["full"] = named["full"][0]
    elif named["full"]:
        left["full"] = chosen.pop("full")
    _choose_rows(rows, chosen, left)
    because = {place: why for found in roles.values() for place, why in found.items()}
    return Discovered(chosen, left, strange, because)


def check_project(project: Project) -> list[str]:
    """What a project file names: a line for each part, once it was looked at.

    Raises:
        InputError: a model or a file is not there, or cannot belong to the others.
    """
    registry = load_registry(project.registry)
    by_role: Mapping[ModelRole, Sequence[str]] = {
        "full": several(project.full),
        "retain": project.retain,
        "source": project.sources,
    }
    named: list[tuple[ModelRole, ModelSpec]]
    named = [(role, resolve(one, registry)) for role, some in by_role.items() for one in some]
    here = [open_checkpoint(spec, allow_packed=True) for _, spec in named if spec.is_here]
    if len(here) > 1:
        check_same_shape(*here)
    if project.full is not None:  # else a source may turn out to be it
        check_roles([place_of(role, spec) for role, spec in named])
    lines = [f"models: {len(named)} found, {len(here)} of them folders"]
    fields = Fields(project.question, project.answer, project.group)
    for key in ("forget", "retain_rows"):
        if (path := getattr(project, key)) is not None:
            n = len(read_pairs(path, fields))
            lines.append(f"{key}: {n} rows in {path}; `lensaudit annotate` marks their facts")
    if project.forget is None and project.data is not None and project.data.endswith(ROWS):
        lines.append(f"data: {len(load_facts(Path(project.data)))} annotated rows")
    return lines


def _choose_rows(
    rows: Mapping[str, Fields | None],
    chosen: dict[str, Any],
    left: dict[str, tuple[str, ...]],
) -> None:
    """The file of rows of each kind, the annotated one of several; else the key is left open."""
    made = {str(annotated_beside(Path(one))) for one, fields in rows.items() if fields}
    rows = {one: fields for one, fields in rows.items() if one not in made}  # made of another
    kinds = {one: _kind_of(Path(one).stem, _SETS) for one in rows}
    loose = [one for one, kind in kinds.items() if kind is None]
    columns: Fields | None = None
    for kind, annotated in (("forget", "data"), ("retain_rows", "retain_data"), ("holdout", "")):
        found = [one for one in rows if kinds[one] == kind]
        if kind == "forget" and not found and len(loose) == 1:
            found = loose
        best = [one for one in found if rows[one] is None and annotated] or found
        if len(best) != 1:
            left[kind] = tuple(best or loose)
            continue
        (place,) = best
        fields = rows[place] or Fields()
        if rows[place] is None and annotated:
            chosen[annotated] = place
        elif annotated and columns and not _reads(columns, fields):
            left[kind] = (f"{place}, whose fields have other names",)
        elif not annotated and not _reads(_USUAL, fields):
            left[kind] = (f"{place}, once its fields are named question, answer and author",)
        else:
            chosen[kind], columns = place, fields if annotated else columns
    own = vars(columns or Fields())
    chosen |= {name: own[name] for name, same in vars(Fields()).items() if own[name] != same}


def _reads(fields: Fields, own: Fields) -> bool:
    """Whether rows with fields of their own can be read under the names of other rows' fields."""
    # rows may name no author, unless others name it in a field that the project then has to name
    without = own.group == Fields().group and fields.group in GROUPS
    return (without or own.group == fields.group) and (own.question, own.answer) == (
        fields.question,
        fields.answer,
    )


def _models(folder: Path, strange: dict[str, str]) -> dict[str, dict[str, str]]:
    """Role -> model below a folder -> who says so; what only looks like one is strange."""
    models, adapters = list[Path](), list[Path]()
    for place, names in _walk(folder):
        weights = any(one.endswith(".safetensors") for one in names)
        if "config.json" in names and weights:
            models.append(place)
        elif "adapter_config.json" in names:
            adapters.append(place)
        elif "config.json" in names or weights:
            lacks = "config.json" if weights else "weights in safetensors"
            strange[place.relative_to(folder).as_posix()] = f"a model without {lacks}"
    registry = {one.local.resolve(): one.role for one in load_registry().values() if one.local}
    starts = {_start_of(place) for place in (*models, *adapters)}
    shown = {
        place: f"./{place.relative_to(folder).as_posix()}" if place != folder else "."
        for place in (*models, *adapters)
    }
    found: dict[str, dict[str, str]] = {"full": {}, "retain": {}, "sources": {}}
    for place in sorted(shown):
        if place in models:
            role, because = _role_of(place, registry.get(place.resolve()), starts)
            found[role][shown[place]] = because
            continue
        base = str(read_json(place / "adapter_config.json").get("base_model_name_or_path") or "")
        near = base and (folder / base).is_dir()
        start = f"./{Path(base).as_posix()}" if near else base
        found["sources"][f"{start}+{shown[place]}"] = "an adapter"
    return found


def _role_of(place: Path, known: str | None, starts: Collection[Path | None]) -> tuple[str, str]:
    """Role of a checkpoint, and who says so; `known`: what the registry calls it."""
    if _start_of(place) is not None:
        return "sources", f"its {MANIFEST} names the model it was made from"
    if place.resolve() in starts:
        return "full", "another folder's manifest was made from it"
    if known in ("full", "retain", "unlearned"):
        return ("sources" if known == "unlearned" else known), "the registry says so"
    return _kind_of(place.name, _ROLES) or "sources", "from the folder's name"


def _start_of(place: Path) -> Path | None:
    """The folder of the model that a run of `unlearn` and its like began with."""
    try:
        made = read_json(place / MANIFEST)
    except InputError:
        return None
    start = part(made, "options").get("model")
    return Path(start).expanduser().resolve() if isinstance(start, str) else None


def _rows(folder: Path, strange: dict[str, str]) -> dict[str, Fields | None]:
    """Files of rows and their fields, None of annotated ones; what only seems one is strange."""
    found: dict[str, Fields | None] = {}
    for place, names in _walk(folder):
        if {"config.json", "adapter_config.json", MANIFEST} & set(names):
            continue
        for one in sorted(names):
            shown = (place / one).relative_to(folder).as_posix()
            suffix = _suffix(one)
            if suffix in _UNREAD:
                readable = ", ".join((*ROWS, *TABLES))
                strange[shown] = f"rows are read from {readable}; save it as one of these"
            elif suffix in (*ROWS, *TABLES):
                fields = _fields_of(*_first_rows(place / one))
                told: dict[str, Any] = strange if isinstance(fields, str) else found
                told[shown] = fields
    return found


def _suffix(name: str) -> str:
    """What a file of rows is written as; packed or not.

    >>> _suffix("Forget.CSV.gz")
    '.csv'
    """
    return Path(name.lower().removesuffix(".gz")).suffix


def _fields_of(rows: Sequence[Any], problems: Sequence[str]) -> Fields | str | None:
    """What the fields of rows are called, None where they are annotated; or why they are none."""
    if problems or not rows or not all(isinstance(row, Mapping) for row in rows):
        return next((one for one in problems if not one.startswith(NO_LIST)), _NO_ROWS)
    keys = set.intersection(*(set(row) for row in rows))
    if {"question", "answer", "prefix"} <= keys and {"entity", "gt_entity"} & keys:
        return None
    named = {usual: [one for one in names if one in keys] for usual, names in _COLUMNS.items()}
    if lacks := [name for name in ("question", "answer") if not named[name]]:
        return f"no field for {' and '.join(lacks)} among {', '.join(sorted(keys)[:8])}"
    for key in _COLUMNS["group"]:
        values = [row.get(key) for row in rows]
        # the same for several rows, so that it can name their author
        if all(isinstance(one, int | str) for one in values) and len(set(values)) < len(values):
            return Fields(named["question"][0], named["answer"][0], key)
    return Fields(named["question"][0], named["answer"][0])


def _first_rows(path: Path) -> tuple[list[Any], list[str]]:
    """The rows of a file, or of the first part of a large one, and what is wrong with others."""
    try:
        check_plain(path)
        with path.open("rb") as stream:
            packed = stream.peek(2)[:2] == b"\x1f\x8b"
            head = (gzip.GzipFile(fileobj=stream) if packed else stream).read(_LARGE + 1)
        if len(head) <= _LARGE:
            rows, problems = read_rows(path)
            return [row for _, row in rows], problems
    except (InputError, OSError, EOFError, ValueError, RecursionError, zlib.error):
        return [], []
    text = head[:READ_BYTES].decode(json.detect_encoding(head), "ignore")
    with suppress(ValueError, RecursionError):
        lines = text.replace("\r\n", "\n").replace("\r", "\n")
        rows, problems = _cut_rows(lines, _suffix(path.name))
        if rows:
            return rows, problems
    return [], [_TOO_LARGE]


def _cut_rows(text: str, suffix: str) -> tuple[list[Any], list[str]]:
    """The whole rows in the first part of a file, and what is wrong with others."""
    lines = text.split("\n")[:-1]
    if suffix in TABLES:
        # a row goes on behind a line break in quotes, so that the cut may leave one open
        odd = [n for n, line in enumerate(lines) if line.count('"') % 2]
        whole = lines[: odd[-1]] if len(odd) % 2 else lines
        rows, problems = table_rows("\n".join(whole), TABLES[suffix])
        return [row for _, row in rows], problems
    if text.lstrip().startswith("["):
        return _cut_list(text), []
    with suppress(ValueError):
        if rows := [json.loads(line) for line in lines if line.strip()]:
            return rows, []
    return _cut_list(text) if suffix == ".json" and _WITHIN.match(text) else [], []


def _cut_list(text: str) -> list[Any]:
    """The whole objects at the beginning of a list that is cut off."""
    decoder, rows, at = json.JSONDecoder(), [], text.index("[") + 1
    while gap := _GAP.match(text, at):
        try:
            row, at = decoder.raw_decode(text, gap.end())
        except ValueError:
            break
        rows.append(row)
    return rows


def _kind_of(name: str, kinds: Mapping[str, re.Pattern[str]]) -> str | None:
    """The kind that one word of a name says; None where none or several do.

    >>> _kind_of("forget10_rows", _SETS), _kind_of("npo_full", _SETS), _kind_of("ft-7b", _ROLES)
    ('forget', None, 'full')
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    found = [kind for kind, pattern in kinds.items() if any(map(pattern.match, words))]
    return found[0] if len(found) == 1 else None


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders from the first down, with the names in them; hidden ones and results are left out.

    A link to a folder elsewhere is followed, once.
    """
    return islice(_below(folder, DEPTH, {folder.resolve()}), MOST_FILES)


def _below(folder: Path, depth: int, seen: set[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Folders, and those that links lead to, but for what was seen or lies in what was."""
    links = list[Path]()
    for place, names in folders_below(folder, depth, closed_by=["pyvenv.cfg"], skipped=_CLOSED):
        yield place, names
        shown = (place / name for name in names if name[:1] != "." and name not in _CLOSED)
        links += [one for one in shown if one.is_symlink() and one.is_dir()]
    for link in sorted(links):
        target, left = link.resolve(), depth - len(link.relative_to(folder).parts)
        if left >= 0 and not any(target.is_relative_to(one) for one in seen):
            yield from _below(link, left, seen | {target})
            seen.add(target)
