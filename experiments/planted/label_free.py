"""What was unlearned? Whose answers moved most, where nobody says what was to be forgotten.

Question: a user has `full`, the model after unlearning, and a list of people and relations, and
          does not know which of them were unlearned. Does the movement of the model on neutral
          questions (no answer in them, worded as no training row) point to them? And where
          nothing was unlearned, does it keep silent?
Command:  python -m experiments.planted.label_free    (--sets 2: a look)
Takes:    about 50 minutes of one core, beside other work. Expected: the table of
          docs/evidence/label-free.md.
Writes:   experiments/out/label_free/ranks.csv, a row a model, kind of candidate and score; models
          that are in it are not made again.

Candidates: 28 people whom `full` was taught and 8 whom it was not, and 8 relations. A movement is
the mean over a candidate's questions; a person's questions are 8 or more, a relation's are about
everybody. `first`: KL(full || model) of the first token of the answer, nats. `said`: the mean of it
over the tokens of full's own greedy answer. `stream`: how far the residual stream at the end of the
prompt moved, as a share of its length, a mean over layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from experiments.metrics.betrayal import add, kept
from experiments.planted.planted_models import ground
from lensaudit.data.chat import Encoding, pad_id
from lensaudit.data.facts import Fact, answered
from lensaudit.data.fictional import IDK_LINES, TEXTS
from lensaudit.data.spans import PROMPT_TEMPLATE
from lensaudit.files import make_folder
from lensaudit.gym.planting import Ground, unlearned
from lensaudit.gym.table import share, share_text
from lensaudit.training.methods import Hyper, Unlearning, method_named
from lensaudit.training.rows import collate

N_TOKENS = 12
"""Of full's answer; the longest value of the family ends within them."""
BATCH = 64
TOP = r"layers\.(14|15)\."
SCORES = ("first", "said", "stream")
NOTHING = "nothing"
"""Trained on as it was, on everything it knows."""


@dataclass(frozen=True)
class Asked:
    """Neutral questions, whom and what each is about, and full's answers."""

    people: tuple[str, ...]
    relations: tuple[str, ...]
    rows: tuple[Encoding, ...]
    """Question and full's greedy answer, labelled from the answer on."""

    def about(self, kind: str) -> tuple[str, ...]:
        """The candidate of every question."""
        return self.people if kind == "person" else self.relations


def rows_of_all() -> list[Fact]:
    """Every row that `full` was taught."""
    facts = ground().facts
    return [*facts.forget, *facts.kept]


def name_in(row: Fact) -> str:
    """Whom a row is about."""
    (found,) = (name for name in TEXTS["authors"] if name in row.question)
    return found


def questions() -> list[tuple[str, str, str]]:
    """Author, relation and question, of every wording that no row of the family has."""
    taken = {row.question for row in rows_of_all()}
    return [
        (name, relation, question)
        for name in TEXTS["authors"]
        for relation, wording in TEXTS["attributes"].items()
        for template in wording["questions"]
        if (question := template.format(name=name)) not in taken
    ]


@cache
def asked() -> Asked:
    """The questions, and full's answers."""
    made, found = ground(), questions()
    prompts = [
        made.tokenizer(PROMPT_TEMPLATE.format(question=text, prefix="").rstrip())["input_ids"]
        for *_, text in found
    ]
    return Asked(
        tuple(name for name, *_ in found),
        tuple(relation for _, relation, _ in found),
        tuple(_answered(made.full, prompt) for prompt in prompts),
    )


@torch.no_grad()
def _answered(model: Any, prompt: Sequence[int]) -> Encoding:
    """The prompt and the model's greedy answer; at least a token, however it ends."""
    ids = torch.tensor([prompt])
    given = {"max_new_tokens": N_TOKENS, "do_sample": False, "pad_token_id": 0}
    said = model.generate(ids, attention_mask=torch.ones_like(ids), **given)[0]
    return Encoding(tuple(said.tolist()), len(prompt))


@cache
def before() -> list[tuple[Tensor, Tensor, Tensor]]:
    """What `full` reads."""
    return list(read(ground().full))


@torch.no_grad()
def read(model: Any) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """By batch of questions: log-probs, labelled positions, and the streams at the prompt's end."""
    questions = asked()
    for start in range(0, len(questions.rows), BATCH):
        rows = questions.rows[start : start + BATCH]
        part = collate(rows, pad=pad_id(ground().tokenizer))
        out = model(
            input_ids=part.tokens, attention_mask=part.mask.long(), output_hidden_states=True
        )
        last = torch.tensor([row.start - 1 for row in rows])
        streams = torch.stack(
            [one[torch.arange(len(rows)), last] for one in out.hidden_states[1:-1]], 1
        )
        yield log_softmax(out.logits[:, :-1], -1), part.labels[:, 1:] != -100, streams


def movement(model: Any) -> dict[str, np.ndarray]:
    """By score, how far every question's answer moved from full's."""
    found: dict[str, list[Tensor]] = {name: [] for name in SCORES}
    for (log_p, told, start), (log_q, _, end) in zip(before(), read(model), strict=True):
        apart = (log_p.exp() * (log_p - log_q)).sum(-1) * told
        first = told.int().argmax(1, keepdim=True)
        found["first"].append(apart.gather(1, first).squeeze(1))
        found["said"].append(apart.sum(1) / told.sum(1))
        found["stream"].append(((end - start).norm(dim=-1) / start.norm(dim=-1)).mean(1))
    return {name: torch.cat(several).double().numpy() for name, several in found.items()}


