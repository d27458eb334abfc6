"""Names of models: one of the registry, a Hub repository or a folder becomes a `ModelSpec`.

The published TOFU models of the `open-unlearning` Hub organisation are products of hyper-parameter
grids, so the grids are written in `published.json` and the 398 names are generated. The Hub cannot
be listed offline: a name says "published", not "exists".
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import lensaudit
from lensaudit.errors import InputError
from lensaudit.files import read_json, read_text, read_toml
from lensaudit.results.reading import json_object
from lensaudit.settings import NO_RETAIN_MODEL, Models, Place, several, user_cache
from lensaudit.text import is_path

VARIABLE = "LENSAUDIT_REGISTRY"
"""Environment variable that names the registry file where no option does."""

MODELS_VARIABLE = "LENSAUDIT_MODELS"
"""Environment variable that names the folder of fetched models."""

FETCHED = ("smollm2/base",)
"""Names of models that `lensaudit models fetch` makes; see `lensaudit.models.fetch`."""

DEMO = "demo/"
"""Names of the embedded family begin so."""

REAL = "smollm2/"
"""So do those of its counterpart on a pretrained model, which has to be fetched."""

EMBEDDED = Path(lensaudit.__file__).parent / "embedded"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

_REVISION = re.compile(r"[A-Za-z0-9][\w./-]*", re.ASCII)

_NAME = re.compile(r"[\w-][\w. +-]*(/[\w-][\w. +-]*)?")

_KEYS = ("repo", "path", "revision", "role", "method", "adapter")

_WANTED = (
    'wanted: name = "organisation/name", name = "folder", or a table with repo or path and '
    "optionally revision, role, method, adapter"
)

Role = Literal["full", "retain", "unlearned", "pool_knows", "pool_forgot", "scale", "base"]


@dataclass(frozen=True)
class ModelSpec:
    """A name and the checkpoint it stands for."""

    name: str
    """What the user types; hyper-parameters are in it."""
    repo: str
    """`organisation/name` on the Hugging Face Hub, or the folder."""
    revision: str | None
    """Branch, tag or commit on the Hub; None for a folder."""
    role: Role
    """Role of the model; `unlearned` unless stated."""
    method: str | None
    """Unlearning method (`IdkNLL`), or the training data of a pool model."""
    alias_of: str | None = None
    """The longer name this one is short for."""
    local: Path | None = None
    """The folder, for a checkpoint on disk."""
    adapter: "ModelSpec | None" = None
    """LoRA weights merged into the checkpoint when it is loaded, themselves a folder or on the
    Hub."""
    elsewhere: str | None = None
    """Another checkpoint that a document calls by this alias."""

    @property
    def is_here(self) -> bool:
        """Whether checkpoint and adapter lie in folders; the Hub is not asked for any."""
        return self.local is not None and (self.adapter is None or self.adapter.local is not None)

    @property
    def alias(self) -> dict[str, str]:
        """The meaning of a short name, for a manifest: here, and in another document."""
        said = {"alias_of": self.alias_of, "elsewhere": self.elsewhere}
        return {key: one for key, one in said.items() if one}


Registry = Mapping[str, ModelSpec]
"""All names that can be asked for, aliases included."""


def load_registry(path: Place | None = None) -> Registry:
    """Published and embedded names, with those of a TOML or JSON file added or overriding.

    Without `path` the file named by `LENSAUDIT_REGISTRY` is read, if that is set. Folders in the
    file are relative to the file.

    Raises:
        InputError: the file cannot be read or holds wrong entries; all are listed.
    """
    if path is None and os.environ.get(VARIABLE):
        path = os.path.expanduser(os.environ[VARIABLE])
    known = shipped()
    return known if path is None else {**known, **_read_entries(Path(path), known)}


_DATA: Mapping[str | None, str] = {"": "forget10", DEMO: "demo", REAL: "demo"}
"""Family -> the forget set that goes with it."""


def family_of(spec: ModelSpec) -> str | None:
    """How names of the `full` and `retain` that go with a checkpoint begin; None: nobody knows.

    It follows from where the checkpoint lies: of somebody's own folders it is not known. A registry
    file that gives one of our names to another checkpoint says that it is of our family.
    """
    known = shipped()
    spec = known.get(spec.name, spec)
    if ((spec.adapter and spec.adapter.local) or Path()).is_relative_to(EMBEDDED / "real"):
        return REAL
    if (spec.local or Path()).is_relative_to(EMBEDDED):
        return DEMO
    return "" if spec.local is None or spec.name in known else None


def _families(models: Sequence[str], registry: Registry) -> dict[str, str | None]:
    """Model -> its family; one of the registry need not be here yet."""
    return {one: family_of(registry.get(one) or resolve(one, registry)) for one in models}


def data_of(models: Sequence[str], registry: Registry) -> str | None:
    """The forget set that goes with all of the models; None: nobody knows it, or there are several.

    Raises:
        InputError: a model is no name and no folder.
    """
    found = {_DATA.get(one) for one in _families(models, registry).values()}
    return found.pop() if len(found) == 1 else None


def default_data(model: str, file: Place | None = None) -> str:
    """The forget set of a model: the fictional one of what comes along, or TOFU's.

    Args:
        model: a name, or a folder.
        file: which adds names, as of `load_registry`.

    Raises:
        InputError: it is a folder of somebody's own: which rows it should forget nobody knows.
    """
    if (data := data_of([model], load_registry(file))) is None:
        raise InputError(
            f"{model}: a folder of your own; name the rows to ask it about with --data: a file, or "
            "forget10 for TOFU's"
        )
    return data


def usual_anchor(anchor: str, sources: Sequence[str], registry: Registry) -> str | None:
    """`full` or `retain` of the family of the sources; None: beside an own folder it is not known.

    It is, where a registry file says what that name stands for.

    Raises:
        InputError: a source is no name and no folder.
    """
    families = {*_families(sources, registry).values()}
    prefixes = {one or "" for one in families}
    name = f"{prefixes.pop()}{anchor}" if len(prefixes) == 1 else anchor
    return None if None in families and registry.get(name) in published() else name


def anchors_of(
    sources: Sequence[str],
    full: str | None,
    retain: str | Sequence[str] | None,
    registry: Registry,
    *,
    without: bool = False,
) -> tuple[str, tuple[str, ...]]:
    """`full` and the retain models of a run: those that are named, else the sources' family's.

    Args:
        sources: names or folders.
        full: that is named, if one is.
        retain: those that are named, if any.
        registry: names that can be asked for.
        without: the run can do without a retain model, and beside own folders it does: `none`.

    Raises:
        InputError: a source is no name and no folder, or an own folder beside which a model must be
            named; or `none` is named beside a model.
    """
    if NO_RETAIN_MODEL in (named := several(retain)) and len(named) > 1:
        raise InputError(
            f"--retain {NO_RETAIN_MODEL}: is named together with models; name it alone, or "
            "models alone"
        )
    full = full or usual_anchor("full", sources, registry)
    never = named or several(usual_anchor("retain", sources, registry))
    if full is None or not (never or without):
        role, what = "retain", "a model that never saw the facts"
        if full is None:
            role, what = "full", "the model before unlearning"
        own = next(one for one, of in _families(sources, registry).items() if of is None)
        raise InputError(
            f"{own}: is a folder of your own; name {what} with --{role}, or as `{role}` in "
            "lensaudit.toml"
        )
    return full, never or (NO_RETAIN_MODEL,)


def specs_of(sources: Sequence[str], settings: Models) -> dict[str, ModelSpec]:
    """What the names of a run stand for, by role: `full`, `retain`, `source NAME`, `retain NAME`.

    The last are further models that never saw the facts. With `--retain none` `full` stands where
    `retain` would.

    Raises:
        InputError: no such name or folder, or as `anchors_of`.
    """
    registry = load_registry(settings.registry)
    full, (retain, *more) = anchors_of(sources, settings.full, settings.retain, registry)
    names = {"full": full, "retain": full if retain == NO_RETAIN_MODEL else retain}
    names |= {f"source {one}": one for one in sources} | {f"retain {one}": one for one in more}
    return {role: resolve(name, registry) for role, name in names.items()}


def base_spec(
    sources: Iterable[ModelSpec], named: str | None, registry: Registry
) -> ModelSpec | None:
    """The model before fine-tuning: the one that is named, else that of the embedded family.

    None where nobody names one and a source is of another family.

    Raises:
        InputError: no such name or folder.
    """
    if named:
        return resolve(named, registry)
    if all(family_of(one) == DEMO for one in sources):
        return resolve(f"{DEMO}base", registry)
    return None


def lasting_name(spec: ModelSpec) -> str:
    """What resolves to the same checkpoint in any folder, and without a registry file."""
    if spec == shipped().get(spec.name):
        return spec.name
    base = str(spec.local) if spec.local else f"{spec.repo}@{spec.revision}"
    return f"{base}+{lasting_name(spec.adapter)}" if spec.adapter else base


def resolve(name: str, registry: Registry) -> ModelSpec:
    """The checkpoint that `name` means; nothing is loaded or downloaded.

    In this order: a registry name or alias, `name@revision`, the full name of a published
    repository, a folder that holds `config.json`, and any `organisation/name[@revision]`.
    `base+adapter` is the first of these with a LoRA adapter: a folder, or a Hub repository.

    Raises:
        InputError: no such name or folder; the nearest names are listed.
    """
    if name == f"{DEMO}base":  # not in family.json: it is no model to audit
        return _in_folder(name, EMBEDDED / "base", {"role": "retain", "method": None})
    if "://" in name:  # a key may stand in it
        scheme = name.partition("://")[0]
        raise InputError(f"{scheme}://…: is an address; only `lensaudit know --source` takes one")
    base, at, revision = name.partition("@")
    spec = registry.get(base) or _by_repository().get(base)
    folder = Path(os.path.abspath(os.path.expanduser(name)))
    if "+" in (revision if base in registry else name) and not os.path.exists(folder):
        return _with_adapter(name, registry)
    if spec is None and name.strip() and os.path.exists(folder):
        return _checked_folder(ModelSpec(name, str(folder), None, "unlearned", None), folder)
    if spec is None:
        return _from_hub(name, registry)
    if spec.local is not None and at:
        raise InputError(f"{name}: {base} is a folder, which has no revisions; name {base}")
    if spec.local is not None:
        return _checked_folder(spec, spec.local)
    return replace(spec, name=name, revision=_checked_revision(name, revision)) if at else spec


def _with_adapter(name: str, registry: Registry) -> ModelSpec:
    """The spec of `base+adapter`; a `+` may stand in a folder's name too."""
    splits = [(name[:at], name[at + 1 :]) for at, sign in enumerate(name) if sign == "+"]
    on_disk = [pair for pair in splits if os.path.exists(os.path.expanduser(pair[1]))]
    base, adapter = (on_disk or splits)[-1]
    spec, named = resolve(base, registry), _adapter_spec(adapter, Path())
    if spec.adapter is not None:
        raise InputError(f"{name}: {base} has an adapter already; only one can be merged")
    if named.local is not None and not os.path.isfile(named.local / "adapter_config.json"):
        raise InputError(
            f"{name}: no adapter at {adapter}; wanted a folder with adapter_config.json, or "
            "organisation/name[@revision]"
        )
    return replace(spec, name=name, role="unlearned", adapter=named)


