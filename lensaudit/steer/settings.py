"""What may be chosen of steering: the model, what is asked, who judges, which directions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from lensaudit.judge.settings import BY_WORDS, OF_THE_ENDPOINT, JudgeAccess
from lensaudit.settings import (
    MEMORY,
    Anchors,
    Caches,
    Machine,
    Memory,
    Names,
    Needs,
    Option,
    Precision,
    Rows,
    Seed,
    Where,
    needing,
)

Method = Literal["mean_diff", "probe", "pca", "gradient", "random"]
Form = Literal["auto", "chat", "raw"]
Position = Literal["response", "prompt_last", "span"]
"""Which activations are averaged: those at the answer's tokens; that at the last prompt token;
those whose logits score the annotated entity."""
Kind = Literal["add", "ablate", "clamp"]

_ABLATE = Needs("kinds", one_of=("ablate", ()))
Layers = Annotated[str, Option("Layers: all, 5-13, 3,7,-1 …", commas=True)]


@dataclass(frozen=True, kw_only=True)
class TraitSettings(JudgeAccess, Machine, Names):
    """Model, trait, and how answers are drawn."""

    rare: ClassVar = (*OF_THE_ENDPOINT, "mode", "base_url", "key_env", "key_file")

    name: Annotated[str, Option("Name, Hub id[@revision] or folder.", flag="--model", is_a="model")]
    trait: Annotated[
        str,
        Option(
            "Trait that is asked for and judged: confidence, refusal, … or a file.",
            metavar="NAME|FILE",
        ),
    ]
    temperature: Annotated[float, Option("Sampling temperature.", least=0)] = 0.7
    """trait-interp's generation at the time of the seed, like the number of tokens."""
    max_new_tokens: Annotated[int, Option("Longest answer in tokens.", least=1)] = 256
    seed: Annotated[int, Option("Seed of all random draws.")] = 0
    form: Annotated[
        Form,
        Option(
            "Form of the prompts; auto: the chat template where there is one.",
            flag="--format",
            rare="set",
        ),
    ] = "auto"
    out: Annotated[
        Path | None,
        Option("Result folder. [default: experiments/out/steering/<model>/<trait>]", is_a="folder"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ExtractSettings(TraitSettings, Caches):
    """A run of `steer extract`."""

    needs: ClassVar = needing(JudgeAccess, Needs("filter_judge", none_of=("none", *BY_WORDS)))

    def idle(self) -> Mapping[str, str]:
        """Options that do nothing for answers that are written -> why; see `ask.acting`."""
        from lensaudit.steer.trait import idle  # which reads these settings

        return idle(self)

    positive: Annotated[
        Path | None,
        Option("Your rows of question and answer with the trait.", is_a="file"),
    ] = None
    negative: Annotated[
        Path | None,
        Option("Your rows without the trait, for the same or other questions.", is_a="file"),
    ] = None
    methods: Annotated[
        tuple[Method, ...],
        Option(
            "How a direction is estimated. Repeatable. [default: mean_diff and probe]",
            flag="--method",
        ),
    ] = ()
    layers: Layers = "all"
    position: Annotated[
        Position,
        Option("Activations at the answer, the last prompt token, or the entity."),
    ] = "response"
    n_rollouts: Annotated[
        int,
        Option("Elicited answers per question and system prompt.", flag="--rollouts", least=1),
    ] = 1
    filter_judge: Annotated[
        str,
        Option(
            "Keep pairs that this judge tells apart.",
            flag="--filter",
            metavar="none|idk|MODEL",
            typed=True,
        ),
    ] = "none"
    max_new_tokens: Annotated[int, Option("Longest answer in tokens.", least=1)] = 128


@dataclass(frozen=True, kw_only=True)
class AskSettings(TraitSettings):
    """Whom is asked what, how often, and who judges: what steered models have in common."""

    needs: ClassVar = needing(JudgeAccess, Needs("judge", none_of=BY_WORDS))

    where: Annotated[
        Where,
        Option(
            "Token positions that are steered; response begins at the last prompt token.",
            flag="--positions",
        ),
    ] = "all"
    n_questions: Annotated[
        int | None, Option("Only the first N questions.", flag="--questions", least=1)
    ] = None
    judge: Annotated[
        str,
        Option(
            "Judge: a programmatic one, or a language model behind --base-url.",
            metavar="idk|entity|TRAIT|MODEL",
            typed=True,
        ),
    ]
    coherence_judge: Annotated[
        str | None,
        Option(
            "Judge of coherence. [default: variety for a programmatic judge, else the same model]",
            metavar="variety|MODEL",
            typed=True,
            rare="set",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EvalSettings(AskSettings):
    """A run of `steer eval`."""

    vector: Annotated[
        Path, Option("Vector file: .safetensors of `steer extract`, or .pt.", is_a="file")
    ]
    coefficients: Annotated[
        str, Option("Factors of the vector; 0 is the baseline.", commas=True)
    ] = "0,0.5,1,1.5,2,2.5"
    as_ratio: Annotated[
        bool, Option("Coefficients are lengths in units of the stream's mean length.")
    ] = False
    n_rollouts: Annotated[
        int, Option("Answers per question and coefficient.", flag="--rollouts", least=1)
    ] = 10


@dataclass(frozen=True, kw_only=True)
class LayerSettings(AskSettings):
    """A run of `steer sweep`."""

    vectors: Annotated[
        Path | None, Option("Folder of vectors. [default: vectors/ in --out]", is_a="folder")
    ] = None
    method: Annotated[str, Option("Method whose vectors are used.")] = "mean_diff"
    layers: Layers = "all"
    ratio: Annotated[
        float,
        Option(
            "Length of the added vector, in lengths of the stream.",
            needs=(Needs("coefficient", one_of=(None,)),),
        ),
    ] = 0.5
    """trait-interp: 0.3 to 0.5 is safe, text falls apart from about 1."""
    coefficient: Annotated[
        float | None, Option("One factor for all layers, in place of --ratio.")
    ] = None
    n_rollouts: Annotated[
        int, Option("Answers per question and layer.", flag="--rollouts", least=1)
    ] = 3


@dataclass(frozen=True, kw_only=True)
class CrossSettings(AskSettings):
    """A run of `steer cross`."""

    rare: ClassVar = (
        *TraitSettings.rare,
        *("registry", "batch_size", "memory", "temperature", "max_new_tokens", "seed", "form"),
        *("where", "n_questions", "n_rollouts", "coherence_judge", "max_cost"),
    )

    trait: Annotated[
        str,
        Option(
            "Names or files of traits, with commas; each was steered by `steer eval` or `steer "
            "sweep`.",
            metavar="NAME|FILE",
            commas=True,
        ),
    ]
    n_rollouts: Annotated[
        int, Option("Answers per question and direction.", flag="--rollouts", least=1)
    ] = 3
    n_random: Annotated[
        int,
        Option(
            "Random directions of equal length per trait.", flag="--randoms", least=3, rare="set"
        ),
    ] = 5
    """Fewer do not show how far directions lie apart."""
    out: Annotated[
        Path | None,
        Option("Result folder. [default: experiments/out/steering/<model>/traits]", is_a="folder"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DirectionSettings(Caches, Precision, Rows, Anchors):
    """A run of `steer audit`."""

    name: Annotated[str, Option("Unlearned model to audit.", flag="--source", is_a="model")]
    kinds: Annotated[
        tuple[Kind, ...],
        Option("Only this experiment. Repeatable. [default: all]", flag="--experiment"),
    ] = ()
    retain_data: Annotated[
        str | None,
        Option(
            "Questions that should be kept. [default: demo, or retain90]",
            flag="--kept",
            old="--retain-data",
            metavar="NAME|FILE",
        ),
    ] = None
    n_retain: Annotated[int, Option("At most so many kept questions, evenly spaced.", least=2)] = 64
    """What a direction costs is measured on them."""
    layers: Layers = "all"
    strengths: Annotated[
        str,
        Option(
            "ADD: factors of the mean shift; 1 adds exactly that.",
            needs=(Needs("kinds", one_of=("add", ())),),
        ),
    ] = "0.25,0.5,0.75,1,1.25,1.5,2"
    score: Annotated[
        Literal["em", "logprob"],
        Option("Score that decides: entity tokens that are right, or their log-prob."),
    ] = "em"
    at: Annotated[
        Literal["prefix", "span"],
        Option("Where directions are read: last prefix token, or the entity's.", rare="set"),
    ] = "prefix"
    where: Annotated[
        Literal["response", "all"],
        Option(
            "ADD and CLAMP: positions from the last prefix token on, or all.", flag="--positions"
        ),
    ] = "response"
    n_folds: Annotated[
        int,
        Option(
            "Parts of whole authors; each is held out once.", flag="--folds", least=2, rare="set"
        ),
    ] = 5
    n_random: Annotated[
        int,
        Option(
            "Random directions of equal length per fold.", flag="--randoms", least=1, rare="set"
        ),
    ] = 5
    kl_cap: Annotated[
        float,
        Option(
            "ABLATE: most that retain answers may change, nats per token.",
            least=0,
            rare="set",
            needs=(_ABLATE,),
        ),
    ] = 0.1
    max_new_tokens: Annotated[
        int, Option("ABLATE: longest free answer.", least=1, needs=(_ABLATE,))
    ] = 32
    seed: Seed = 0
    form: Annotated[
        Form, Option("Form in which questions without a prefix are asked.", flag="--format")
    ] = "raw"
    out: Annotated[
        Path | None,
        Option("Result folder. [default: experiments/out/steering/<model>/audit]", is_a="folder"),
    ] = None
    memory: Memory = MEMORY
