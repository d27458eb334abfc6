"""What a caller may choose: settings records, whose fields carry the words and range of a choice.

A settings record is a frozen dataclass. A Python caller gives its fields as keywords; a command
makes one option of each. So name, type, default and words of a choice stand in one place:

    @dataclass(frozen=True, kw_only=True)
    class Rounding:
        method: Annotated[Literal["nf4", "int8"], Option("How weights are rounded.")] = "nf4"
        device: Device = "auto"

This module imports nothing that takes time: records are read for `--help` and completion.
"""

import dataclasses
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

Place = str | Path
"""A file or folder, as a caller names it."""
Section = Literal["Models and data", "Size", "Scoring", "Training", "Machine", "Output"]
"""Heading of a command's help; a group of settings says its own, other fields are of scoring."""
MODELS: Section = "Models and data"
MACHINE: Section = "Machine"


@dataclass(frozen=True)
class Needs:
    """What must be chosen elsewhere, or an option cannot act; without more, that `field` is given.

    Where a record has no such field, nothing is needed.
    """

    field: str
    one_of: tuple[Any, ...] = ()
    """It has one of these values; of several, any. `()` means that none is named."""
    none_of: tuple[Any, ...] = ()
    """It has none of these."""
    reads: tuple[str, ...] = ()
    """It names metrics, one of which reads this: a kind of pass, a split, a field or `OF_A_LOG`."""
    but: tuple[tuple[str, str], ...] = ()
    """Of `reads` those that do not count where a field is given; where none is, the need holds."""
    address: bool = False
    """It is the address of a server."""
    own: bool = False
    """It names a model whose `full` and retain models are not known here."""
    never: bool = False
    """It names a model that never saw the facts, or leaves it to the source's family."""
    a_file: bool | None = None
    """It is a file (True), or anything else (False)."""
    unless: "Needs | None" = None
    """Where this holds, the other need not."""


def needing(group: Any, *needs: Needs) -> dict[str, tuple[Needs, ...]]:
    """Add the same needs to every field of a group of settings."""
    return {one.name: needs for one in dataclasses.fields(group)}


@dataclass(frozen=True)
class Option:
    """How a field is chosen on the command line. A field without one is no option."""

    help: str = ""
    flag: str = ""
    """As it is typed, where that is not the field's name: `--source`, or `-o --out`."""
    is_a: Literal["", "model", "served", "file", "folder", "bytes"] = ""
    """What a text names: a model, one or the address that serves it, a file, a folder, or a size
    in bytes."""
    least: int | float | None = None
    most: int | float | None = None
    above: int | float | None = None
    """The number must be larger than this."""
    none: str = ""
    """The word for None, e.g. `auto`."""
    metavar: str | None = None
    variable: str | None = None
    """Environment variable that is used where the option is not given."""
    expert: bool = False
    """Shown by `--help-all` only."""
    old: str = ""
    """What it was called: answers for one release, with a remark."""
    now: str = ""
    """The option in whose place it stood; it answers for one release, with a remark."""
    rare: Literal["", "set", "constant"] = ""
    """Nobody turns it: a keyword of Python, and a NAME=VALUE of `--set` or `--constant`. A record
    says so of fields that it inherits in its `rare`."""
    commas: bool = False
    """A list in one text; said again, or given as several, its parts are joined by commas."""
    typed: bool = False
    """Runs, sends, overwrites or deletes something: a person says so, no project file."""
    section: Section | None = None
    """Heading of the help, where it is another than that of the group."""
    needs: tuple[Needs, ...] = ()
    """All that must hold for it to act; a record adds some to fields by name in its `needs`."""

    def flags(self, name: str) -> list[str]:
        """The option as it is typed, for a field called `name`.

        >>> Option().flags("max_new_tokens"), Option(flag="-o --out").flags("out")
        (['--max-new-tokens'], ['-o', '--out'])
        """
        return self.flag.split() or [f"--{name.replace('_', '-')}"]

    def wanted(self, number: int | float) -> str:
        """What is wanted in place of a number that is not in the range; empty: it is in it."""
        bounds = (
            ("a finite number", isfinite(number)),
            (f"at least {self.least}", self.least is None or number >= self.least),
            (f"at most {self.most}", self.most is None or number <= self.most),
            (f"above {self.above}", self.above is None or number > self.above),
        )
        return next((said for said, holds in bounds if not holds), "")


