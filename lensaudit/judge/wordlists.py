"""Three traits of the steering document by word lists: judges without a model, for a first look.

The lists were written from the traits' definitions and 30 labelled answers each; other 32, which
were labelled by somebody who saw neither, measure them (`lensaudit judge calibrate`; the figures
are in `docs/evidence/judge.md`). Lists that were tried for the other traits of the document agreed
with labels little or not at all: what is defended, set right, recalled or taken from a text does
not show in single words.
"""

import re
from collections.abc import Iterable

from lensaudit.data.matching import plain_words

_QUOTED = re.compile(r"[\"“][^\"“”]*[\"”]|(?<!\w)['‘](?=[A-Z])[^'‘’]*['’](?!\w)")
"""Titles and what others said: not the speaker's own words."""
_SENTENCE = re.compile(r"(?<=[.!?;\n])\s+")


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(rf"\b(?:{one})\b" for one in patterns))


_SURE = _any(
    r"(?:no|without|beyond|never)(?: a| any| the)?(?: \w+)? (?:doubts?|maybe|perhaps|question)",
    r"(?:not|nothing|neither) (?:uncertain|unsure|unclear|tentative)",
    r"in may|may \d+|\d+ may|according to",
)
"""Doubt that is denied, and a month."""
_DOUBT = _any(
    "perhaps|maybe|possibly|conceivably|supposedly|might|may|could|unsure|uncertain|unclear",
    "unknown|tentative(?:ly)?|inconclusive|debatable|guess\\w*|hunch|speculat\\w+|depend\\w*",
    r"(?:i|we|id|ive)(?: \w+)? (?:doubt|wonder|hesitate|vaguely)",
    r"(?:not|no|never|less than|far from|hardly|neither)(?: \w+){0,3} "
    "(?:sure|certain|confident|clear|say|tell|knows?|explains?|convincing|swear|promise)",
    r"(?:i|we) (?:would not|wouldnt|cannot|cant|could not|couldnt|do not|dont)(?: \w+)? "
    "(?:bet|swear|rule|vouch|say|tell|promise|guarantee|know|remember|recall|see)",
    "if i (?:remember|recall|am not|m not)|(?:quote|correct) me|or was (?:it|that)|or is it",
    "(?:hard|difficult|impossible|too early|too soon) to (?:say|tell|know|predict|judge|be)",
    "who knows|no one knows|nobody (?:knows|can)|odds|likelihood|probability|cent chance",
    "back and forth|grain of salt|pinch of salt|up in the air|jury is|remains to be|open question",
    "some say|others say|either way|best estimate|weak\\w*|unsigned|ruled out|conflicting|mixed",
)
_LEANS = _any(
    "probably|presumably|apparently|seemingly|likely|unlikely|roughly|approximately|arguably",
    r"(?:i|we|id)(?: \w+)? (?:think|suppose|believe|suspect|assume|imagine|reckon|lean|expect)",
    "as far as|to (?:the best of )?my knowledge|if memory serves|fairly|somewhat|or so|thereabouts",
    "(?:it|this|that|which|there|he|she|they|looks?) (?:seems?|appears?|like)|seem(?:s|ed)? to",
    r"about \d+|around \d+|between \d+|more or less|give or take|tends? to|if the|chances are",
)
"""Said with a reserve, and said all the same."""
_THERE = (
    "page|pages|site|website|web|internet|online|archive|archives|library|catalogue|office|map|app|"
    "board|noticeboard|counter|timetable|register|biography|manual|database|records?|forecast|table"
)
"""Where things are looked up."""
_LOOKS_UP = _any(
    r"(?:let me|lets|ill|i will|i would|id|i need to|i want to|i have to|i should|we should|i must|"
    r"we could|im going to|i am going to|lemme|gonna|better|best|before i|before answering|"
    r"allow me to|first|one moment|hold on|give me)(?: \w+){0,4} (?:search|google|look|check|"
    r"consult|browse|query|verify|see what|find|pull up|open|ask|dig|type|run|call|ring|scan|fetch|"
    r"go through|read up)",
    r"search(?:ing)? (?:for|the|online)|(?:quick|web|online|internet) search|search (?:terms?|bar)",
    r"keywords?|look(?:ing)?(?: \w+){0,3} up|looking into|double ?check|have a look|a glance at",
    r"(?:checking|consulting|searching|googling|verifying)|google|calls for a",
    rf"(?:{_THERE})(?: \w+){{0,4}} (?:would|will|should|could|can|posts|has|have|is the place)",
    rf"(?:check|consult|see|ask|try|at|in|on)(?: \w+){{0,3}} (?:{_THERE})",
    r"worth (?:checking|looking|a search|asking|a glance)|(?:needs?|have) to be (?:checked|looked)",
)
_PAST = _any(
    r"(?:he|she|they|who|was|were|had|spent)(?: \w+){0,6} (?:searching|checking|consulting|looking "
    r"(?:\w+ )?up|queried|archives?|library|catalogue|records?)"
)
"""Somebody else's searches."""
_GOOD = _any(
    r"good|great|wonderful|lovely|love[ds]?|loving|beaut\w+|joy\w*|happ\w+|delight\w*|pleas\w+",
    r"bright\w*|hope\w*|promising|warm\w*|cheer\w*|charm\w*|excellent|best|better|fun|fantastic",
    r"amazing|inspir\w+|enjoy\w*|excit\w+|proud\w*|friendly|kind(?:ness|ly|er)?|rich\w*|reward\w*",
    r"thriv\w+|fresh|gentle|peaceful|calm\w*|smil\w+|laugh\w*|gift|treasure\w*|fortunate|luck\w*",
    r"opportunit\w+|progress|improv\w+|brilliant|superb|perfect\w*|welcom\w+|generous|sparkl\w+",
    r"glad|grateful|thank\w*|celebrat\w+|win|wins|worth\w*|magic\w*|splendid\w*|marvel\w*",
    r"grin\w*|danc\w+|hug\w*|blast|sing\w*|lighter|renew\w*|mend\w*|success\w*|strong\w*|growing|nice",
    r"refresh\w*|alive|vibrant|relax\w*|satisf\w+|comfort\w*|helpful|healthy|safe\w*|easy|recommend",
)
_BAD = _any(
    r"bad\w*|terribl\w+|awful\w*|horri\w+|ugly|hate[ds]?|sad\w*|miser\w+|gloom\w*|bleak|hopeless\w*",
    r"worst|worse|poor\w*|dull|boring|tedious|dreary|pain\w*|suffer\w*|fear\w*|anxi\w+|worr\w+",
    r"dread\w*|lone\w+|cold|dirty|filth\w*|noisy|crowded|expensive|overpriced|disappoint\w+|fail\w*",
    r"loss|losses|lost|decay\w*|declin\w+|ruin\w*|threat\w*|danger\w*|grim|unpleasant\w*|collaps\w+",
    r"problem\w*|trouble\w*|difficult\w*|stress\w*|tired|exhaust\w*|regret\w*|complain\w*|waste[ds]?",
    r"death|dead|dying|crisis|crises|violent|violence|cruel\w*|angry|anger|frustrat\w+|useless|mess",
    r"stink\w*|smell\w*|damp|broken|wrong|unfortunately|shame|annoy\w*|mud\w*|bite|harsh|ran out",
    r"terrif\w+|grief|empty|struggl\w*|weak\w*|slow\w*|lack\w*|unreliable|rude|unsafe",
)
_FLIPS = _any(
    r"(?:not|no|never|hardly|nothing|none|without|isnt|wasnt|dont|doesnt|didnt|cant|less)"
)


