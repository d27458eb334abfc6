"""What is asked of whom: relations, invented subjects, further values, and the models."""

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import chain, islice, product, zip_longest
from pathlib import Path
from random import Random
from typing import Any

from lensaudit.association.address import Served, is_address, served_at
from lensaudit.association.reading import N_SHOTS, joint, prompt_text
from lensaudit.association.result import COMMAND
from lensaudit.association.settings import READERS, KnowSettings, ReaderName
from lensaudit.data.candidates import facts_of
from lensaudit.data.facts import Fact, told_rows
from lensaudit.data.neutral import is_whole, neutral_of
from lensaudit.data.relations import Relation, lines_of, relations_of
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError
from lensaudit.files import read_text
from lensaudit.groups import grouped, is_own
from lensaudit.models.checkpoint import (
    Checkpoint,
    config_of,
    in_role,
    load_tokenizer,
    open_checkpoint,
)
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.likeness import other_tokenizer
from lensaudit.models.registry import (
    Registry,
    base_spec,
    default_data,
    load_registry,
    resolve,
)
from lensaudit.models.sizes import context_of
from lensaudit.progress import Notice, unheard
from lensaudit.results.roles import InRole, check_roles
from lensaudit.settings import path_of
from lensaudit.text import digest
from lensaudit.verdict.thresholds import ALPHA

ALGORITHM = 1
"""Raised when a change of code changes what a reader says."""
JUDGED = 3
"""Raised when a rule changes what is said of the same readings."""
N_INVENTED = 2
"""Invented namesakes of each subject; at least sixteen in all."""
FEWEST_INVENTED = 16
_ALONE = "no other value of its kind stands beside it"


@dataclass(frozen=True)
class Know:
    """A run: who is asked what, checked before anything is loaded."""

    settings: KnowSettings
    source: Checkpoint | Served
    base: Checkpoint | None
    retains: tuple[Checkpoint, ...]
    """Models that never saw the facts."""
    asked: tuple[Relation, ...]
    kept: tuple[Relation, ...]
    """Relations of facts that the source should still know."""
    people: tuple[Relation, ...]
    """What is asked, with names of nobody among the subjects; empty where none were named."""
    unscored: Mapping[int, str]
    """Idx -> why a fact of the set is not asked."""
    readers: tuple[ReaderName, ...]
    shots: tuple[Fact, ...]
    texts: tuple[str, ...]
    """Neutral text that maps are fitted on."""
    remarks: tuple[str, ...]
    dtype: str
    device: str

    @property
    def head(self) -> Checkpoint | None:
        """The ignorant model through whose head the source's stream is read."""
        return self.base or next(iter(self.retains), None)

    @property
    def n_names(self) -> int:
        """Names of nobody beside whom each person is asked about."""
        return len(self.people[0].subjects) - len(self.people[0].facts) if self.people else 0

    @property
    def ignorant(self) -> tuple[Checkpoint, ...]:
        """All models that never saw the facts, the base first."""
        return (*((self.base,) if self.base else ()), *self.retains)

    def lines(self) -> list[str]:
        """What is asked, how much is left out and why, as lines of text."""
        return lines_of(self.asked, self.unscored)

    def identity(self) -> dict[str, Any]:
        """What tells this run from others."""
        served = {"served": self.source.identity} if isinstance(self.source, Served) else {}
        people = {"people": asked_hash(self.people)} if self.people else {}
        return {
            **served,
            **people,
            "command": COMMAND,
            "algorithm": ALGORITHM,
            "judged": JUDGED,
            "source": self.source.weights,
            "base": self.base and self.base.weights,
            "retain": [one.weights for one in self.retains],
            "tokenizers": [
                one.tokenizer
                for one in (self.source, *self.ignorant)
                if isinstance(one, Checkpoint)
            ],
            "asked": asked_hash(self.asked),
            "kept": asked_hash(self.kept),
            "unscored": {str(idx): why for idx, why in self.unscored.items()},
            "readers": list(self.readers),
            "shots": [one.question for one in self.shots],
            "texts": digest(self.texts),
            "dtype": self.dtype,
            "seed": self.settings.seed,
        }

    def inputs(self) -> dict[str, Any]:
        """What each name stood for, for a manifest."""
        models = {"source": self.source, "base": self.base}
        models |= {f"retain {n}": one for n, one in enumerate(self.retains, 1)}
        found = {
            role: {"name": one.spec.name, **one.spec.alias, "weights": one.weights}
            for role, one in models.items()
            if one is not None
        }
        if isinstance(self.source, Served):
            found["source"] |= {**self.source.identity, "vouched_for": False}
        return {**found, "rows": told_rows(fact for one in self.asked for fact in one.facts)}


