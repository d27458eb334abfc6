"""How much of a run of `patch` is left to do?"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.filesize import decimal as size

from lensaudit.activations.spec import KEPT_AS, Fingerprint
from lensaudit.auditing.patch import check_places, folders_in
from lensaudit.auditing.question import anchored
from lensaudit.data.neutral import FEWEST_VALIDITY_ROWS, Neutral
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.sizes import BYTES, sizes_on_disk
from lensaudit.patching.alignment import ALIGN_TOKENS_PER_DIM, one_a_group
from lensaudit.patching.asking import DirectQuestions, questions_of
from lensaudit.patching.controls import rows_for_map, uncompared
from lensaudit.patching.exact_match import kept_texts
from lensaudit.patching.options import ANSWER_TOKENS, REFERENCE_TOKENS
from lensaudit.patching.preflight import PREFLIGHT_PASSES
from lensaudit.patching.prepare import prepare
from lensaudit.patching.scoring import as_run
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.patching.sources import others_of
from lensaudit.patching.summary import beside_score
from lensaudit.plans.plan import Plan
from lensaudit.plans.weights import planned_text
from lensaudit.plans.work import flop_of_blocks
from lensaudit.progress import Notice, unheard
from lensaudit.results.kinds.patch import Way
from lensaudit.settings import COUNTERFACTUAL, Kept, Positions
from lensaudit.verdict.thresholds import ALIGN_FROM

WAYS: Mapping[Way, str] = {"question": "as a question", "chat": "in the chat template"}
"""Way of asking -> its words in a sentence."""


def plan_patch(
    sources: Sequence[str],
    settings: PatchSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
) -> Plan:
    """What a run would compute, with what is there already left out.

    Raises:
        InputError: as `patch_into`.
    """
    check_places(sources, folder)
    session = prepare(sources, anchored(tuple(sources), settings), notice=notice)
    if folder is not None:
        folders_in(session, folder, notice)
    return planned(session, beside_score(session)[0])


def planned(session: Session, neutral: Neutral | None) -> Plan:
    """What `summaries` would compute, with what is there already left out.

    Args:
        session: that is open.
        neutral: rows that controls are measured on; None where there is no retain model.

    Raises:
        InputError: a model would not fit.
    """
    settings, layers = session.settings, session.settings.at_layers
    if settings.score == "em":
        return em_plan_of(session)
    if settings.score == "lens":
        return plan_of(session)
    questions = questions_of(session)
    asking = questions and asking_plan(questions)
    if neutral is not None:
        return plan_of(session, planned_controls(session, neutral), asking=asking)
    others = others_of(session.full, session.encoded, session.examples)
    scores = as_run(session).under(fresh=False).scores(others.key)
    n_more = sum(len(layers if settings.fresh else scores.missing(e, layers)) for e in others.rows)
    told = f"anchor: {COUNTERFACTUAL}, full's own stream of another question"
    return plan_of(session, told, n_more, asking)


def plan_of(
    session: Session, controls: str = "", n_more: int = 0, asking: Plan | None = None
) -> Plan:
    """Count what is missing.

    Args:
        session: that is open.
        controls: what stands beside the score; how much of it is wanted follows from the score.
        n_more: rows that are scored beside the sources'.
        asking: what the models are asked beside it.
    """
    session, rows = as_run(session), n_missing(session)
    settings, encoded = session.settings, session.encoded
    of_source: tuple[Positions, Kept] = settings.positions_replaced, KEPT_AS[settings.part]
    caches = []
    for weights, checkpoint in session.patched_in().items():
        of_full = weights == session.full.weights
        # the sweep reads the clean run of `full` whatever is patched into it
        used = any(rows.values()) if of_full else rows[weights]
        places = {of_source} if settings.part != "resid" else set[tuple[Positions, Kept]]()
        if stream := settings.positions_needed(of_full=of_full):
            places.add((stream, "resid"))
        for where in places if used else ():
            if session.there(checkpoint, encoded, *where) is None:
                found = session.fingerprint(checkpoint, encoded, *where)
                caches.append(cache_bytes(encoded, found))
    n_rows, n_lost, n_forward = (
        sum(rows.values()),
        len(session.unscored),
        len(caches) * len(encoded),
    )
    models = [("full", session.full), *(("retain", one) for one in session.never)]
    models += [("source", source) for source in session.sources.values()]
    lost = f" ({n_lost} unscored: lost in tokenisation)" if n_lost else ""
    lines = [
        f"models: {', '.join(f'{role} {one.spec.name}' for role, one in models)}",
        f"examples: {len(encoded) + n_lost}{lost}; layers: {len(settings.at_layers)}",
        f"to cache: {n_forward} forward passes of one example, {size(sum(caches))} on disk",
        f"to score: {n_rows + n_more} patched rows (example x source x layer)",
        _placement(session, n_rows, len(caches)) if n_rows or caches else "",
        controls,
        *(asking.lines if asking else ()),
    ]
    return Plan(
        tuple(filter(None, lines)),
        n_forward + (asking.n_forward if asking else 0),
        n_rows + n_more,
        sum(caches),
    )


def _placement(session: Session, n_rows: int, n_caches: int) -> str:
    """Where the weights are, the same for each model of one shape. Controls are not counted."""
    settings, full, encoded = session.settings, session.full, session.encoded
    engine = settings.computed_with
    budget = session.budget(sweeps=engine != "oracle")
    n_sources, n_layers = len(session.patched_in()), len(settings.at_layers)
    n_batches = len(budget.batches(encoded, lambda e: n_sources * n_layers, n_sources=n_sources))
    n_scoring = {
        "lens": PREFLIGHT_PASSES,  # it reads what is cached with the head alone
        "sweep": 2 * PREFLIGHT_PASSES + n_batches,
        "oracle": PREFLIGHT_PASSES + n_batches * (1 + n_sources * n_layers),
    }[engine]
    return planned_text(
        full,
        dtype=settings.dtype,
        device=settings.device,
        spread=settings.memory_bytes if settings.spread else None,
        n_passes=n_caches + (n_scoring if n_rows else 0),
    )


def n_missing(session: Session) -> dict[str, int]:
    """Rows still to be scored, by source; all layers where the KE layers are not known yet."""
    kept, fresh = as_run(session).under(fresh=False), session.settings.fresh
    wanted = kept.wanted()
    return {
        one: sum(
            len(wanted(e, one) if fresh else kept.scores(one).missing(e, wanted(e, one)))
            for e in session.encoded
        )
        for one in session.patched_in()
    }


def cache_bytes(encoded: Sequence[Encoded], fingerprint: Fingerprint) -> int:
    """Bytes of activations a cache holds: one row per layer and, of the stream, the final norm's.

    A row is one token of one example.
    """
    n_rows = sum(
        len(e.token_ids if fingerprint.positions == "all" else e.read_positions) for e in encoded
    )
    n_normed, width = fingerprint.norm_shape(n_rows)
    return (n_rows * fingerprint.layers + n_normed) * width * BYTES[fingerprint.dtype]


def planned_controls(session: Session, neutral: Neutral) -> str:
    """What would be measured beside UDS, in a line of a plan."""
    if neutral.why:
        return f"controls: none ({neutral.why})"
    align, tokens = session.settings.align, session.settings.align_tokens
    said = f"controls: validity on up to {len(neutral.validity)} rows"
    n = 0 if uncompared(session) else _bytes_cached(session, neutral)
    more = f"; up to {size(n)} more on disk" if n else ""
    if align == "none":
        return f"{said}; no maps{more}"
    maps = f"maps where UDS is {ALIGN_FROM:g} or more" if align == "auto" else f"{align} maps"
    n_tokens = tokens or ALIGN_TOKENS_PER_DIM * session.full.d_model
    n, rows = one_a_group(session.encoded, session.full.d_model).n, len(neutral.fit)
    return (
        f"{said}; {maps}, fitted on up to {n_tokens} of {rows} rows' tokens; then each source "
        f"without the direction that facts share, and without {n} of them{more}"
    )


def _bytes_cached(session: Session, neutral: Neutral) -> int:
    """Bytes of caches that controls may read and the score does not, where they are not there."""
    full, settings, scored = session.full, session.settings, n_missing(session)
    rows, to_fit = map(session.encode, (neutral.validity, neutral.fit))
    sources = {one.weights: one for one in (full, *session.sources.values())}
    reads = [(one, rows) for one in sources.values() if len(rows) >= FEWEST_VALIDITY_ROWS]
    wanted: list[tuple[Checkpoint, tuple[Encoded, ...], Positions]] = []
    models = session.never[1:]
    if settings.align != "none":
        scored[full.weights] = sum(scored.values())  # whatever is patched in, `full` is read
        models = (*sources.values(), *session.never)
        with suppress(InputError):  # too few rows for a map
            wanted.extend(
                (full, rows_for_map(session, to_fit, one, one.d_model)[0], "all")
                for one in sources.values()
            )
    reads += [(one, session.encoded) for one in models if not scored.get(one.weights)]
    for one, them in reads:
        match, positions = session.read_of(one, them)
        wanted.append((one, match.rows, positions))
    missing = {
        session.fingerprint(one, them, at): them
        for one, them, at in wanted
        if session.there(one, them, at) is None
    }
    return sum(cache_bytes(them, one) for one, them in missing.items())


def em_plan_of(session: Session) -> Plan:
    """What a run would do; nothing is loaded or written."""
    settings, encoded = session.settings, session.encoded
    if settings.em_form == "teacher":
        return plan_of(session.under(measure="hit"))
    n_own = n_models = len(session.patched_in()) * len(encoded)
    n_patched = n_models * len(settings.at_layers)
    if not settings.fresh:
        n_own, n_patched = (
            sum(len(kept.missing(e, layers)) for kept in texts.values() for e in encoded)
            for texts, layers in kept_texts(session)
        )
    lines = (
        f"examples: {len(encoded)}; layers: {len(settings.at_layers)}",
        f"to generate: {n_own} texts of up to {REFERENCE_TOKENS} tokens, unpatched",
        f"to generate: {n_patched} texts of up to {settings.max_new_tokens} tokens, "
        "patched (example x source x layer)",
    )
    return Plan(lines, n_own, n_patched)


def asking_plan(questions: DirectQuestions) -> Plan:
    """What would be asked: a line, and how many answers are still to be generated."""
    session, n, tokens, flop = questions.session, 0, 0, 0
    asked = [(one, session.settings.dtype) for one in questions.models]
    sources = {one.weights: one for one in session.sources.values()}.values()
    asked += [(one, dtype) for one in sources for dtype in questions.types(one)]
    known = {
        dtype: replace(questions, session=session.under(fresh=False, dtype=dtype))
        for dtype in dict.fromkeys(dtype for _, dtype in asked)
    }
    for one, dtype in asked:
        todo = questions.every(one) if session.settings.fresh else known[dtype].missing(one)
        n_tokens = sum(map(len, todo)) + len(todo) * ANSWER_TOKENS
        n, tokens = n + len(todo), tokens + n_tokens
        flop += n_tokens * flop_of_blocks(sizes_on_disk(one, dtype))
    ways = " and ".join(WAYS[way] for way in questions.asked(session.full))
    line = (
        f"to ask: {n} answers of up to {ANSWER_TOKENS} tokens ({len(questions.facts)} facts, "
        f"{len(questions.models)} models, {ways}; the sources in {len(known)} types of numbers), "
        f"at most {tokens} tokens, {float(flop):.2g} FLOP"
    )
    return Plan((line,), n)
