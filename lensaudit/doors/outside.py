"""Metrics and suites from outside the package, registered while an evaluation asks for them."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from lensaudit.ask.keywords import given_to
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.errors import InputError
from lensaudit.metrics.options import parsed, with_rest
from lensaudit.own_code import calling_own, is_outside
from lensaudit.plugins import code_of, entries, load_entries, run_files
from lensaudit.results.manifest import using

_REGISTRY = "lensaudit.metrics.registry"
_NOT_ASKED = ("suite", "metrics", "benchmark", "own", "fresh", "registry")
"""What no suite from outside may say of a run."""


@contextmanager
def entered(settings: EvaluateSettings) -> Iterator[EvaluateSettings]:
    """The settings, with what they name from outside; keys and manifests hold its code meanwhile.

    Nothing is imported where all names are ours.

    Raises:
        InputError: a file or an entry cannot be run, or brings nothing that is asked for; there is
            no such suite.
    """
    names = [parsed(one)[0] for one in with_rest(settings.metrics)]
    named = settings.own or settings.benchmark or entries("metrics", names)
    if not named and not (names and _REGISTRY in sys.modules):
        yield settings
        return
    from lensaudit.doors import suites  # half a second to import
    from lensaudit.metrics.registry import METRICS, all_metrics

    all_metrics()
    asked = [*names, *filter(None, [settings.benchmark])]
    run_files(settings.own, METRICS, asked, "--metric or --benchmark")
    settings = _of_suite(settings, suites) if settings.benchmark else settings
    with using(_bring(settings.metrics)):
        yield settings


def _bring(names: Iterable[str]) -> dict[str, str]:
    """Import what installed packages bring of these metrics, and of what they need.

    Returns:
        Metric from outside -> content hash of its code.

    Raises:
        InputError: an entry cannot be imported.
    """
    from lensaudit.metrics.registry import RETAIN, all_metrics

    todo, code, seen = [*with_rest(names)], dict[str, str](), set[str]()
    while todo:
        name = parsed(todo.pop().removeprefix(RETAIN))[0]
        if name not in all_metrics():
            load_entries("metrics", [name])
        one = all_metrics().get(name)
        if one is not None and name not in seen:
            seen.add(name)
            todo += one.needs
            code |= {name: code_of(one.fn)} if is_outside(one.fn) else {}
    return code


def _of_suite(settings: EvaluateSettings, suites: Any) -> EvaluateSettings:
    """What a suite from outside asks, unless the user says otherwise.

    Raises:
        InputError: there is none of this name, or it asks what it may not.
    """
    name, usual = str(settings.benchmark), EvaluateSettings()
    if name not in suites.SUITES:
        load_entries("suites", [name])
    if (found := suites.SUITES.get(name)) is None:
        known = ", ".join(sorted(suites.SUITES)) or "none is here"
        raise InputError(f"--benchmark {name}: no such suite ({known}); name its file with --from")
    if settings.suite not in (usual.suite, found.of):
        raise InputError(
            f"--benchmark {name}: belongs to suite {found.of}, not to {settings.suite}"
        )
    if typed := [key for key in found.asked if key in _NOT_ASKED]:
        raise InputError(f"suite {name}: may not set {typed[0]}")
    with calling_own(f"suite {name}"):
        asked = given_to(f"suite {name}", EvaluateSettings, found.asked)
    own = {key: one for key, one in asked.items() if getattr(settings, key) == getattr(usual, key)}
    return replace(settings, suite=found.of, metrics=(name, *settings.metrics), **own)