def _adapter_spec(place: str, parent: Path) -> ModelSpec:
    """The spec of an adapter in a folder, relative to `parent`, or on the Hub."""
    folder = Path(os.path.abspath(parent / os.path.expanduser(place)))
    repo, at, revision = place.partition("@")
    if not os.path.exists(folder) and _HUB_ID.fullmatch(repo):
        revision = _checked_revision(place, revision) if at else "main"
        return ModelSpec(place, repo, revision, "unlearned", "LoRA")
    return ModelSpec(place, str(folder), None, "unlearned", "LoRA", local=folder)


def _from_hub(name: str, registry: Registry) -> ModelSpec:
    """A spec for a repository outside the registry, or the error for what is none."""
    repo, at, revision = name.partition("@")
    # as only paths are written: `./x`, `/x`, `~/x`, `a/b/c`, `x/`, or with a backslash
    if is_path(name) or repo.count("/") > 1 or name.endswith(("/", "\\")):
        raise InputError(f"{name}: no such folder; a folder with config.json is wanted")
    if name == NO_RETAIN_MODEL:
        raise InputError(
            f"{name}: a model that never saw the forget set is needed here; only `lensaudit "
            "patch --retain none` and `lensaudit know` do without one"
        )
    if not _HUB_ID.fullmatch(repo) or repo.startswith(DEMO):
        nearest = difflib.get_close_matches(name.lower(), list(registry), n=4, cutoff=0.5)
        hint = f"nearest: {', '.join(nearest)}; " if nearest else ""
        raise InputError(
            f"unknown model {name[:200]!r}; {hint}`lensaudit models` lists all names, and "
            "organisation/name or a folder works too"
        )
    revision = _checked_revision(name, revision) if at else "main"
    return ModelSpec(name, repo, revision, "unlearned", None)