ROWS = (".json", ".jsonl", ".ndjson")
"""How the name of a file of rows ends; other words name a set, such as forget10."""
OF_A_LOG = "retain log"
"""What a metric reads that is compared with a retain model's."""
Retain = Annotated[
    str | None,
    Option("Model that never saw the forget set. [default: retain]", is_a="model"),
]
Retains = Annotated[
    str | tuple[str, ...] | None,
    Option(
        "Model that never saw the forget set; further ones give the noise floor. Repeatable. "
        "[default: retain]",
        flag="--retain",
        is_a="model",
    ),
]
Data = Annotated[
    str | None,
    Option(
        "Forget set: forget10, demo, or a JSON/JSONL file. "
        "[default: forget10; demo for demo/… models]",
        metavar="NAME|FILE",
    ),
]
Limit = Annotated[
    int | None,
    Option("At most N examples, over as many authors as there are.", least=1, section="Size"),
]
Registry = Annotated[
    Place | None,
    Option(
        "TOML or JSON file that adds or overrides model names.",
        variable="LENSAUDIT_REGISTRY",
        expert=True,
        section=MODELS,
    ),
]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
Dtype = Annotated[
    DtypeName,
    Option(
        "Type of weights and activations; auto: float32 on a CPU, bfloat16 on CUDA.",
        section=MACHINE,
    ),
]
Device = Annotated[str, Option("Device: auto, cpu, cuda, cuda:1 …", section=MACHINE)]
Attention = Annotated[
    Literal["eager", "sdpa"],
    Option(
        "Attention of the Hugging Face model; what is patched is always eager.",
        rare="set",
        section="Scoring",
    ),
]
BatchSize = Annotated[
    int | None,
    Option(
        "Examples per batch; auto chooses from --memory.",
        least=1,
        none="auto",
        expert=True,
        section=MACHINE,
    ),
]
Memory = Annotated[
    str,
    Option(
        "Memory that activations may take beside the weights, e.g. 800M.",
        expert=True,
        section=MACHINE,
    ),
]
MEMORY = "2G"
AlignName = Literal["auto", "none", "shift", "procrustes", "affine"]
Activations = Annotated[
    Place,
    Option(
        "Folder of the activation caches. [default: activations]",
        is_a="folder",
        variable="LENSAUDIT_ACTIVATIONS",
        expert=True,
        section=MACHINE,
    ),
]
ACTIVATIONS = Path("activations")
"""Folder of the activation caches where nobody names another."""
Fresh = Annotated[bool, Option("Ignore scores of earlier runs.", section="Output")]
GENERATED = ("text", "jailbreak", "fluency")
"""Kinds of passes in which a model answers."""
Holdout = Annotated[
    Place | None,
    Option(
        "Your rows that no model saw, for membership attacks.",
        is_a="file",
        needs=(Needs("metrics", reads=("holdout",)),),
    ),
]
RetainSet = Annotated[
    Place | None,
    Option(
        "Your rows that the model should still know.",
        flag="--kept",
        old="--retain-data",
        is_a="file",
        needs=(Needs("metrics", reads=("retain", "patched")),),
    ),
]
Own = Annotated[
    tuple[Place, ...],
    Option(
        "Python file with own decorated functions; it is run. Repeatable.",
        flag="--from",
        is_a="file",
        typed=True,
    ),
]
Where = Literal["all", "prompt", "response", "last_prompt"]
"""Token positions of an intervention."""
Seed = Annotated[int, Option("Seed of all random draws.", least=0)]
Ask = Literal["greedy", "none"]
Think = Literal["empty", "full"]
"""How a model that thinks is asked: after an empty thought, or with its thought opened."""
Thinking = Annotated[
    Think | None,
    Option(
        "How a model that thinks is asked: after an empty thought, or with its thought opened. "
        "[default: as its chat template asks]"
    ),
]
Asked = Literal["quick", "none"]
Association = Annotated[
    Asked,
    Option("Who has what, as `lensaudit know` with outputs and lens alone; none leaves it out."),
]

