"""From a model's name to a finished folder: what `lensaudit know` and `la.know` do."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lensaudit.ask.again import folder_for, usual_place
from lensaudit.association.address import Served
from lensaudit.association.endpoint import expected, reached
from lensaudit.association.evidence import (
    KnowOutcome,
    outcome_of,
    write_outcome,
)
from lensaudit.association.exchange import Heard, NotRead, heard_from, heard_line
from lensaudit.association.exposure import Head
from lensaudit.association.opening import ALGORITHM, Know, asked_hash, open_know
from lensaudit.association.reading import (
    FEW_SHOT,
    LENS,
    OUTPUTS,
    RelationReading,
    heard,
    maps_onto,
    n_prompts,
    read_layers,
    said,
    upper_layers,
)
from lensaudit.association.result import COMMAND, KnowResult
from lensaudit.association.settings import KnowSettings
from lensaudit.data.relations import Relation
from lensaudit.judge.client import JudgeClient
from lensaudit.models.bridge import DTYPES, TransformerBridge, load, opened_models
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.conditions import conditions_of
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results import recorded
from lensaudit.results.kinds.know import FILES, PERSONS, KnowRecord
from lensaudit.results.ledger import Ledger, ledger_path
from lensaudit.results.run_folder import RunFolder
from lensaudit.settings import plain
from lensaudit.text import digest

_DIGITS = 5
"""Of a stored log-prob, nats."""
FOREIGN = "foreign"


def know_into(
    source: str,
    settings: KnowSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> KnowResult:
    """Ask a model, and models that never knew, who has what; write what came out.

    Args:
        source: name, Hub id or folder.
        settings: how.
        folder: of the results; None: experiments/out/know-<source>.
        notice: told remarks.
        progress: told what is done.

    Raises:
        InputError: before any work; of a server that it, or the model, can be read in no way.
        TryAgainError: the server does not answer.
        WorkError: logits are not finite.
    """
    usual_place(COMMAND, source, folder)
    know = open_know(source, settings, notice=notice)
    if isinstance(know.source, Served):
        served, readers, remarks = reached(know.source, know.readers, know.asked, know.shots)
        for line in remarks:
            notice(line)
        remarks = (*know.remarks, *remarks)
        know = replace(know, source=served, readers=tuple(readers), remarks=remarks)
        source = served.spec.name
    run = _folder(know, source, folder, notice)
    return _answered(know, run, notice, progress)


def answer_into(
    know: Know, out: Path, *, notice: Notice = unheard, progress: Tell = unheard
) -> KnowResult:
    """Fill, judge and write what was opened; what another run of `know` left in `out` is replaced.

    Raises:
        InputError: the folder holds something else.
        WorkError: logits are not finite.
    """
    run = _folder(know, know.source.spec.name, out, notice, force=True)
    return _answered(know, run, notice, progress)


def _folder(
    know: Know, source: str, folder: Path | None, tell: Notice, *, force: bool = False
) -> RunFolder:
    asked = {"options": plain(know.settings), "inputs": know.inputs()}
    how = {"force": force or know.settings.force, "tell": tell}
    return folder_for(COMMAND, source, folder, know.identity(), **asked, **how)


def _answered(know: Know, run: RunFolder, notice: Notice, progress: Tell) -> KnowResult:
    out = run.path

    @cache
    def asked() -> KnowOutcome:
        for line in know.lines():
            notice(line)
        return ask(know, progress=progress)

    record = recorded.in_folder(
        run,
        KnowRecord,
        lambda: write_outcome(asked(), know, out),
        device=know.device,
        files=(*FILES, PERSONS) if know.people else FILES,
        computed=asked,
        notice=notice,
    )
    return KnowResult(know.source.spec.name, out, record)


def plan_into(
    source: str, settings: KnowSettings, folder: Path | None, *, notice: Notice = unheard
) -> list[str]:
    """What `know_into` would do, in lines; of a finished run nothing.

    Raises:
        InputError: as `know_into`.
    """
    usual_place(COMMAND, source, folder)  # refused before anything is opened
    know = open_know(source, settings, notice=notice)
    if isinstance(know.source, Served):
        return plan_of(know)
    run = _folder(know, source, folder, notice)
    return [recorded.planned(run, lambda: "\n".join(plan_of(know)))]


def plan_of(know: Know) -> list[str]:
    """What is left to read of what was opened, in lines; nothing is loaded, sent or written."""
    lines, tokens, sent = know.lines(), 0, list[str]()
    for one, _, wanted in _todo(know):
        todo = [
            (reader, asked, n_prompts(asked, reader)) for asked, own in wanted for reader in own
        ]
        sequences = sum(n * len(asked.values) for _, asked, n in todo)
        lines.append(f"{one.spec.name}: {sum(n for *_, n in todo)} prompts, {sequences} sequences")
        if isinstance(one, Served):
            sent = list(expected(one, [(reader, asked) for reader, asked, _ in todo], know.shots))
            continue
        for _, asked, n in todo:  # about four letters to a token: prompts once, then every value
            letters = [len(way.question) + len(way.prefix) + 20 for way in asked.templates]
            each = sum(letters) / len(letters) + sum(map(len, asked.values))
            tokens += int(n * each / 4)
    return [*lines, *sent, *([f"about {tokens} tokens"] if tokens or not sent else [])]


Asked = list[tuple[Relation, list[str]]]
"""Relations, and of each the readers."""


def _todo(know: Know) -> Iterator[tuple[Checkpoint | Served, Ledger, Asked]]:
    """Ledger of each model, and what it lacks."""
    for one in (know.source, *know.ignorant):
        ledger, missing = _ledger(know, one), []
        have = {(row["relation"], row["reader"]) for row in ledger.rows}
        for asked, readers in _wanted(know, one):
            own = asked_hash([asked])
            known = {name for key, name in have if key == own}
            if lacks := [r for r in readers if not known.issuperset(_names(know, one, asked, r))]:
                missing.append((asked, lacks))
        yield one, ledger, missing


def _wanted(know: Know, one: Checkpoint | Served) -> list[tuple[Relation, Sequence[str]]]:
    """The source is read in every way; ignorant models by what they say, and at upper layers.

    About single people the source is read as they are, and through the head of an ignorant one.
    """
    inside = (LENS, FOREIGN) if one is know.source else (LENS,)
    said_and_held = (OUTPUTS, *(reader for reader in know.readers if reader in inside))
    kept = (know.readers[0] if isinstance(one, Served) else OUTPUTS,)
    put = [(asked, know.readers) for asked in know.asked]
    if one is not know.source:  # invented subjects are put to the source alone
        put = [(replace(asked, invented=()), said_and_held) for asked in know.asked]
    people = ((asked, said_and_held) for asked in know.people)
    return [*put, *((asked, kept) for asked in know.kept), *people]


def _names(know: Know, one: Checkpoint | Served, asked: Relation, reader: str) -> list[str]:
    """Lines are by layer where a reader reads layers: `lens 7`, `foreign 7`."""
    if reader not in (LENS, FOREIGN):
        return [reader]
    return [f"{reader} {layer}" for layer in _layers(know, one, asked)]


def _layers(know: Know, one: Checkpoint | Served, asked: Relation) -> Sequence[int]:
    """The source's from bottom to top; of ignorant models those that tell, and the last.

    About single people those that tell, of any model.
    """
    if isinstance(one, Served):
        return ()
    n = one.n_layers
    if asked in know.people:
        return upper_layers(n)
    return read_layers(n) if one is know.source else sorted({*upper_layers(n), n - 1})


def ask(know: Know, *, progress: Tell = unheard) -> KnowOutcome:
    """Fill the ledgers with what is missing, and judge."""
    n_done, todo = 0, list(_todo(know))
    total = sum(len(readers) for _, _, wanted in todo for _, readers in wanted)
    maps: dict[str, Any] = {}
    for checkpoint, ledger, wanted in todo:
        if not wanted:
            continue
        with _loaded(know, checkpoint, maps) as model:
            for asked, readers in wanted:
                try:
                    layers = _layers(know, checkpoint, asked)
                    rows = _read(know, model, readers, asked, maps, layers)
                except NotRead as error:
                    if asked not in know.kept:
                        raise
                    # all values alike: a control that shows nothing, and the facts stand
                    nothing = Heard(
                        torch.zeros(len(asked.subjects), len(asked.values), dtype=torch.float32)
                    )
                    rows = {one: replace(nothing, why=str(error)) for one in readers}
                ledger.append(
                    {
                        "relation": asked_hash([asked]),
                        "reader": name,
                        "rows": [[round(x, _DIGITS) for x in row] for row in one.table.tolist()],
                        **({"samples": dict(one.counts)} if one.counts else {}),
                        **({"why": one.why} if one.why else {}),
                    }
                    for name, one in rows.items()
                )
                n_done += len(readers)
                progress(Progress(f"asking {know.source.spec.name} who has what", n_done, total))
    own = [row for source, ledger, _ in todo for row in _own(know, source, ledger)]
    line = heard_line(row["samples"] for row in own if "samples" in row)
    told = dict.fromkeys(row["why"] for row in own if "why" in row)
    lines = filter(None, [line, *(f"facts to keep cannot be read: {why}" for why in told)])
    know = replace(know, remarks=(*know.remarks, *lines))
    return outcome_of(know, [_heard(know, one, ledger) for one, ledger, _ in todo])


@contextmanager
def _loaded(
    know: Know, checkpoint: Checkpoint | Served, kept: dict[str, Any]
) -> Iterator[TransformerBridge | JudgeClient]:
    """The model while the block lasts, maybe the head of another, or the client that asks it."""
    if isinstance(checkpoint, Served):
        with checkpoint.client() as client:
            yield client
        return
    if checkpoint is know.head and "head" in kept:
        yield kept.pop("head")
    else:
        model = load(checkpoint, dtype=DTYPES[know.dtype], device=know.device)
        yield model
        if is_held(model):
            return
        del model
    gc.collect()


def _read(
    know: Know,
    model: TransformerBridge | JudgeClient,
    readers: Sequence[str],
    asked: Relation,
    kept: dict[str, Any],
    layers: Sequence[int],
) -> dict[str, Heard]:
    """What readers say, by layer where they read layers; those of one prompt read it together."""
    if isinstance(model, JudgeClient):
        assert isinstance(know.source, Served)
        return {one: heard_from(model, know.source, asked, one, know.shots) for one in readers}
    heads = {LENS: Head(model)} if LENS in readers else {}
    if FOREIGN in readers:
        if not kept:
            assert know.head is not None
            kept["head"] = load(know.head, dtype=DTYPES[know.dtype], device=know.device)
            kept["maps"] = maps_onto(model, kept["head"], know.texts)
        heads[FOREIGN] = Head(kept["head"], kept["maps"])
    found = heard(model, asked, heads, layers) if heads else {}
    if found and OUTPUTS in readers and asked.invented:
        others = said(model, asked, OUTPUTS, names=asked.invented)
        found[OUTPUTS] = torch.cat((found[OUTPUTS], others))
    for reader in readers:
        if reader not in found and reader not in heads:
            found[reader] = said(model, asked, reader, know.shots if reader == FEW_SHOT else ())
    return {name: Heard(found[name]) for name in found if name.split()[0] in readers}


def _ledger(know: Know, one: Checkpoint | Served) -> Ledger:
    if isinstance(one, Served):
        how = one.identity
    else:
        found = conditions_of(one, dtype=know.dtype, device=know.device)
        how = {"tokenizer": one.tokenizer, "dtype": found.dtype, "device": found.device_class}
    key = {
        "algorithm": ALGORITHM,
        "weights": one.weights,
        **how,
        "head": know.head.weights if know.head and FOREIGN in know.readers else None,
        "shots": [row.question for row in know.shots],
        "texts": digest(know.texts),
    }
    path = ledger_path(Path(know.settings.activations) / "know", one.spec.name, key)
    return Ledger(path, "know", key)


def _own(know: Know, one: Checkpoint | Served, ledger: Ledger) -> list[Mapping[str, Any]]:
    """The lines of a ledger that are read in this run."""
    own = {(asked_hash([asked]), name) for asked, names in _wanted(know, one) for name in names}
    return [row for row in ledger.rows if (row["relation"], row["reader"]) in own]


def _heard(know: Know, one: Checkpoint | Served, ledger: Ledger) -> list[RelationReading]:
    """What a ledger holds of the facts, then of those to keep, in the order of the readers."""
    rows = {(row["relation"], row["reader"]): row["rows"] for row in ledger.rows}
    found = []
    for asked, readers in _wanted(know, one):
        key = asked_hash([asked])
        names = [name for reader in readers for name in _names(know, one, asked, reader)]
        tables = {name: torch.tensor(rows[key, name], dtype=torch.float64) for name in names}
        found.append(RelationReading(asked, {n: one.log_softmax(-1) for n, one in tables.items()}))
    return found


def is_held(model: TransformerBridge) -> bool:
    """Whether `opened_once` holds it, so that nothing is freed when its user is done."""
    return any(one is model for one in opened_models().values())
