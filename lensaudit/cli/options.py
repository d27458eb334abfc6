"""Options of commands, made from the fields of settings records."""

import dataclasses
import difflib
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from click.types import FloatParamType, IntParamType, StringParamType

from lensaudit import settings
from lensaudit.choices import option_in
from lensaudit.cli import library
from lensaudit.cli.terminal import notice
from lensaudit.errors import InputError
from lensaudit.settings import MODELS, NO_RETAIN_MODEL, Option, Place, Section, several

Command = TypeVar("Command", bound=Callable[..., Any])
_LARGEST = 2**31 - 1
_MOST_BYTES = 2.0**63
_UNDECODED = re.compile("[\ud800-\udfff]")
"""What the shell could not decode."""
_ONE_MODEL = ("--source", "--model")
"""What is held against `full`, and what is asked by itself: either word is understood."""
_SHARED = ("--set", "--constant")
"""Options that stand for many rare ones: --set and --constant."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def options(record: type, *names: str) -> Callable[[Command], Command]:
    """An option for each field of a settings record, or for those named.

    The command gets the record, at its parameter of that type. What a decorator nearer to the
    command has declared is not declared again; a field that is no option is filled by the argument
    of its name. Models that are named must be known: that is seen here, before anything that takes
    seconds is imported.
    """

    def decorate(command: Any) -> Any:
        if record not in getattr(command, "settings", ()):
            command = _taking(command, record)
        declared = {one.name for one in getattr(command, "__click_params__", ())}
        chosen = [
            one
            for one in options_of(record)
            if one.name not in declared and (not names or one.name in names)
        ]
        return _declared(command, reversed(chosen))

    return decorate


def _declared(command: Any, chosen: Iterable[click.Option]) -> Any:
    """The command with options more, the nearest to it first: click turns them round."""
    command.__click_params__ = [*getattr(command, "__click_params__", ()), *chosen]
    return command


def _taking(command: Callable[..., Any], record: type) -> Callable[..., Any]:
    """The command, called with a record in place of its fields."""
    place = next(name for name, hint in get_type_hints(command).items() if hint is record)

    @functools.wraps(command)
    def call(*positional: Any, **given: Any) -> Any:
        values = dict(given)
        settings = _build(record, given)
        if left_out := _left_out(settings, given):
            settings = _build(record, {n: one for n, one in values.items() if n not in left_out})
        if getattr(settings, "measures", True):  # else names are those of results
            _check_models(getattr(settings, "registry", None))
        return command(*positional, **{place: settings}, **given)

    call.settings = (*getattr(command, "settings", ()), record)  # type: ignore[attr-defined]
    return call


def _left_out(settings: Any, beside: Mapping[str, Any]) -> Collection[str]:
    """What a project file says in vain, and a remark on each.

    Raises:
        InputError: an option that was typed cannot act.
    """
    running = click.get_current_context()
    given = next((beside[name] for name in ("source", "sources") if name in beside), None)
    found = library.ask_acting.idle(settings, {"source": given} if given is not None else {})
    for name, line in found.items():
        if running.get_parameter_source(name) != ParameterSource.DEFAULT_MAP:
            raise InputError(line)
        notice(f"of the project file left out: {line}")
        running.params[name] = None
    return found


def _build(record: type, given: dict[str, Any]) -> Any:
    """The record of the values that are its own; they are taken out of `given`."""
    values = {}
    for one in dataclasses.fields(record):
        if dataclasses.is_dataclass(inner := _hints(record)[one.name]):
            values[one.name] = _build(inner, given)  # type: ignore[arg-type]
        elif one.name in given:
            values[one.name] = given.pop(one.name)
    return record(**values)


def _check_models(file: Place | None) -> None:
    """Refuse a model that is unknown, or on a Hub that does not answer, before slow imports."""
    running, known = click.get_current_context(), library.models_registry.load_registry(file)
    plans = " sweep " in running.command_path  # others fetch
    for one in running.command.params:
        if isinstance(one.type, ModelName):
            for name in several(running.params[str(one.name)]):
                served = "://" in name and one.type.addresses
                # who cannot do without a retain model says so
                if not served and (one.name, name) != ("retain", NO_RETAIN_MODEL):
                    spec = library.models_registry.resolve(name, known)
                    if name in known and os.path.isfile(os.path.join(name, "config.json")):
                        notice(f"{name}: the model of that name; the folder is ./{name}")
                    if spec.elsewhere is not None:
                        notice(
                            f"{name}: {spec.alias_of}; documents disagree, another one means "
                            f"{spec.elsewhere}"
                        )
                    if spec.local is None and not plans:
                        library.models_at_hand.check_at_hand(spec)


@functools.cache
def _hints(record: type) -> dict[str, Any]:
    return get_type_hints(record)


def options_of(record: type) -> list["SettingOption"]:
    """The fields that are options, by section; in each the required ones first.

    How a command scores is said before what it shares with others, as the judge's address.
    """
    groups = reversed(list(enumerate(record.__mro__)))
    shared = {name: at for at, group in groups for name in inspect.get_annotations(group)}

    def place(one: SettingOption) -> tuple[int, bool, int]:
        own = shared.get(str(one.name), 0) if one.section == "Scoring" else 0
        return get_args(Section).index(one.section), not one.required, own

    return sorted(_options(record), key=place)


def _options(record: type) -> Iterator["SettingOption"]:
    """The fields that are options, in order."""
    hints = get_type_hints(record, include_extras=True)
    rare: Collection[str] = getattr(record, "rare", ())
    # the heading of the group that first declares a field
    sections: dict[str, Section] = {
        name: vars(group).get("section", "Scoring")
        for group in record.__mro__
        for name in inspect.get_annotations(group)
    }
    for one in dataclasses.fields(record):
        hint = hints[one.name]
        if dataclasses.is_dataclass(hint):
            yield from _options(hint)  # type: ignore[arg-type]
        elif option_in(hint) is not None:
            made = one.default_factory is not dataclasses.MISSING
            usual = one.default_factory if made else one.default
            yield _option(one.name, hint, usual, sections[one.name], one.name in rare)


def _one_value(hint: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there are several.

    >>> _one_value(Annotated[int | None, Option()]), _one_value(tuple[str, ...])
    ((<class 'int'>, False), (<class 'str'>, True))
    >>> _one_value(str | Path | None)
    (<class 'pathlib.Path'>, False)
    >>> _one_value(str | tuple[str, ...] | None)
    (<class 'str'>, True)
    """
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]
    kinds = [one for one in choices if one is not NoneType]
    # a place is typed as text; one name or several: several
    tuples = [get_args(one)[0] for one in kinds if get_origin(one) is tuple]
    (kind,) = tuples or ([Path] if Path in kinds else kinds)
    return Path if Path in get_args(kind) else kind, bool(tuples)