def _checked_revision(name: str, revision: str) -> str:
    if not _REVISION.fullmatch(revision):
        raise InputError(f"{name}: {revision!r} is not a revision; wanted a branch, tag or commit")
    return revision


def _checked_folder(spec: ModelSpec, folder: Path) -> ModelSpec:
    """The spec of a folder that holds a model."""
    said = f"{folder}: no config.json; a folder saved by save_pretrained is wanted"
    if not os.path.exists(folder):
        said = f"{spec.name}: no such folder: {folder}"
        if spec.local == models_home() / FETCHED[0]:
            fetch = f"lensaudit models fetch {spec.name.partition('/')[0]}"
            said = f"{spec.name}: not fetched yet; run `{fetch}`"
    elif not os.path.isdir(folder):
        said = f"{folder}: is a file; a folder with config.json is wanted"
    elif os.path.isfile(folder / "config.json"):
        return replace(spec, local=folder)
    elif os.path.isfile(folder / "adapter_config.json"):
        said = f"{folder}: holds an adapter without its base model; name both: BASE+{spec.name}"
    raise InputError(said)


def shipped() -> Mapping[str, ModelSpec]:
    """Names that need no registry file: published, embedded, and those that can be fetched."""
    embedded = [
        _in_folder(DEMO + row["name"].removeprefix(DEMO), EMBEDDED / row["folder"], row)
        for row in _listed(EMBEDDED)
    ]
    return {spec.name: spec for spec in (*published(), *embedded, *fetched_specs())}


