"""What may be chosen when a model is run through lm-evaluation-harness, or facts are annotated."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from lensaudit.settings import Attention, Limit, Names, Needs, Option, Precision, Seed, needing


@dataclass(frozen=True, kw_only=True)
class HarnessSettings(Precision, Names):
    """A run of `lm-eval`: a model as it is, quantised or steered, and its tasks."""

    model: Annotated[str, Option("Name, Hub id[@revision], folder or base+adapter.", is_a="model")]
    tasks: Annotated[
        str,
        Option(
            "Task names with commas, or a .yaml file that lists names and whole tasks.", commas=True
        ),
    ]
    include: Annotated[
        Path | None, Option("Folder of own task files (YAML).", is_a="folder", typed=True)
    ] = None
    num_fewshot: Annotated[
        int | None, Option("Solved examples before each question. [default: the task's]", least=0)
    ] = None
    batch_size: Annotated[int, Option("Texts per batch.", least=1)] = 16
    apply_chat_template: Annotated[bool, Option("Ask through the chat template.", rare="set")] = (
        False
    )
    fewshot_as_multiturn: Annotated[
        bool, Option("Give few-shot examples as turns of the chat.", rare="set")
    ] = False
    system_instruction: Annotated[str | None, Option("System text of the chat.", rare="set")] = None
    gen_kwargs: Annotated[
        str | None,
        Option("Arguments of generations, e.g. max_gen_toks=32,temperature=0.", rare="set"),
    ] = None
    max_length: Annotated[
        int | None, Option("Longest context in tokens. [default: the model's]", least=1, rare="set")
    ] = None
    seed: Seed = 1234
    """Of few-shot examples and of everything drawn; the harness's own for few-shot examples."""
    quantize: Annotated[Literal["nf4", "int8"] | None, Option("Round the weights first.")] = None
    steer: Annotated[
        Path | None,
        Option(
            "Steer by a vector of `steer extract`, at every position.",
            is_a="file",
            metavar="VECTOR",
        ),
    ] = None
    coefficient: Annotated[float, Option("Factor of the vector of --steer.")] = 1.0
    ablate: Annotated[bool, Option("Remove the direction of --steer instead.")] = False
    limit: Limit = None
    attn: Attention = "eager"
    out: Annotated[
        Path | None, Option("Result folder. [default: experiments/out/<model>-lm-eval]")
    ] = None
    fresh: Annotated[
        bool, Option("Run tasks again that --out holds already.", section="Output")
    ] = False


@dataclass(frozen=True, kw_only=True)
class AnnotationSettings(Precision, Names):
    """A run of `annotate`: the pairs, and the models they are checked with."""

    needs: ClassVar = {
        # nothing else loads the model
        **needing(Precision, Needs("min_logprob", unless=Needs("never"))),
        "min_logprob": (Needs("model"),),
    }

    pairs: Path
    out: Annotated[
        Path,
        Option("The annotated forget set, for --data.", flag="-o --out", is_a="file"),
    ]
    review: Annotated[
        Path | None,
        Option("Text file to correct by hand. [default: beside --out, .review.txt]", is_a="file"),
    ] = None
    page: Annotated[
        bool,
        Option("Also write a page beside --out, .page.html, to move spans by clicks or keys."),
    ] = False
    model: Annotated[
        str | None,
        Option("Check every span with this model's tokenizer.", is_a="model"),
    ] = None
    min_logprob: Annotated[
        float | None,
        Option(
            "Leave out facts to which --model gives less per token, e.g. -2: it never knew them.",
            metavar="NATS",
            expert=True,
        ),
    ] = None
    never: Annotated[
        str | None,
        Option(
            "Model that never saw the facts: rows that --model answers wrongly, and rows that this "
            "one answers, go to files of their own, each with both answers.",
            flag="--retain",
            is_a="model",
            needs=(Needs("model"),),
        ),
    ] = None
    entity_from: Annotated[
        Literal["answer", "full"],
        Option(
            "Where the entity is taken from: the row's answer, or what --model says after the "
            "prefix.",
            needs=(Needs("never"),),
            expert=True,
        ),
    ] = "answer"
    question_key: Annotated[str, Option("Field that holds the question.")] = "question"
    answer_key: Annotated[str, Option("Field that holds the answer.")] = "answer"
    group_key: Annotated[str, Option("Field that names the author; intervals are by author.")] = (
        "group"
    )

    def aside(self, name: str) -> Path:
        """File of rows that an audit should not ask: `full_wrong`, `general_knowledge`."""
        return self.out.with_name(f"{self.out.stem}_{name}{self.out.suffix}")

    @property
    def review_file(self) -> Path:
        """The review file: all rows, doubtful ones marked."""
        return self.review or self.out.with_suffix(".review.txt")

    @property
    def page_file(self) -> Path:
        """The page on which spans can be moved."""
        return self.out.with_suffix(".page.html")