def _option(
    name: str,
    hint: Any,
    default: Any = dataclasses.MISSING,
    section: Section = "Scoring",
    is_rare: bool = False,
) -> "SettingOption":
    """The option that a field's type says; without a default it must be given."""
    words = option_in(hint) or Option()
    kind, many = _one_value(hint)
    if words.section is not None:
        section = words.section
    elif words.is_a == "model":
        section = MODELS
    elif name == "out":
        section = "Output"
    required = default is dataclasses.MISSING
    shown: dict[str, Any] = {}
    if kind is bool:
        shown = {"is_flag": True}
    elif many:
        shown = {"multiple": True}
    elif words.none or (default is not None and not required):
        shown["default"] = words.none if default is None else default
        shown["show_default"] = bool(str(default)) and "[default" not in words.help
    rare = words.rare or ("set" if is_rare else "")
    by = words.now or (f"--{rare}" if rare else "")
    flags = words.flags(name)
    make = partial(RareOption, by=by) if by else SettingOption
    return make(
        [*flags, name],
        also=[one for one in _ONE_MODEL if flags[-1] in _ONE_MODEL and one != flags[-1]],
        old=words.old,
        commas=words.commas,
        type=None if kind is bool else _type(kind, words),
        required=required,
        section=section,
        expert=words.expert,
        typed=words.typed,
        help=words.help or None,
        metavar=words.metavar,
        envvar=words.variable,
        **shown,
    )


