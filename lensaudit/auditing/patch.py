"""How deep is the knowledge erased? From names of models to scored folders."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lensaudit.auditing.question import anchored
from lensaudit.auditing.result import PatchResult, read_patched
from lensaudit.files import make_folder
from lensaudit.patching.outcome import (
    BY_TOKEN,
    Summarised,
    write_comparison,
    write_result,
)
from lensaudit.patching.prepare import prepare
from lensaudit.patching.scoring import check_fits, manifest_of
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.patching.summary import NOT_A_DEPTH, beside_score, summaries
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.kinds.patch import FILES, PatchRun
from lensaudit.results.owner import (
    Run,
    check_beside,
    check_free,
    claim,
    folder_of,
    folders_for,
    known_as,
)
from lensaudit.settings import COUNTERFACTUAL
from lensaudit.turns import in_turn
from lensaudit.verdict.collect import judge_alone, judge_run
from lensaudit.verdict.decide import Verdict
from lensaudit.verdict.views import read_calibration

COMMAND = "patch"
KIND = ("command", "score")
"""Settings in which two results must agree for one to replace the other in a named folder."""
_NOT_THE_RESULT = ("engine", "device", "batch_size", "memory_bytes", "cache_batch")
"""Options that say how a number is computed."""


def check_places(sources: Sequence[str], folder: Path | None) -> None:
    """Refuse a named folder of another command, before anything is opened."""
    if folder is not None:
        places = [*folders_for(tuple(dict.fromkeys(sources)), folder).values()]
        for one in places:
            with in_turn(one):
                check_free(one, COMMAND, FILES)
        check_beside(folder, COMMAND, len(places))


def folders_in(session: Session, folder: Path | None, tell: Notice) -> dict[str, Path]:
    """Result folder of each source; `tell` gets a message where one is replaced or goes elsewhere.

    Raises:
        InputError: a folder that was named is another command's, or holds a result of another kind.
    """
    found = {}
    for name, place in folders_for(tuple(session.sources), folder).items():
        run = run_of(session, name)
        with in_turn(place):
            found[name] = folder_of(place, run, run_in, named=bool(folder), tell=tell, kind=KIND)
    return found


def patch_into(
    sources: Sequence[str],
    settings: PatchSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
    opened: Callable[[Session], None] = unheard,
) -> list[PatchResult]:
    """Patch the models into `full`, score them, and write a folder for each.

    A model of which nothing can be scored is a result without a value; its files say why. The same
    run may go on in another process: each takes its turn to look into a folder and to write there.
    An earlier result stays until the files of this one are written in its place.

    Args:
        sources: names, Hub ids or folders; the same one twice counts once.
        settings: how.
        folder: of the results: that of the only model, or holds one for each; None:
            experiments/out/<source>.
        notice: told remarks.
        progress: told what is done.
        opened: told what was opened, before any work.

    Raises:
        InputError: before any work.
        VerificationError: the preflight failed.
        WorkError: an activation or a score is not finite.
    """
    started = time.monotonic()
    check_places(sources, folder)
    settings = anchored(tuple(sources), settings)
    session = prepare(sources, settings, notice=notice, progress=progress)
    beside = beside_score(session)
    opened(session)
    check_fits(session)
    folders = folders_in(session, folder, notice)
    for one in folders.values():
        make_folder(one)
        with in_turn(one):
            claim(one, COMMAND, FILES)
    with session:
        found = summaries(session, *beside)
    nulls, results, runs = read_calibration(), dict[str, PatchResult](), list[PatchRun]()
    for one in found:
        name, outcome = one.summary.source, one.outcome
        summary = replace(one.summary, verdict=_judged(one, nulls))
        made = manifest_of(
            session,
            {"source": session.sources[name]},
            started,
            scores_by=outcome and outcome.computed_by,
        )
        with in_turn(folders[name]):
            claim(folders[name], COMMAND, FILES)
            rows = with_texts(one.rows, session)
            runs.append(write_result(folders[name], rows, one.cells, summary, made))
            results[name] = read_patched({name: folders[name]})[0]
    if len(folders) > 1 and settings.score != "em":
        made = manifest_of(session, session.sources, started, command="patch comparison")
        with in_turn(next(iter(folders.values())).parent):
            write_comparison(runs, made, notice)
    return [results[name] for name in folders]


def _judged(one: Summarised, nulls: Mapping[str, Any]) -> Verdict:
    """The verdict of a source by its run of patching alone."""
    if one.outcome is None:
        return Verdict("undecided", f"{one.summary.source}: undecided: {NOT_A_DEPTH}.", [])
    is_alone = one.summary.kind == COUNTERFACTUAL
    return judge_alone(one.summary, nulls) if is_alone else judge_run(one.summary, one.rows, nulls)


def run_of(session: Session, source: str) -> Run:
    """Command, options and inputs by which one source's run differs from another."""
    return run_in(vars(manifest_of(session, {"source": session.sources[source]}, time.monotonic())))


def run_in(manifest: Mapping[str, Any]) -> Run:
    """The run that a manifest describes: content of models and rows, options that move a number.

    Weights under two names are two runs: of folders the resolved path counts.
    """
    options, inputs = dict(manifest["options"]), manifest["inputs"]
    depth = "lens" if options.get("engine") == "lens" else options.get("anchor", "uds")
    score = "em" if "em" in options else depth
    source = inputs["source"]
    return {
        "command": manifest["command"],
        "score": score,
        "source": known_as(source["name"]),
        **{f"weights of {role}": inputs[role]["weights"] for role in ("source", "full", "retain")},
        "tokenizer": source["tokenizer"],
        "rows": inputs["examples"]["n"],
        "content of rows": inputs["examples"]["hash"],
        **{name: value for name, value in options.items() if name not in _NOT_THE_RESULT},
    }


def with_texts(rows: Sequence[Mapping[str, Any]], session: Session) -> list[dict[str, Any]]:
    """Rows with their questions and answers, so that a result is readable without its forget set.

    And with the tokens of their spans as text, where they were read by token.
    """
    asked = {
        e.idx: {name: getattr(e, name) for name in ("question", "answer", "prefix", "entity")}
        for e in session.examples
    }
    spans = {e.idx: e.token_ids[e.start + 1 : e.end + 1] for e in session.encoded}
    found = []
    for row in rows:
        tokens = spans[row["idx"]] if BY_TOKEN in row else ()
        read = {"span_tokens": [session.tokenizer.decode([one]) for one in tokens]}
        found.append(
            {"idx": row["idx"], **asked.get(row["idx"], {}), **row, **(read if tokens else {})}
        )
    return found