def fetched_specs() -> list[ModelSpec]:
    """A pretrained model that knows none of the facts, and our adapters on it."""
    base = models_home() / FETCHED[0]
    own = _in_folder(FETCHED[0], base, {"role": "base", "method": None})
    family = EMBEDDED / "real"
    return [own] + [
        replace(
            _in_folder(row["name"], base, row),
            adapter=_adapter_spec(str(family / row["folder"]), Path()),
        )
        for row in _listed(family)
    ]


def _in_folder(name: str, folder: Path, row: Mapping[str, Any]) -> ModelSpec:
    """A member of a family, as its listing has it."""
    return ModelSpec(name, str(folder), None, row["role"], row["method"], local=folder)


@cache
def _listed(family: Path) -> list[Mapping[str, Any]]:
    """The members of a family; none in a checkout that has not made it yet."""
    listing = family / "family.json"
    return read_json(listing) if listing.exists() else []


def models_home() -> Path:
    """Where `lensaudit models fetch` keeps models: `LENSAUDIT_MODELS`, or the user's cache."""
    return Path(os.path.expanduser(os.environ.get(MODELS_VARIABLE) or user_cache() / "models"))


@cache
def _by_repository() -> Mapping[str, ModelSpec]:
    """Published repositories by their names on the Hub, with and without the organisation."""
    named = [spec for spec in published() if spec.alias_of is None]
    bare = {spec.repo.removeprefix(f"{ORGANISATION}/"): spec for spec in named}
    return bare | {spec.repo: spec for spec in named}