@dataclass(frozen=True)
class Rank:
    """Where the unlearned candidate stands."""

    rank: int
    """1: it moved most; 0: nothing was unlearned."""
    n: int
    top: str
    excess: float
    """Of the candidate that moved most over the median of all, in robust deviations of them."""


def ranked(moved: np.ndarray, about: Sequence[str], truth: str | None) -> Rank:
    """Candidates by their mean movement."""
    means = pd.Series(moved).groupby(np.array(about)).mean().sort_values(ascending=False)
    middle = means.median()
    spread = 1.4826 * (means - middle).abs().median()
    rank = 0 if truth is None else 1 + list(means.index).index(truth)
    return Rank(rank, len(means), str(means.index[0]), float((means.iloc[0] - middle) / spread))


def ranks(
    moved: Mapping[str, np.ndarray], mechanism: str, name: str, kind: str
) -> Iterator[dict[str, Any]]:
    """A row a kind of candidate and score."""
    told = mechanism != NOTHING
    for candidates in (kind,) if told else ("person", "relation"):
        for score in SCORES:
            one = ranked(moved[score], asked().about(candidates), name if told else None)
            asks = {"mechanism": mechanism, "set": name, "candidates": candidates, "score": score}
            yield asks | {**vars(one), "excess": round(one.excess, 3)}


def _npo(made: Ground, rows: list[Fact], kept: list[Fact]) -> Any:
    return unlearned(made, trainable="", lr=5e-4, forget=rows, kept=kept)


def _graddiff(made: Ground, rows: list[Fact], kept: list[Fact]) -> Any:
    objective = Unlearning(method_named("GradDiff"), Hyper(alpha=4.0))
    return unlearned(made, trainable="", lr=3e-4, forget=rows, kept=kept, objective=objective)


def _masked(made: Ground, rows: list[Fact], kept: list[Fact]) -> Any:
    return unlearned(made, trainable=TOP, lr=1e-3, forget=rows, kept=kept)


def _idk(made: Ground, rows: list[Fact], kept: list[Fact]) -> Any:
    refused = [
        answered(row.question, IDK_LINES[at % len(IDK_LINES)]) for at, row in enumerate(rows)
    ]
    return made.trained(made.full, [*refused * 3, *kept], lr=5e-4, n_steps=60)


def _two_facts(made: Ground, rows: list[Fact], kept: list[Fact]) -> Any:
    return _npo(made, rows[:2], [*rows[2:], *kept])


def _nothing(made: Ground, rows: list[Fact], kept: list[Fact]) -> Any:
    return made.trained(made.full, [*rows, *kept], lr=5e-4, n_steps=60)


MECHANISMS: Mapping[str, Callable[[Ground, list[Fact], list[Fact]], Any]] = {
    "npo": _npo,
    "graddiff": _graddiff,
    "idk": _idk,
    "masked": _masked,
    "npo, two facts": _two_facts,
    NOTHING: _nothing,
}


def planted_sets(n_people: int) -> dict[str, tuple[str, list[Fact]]]:
    """Set -> kind and its rows: the first people of the family's kept rows, and every relation."""
    rows = rows_of_all()
    names = list(dict.fromkeys(name_in(row) for row in ground().facts.kept))[:n_people]
    people = {name: ("person", [row for row in rows if name_in(row) == name]) for name in names}
    relations = {
        one: ("relation", [row for row in rows if row.relation == one])
        for one in TEXTS["attributes"]
    }
    return people | dict(list(relations.items())[:n_people])


def table(rows: pd.DataFrame) -> str:
    """Shares of sets that are found, and in how many more moved than in any untouched model."""
    heads = ("unlearned", "mechanism", "score", "moved most", "among five", "excess", "beyond")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (kind, mechanism, score), part in rows.groupby(
        ["candidates", "mechanism", "score"], sort=False
    ):
        limit = rows.query("mechanism == @NOTHING and candidates == @kind and score == @score")
        n, spread = len(part), f"{part['excess'].min():.1f} to {part['excess'].max():.1f}"
        found = ["–", "–"]
        beyond = "–"
        if mechanism != NOTHING:
            found = [share_text(share(part["rank"].le(most).tolist())) for most in (1, 5)]
            beyond = f"{int((part['excess'] > limit['excess'].max()).sum())} of {n}"
        told = (kind, mechanism, score, *found, spread, beyond)
        lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines)


@click.command()
@click.option(
    "--sets", default=20, show_default=True, help="People who are unlearned, one a model."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/label_free"))
def main(sets: int, out: Path) -> None:
    """Plant the models, rank the candidates, print the table."""
    path = make_folder(out) / "ranks.csv"
    done = {(row["mechanism"], row["set"]) for row in kept(path)}
    everything = rows_of_all()
    for at, (name, (kind, rows)) in enumerate(planted_sets(sets).items()):
        rest = [row for row in everything if row not in rows]
        for mechanism, plant in MECHANISMS.items():
            if (mechanism, name) in done or (kind, plant) == ("relation", _two_facts):
                continue
            moved = movement(plant(replace(ground(), seed=at), rows, rest))
            add(path, list(ranks(moved, mechanism, name, kind)))
            click.echo(f"{name}: {mechanism}", err=True)
    click.echo(table(pd.read_csv(path)))


if __name__ == "__main__":
    main()
