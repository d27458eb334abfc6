"""Annotations as text that a person can read and correct: the fact stands in [[brackets]]."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lensaudit.data.annotate import REVIEW, Pair, Proposal
from lensaudit.errors import InputError
from lensaudit.files import read_text, write_bytes
from lensaudit.groups import own_group

HEADING = "# lensaudit review"
"""The first words of a review file."""
_HELP = (
    f"{HEADING}: the fact of each answer stands in [[ ]]. Move the brackets where they are wrong,",
    "# delete (rule: ...) where they are right: both count as reviewed. Delete a block to leave",
    "# its row out, then run: lensaudit annotate THIS_FILE -o forget.json",
    "# Lines with # are read over, but for the idx. A line break of an answer is written \\n.",
)
_ROW = re.compile(r"# idx (\d+)(?: group (\".*\"|-?\d+))?(?:$| )")
_RULE = re.compile(r"\(rule: (\w+) (\d+):(\d+)\)\s*$")
"""At the end of a block's first line: which rule proposed which characters of the answer."""
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "[": "\\[", "]": "\\]"}
_ESCAPED = {escape: text for text, escape in _ESCAPES.items()}


def write_review(
    path: Path, proposals: Iterable[Proposal], remarks: Mapping[int, Sequence[str]]
) -> Path:
    """One block per row, in the order given; `remarks` are shown above the question, by idx."""
    blocks = [_block(one, remarks.get(one.pair.idx, ())) for one in proposals]
    text = "\n".join([*_HELP, "", *blocks])
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


def is_review(text: str) -> bool:
    """Whether a file's text is a review, by its first line."""
    return text.startswith(HEADING)


def read_review(path: Path) -> list[Proposal]:
    """The rows of a review file, spans where the brackets stand.

    A span keeps its rule where its block still names it and the brackets were not moved.

    Raises:
        InputError: a block lacks its question, its answer or one pair of brackets; all are listed.
    """
    rows, wrong = [], []
    block: dict[str, str] = {}
    lines = [*read_text(path).split("\n"), "# idx 0"]
    for n, line in enumerate(lines, 1):
        head = _ROW.match(line)
        if head and block:
            found = _proposal(block)
            rows += [found] if isinstance(found, Proposal) else []
            wrong += [f"line {block['line']}: {found}"] if isinstance(found, str) else []
        if head:
            block = {"line": str(n), "idx": head[1], "group": head[2] or "", "head": line}
        elif line[:3] in ("Q: ", "A: "):
            block[line[0]] = line[3:].rstrip("\r")
    if wrong:
        raise InputError(f"{path}: {len(wrong)} blocks are wrong: {'; '.join(wrong[:20])}")
    if not rows:
        raise InputError(f"{path}: no rows; wanted blocks of `# idx N`, `Q: …`, `A: … [[…]] …`")
    return rows


def _block(proposal: Proposal, remarks: Sequence[str]) -> str:
    pair = proposal.pair
    group = pair.group if isinstance(pair.group, int) else f'"{_escaped(pair.group)}"'
    answer, at = pair.answer, f"{proposal.start}:{proposal.end}"
    marked = (
        f"{_escaped(answer[: proposal.start])}[[{_escaped(proposal.entity)}]]"
        f"{_escaped(answer[proposal.end :])}"
    )
    return "\n".join(
        [
            f"# idx {pair.idx} group {group} (rule: {proposal.rule} {at})",
            *(f"# CHECK: {_escaped(remark)}" for remark in remarks),
            f"Q: {_escaped(pair.question)}",
            f"A: {marked}",
            "",
        ]
    )


def _proposal(block: Mapping[str, str]) -> Proposal | str:
    """The row of a block, or what is wrong with it."""
    if "Q" not in block or "A" not in block:
        return f"idx {block['idx']} has no {'answer' if 'Q' in block else 'question'}"
    marks = [m for m in re.finditer(r"\\.|\[\[|\]\]", block["A"]) if m.group() in ("[[", "]]")]
    if [mark.group() for mark in marks] != ["[[", "]]"]:
        return f"idx {block['idx']}: wanted one [[ and one ]] in the answer"
    cuts = [0, *(end for mark in marks for end in mark.span()), len(block["A"])]
    parts = (block["A"][start:end] for start, end in zip(cuts[::2], cuts[1::2], strict=True))
    before, entity, after = map(_plain, parts)
    idx = int(block["idx"])
    group = block["group"]
    pair = Pair(
        idx=idx,
        question=_plain(block["Q"]),
        answer=before + entity + after,
        group=_plain(group[1:-1])
        if group.startswith('"')
        else int(group)
        if group
        else own_group(idx),
    )
    start, end = len(before), len(before) + len(entity)
    said = _RULE.search(block["head"])
    untouched = said is not None and (said[2], said[3]) == (str(start), str(end))
    return Proposal(pair, start, end, rule=said[1] if said and untouched else REVIEW)


def _escaped(text: str) -> str:
    r"""One line, without brackets of its own.

    >>> print(_escaped("a\nb [c] \\n"))
    a\nb \[c\] \\n
    """
    return re.sub(r"[\\\n\r\[\]]", lambda found: _ESCAPES[found.group()], text)


def _plain(text: str) -> str:
    r"""Undo `_escaped`; other backslashes stay.

    >>> _plain(_escaped("a\nb [c] \\n"))
    'a\nb [c] \\n'
    """
    return re.sub(r"\\[\\nr\[\]]", lambda found: _ESCAPED[found.group()], text)
