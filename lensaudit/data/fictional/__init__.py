"""The embedded benchmark: generated authors whose facts nobody can know from elsewhere."""

from lensaudit.data.fictional.authors import Author, Row, author_rows, draw_author
from lensaudit.data.fictional.world import World, make_world, passing_authors, write_world

__all__ = [
    "Author",
    "Row",
    "World",
    "author_rows",
    "draw_author",
    "make_world",
    "passing_authors",
    "write_world",
]
