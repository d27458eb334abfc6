"""What may be chosen of a door."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from lensaudit.settings import (
    Caches,
    Kept,
    Machine,
    Names,
    Needs,
    Option,
    Place,
    Positions,
    Rows,
    Section,
)

Format = Literal["eee", "hub-results", "model-card", "inspect", "junit", "markdown", "uds-runs"]


@dataclass(frozen=True)
class ExportSettings:
    """A run of `export`: the tools whose files are written, and what those files need."""

    section: ClassVar[Section] = "Output"

    to: Annotated[Format, Option("Tool whose files are written.")]
    out: Annotated[Place, Option("Folder of the files.", flag="-o --out", is_a="folder")] = Path(
        "export"
    )
    gate: Annotated[
        Place | None,
        Option(
            "Gate policy, for junit and markdown. [default: of an empty file]",
            is_a="file",
            needs=(Needs("to", one_of=("junit", "markdown")),),
        ),
    ] = None
    dataset: Annotated[
        str | None,
        Option("Forget set on the Hub; hub-results needs it.", metavar="ORG/NAME[@REVISION]"),
    ] = None
    organization: Annotated[str, Option("Who ran the audit, for eee.")] = "not named"
    relationship: Annotated[
        Literal["first_party", "third_party", "collaborative", "other"],
        Option("Relationship of the auditor to the model, for eee."),
    ] = "other"

    @property
    def repo(self) -> str:
        """ORG/NAME of the data set, without its revision; empty where none is named."""
        return (self.dataset or "").partition("@")[0]


@dataclass(frozen=True, kw_only=True)
class CacheSettings(Caches, Machine, Rows, Names):
    """A run of `cache`: residual streams, or components of a model's layers."""

    component: Annotated[
        Kept | tuple[Kept, ...],
        Option(
            "What is cached of every layer: the residual stream after it, what attention or the "
            "MLP adds, the stream between them, or all heads' outputs. Repeatable. "
            "[default: resid]",
            expert=True,
        ),
    ] = ()
    positions: Annotated[
        Positions,
        Option("The read positions and the last prompt token, or every token.", expert=True),
    ] = "span"