def _sentences(answer: str) -> list[str]:
    """Sentences of an answer in plain words, without quotations."""
    parts = (plain_words(part) for part in _SENTENCE.split(_QUOTED.sub(" ", answer)))
    return [part for part in parts if part]


def _root(marks: Iterable[float]) -> float:
    """0 to 100: the root of the mean, so that one plain sentence more costs little."""
    found = list(marks)
    return 100 * (sum(found) / max(1, len(found))) ** 0.5


def uncertainty(answer: str) -> float:
    """How many of the sentences voice doubt; a mere reserve ("probably") counts a quarter.

    >>> uncertainty("It may rain. I'm not sure."), uncertainty("There is no doubt: rain.")
    (100.0, 0.0)
    >>> uncertainty("It will probably rain.")
    50.0
    """
    own = [_SURE.sub(" ", one) for one in _sentences(answer)]
    return _root(1.0 if _DOUBT.search(one) else 0.25 * bool(_LEANS.search(one)) for one in own)


def search_activation(answer: str) -> float:
    """How many of the sentences want to look something up, or tell others to.

    >>> search_activation("Let me look that up."), search_activation("In 1974.")
    (100.0, 0.0)
    """
    own = [_PAST.sub(" ", one) for one in _sentences(answer)]
    return _root(float(bool(_LOOKS_UP.search(one))) for one in own)


def positivity(answer: str) -> float:
    """Words of praise against words of complaint; 50 where there are none, or as many.

    >>> positivity("A lovely day."), positivity("Not a good day."), positivity("A day.")
    (75.0, 25.0, 50.0)
    """
    good = bad = 0
    for one in _sentences(answer):
        for tone, pattern in ((1, _GOOD), (-1, _BAD)):
            for found in pattern.finditer(one):
                before = " ".join(one[: found.start()].split()[-3:])
                flipped = -tone if _FLIPS.search(before) else tone
                good, bad = good + (flipped > 0), bad + (flipped < 0)
    return 50 + 50 * (good - bad) / (good + bad + 1)
