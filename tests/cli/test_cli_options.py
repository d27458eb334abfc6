"""Options are made from the fields of settings records: one declaration for each."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner
from support.hostile import commands

from lensaudit.cli.options import PlaceName, RareOption, SettingOption, options
from lensaudit.errors import InputError
from lensaudit.settings import BatchSize, Option, Registry


@dataclass(frozen=True, kw_only=True)
class Price:
    per_call: Annotated[float, Option("What a call costs.", least=0)] = 0.5


@dataclass(frozen=True, kw_only=True)
class Recipe:
    names: Annotated[tuple[str, ...], Option("Who. Repeatable.", flag="--name", is_a="model")]
    method: Annotated[Literal["nf4", "int8"], Option("How.")] = "nf4"
    form: Annotated[Literal["chat", "raw"] | None, Option("Where.", none="auto")] = None
    folds: Annotated[int, Option(least=2)] = 5
    rate: Annotated[float | None, Option(above=0)] = None
    out: Annotated[Path | None, Option("Folder.", flag="-o --out", is_a="folder")] = None
    keep: Annotated[bool, Option("Keep all.")] = False
    quota: Annotated[int | None, Option("At most.", is_a="bytes")] = None
    batch_size: BatchSize = None
    registry: Registry = None
    price: Price = field(default_factory=Price)
    note: str = "not an option"


def command_with(record):
    seen = []

    @click.command()
    @options(record)
    @click.option("--json", "as_json", is_flag=True)
    def command(settings: record, as_json: bool) -> None:
        """Help."""
        seen.append((settings, as_json))

    return command, seen


def call(*arguments, record=Recipe):
    command, seen = command_with(record)
    done = CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
    if isinstance(done.exception, click.ClickException):
        raise done.exception
    return seen[0]


def test_the_command_gets_the_record_with_its_own_defaults():
    found, as_json = call("--name", "demo/npo")
    assert found == Recipe(names=("demo/npo",))
    assert as_json is False


def test_values_are_converted_to_the_type_of_the_field():
    words = "--name demo/npo --name demo/full --method int8 --form raw --folds 3 --rate 0.1 -o x"
    found, as_json = call(
        *words.split(), "--keep", "--quota", "2GB", "--batch-size", "4", "--per-call", "0", "--json"
    )
    assert found == Recipe(
        names=("demo/npo", "demo/full"),
        method="int8",
        form="raw",
        folds=3,
        rate=0.1,
        out=Path("x"),
        keep=True,
        quota=2_000_000_000,
        batch_size=4,
        price=Price(per_call=0.0),
    )
    assert as_json


def test_the_word_for_none_is_none():
    found, _ = call("--name", "demo/npo", "--form", "auto", "--batch-size", "auto")
    assert found.form is None
    assert found.batch_size is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("--folds 1", "not in the range x>=2"),
        ("--rate 0", "not in the range x>0"),
        ("--method fp8", "'fp8' is not one of 'nf4', 'int8'"),
        ("--form html", "'html' is not one of 'auto', 'chat', 'raw'"),
        ("--batch-size 0", "not auto or a number from 1"),
        ("--quota many", "wanted like 200GB"),
    ],
)
def test_a_value_out_of_range_is_refused(wrong, said):
    with pytest.raises(click.ClickException, match=said):
        call("--name", "demo/npo", *wrong.split())


def test_a_field_without_default_must_be_given():
    with pytest.raises(click.MissingParameter, match="name"):
        call()


def test_an_unknown_model_is_refused_before_the_command_runs():
    command, seen = command_with(Recipe)
    with pytest.raises(InputError, match="demo/nobody"):
        CliRunner().invoke(
            command, ["--name", "demo/nobody"], catch_exceptions=False, standalone_mode=False
        )
    assert seen == []


def test_an_argument_fills_the_field_of_its_name():
    seen = []

    @click.command()
    @click.argument("note")
    @options(Recipe)
    def command(settings: Recipe) -> None:
        """Help."""
        seen.append(settings)

    CliRunner().invoke(command, ["mine", "--name", "demo/npo"], catch_exceptions=False)
    assert seen == [Recipe(names=("demo/npo",), note="mine")]


def lists():
    """Every option that takes several values, or a text of several, with two that it knows."""
    for name, command in commands():
        for one in command.params:
            if not isinstance(one, SettingOption) or "=" in (one.metavar or ""):
                continue
            if one.multiple or one.commas:
                kind, flag = one.type, max(one.opts, key=len)
                numbers = ("0.5", "1") if "float" in kind.name else ("1", "2")
                two = kind.choices[:2] if isinstance(kind, click.Choice) else numbers
                yield pytest.param(command, one, flag, [*two], id=f"{name} {flag}")


def said(command, option, *words):
    context = click.Context(command)
    found, *_ = command.make_parser(context).parse_args([*words])
    return option.type_cast_value(context, option.consume_value(context, found)[0])


@pytest.mark.parametrize(("command", "option", "flag", "two"), list(lists()))
def test_a_list_may_be_repeated_or_have_commas(command, option, flag, two):
    if isinstance(option, RareOption) and option.is_shared:
        flag, two = option.by, [f"{option.key}={one}" for one in two]
        joined = f"{two[0]},{two[1].partition('=')[2]}"
    else:
        joined = ",".join(two)

    repeated = said(command, option, flag, two[0], flag, two[1])

    assert repeated == said(command, option, flag, joined)
    assert len(repeated.split(",") if option.commas else repeated) == 2


def test_no_option_says_in_words_that_it_takes_commas_and_is_not_a_list():
    singles = [
        f"{name} {one.opts[-1]}"
        for name, command in commands()
        for one in command.params
        if isinstance(one, SettingOption) and not (one.multiple or one.commas)
        if "commas" in (one.help or "").lower()
    ]
    assert singles == []


def test_every_place_of_every_command_may_lie_in_the_home_folder():
    places = [
        (f"{name} {one.opts[-1]}", one.type)
        for name, command in commands()
        for one in command.params
        if isinstance(one.type, click.Path)
    ]
    assert len(places) > 100
    assert [name for name, kind in places if not isinstance(kind, PlaceName)] == []