Scope = Literal["span", "boundary", "prefix"]
"""Which positions are replaced: the span's; the last prompt token; all up to the span's end."""
Seam = Literal["text", "reference"]
"""How question, prefix and entity become tokens: as one text; or prompt and answer apart and then
joined, as the UDS reference does it."""
LastLayer = Literal["resid_post", "reference"]
"""What is patched in at the last layer: the residual stream, or, as the reference does by way of
Hugging Face's `hidden_states[-1]`, the stream after the source's final norm."""
Profile = Literal["full", "ke"]
"""Which S2 rows are computed: all, or only those that can change UDS (layers with S1 > tau)."""
Score = Literal["uds", "lens", "em"]
"""Unlearning Depth Score; Logit Lens depth; exact-match erasure."""
EmForm = Literal["generation", "teacher"]
"""What exact match compares: what a patched model generates, or its most likely next tokens."""
Kept = Literal["resid", "attn", "mlp", "resid_mid", "heads"]
"""Which part of every layer is cached: the residual stream after the block; what attention or the
MLP adds to it; the stream between them; all heads' outputs before the output projection."""
Positions = Literal["span", "all"]
"""What of a residual stream is cached: the positions that are read, or every token."""
Suite = Literal["tofu", "muse"]
"""Benchmark whose questions are asked."""
MaskConvention = Literal["true", "upstream"]
"""`true`: every real token is attended to. `upstream`: id ≠ pad, so that where pad = end-of-turn
each real end-of-turn is masked as well (open-unlearning issue #128)."""
Cleanup = Literal["upstream", "none"]
"""Blanks before punctuation in decoded text: removed as by transformers 4, or kept."""
EmptyRows = Literal["auto", "unscored", "upstream"]
"""Rows with nothing to score: no number, or 0 as upstream; `auto` follows the mask."""

TAU = 0.05
"""S1 delta (nats per token) above which a layer counts as encoding the knowledge; compute_uds.py
default `--delta_threshold`."""
RESULTS = Path("experiments/out")
"""Default folder of result folders."""
RESULTS_VARIABLE = "LENSAUDIT_OUT"
"""Environment variable that names another; a project file's `out` does for a command."""
FORGET_SPLIT = "forget10"
"""Which part of TOFU is forgotten."""

_say_once = cache(logging.getLogger(__name__).warning)


def user_cache() -> Path:
    """`lensaudit/` in the user's cache folder."""
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"), "lensaudit")


def _usual(variable: str, folder: Path) -> Path:
    """What the environment names, or `folder`; where nobody can make that, one in the user's cache.

    A folder that is there is kept: what lies in it can be read.
    """
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if os.environ.get(variable) or there == folder or os.access(there, os.W_OK):
        return Path(os.environ.get(variable) or folder).expanduser()
    instead = user_cache() / folder
    _say_once(f"{folder} cannot be made here: {instead} is used; {variable} names another folder")
    return instead


results_folder = partial(_usual, RESULTS_VARIABLE, RESULTS)
"""Folder of result folders."""
activations_folder = partial(_usual, "LENSAUDIT_ACTIVATIONS", ACTIVATIONS)
"""Folder of the activation caches."""


