"""Word stems as ROUGE counts them: Porter's algorithm with the deviations of NLTK.

Source: M. Porter, An algorithm for suffix stripping, Program 14 (1980), 130-137, and the class
`nltk.stem.PorterStemmer` in its usual mode, which `rouge_score` uses. Importing that class loads
all of NLTK and SciPy; a test holds this one against it, word by word.
"""

import functools
from collections.abc import Iterable

_IRREGULAR = {
    **dict.fromkeys(("sky", "skies"), "sky"),
    **{"dying": "die", "lying": "lie", "tying": "tie", "news": "news", "howe": "howe"},
    **dict.fromkeys(("innings", "inning"), "inning"),
    **dict.fromkeys(("outings", "outing"), "outing"),
    **dict.fromkeys(("cannings", "canning"), "canning"),
    **{one: one for one in ("proceed", "exceed", "succeed")},
}
_PLURALS = {"sses": "ss", "ies": "i", "ss": "ss", "s": ""}
_LONG = {
    **{"ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize"},
    **{"bli": "ble", "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize"},
    **{"ation": "ate", "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful"},
    **{"ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "fulli": "ful"},
}
_MIDDLE = {
    **{"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": ""},
    **{"ness": ""},
}
_SHORT = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion"),
    *("ou", "ism", "ate", "iti", "ous", "ive", "ize"),
)


@functools.lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The stem of a word in lower case.

    >>> [stem(one) for one in ("relational", "running", "flies", "dies", "happily", "enjoy")]
    ['relat', 'run', 'fli', 'die', 'happili', 'enjoy']
    """
    if word in _IRREGULAR or len(word) <= 2:
        return _IRREGULAR.get(word, word)
    word = _past(_plural(word))
    if word.endswith("y") and len(word) > 2 and _letters(word)[-2] == "c":
        word = word[:-1] + "i"
    word = _derived(word)
    word = _exchanged(word, _MIDDLE)
    return _end(_shortened(word))


def _letters(word: str) -> str:
    """Consonant (c) or vowel (v), letter by letter; y is a vowel after a consonant."""
    found = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and found.endswith("c"))
        found += "v" if vowel else "c"
    return found


def _measure(word: str) -> int:
    """How often consonants follow vowels."""
    return _letters(word).count("vc")


def _is_short(word: str) -> bool:
    """Ends in consonant, vowel, consonant, the last not w, x or y; or is vowel and consonant."""
    kinds = _letters(word)
    return kinds == "vc" or (kinds.endswith("cvc") and word[-1] not in "wxy")


def _ending(word: str, endings: Iterable[str]) -> str | None:
    """The first of some endings that the word has: no later one is tried."""
    return next((one for one in endings if word.endswith(one)), None)


def _exchanged(word: str, endings: dict[str, str]) -> str:
    found = _ending(word, endings)
    if found is None or not _measure(word[: -len(found)]):
        return word
    return word[: -len(found)] + endings[found]


def _plural(word: str) -> str:
    if word.endswith("ies") and len(word) == 4:
        return word[:-1]
    found = _ending(word, _PLURALS)
    return word if found is None else word[: -len(found)] + _PLURALS[found]


def _past(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    found = next(
        (x for x in ("ed", "ing") if word.endswith(x) and "v" in _letters(word[: -len(x)])), None
    )
    if found is None:
        return word
    word = word[: -len(found)]
    if _ending(word, ("at", "bl", "iz")):
        return word + "e"
    if word[-1:] == word[-2:-1] and _letters(word)[-1] == "c":
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _is_short(word) else word


def _derived(word: str) -> str:
    while word.endswith("alli") and _measure(word[:-4]):
        word = word[:-2]
    if _ending(word, _LONG) is None and word.endswith("logi"):
        return word[:-1] if _measure(word[:-3]) else word
    return _exchanged(word, _LONG)


def _shortened(word: str) -> str:
    found = _ending(word, _SHORT)
    if found is None:
        return word
    rest = word[: -len(found)]
    if _measure(rest) < 2 or (found == "ion" and rest[-1] not in "st"):
        return word
    return rest


def _end(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        if _measure(rest) > 1 or (_measure(rest) == 1 and not _is_short(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
