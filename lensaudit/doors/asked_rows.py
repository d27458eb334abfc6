"""What do `full` and a model that never saw the facts say to rows before an audit asks them?

A row is *full wrong* where no answer of `full` gives its fact away: nothing could be unlearned. It
is *general knowledge* where an answer of the other model does: it was not learned from these rows.
Asked greedily, as a question and in the chat template, as `patch` asks (`patching.asking`), and
matched by meaning (`data.matching`): `RULE` says it in words.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from lensaudit.data.facts import Fact
from lensaudit.data.matching import gives_away
from lensaudit.data.rows import together
from lensaudit.evaluation.annotation import AskedRows
from lensaudit.evaluation.settings import AnnotationSettings
from lensaudit.groups import batched
from lensaudit.models.checkpoint import Checkpoint, in_role, open_checkpoint
from lensaudit.models.registry import specs_of
from lensaudit.patching.asking import DirectQuestions
from lensaudit.patching.generation import generate
from lensaudit.patching.options import ANSWER_TOKENS
from lensaudit.patching.prepare import resolved_settings, session_of
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.patching.speech import ends_of
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.roles import check_roles
from lensaudit.settings import Precision, shared

RULE = (
    "full wrong: no answer of full holds the fact or an alias; general knowledge: one of retain "
    "does. Asked greedily, as a question and in the chat template; case, accents, punctuation, "
    "articles, the form of a date and middle names do not count, words do"
)
_ENDS = re.compile(r"[.;](?:\s|$)|,(?!\s*\d)| - | \(| who | which | that ")
"""What ends the fact in what full says: the signs of gnueaj/unlearning-depth-score's annotation v6,
the first that stands there (v6 takes the first of its list), and no comma of a date."""
_AT_ONCE = 16


def asked_rows(
    facts: Sequence[Fact],
    settings: AnnotationSettings,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> AskedRows:
    """Which rows `full` answers wrongly, and which a model that never saw the facts answers.

    Args:
        facts: annotated rows.
        settings: `model` is full, `never` the other model.
        notice: told what a person should know.
        progress: told how many answers are there.

    Raises:
        InputError: no such model, both are one, or answers that the models cannot be asked for.
    """
    session = _session(facts, settings, notice, progress)
    with session:
        questions = DirectQuestions(session)
        roles = {"full": session.full, "retain": session.retain}
        said = {role: _said(questions, one) for role, one in roles.items()}
        kept = _continued(session) if settings.entity_from == "full" else {}
    for who, why in together((f"idx {idx}", why) for idx, why in questions.unasked.items()):
        notice(f"{who} not asked, and kept: {why}")
    found = AskedRows(
        outputs={
            row.idx: {f"{role}_output": texts[row.idx][0] for role, texts in said.items()}
            for row in questions.facts
        },
        replaced=kept,
    )
    for row in questions.facts:
        (full, right), (retain, known) = said["full"][row.idx], said["retain"][row.idx]
        if not right:
            found.full_wrong[row.idx] = f"{session.full.spec.name} says {full[:80]!r}"
        elif known:
            found.general_knowledge[row.idx] = f"{session.retain.spec.name} says {retain[:80]!r}"
    return found


def _session(
    facts: Sequence[Fact], settings: AnnotationSettings, notice: Notice, progress: Tell
) -> Session:
    """Both models, opened, in the roles of an audit."""
    given = shared(settings, Precision)
    asked = PatchSettings(
        full=settings.model, retain=settings.never, registry=settings.registry, data="own", **given
    )
    opened = {role: open_checkpoint(one) for role, one in specs_of((), asked).items()}
    check_roles([*in_role("full", opened["full"]), *in_role("retain", opened["retain"])])
    resolved = resolved_settings(asked, ("own",))
    return session_of(resolved, opened, facts, notice, progress)


def _said(questions: DirectQuestions, one: Checkpoint) -> dict[int, tuple[str, bool]]:
    """Idx -> the answer that gives the fact away, else the first; and whether it does."""
    ways, found = questions.answers(one), dict[int, tuple[str, bool]]()
    for row in questions.facts:
        texts = [of[row.idx] or "" for of in ways.values()]
        right = [text for text in texts if gives_away(text, row)]
        found[row.idx] = ((right or texts)[0], bool(right))
    return found


def _continued(session: Session) -> dict[int, Fact]:
    """The rows as `full` says them: its answer after the prefix, and in it its own entity."""
    model, rows = session.model(session.full), {one.idx: one for one in session.examples}
    found = {}
    for batch in batched(session.encoded, _AT_ONCE):
        prompts = [list(one.token_ids[: one.start + 1]) for one in batch]
        for one, ids in zip(
            batch,
            generate(model, prompts, max_new_tokens=ANSWER_TOKENS, stop=ends_of(model)),
            strict=True,
        ):
            text = str(model.tokenizer.decode(list(ids), skip_special_tokens=True))
            row, entity = rows[one.idx], first_clause(text)
            if entity:
                gap = text[: len(text) - len(text.lstrip())] or " " * bool(row.prefix)
                said = text.strip().split("\n", 1)[0]
                found[one.idx] = replace(row, answer=f"{row.prefix}{gap}{said}", entity=entity)
    return found


def first_clause(text: str) -> str:
    """What a model says of the fact before it goes on to something else.

    >>> first_clause(" civil engineer, and so on."), first_clause(" June 9, 1951. She")
    ('civil engineer', 'June 9, 1951')
    """
    return _ENDS.split(text.strip().split("\n", 1)[0], maxsplit=1)[0].strip()