NO_RETAIN_MODEL = "none"
"""Value of `--retain` where there is no model that never saw the facts."""
COUNTERFACTUAL = "counterfactual"
"""Anchor, and score, of a run without a retain model: `full`'s own stream of another question."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Registry in which names of models are looked up."""

    registry: Registry = None


@dataclass(frozen=True, kw_only=True)
class Models(Names):
    """The models that a source is compared with."""

    full: Annotated[
        str | None,
        Option(
            "Model before unlearning, which other models' streams are patched into. [default: "
            "full, or demo/full]",
            is_a="model",
        ),
    ] = None
    retain: Retains = ()


@dataclass(frozen=True, kw_only=True)
class Anchors(Models):
    """Anchors, where one retain model is enough."""

    retain: Retain = None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows that are asked, and how many of them."""

    section: ClassVar[Section] = MODELS
    limit: Limit = None
    data: Data = None
    exclude: Annotated[
        tuple[str, ...],
        Option(
            "Leave out a named index list, e.g. v2_full_wrong. Repeatable.",
            metavar="FILTER",
            expert=True,
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Where and how precisely a model runs."""

    device: Device = "auto"
    dtype: Dtype = "auto"


@dataclass(frozen=True, kw_only=True)
class Machine(Precision):
    """Where a model runs, and what it may use."""

    batch_size: BatchSize = None
    memory: Memory = MEMORY


@dataclass(frozen=True, kw_only=True)
class Caches:
    """Folder of the activation caches."""

    activations: Activations = field(default_factory=activations_folder)


@dataclass(frozen=True, kw_only=True)
class ScoreFiles(Caches):
    """Folder of activations and scores, and whether earlier ones count."""

    fresh: Fresh = False


FORCE = "force"