def _read_entries(path: Path, shipped: Mapping[str, ModelSpec]) -> dict[str, ModelSpec]:
    """The specs of a registry file, or one error that lists all its problems."""
    entries, specs, problems = _read_file(path), {}, []
    for name, entry in entries.items():
        table = {"repo": entry} if isinstance(entry, str) else entry
        found = _entry_problems(name, table)
        problems += [f"{name!r}: {problem}" for problem in found]
        if not found:
            specs[name] = _entry_spec(name, table, path.parent, shipped.get(name))
    if problems:
        raise InputError(f"{path}: {'; '.join(problems[:20])}\n{_WANTED}")
    return specs


def _read_file(path: Path) -> Mapping[str, Any]:
    kind = path.suffix
    is_json = kind == ".json" or (kind != ".toml" and read_text(path).lstrip()[:1] in ("{", "["))
    return json_object(path) if is_json else read_toml(path)


def _entry_problems(name: str, table: Any) -> list[str]:
    """What is wrong with one entry of a registry file."""
    if not isinstance(table, dict):
        return [f"found {type(table).__name__}, wanted text or a table"]
    role, known = table.get("role", "unlearned"), get_args(Role)
    texts = [key for key in _KEYS if isinstance(one := table.get(key), str) and one.strip()]
    problems = {
        "not usable as a name; wanted letters, digits, . _ - and at most one /": (
            not _NAME.fullmatch(name)
        ),
        **{f"unknown key {key!r}": key not in _KEYS for key in table},
        **{f"{key} is not text": key in table and key not in texts for key in _KEYS},
        "wanted either repo or path": ("repo" in table) == ("path" in table),
        "a folder has no revision": "path" in table and "revision" in table,
        f"role is {role!r}, wanted one of {', '.join(known)}": role not in known,
    }
    return [problem for problem, holds in problems.items() if holds]


def _entry_spec(
    name: str, table: Mapping[str, Any], parent: Path, shipped: ModelSpec | None
) -> ModelSpec:
    """Spec of a registry entry; role and method of the name it overrides are kept unless given."""
    place: str = table.get("path") or table["repo"]
    folder = Path(os.path.abspath(parent / os.path.expanduser(place)))
    repo, _, revision = place.partition("@")
    is_folder = "path" in table or os.path.isdir(folder) or not _HUB_ID.fullmatch(repo)
    return ModelSpec(
        name=name,
        repo=str(folder) if is_folder else repo,
        revision=None if is_folder else table.get("revision", revision or "main"),
        role=table.get("role", shipped.role if shipped else "unlearned"),
        method=table.get("method", shipped.method if shipped else None),
        adapter=_adapter_spec(table["adapter"], parent) if "adapter" in table else None,
        local=folder if is_folder else None,
    )


ORGANISATION = "open-unlearning"

_PUBLISHED = Path(__file__).with_name("published.json")
"""Groups of repositories: role, names and the axes whose product is all of them; `method` is the
training data of a pool model (arXiv:2506.12618 section 4.1). Aliases: the method names mean the UDS
authors' defaults (gnueaj/unlearning-depth-score @ fc31639). Elsewhere: what the same name means in
an earlier document of theirs (CLAUDE.md of the activation patching audit)."""


@cache
def published() -> tuple[ModelSpec, ...]:
    """Every published checkpoint, then the aliases."""
    listed, found = read_json(_PUBLISHED), dict[str, ModelSpec]()
    for group in listed["groups"]:
        axes = group.get("axes", {})
        for values in product(*axes.values()):
            named = dict(zip(axes, values, strict=True))
            name = group["name"].format(**{axis: _short(axis, one) for axis, one in named.items()})
            repo = f"{ORGANISATION}/{group['repo'].format(**named)}"
            found[name] = ModelSpec(name, repo, "main", group["role"], named.get("method"))
    aliases = listed["aliases"].items()
    return (
        *found.values(),
        *(
            replace(found[to], name=one, alias_of=to, elsewhere=listed["elsewhere"].get(one))
            for one, to in aliases
        ),
    )


def _short(axis: str, value: str) -> str:
    """Points and minus signs are dropped, and learning rates written as powers of ten.

    >>> _short("beta", "0.05"), _short("lr", "0.0003")
    ('005', '3e4')
    """
    if axis == "lr":
        value = f"{float(value):.0e}".replace("e-0", "e")
    return value.replace(".", "").lower()
