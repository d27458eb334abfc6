"""The embedded benchmark: generated authors whose facts nobody can know from elsewhere."""

from lensaudit.data.fictional.authors import Author, FictionalRow, author_rows, draw_author
from lensaudit.data.fictional.world import World, corpus_text, make_world, passing_rows, write_world

__all__ = [
    "Author",
    "FictionalRow",
    "World",
    "author_rows",
    "corpus_text",
    "draw_author",
    "make_world",
    "passing_rows",
    "write_world",
]