@dataclass(frozen=True, kw_only=True)
class NeutralRows:
    """What a map is fitted on, and what shows that a source can be read at all."""

    align: Annotated[
        AlignName,
        Option(
            "Map that carries a source to full's basis before patching; auto: where UDS is 0.1 or "
            "more and neutral rows are known.",
            expert=True,
        ),
    ] = "auto"
    align_data: Annotated[
        Place | None,
        Option(
            "Neutral rows or sentences a map is fitted on. [default: the forget set's retain rows]",
            is_a="file",
            expert=True,
            needs=(Needs("align", none_of=("none",)),),
        ),
    ] = None
    align_tokens: Annotated[
        int | None,
        Option(
            "Number of neutral tokens that a map is fitted on. [default: 16 per dimension]",
            least=1,
            rare="set",
            needs=(Needs("align", none_of=("none",)),),
        ),
    ] = None
    validity_data: Annotated[
        Place | None,
        Option(
            "Rows that the source should still know: they show whether full can read it. "
            "[default: the forget set's retain rows]",
            is_a="file",
            expert=True,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PatchGroups(ScoreFiles, Machine, NeutralRows, Rows, Models):
    """Models, rows and machine of a run that patches: the same for `patch` and `audit`."""

    needs: ClassVar = needing(NeutralRows, Needs("retain", never=True))

    retain: Annotated[
        str | tuple[str, ...] | None,
        Option(
            "Model that never saw the forget set; further ones give the noise floor. Repeatable. "
            "none: there is none, so full's own stream of another question stands in, which may "
            "show that facts are hidden and nothing else. [default: retain; none for own folders]",
            flag="--retain",
            is_a="model",
        ),
    ] = ()

    @property
    def without_retain(self) -> bool:
        """Whether there is no model that never saw the facts."""
        return NO_RETAIN_MODEL in several(self.retain)


@dataclass(frozen=True, kw_only=True)
class DepthGroups(PatchGroups):
    """The same, and whether models are asked what they are to have forgotten."""

    ask: Annotated[
        Ask,
        Option(
            "Ask each fact once, greedily, as a question and in the chat template, of source, full "
            "and retain; none leaves it out, and then no model is called erased."
        ),
    ] = "greedy"


@dataclass(frozen=True, kw_only=True)
class Questions(Rows):
    """What a suite asks, of whose rows, and how texts are read and written."""

    section: ClassVar[Section] = MODELS
    classifier: Annotated[
        str | None,
        Option(
            "Text classifier whose class 0 is clean text.",
            rare="set",
            section="Scoring",
            needs=(Needs("metrics", reads=("fluency",)),),
        ),
    ] = None
    mask: Annotated[
        MaskConvention,
        Option(
            "Attend to every real token, or to ids other than padding (published numbers).",
            expert=True,
            section="Scoring",
        ),
    ] = "true"
    max_new_tokens: Annotated[
        int | None,
        Option(
            "Longest generated answer in tokens. [default: the suite's]",
            least=1,
            section="Scoring",
            needs=(Needs("metrics", reads=GENERATED),),
        ),
    ] = None
    attn: Attention = "eager"
    suite: Annotated[Suite, Option("Benchmark whose questions are asked.")] = "tofu"
    data: Annotated[
        str | None,
        Option(
            "Own forget rows, a folder with one <config>.jsonl per configuration, a Hub data set, "
            "or demo. [default: the suite's on the Hub; demo for demo/… models]",
            metavar="FILE|DIR|NAME",
        ),
    ] = None
    forget_split: Annotated[str, Option("Which part of TOFU is forgotten.", expert=True)] = (
        FORGET_SPLIT
    )
    forget: Annotated[
        Place | None, Option("Own forget rows, JSON or JSONL.", is_a="file", now="--data")
    ] = None
    holdout: Holdout = None
    retain_set: RetainSet = None
    question_key: Annotated[str, Option("Field that holds the question.", expert=True)] = "question"


@dataclass(frozen=True, kw_only=True)
class AnswerGroups(Caches, Machine, Questions, Anchors):
    """Models, questions and machine of a run that reads answers: the same for `eval` and `meta`."""

    needs: ClassVar = {
        "data": (
            # a suite's data, beside own rows: those of a split that are not one's own
            Needs(
                "metrics",
                reads=("forget", "annotated", "retain", "ra", "wf", "holdout"),
                but=(
                    ("forget", "forget"),
                    ("annotated", "forget"),
                    ("retain", "retain_set"),
                    ("holdout", "holdout"),
                ),
            ),
            Needs("forget", one_of=(None,), unless=Needs("data", a_file=False)),
        )
    }


def several(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name, several or none, as a caller writes them.

    >>> several("a"), several(["a", "b"]), several(None)
    (('a',), ('a', 'b'), ())
    """
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def named(source: Place) -> str:
    """A model's name; a `Path` is a folder even where a name in the registry is the same.

    >>> named("demo/npo"), named(Path("runs/npo"))
    ('demo/npo', './runs/npo')
    """
    if isinstance(source, str):
        return source
    return str(source) if source.is_absolute() else f"./{source.as_posix()}"


def path_of(place: Place | None) -> Path | None:
    """A place as a path."""
    return None if place is None else Path(place)


def shared(settings: Any, *groups: Any, **own: Any) -> dict[str, Any]:
    """Values of the groups that settings inherit, for another record; some of them replaced.

    >>> shared(Machine(dtype="float16"), Precision)
    {'device': 'auto', 'dtype': 'float16'}
    """
    fields = (one for group in groups for one in dataclasses.fields(group))
    return {one.name: getattr(settings, one.name) for one in fields} | own


def plain(settings: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a record, and of records inside, as JSON values by name: for a manifest."""
    found: dict[str, Any] = {}
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        if one.name == FORCE:  # of the folder, not of the result
            continue
        if dataclasses.is_dataclass(value):
            found |= plain(value, without=without)
        elif one.name not in without:
            found[one.name] = _as_text(value)
    return dict(sorted(found.items()))


def _as_text(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_as_text(one) for one in value)  # pyright: ignore[reportUnknownVariableType]
    return str(value) if isinstance(value, Path) else value