def asked_hash(asked: Sequence[Relation]) -> str:
    """Content hash of relations as they are asked, and where no blank stands before a value."""
    return digest(
        [
            [one.names, one.values, [asdict(way) for way in one.templates]]
            + [[fact.idx, str(fact.group)] for fact in one.facts]
            + [way.prefix for way in one.templates if way.prefix and not joint(way.prefix)]
            for one in asked
        ]
    )


def open_know(source: str, settings: KnowSettings, *, notice: Notice = unheard) -> Know:
    """Models, relations and readers of a run; nothing is loaded and nothing written.

    Raises:
        InputError: a name, a file or a setting is wrong, or no relation can be asked.
    """
    registry = load_registry(settings.registry)
    served = served_at(source, settings) if is_address(source) else None
    spec = served.spec if served else resolve(source, registry)
    if settings.data is None and served:
        raise InputError(
            f"{spec.name} is an address: name the rows to ask about with --data, facts of one "
            "kind about four subjects or more"
        )
    data = str(settings.data or default_data(source, settings.registry))
    checkpoint = served or open_checkpoint(spec)
    every = forget_set(data, exclude=settings.exclude, limit=settings.limit)
    fit, validity, remarks = _neutral(data, every, settings)
    shots = tuple(row for row in fit if row.question)[:N_SHOTS]
    too_long = _too_long(every, shots, checkpoint) if isinstance(checkpoint, Checkpoint) else {}
    rows = [row for row in every if row.idx not in too_long]
    kept, _ = relations_of([row for row in validity if not is_whole(row)])
    names, others = names_of_nobody(settings, served), dict[str, tuple[str, ...]]()
    found, unscored = relations_of(rows)
    if names and not found:  # values are held against other names, not against other subjects
        found, unscored = relations_of(rows, fewest=1)
        others = {one.name: one.values for one in kept}
    unscored |= too_long
    if not found:
        why = next(iter(unscored.values()), "no rows")
        raise InputError(
            f"{data}: no relation of {len(every)} rows can be asked ({why}); wanted facts of one "
            "kind about four subjects or more, each subject named in its question; a row may "
            "name its kind under `relation`"
        )
    placebos: Mapping[int, Sequence[str]] = {}
    if settings.placebos:
        with suppress(InputError):
            facts = facts_of(data, rows)[0]
            placebos = {one.idx: one.placebos[: settings.placebos] for one in facts}
    readers: list[ReaderName] = [one for one in READERS if one in (settings.readers or READERS)]
    base, retains = _ignorant(checkpoint, settings, registry)
    remarks += list(_left_out(readers, checkpoint, (base, *retains), fit))
    beside = [_with_beside(one, placebos, others.get(one.name, ())) for one in found]
    asked = tuple(one for one in beside if len(one.values) > 1)
    alone = (fact.idx for one in beside if one not in asked for fact in one.facts)
    unscored |= dict.fromkeys(alone, _ALONE)
    if not asked:
        raise InputError(f"{data}: {_ALONE}; name --kept with facts of the same relations")
    taken = {name.casefold() for one in asked for name in one.subjects}
    strangers = [name for name in names if name.casefold() not in taken]
    remarks += list(_people_left_out(every, asked)) if names else []
    for line in remarks:
        notice(line)
    device = resolve_device(settings.device)
    return Know(
        settings,
        checkpoint,
        base,
        retains,
        asked,
        kept,
        tuple(
            replace(one, subjects=(*one.subjects, *strangers), invented=())
            for one in asked
            if names
        ),
        unscored,
        tuple(readers),
        shots,
        tuple(f"Question: {row.question}\nAnswer: {row.answer}" for row in fit),
        tuple(remarks),
        resolve_dtype(settings.dtype, device),
        device,
    )


