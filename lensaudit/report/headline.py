"""How many models hold what they were made to forget? The first sentence of page and terminal."""

from collections.abc import Mapping

from lensaudit.verdict.decide import HOLDS, NOT_DECIDED, WORDS, Tone, Word
from lensaudit.verdict.thresholds import TAIL_BELOW

LIMITS = {"hidden_below": TAIL_BELOW, "erased_from": 0.75}
"""What stands between the shades of single examples on the page; models have verdicts."""
SOME = ("undecided_held", "unreadable_held")
"""Words of models that hold some facts; how many is unknown."""


def headline(words: Mapping[str, Word], too_few: Mapping[str, int] | None = None) -> str:
    """The first sentence of the page: audited models by name, with the word of their verdict.

    `too_few`: undecided models that more rows would decide, with the rows that were scored.

    >>> headline({"npo": "hidden"})
    'npo still holds what it was made to forget.'
    >>> headline({"a": "hidden", "b": "answers", "c": "undecided"})
    '2 of 3 audited models still hold what they were made to forget; 1 says them; 1 is not decided.'
    >>> headline({"a": "hidden", "b": "partly_erased", "c": "erased"})
    '2 of 3 audited models still hold what they were made to forget, 1 of them in part.'
    >>> headline({"a": "partly_erased", "b": "partly_erased"})
    'All 2 audited models still hold part of what they were made to forget.'
    >>> headline({"a": "undecided_held", "b": "undecided"})
    '1 of 2 audited models still holds some of what it was made to forget; 1 is not decided.'
    >>> headline({"a": "undecided", "b": "erased"})
    '2 audited models: 1 undecided, 1 erased.'
    >>> headline({"a": "undecided", "b": "undecided"}, {"a": 8, "b": 8})
    '2 audited models: too few rows to decide (8).'
    """
    few = {name: n for name, n in (too_few or {}).items() if words.get(name) not in SOME}
    if not words:
        return "No unlearning depth was measured."
    if len(words) == 1:
        ((name, word),) = words.items()
        if name in few:
            return f"{name}: too few rows ({few[name]}) to decide whether it holds the facts."
        return _ALONE[word].format(name)
    n_part, n_some, n_open = (
        sum(word in which for word in words.values())
        for which in (("partly_erased",), SOME, NOT_DECIDED)
    )
    n_held = n_part + n_some + sum(word in HOLDS for word in words.values())
    if n_held == 0:
        if few.keys() >= words.keys():
            rows = dict.fromkeys(map(str, (min(few.values()), max(few.values()))))
            return f"{len(words)} audited models: too few rows to decide ({' to '.join(rows)})."
        told = ", ".join(f"{len(names)} {word}" for word, _, names in tally(words))
        return f"{len(words)} audited models: {told}."
    n_all = f"{n_held} of {len(words)}" if n_held < len(words) else f"All {n_held}"
    what = {n_part: "part of what", n_some: "some of what"}.get(n_held, "what")
    holds = f"holds {what} it was" if n_held == 1 else f"hold {what} they were"
    parts = ((n_part, "in part"), (n_some, "nobody knows how much"))
    among = "".join(f", {n} of them {how}" for n, how in parts if 0 < n < n_held)
    says = [f"{len(names)} {word}" for word, _, names in tally(words) if word.startswith("say")]
    rest = [*says, *([f"{n_open} {'is' if n_open == 1 else 'are'} not decided"] if n_open else [])]
    told = "; ".join([f"{n_all} audited models still {holds} made to forget{among}", *rest])
    return f"{told}."


_ALONE: Mapping[Word, str] = {
    "answers": "{} still says what it was made to forget.",
    "answers_begun": "{} still says what it was made to forget, once the answer is begun.",
    "answers_sampled": "{} still says what it was made to forget, when it is sampled.",
    "hidden": "{} still holds what it was made to forget.",
    "hidden_other_basis": "{} still holds what it was made to forget, in another basis.",
    "partly_erased": "{} still holds part of what it was made to forget.",
    "undecided_held": "{} still holds some of what it was made to forget; how much is not known.",
    "unreadable_held": "{} still holds some of what it was made to forget; its stream cannot be "
    "read.",
    "erased": "{} lost what it was made to forget, as far as its stream shows.",
    "unreadable": "{}: its stream cannot be read, so nothing is shown.",
    "undecided": "{}: not decided whether it holds what it was made to forget.",
    "unscored": "{}: no example could be scored.",
}


def tally(words: Mapping[str, Word]) -> list[tuple[str, Tone, list[str]]]:
    """Verdicts that occur, from held to gone, with their colour and the models that have them.

    >>> tally({"a": "erased", "b": "answers", "c": "answers"})
    [('say them', 'hidden', ['b', 'c']), ('erased', 'erased', ['a'])]
    """
    names = ([name for name, own in words.items() if own == word] for word in WORDS)
    return [
        (said if len(own) == 1 else _of_several(said), tone, own)
        for (said, tone), own in zip(WORDS.values(), names, strict=True)
        if own
    ]


def _of_several(word: str) -> str:
    """The sentence on several models.

    >>> _of_several("says them once begun"), _of_several("undecided, holds some")
    ('say them once begun', 'undecided, hold some')
    """
    return word.replace("says ", "say ").replace("holds ", "hold ")