def _type(kind: Any, words: Option) -> Any:
    if get_origin(kind) is Literal:
        names = get_args(kind)
        return ChoiceOrNone([words.none, *names]) if words.none else click.Choice(names)
    if kind is Path:
        kinds = {"dir_okay": words.is_a != "file", "file_okay": words.is_a != "folder"}
        return PlaceName(**kinds)
    if words.is_a in ("model", "served"):
        return ModelName(addresses=words.is_a == "served")
    if words.is_a == "bytes":
        return ByteSize()
    if words.none:
        return BatchSize()
    low = words.least if words.above is None else words.above
    if low is None and words.most is None:
        return kind
    ranged: Any = click.IntRange if kind is int else click.FloatRange
    return ranged(low, words.most, min_open=words.above is not None)


class ChoiceOrNone(click.Choice):
    """A choice whose first word stands for None."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The word, or None for the first."""
        found = super().convert(value, param, ctx)
        return None if found == self.choices[0] else found


class PlaceName(click.Path):
    """A file or folder; `~` is the home folder, also where no shell puts it, as in `--out=~/a`."""

    def __init__(self, **kinds: bool):
        super().__init__(path_type=Path, **kinds)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The place."""
        return super().convert(os.path.expanduser(value), param, ctx)


class ByteSize(click.ParamType):
    """A size such as `200GB` (10^9) or `64GiB` (2^30), in bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Bytes."""
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size; wanted like 200GB or 64GiB", param, ctx)
        power = " kmgt".index(match[2].lower() or " ")
        n_bytes = float(match[1]) * (1024 if match[3] else 1000) ** power
        if n_bytes >= _MOST_BYTES:
            self.fail(f"{str(value)[:40]!r} is more than any disk holds", param, ctx)
        return int(n_bytes)


class SettingOption(click.Option):
    """An option that knows its place in the help, and whether only a person may say it.

    A number must be one that somebody can mean: NaN, infinities and integers beyond 32 bits are
    refused. A text must be one that can stand in a file.
    """

    def __init__(
        self,
        *flags: Any,
        section: Section = "Output",
        expert: bool = False,
        typed: bool = False,
        also: Sequence[str] = (),
        old: str = "",
        commas: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(*flags, **settings)
        self.commas = commas
        """A list in one text: what is said again is joined by a comma."""
        self.also = tuple(also)
        """Other flags that are understood, where no other option of the command has them."""
        self.old = old
        """One more, which answers for one release, with a remark."""
        self.section: Section = section
        self.expert = expert
        self.typed = typed
        """No project file says it; as `settings.Option.typed`."""

    @property
    def understood(self) -> tuple[str, ...]:
        """Flags that the help does not show."""
        return (*self.also, *filter(None, [self.old]))

    @property
    def is_listed(self) -> bool:
        """Whether the parser keeps all that is said: of two models the first is not dropped."""
        return self.multiple or self.commas or isinstance(self.type, ModelName)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Under its own flags, and under those that it is understood by."""
        once, self.multiple = self.multiple, self.is_listed
        super().add_to_parser(parser, ctx)
        self.multiple = once
        taken = {flag for one in ctx.command.params for flag in one.opts}
        for flag in self.understood:
            if flag not in taken:
                action = "append" if self.is_listed else "store"
                parser.add_option(obj=self, opts=[flag], dest=flag, action=action)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        """What was said under any of its flags."""
        if self.is_listed and not (self.multiple or self.commas):
            opts = self._once(opts)
        for flag in self.understood:
            if flag in opts:
                opts = self.joined(opts, opts[flag], flag)
                if flag == self.old:
                    notice(f"{flag} is {self.opts[-1]} from the next release on")
        if self.commas and isinstance(said := opts.get(str(self.name)), list):
            opts = {**opts, str(self.name): ",".join(said)}
        return super().consume_value(ctx, opts)

    def _once(self, opts: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was said, with one value under each flag in place of a list.

        Raises:
            InputError: a flag was given two.
        """
        flags = {str(self.name): max(self.opts, key=len)} | {one: one for one in self.understood}
        said = {name: opts[name] for name in flags if isinstance(opts.get(name), list)}
        for name, values in said.items():
            if len(values) > 1:
                raise InputError(f"{flags[name]}: takes one value; say it once")
        return {**opts, **{name: value for name, (value,) in said.items()}}

    def joined(self, opts: Mapping[str, Any], said: Any, flag: str) -> Mapping[str, Any]:
        """What was said, with what was said under another flag; of several values both count.

        Raises:
            InputError: there is one value, and it was said twice.
        """
        name, own = str(self.name), max(self.opts, key=len)
        several = self.multiple or self.commas
        if name in opts and not several:
            raise InputError(f"{own} and {flag}: are one option; say it once")
        return {**opts, name: [*opts.get(name, ()), *said] if several else said}

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """The value, or several; of several each may be a list with commas."""
        if self.multiple and "=" not in (self.metavar or "") and isinstance(value, list | tuple):
            value = tuple(each for one in value for each in _listed(one))
        found = super().type_cast_value(ctx, value)
        pairs = zip(value, found, strict=True) if self.multiple else [(value, found)]
        if isinstance(self.type, IntParamType | FloatParamType | StringParamType):
            for raw, one in pairs:
                self._check(ctx, raw, one)
        return found

    def _check(self, ctx: click.Context, raw: Any, found: Any) -> None:
        if isinstance(found, str) and _UNDECODED.search(found):
            raise click.BadParameter(f"{found!a} is no UTF-8 text.", ctx, self)
        most = _LARGEST if isinstance(found, int) else sys.float_info.max
        if isinstance(found, int | float) and not abs(found) <= most:  # nor NaN
            raise InputError(f"{self.opts[-1]} {str(raw)[:40]}: wanted a finite number below 2^31")


def _listed(value: Any) -> Sequence[Any]:
    """The parts of a list with commas; a place that has one in its name is no list."""
    if not isinstance(value, str) or "," not in value or os.path.exists(value):
        return [value]
    return [part for one in value.split(",") if (part := one.strip())]


class RareOption(SettingOption):
    """A rarely used option: given as `--set NAME=VALUE`, where rare options share one line.

    Its own flag answers for one release, with a remark.
    """

    def __init__(self, *flags: Any, by: str, **settings: Any) -> None:
        super().__init__(*flags, hidden=True, **settings)
        self.by = by
        """`--set` or `--constant`; else the option in whose place it stood."""
        self.key = max(self.opts, key=len).removeprefix("--")
        self.is_shared = by in _SHARED
        self.said_as = f"{by} {self.key}" if self.is_shared else by
        """From the next release on; of a shared one `=VALUE` follows."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The option's current spelling, for an error message."""
        return f"'{self.said_as}'"

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        """What `--set` says of it, else what its own flag says."""
        pairs = [one.partition("=") for one in opts.get(_dest(self.by)) or ()]
        said = [value for key, _, value in pairs if _as_key(key) == self.key]
        if said:
            several = self.multiple or self.commas
            opts = self.joined(opts, said if several else said[-1], self.said_as)
        elif self.name in opts:
            value = "=VALUE" if self.is_shared else ""
            notice(f"--{self.key} is {self.said_as}{value} from the next release on")
        return super().consume_value(ctx, opts)


def _dest(by: str) -> str:
    """The parameter behind `--set` or `--constant`."""
    return f"by_{by.removeprefix('--')}"


def _as_key(text: str) -> str:
    return text.strip().lstrip("-").replace("_", "-")


def _sharing(by: str, rare: Sequence[RareOption]) -> click.Option:
    """The one option that stands for many rare ones."""

    def check(ctx: click.Context, parameter: click.Parameter, values: Sequence[str]) -> None:
        """Refuse what is no NAME=VALUE of this command."""
        known = [one.key for one in rare]
        for one in values:
            key, is_pair, _ = one.partition("=")
            if not is_pair:
                raise InputError(f"{by} {one[:80]}: wanted NAME=VALUE, as {by} {known[0]}=VALUE")
            if _as_key(key) not in known:
                near = difflib.get_close_matches(_as_key(key), known, n=1)
                meant = f"did you mean {near[0]}?" if near else f"wanted {', '.join(known)}"
                raise InputError(f"{by} {key[:80]}: no such name here; {meant}")

    return SettingOption(
        [by, _dest(by)],
        multiple=True,
        metavar="NAME=VALUE",
        expose_value=False,
        callback=check,
        expert=by == "--set",
        section="Training" if by == "--constant" else "Output",
        typed=True,  # a file says each by its own name
        help="Set a rarely used option; repeatable. "
        + " ".join(f"{one.key}: {_ended(one)}" for one in rare),
    )


def _ended(one: RareOption) -> str:
    """What a rare option is, as a sentence, with its choices and its default."""
    words = f"{', '.join(one.type.choices)}." if isinstance(one.type, click.Choice) else ""
    usual = f"[default: {one.default}]" if one.show_default else ""
    said = " ".join(filter(None, (words, one.help, usual))) or "a number."
    return said if said.endswith((".", "]")) else f"{said}."


def shared(*names: str) -> Callable[[Command], Command]:
    """The named options, in this order in the help."""
    return lambda command: _declared(command, (OPTIONS[name] for name in reversed(names)))


class BatchSize(click.ParamType):
    """`auto` or a positive number; `auto` is None."""

    name = "auto|N"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | None:
        """A number, or None for `auto`."""
        if value is None or value == "auto":
            return None
        if str(value).isdigit() and int(value) > 0:
            return int(value)
        self.fail(f"{value!r} is not auto or a number from 1", param, ctx)


class ModelName(click.ParamType):
    """A model as the user names it; the shell completes registered names and folders."""

    name = "name"

    def __init__(self, *, addresses: bool = False):
        self.addresses = addresses
        """Is an address of a server taken too?"""

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Names of the registry that begin so; where none does, the shell completes paths."""
        known = [
            name for name in library.models_registry.load_registry() if name.startswith(incomplete)
        ]
        return [CompletionItem(name) for name in known] or [CompletionItem(incomplete, type="dir")]


def result_folder(usual: str) -> Callable[[Command], Command]:
    """`--out`, the result folder; `usual` is its default."""
    place = PlaceName()
    return click.option("-o", "--out", type=place, help=f"Result folder. [default: {usual}]")


OPTIONS: dict[str, click.Option] = {
    "sources": _option(
        "sources",
        Annotated[
            tuple[str, ...], Option("Model to audit. Repeatable.", flag="--source", is_a="model")
        ],
    ),
    "source": _option("source", Annotated[str, Option("Model to audit.", is_a="model")]),
    "source or address": _option(
        "source",
        Annotated[
            str,
            Option("Model to audit, or where one is served: http://HOST:PORT/v1.", is_a="served"),
        ],
        section=MODELS,
    ),
    "model": _option(
        "model", Annotated[str, Option("Name, Hub id[@revision] or folder.", is_a="model")]
    ),
    "registry": _option("registry", settings.Registry, None),
    "activations": _option("activations", settings.Activations, settings.activations_folder),
    "json": click.Option(
        ["--json", "as_json"], is_flag=True, help="Print the result as JSON on stdout."
    ),
    "dry_run": click.Option(
        ["--dry-run"], is_flag=True, help="Print the plan; load and write nothing."
    ),
    "force": SettingOption(
        ["--force"],
        typed=True,
        is_flag=True,
        help="Write over a file that this command did not write.",
    ),
}
"""What commands take beside their settings."""


EVERY = "lensaudit.every"
"""Key of a context in which experts' options are shown."""
SAME = (
    ("--source", "--sources", "--model", "--models", "--unlearned", "--unlearn"),
    ("--full", "--original", "--base", "--target", "--finetuned"),
    ("--retain", "--control", "--retrain", "--gold"),
    ("--data", "--dataset", "--forget", "--forget-data", "--forget-set"),
    ("--kept", "--retain-data", "--retain-set", "--retain-rows"),
    ("--metric", "--metrics"),
    ("--out", "--output", "--output-dir", "--save"),
    ("--limit", "--n", "--max-examples", "--num-examples"),
    ("--batch-size", "--bs", "--batch"),
    ("--epochs", "--num-epochs"),
    ("--lr", "--learning-rate"),
    ("--device", "--gpu", "--cuda"),
    ("--dtype", "--precision"),
)
"""Words for one thing, the house's first."""


def add_vocabulary(command: click.Command) -> None:
    """Give a command `-o`, `-q`, `--help-all` and sections in its help."""
    for one in command.params:
        if "--out" in one.opts and "-o" not in one.opts:
            one.opts.insert(0, "-o")
    quiet = _switch(
        "-q --quiet quieter",
        "No progress and no remarks; errors only.",
        lambda ctx, _, value: ctx.find_root().params.update({"quiet": True} if value else {}),
    )
    every = _switch("--help-all", "Show every option, experts' too, and exit.", _show_every)
    rare = [one for one in command.params if isinstance(one, RareOption)]
    by = {name: [one for one in rare if one.by == name] for name in _SHARED}
    command.params += [_sharing(name, each) for name, each in by.items() if each]
    every.hidden = not any(getattr(one, "expert", False) for one in command.params)
    command.params += [quiet, every]
    vars(command)["format_options"] = partial(_format_options, command)


def _switch(flags: str, said: str, callback: Any) -> click.Option:
    return click.Option(
        flags.split(), is_flag=True, expose_value=False, is_eager=True, callback=callback, help=said
    )


def _format_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Options under the headings of their settings; experts' where all are asked for."""
    found: dict[Section, list[tuple[str, str]]] = {}
    for one in command.get_params(ctx):
        line = one.get_help_record(ctx)
        if line and (ctx.meta.get(EVERY) or not getattr(one, "expert", False)):
            found.setdefault(getattr(one, "section", "Output"), []).append(line)
    for section in get_args(Section):
        if section in found:
            with formatter.section(section if len(found) > 1 else "Options"):
                formatter.write_dl(found[section])
    if isinstance(command, click.Group):
        command.format_commands(ctx, formatter)


def _show_every(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[EVERY] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def suggestion(error: click.NoSuchOption) -> str:
    """The message, with the option of this command that means the same, or is spelled alike."""
    wanted = error.option_name
    found = () if error.ctx is None else error.ctx.command.params
    known = [opt for one in found if isinstance(one, click.Option) for opt in one.opts]
    for words in SAME:
        if wanted in words and (here := next((one for one in words if one in known), None)):
            return f"No such option '{wanted}': here it is {here}"
    near = difflib.get_close_matches(wanted, known, n=3)
    return f"No such option '{wanted}'" + (f"; did you mean {', '.join(near)}?" if near else "")