def _too_long(
    rows: Sequence[Fact], shots: Sequence[Fact], checkpoint: Checkpoint
) -> dict[int, str]:
    """Idx -> why a fact has no room in the model's context: every value stands after every prompt.

    A text has no more tokens than bytes, so that short ones need no tokenizer.
    """
    context = context_of(config_of(checkpoint))
    texts = {
        row.idx: (prompt_text(row.question, row.prefix, shots), f" {row.entity.strip()}")
        for row in rows
    }
    n_bytes = [max(len(one.encode()) for one in own) for own in zip(*texts.values(), strict=True)]
    if context.too_long(sum(n_bytes)) is None:
        return {}
    tokenizer = load_tokenizer(checkpoint)
    n = {idx: [len(tokenizer(one)["input_ids"]) for one in pair] for idx, pair in texts.items()}
    longest = max(
        [prompt for prompt, more in n.values() if not context.too_long(prompt + more)] or [0]
    )
    why = {idx: context.too_long(max(longest, prompt) + more) for idx, (prompt, more) in n.items()}
    return {idx: f"with a prompt {one}" for idx, one in why.items() if one}


def _ignorant(
    source: Checkpoint | Served, settings: KnowSettings, registry: Registry
) -> tuple[Checkpoint | None, tuple[Checkpoint, ...]]:
    spec = base_spec([source.spec], settings.base, registry)
    base = None if spec is None else open_checkpoint(spec)
    retains = tuple(open_checkpoint(resolve(name, registry)) for name in settings.retain)
    own = InRole("source", source.spec.name, source.weights)
    named = in_role("base", *([base] if base and settings.base else []))
    check_roles([own, *named, *in_role("retain", *retains)])
    # nobody is a prior of itself: the family's base may be asked, and an end of a scale
    base = None if base is None or base.weights == source.weights else base
    known = {source.weights, base and base.weights}
    retains = tuple(one for one in retains if one.weights not in known)
    for one in (*([base] if base else []), *retains):
        told = other_tokenizer(one, source) if isinstance(source, Checkpoint) else None
        if told:
            option = "--base" if one is base else "--retain"
            raise InputError(f"{option} {one.spec.name}: {told}")
    return base, retains


def _neutral(
    data: str, rows: Sequence[Fact], settings: KnowSettings
) -> tuple[Sequence[Fact], Sequence[Fact], list[str]]:
    """Rows for shots and maps, rows for the control, and a remark where there are none."""
    given = path_of(settings.retain_data)
    try:
        found = neutral_of(data, rows, validity_data=given)
    except InputError as error:
        if given is not None:
            raise
        why = str(error).partition(";")[0]
        return (), (), [f"no control on kept facts: {why}; name --kept"]
    return found.fit, found.validity, []


def _left_out(
    readers: list[ReaderName],
    source: Checkpoint | Served,
    never: Sequence[Checkpoint | None],
    fit: Sequence[Fact],
) -> Iterator[str]:
    """Readers that lack what they need; they are taken out of the list."""
    if "few_shot" in readers and len([row for row in fit if row.question]) < N_SHOTS:
        readers.remove("few_shot")
        yield f"reader few_shot left out: fewer than {N_SHOTS} kept rows; name --kept"
    inside = [one for one in ("lens", "foreign") if one in readers]
    if isinstance(source, Served) and inside:
        readers[:] = [one for one in readers if one not in inside]
        yield (
            f"reader {', '.join(inside)} left out: behind an address only a model's words can "
            "be read, not its stream"
        )
    if "foreign" in readers and not (any(never) and fit):
        readers.remove("foreign")
        what = "no kept rows" if any(never) else "no model that never knew"
        yield f"reader foreign left out: {what}; name --base and --kept"
    if not readers:
        raise InputError("--reader: no reader is left; the lines above say why each was left out")


def names_of_nobody(settings: KnowSettings, served: Served | None) -> list[str]:
    """Names beside whom each person is asked about, one a line of a file; none where none is named.

    Raises:
        InputError: the file cannot be read or holds too few; or a model behind an address.
    """
    if (path := path_of(settings.strangers)) is None:
        return []
    if served is not None:
        raise InputError(
            "--strangers: a model behind an address is not asked about each person alone"
        )
    names = dict.fromkeys(line.strip() for line in read_text(path).splitlines() if line.strip())
    if len(names) < names_wanted(1):
        raise InputError(
            f"{path}: {len(names)} names, wanted {names_wanted(1)} or more of people who do not "
            "exist, one a line, drawn as the subjects' names were"
        )
    return list(names)


