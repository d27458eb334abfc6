"""Scripts in which blanks separate words, and scripts in which every letter is a word."""

import unicodedata
from functools import cache
from typing import Literal

Letter = Literal["latin", "word", "alone", "mark", ""]
"""Of the Latin script; of a script whose words stand between blanks; of one without blanks; what
belongs to the letter before it; no letter and no digit."""
_LAST_LATIN = "\u024f"
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
    if kind[0] == "M":
        return "mark"
    if kind[0] != "L" and kind != "Nd":
        return ""
    script = unicodedata.name(char, "").partition(" ")[0]
    if char <= _LAST_LATIN or script in ("LATIN", "FULLWIDTH"):
        return "latin"
    return "alone" if script in _WITHOUT_BLANKS else "word"


def spaced(text: str) -> str:
    """The text with blanks around every letter of a script that has none.

    >>> spaced("他生在Oslo。")
    ' 他  生  在 Oslo。'
    """
    return "".join(f" {one} " if letter_of(one) == "alone" else one for one in text)
