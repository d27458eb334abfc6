"""Scripts in which blanks separate words, and scripts in which every letter is a word."""

import itertools
import unicodedata
from functools import cache
from typing import Literal

Letter = Literal["latin", "word", "alone", "mark", ""]
"""Of the Latin script; of a script whose words stand between blanks; of one without blanks; what
belongs to the letter before it; no letter and no digit."""
_WITHOUT_BLANKS = {
    *("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"),
    *("HALFWIDTH", "YI"),
}


@cache
def letter_of(char: str) -> Letter:
    """What a character counts as in a search for words.

    >>> [letter_of(one) for one in "é7я京。"]
    ['latin', 'latin', 'word', 'alone', '']
    """
    kind = unicodedata.category(char)
    if kind[0] != "L" and kind != "Nd":
        return "mark" if kind[0] == "M" else ""
    script = unicodedata.name(char, "").partition(" ")[0]
    if char <= "\u024f" or script in ("LATIN", "FULLWIDTH"):  # the last of the Latin blocks
        return "latin"
    return "alone" if script in _WITHOUT_BLANKS else "word"


_ACCENTS = ("COMBINING", "VARIATION", "HEBREW", "ARABIC", "SYRIAC")
"""How the names of marks begin without which a word is the same: accents, and points for vowels."""


def spaced(text: str) -> str:
    """The words of a text between blanks, each letter of a script without blanks as a word.

    A mark of a decomposed text (NFKD) is dropped where it is an accent or a point, and stays with
    its letter where it makes another of it: a vowel sign, a tone, a voiced mark.

    >>> spaced("他生在Oslo。").split(), spaced("e\u0301 दिल").split()
    (['他', '生', '在', 'Oslo'], ['e', 'दिल'])
    """
    letters: itertools.accumulate[str] = itertools.accumulate(
        text, lambda last, one: last if letter_of(one) == "mark" else one, initial=" "
    )
    return "".join(map(_after, letters, text))


def _after(last: str, char: str) -> str:
    """A character that follows a letter and its marks: apart from it, beside it, or dropped."""
    kinds, joins = (letter_of(last), letter_of(char)), unicodedata.combining(char)
    if kinds[1] != "mark":
        return " " * ("alone" in kinds) + (char if char.isalnum() or char == "_" else " ")
    # class 8 makes another syllable of a Japanese one, and its name begins as an accent's
    makes = joins == 8 or not unicodedata.name(char, "").startswith(_ACCENTS)
    return char if makes and kinds[0] in ("word", "alone") else "" if joins else " "