def _people_left_out(every: Sequence[Fact], asked: Sequence[Relation]) -> Iterator[str]:
    """How many people have no fact that is asked; rows that name nobody are nobody's."""
    known = {fact.idx for one in asked for fact in one.facts}
    people = grouped((row.group, row.idx in known) for row in every if not is_own(row.group))
    if n := sum(not any(one) for one in people.values()):
        yield f"{n} of {len(people)} people are not asked about: none of their facts can be asked"


def names_wanted(n_people: int) -> int:
    """Names of nobody with which one of so many people can be found.

    >>> names_wanted(1), names_wanted(8)
    (19, 159)
    """
    return round(n_people / ALPHA) - 1


def _with_beside(
    relation: Relation, placebos: Mapping[int, Sequence[str]], others: Sequence[str]
) -> Relation:
    """A relation with invented namesakes of each subject, and further values.

    Args:
        relation: that is asked.
        placebos: by idx, values of the same kind.
        others: values of the same relation in rows to keep.
    """
    own = {value.casefold() for value in relation.values}
    each = max(N_INVENTED, -(-FEWEST_INVENTED // len(relation.subjects)))
    invented = [
        name
        for subject in relation.subjects
        for name in invented_names(subject, each, others=relation.subjects)
    ]
    # turn by turn over the facts: no fact's likest values alone
    lists = [others or placebos.get(fact.idx, ()) for fact in relation.facts]
    turns = [
        one for turn in zip_longest(*lists) for one in turn if one and one.casefold() not in own
    ]
    kept = tuple(dict.fromkeys(turns))[: max(map(len, lists), default=0)]
    return replace(relation, invented=tuple(invented), placebos=kept)


_DATA = Path(__file__).parent / "names.json"


def invented_names(name: str, n: int, *, others: Sequence[str] = ()) -> tuple[str, ...]:
    """`n` invented names that fit `name` and that nobody in the set has; always the same ones.

    A name tells script, gender and origin, and a model that has never heard of a person guesses
    from them: ignorance about a person is what it says of invented people called alike.

    Given and family names of its origin and gender where one of its parts is known; else parts of
    the others' names put together anew, where none of its origin is known.

    Args:
        name: of a real subject.
        n: how many.
        others: names of all subjects: none of them is given out.
    """
    random = Random(digest(["invented", name, n]))
    known = {one.casefold() for one in (*others, name)}
    pairs = _pairs(*(_parts_like(name) or _parts_of([*others, name])))
    random.shuffle(pairs)
    unique = list(dict.fromkeys(pairs))
    free = (one for one in chain(unique, _varied(unique, random)) if one.casefold() not in known)
    return tuple(islice(free, n))


def _pairs(given: Sequence[str], family: Sequence[str]) -> list[str]:
    """Every given name with every family name; of single words the halves put together anew.

    >>> _pairs(["Japan", "Peru"], [])
    ['Japan', 'Japru', 'Pean', 'Peru']
    """
    if family:
        return [f"{first} {last}" for first in given for last in family]
    return [
        one[: (len(one) + 1) // 2] + two[(len(two) + 1) // 2 :] for one in given for two in given
    ]


@cache
def _origins() -> dict[str, dict[str, list[str]]]:
    return json.loads(_DATA.read_text(encoding="utf-8"))["origins"]


def _parts_like(name: str) -> tuple[list[str], list[str]] | None:
    """Given and family names of the origin, and the gender, that the name shows."""
    parts = {_folded(part) for part in name.split()}
    for origin in _origins().values():
        shown = {kind for kind, known in origin.items() if parts & {_folded(k) for k in known}}
        if shown:
            genders = sorted(shown - {"family"}) or ["female", "male"]
            return [one for gender in genders for one in origin[gender]], origin["family"]
    return None


def _parts_of(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """First and last parts of the names themselves, those in one script with the last alone."""
    script = _script(names[-1])
    alike = [one.split() for one in names if _script(one) == script]
    return [one[0] for one in alike], [one[-1] for one in alike if len(one) > 1]


def _varied(pairs: Sequence[str], random: Random) -> Iterator[str]:
    """Names with an initial between: there are always enough."""
    for letter, one in product(random.sample("ABCDEFGHJKLMNPRSTVW", 19), pairs):
        first, _, last = one.partition(" ")
        yield f"{first} {letter}. {last}".strip()


def _folded(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if c.isalnum())


def _script(name: str) -> str:
    """The script of the first letter, e.g. LATIN."""
    letter = next((c for c in name if c.isalpha()), "A")
    return unicodedata.name(letter, "LATIN").split()[0]
