"""Auditors that others would reach for: sparse probes, a learned subspace, the weights' difference.

`sparse_probe` reads facts whose relation has two answers (yes or no), as a probe on a few
coordinates of the stream tells two classes (Gurnee et al., arXiv:2305.01610). It is fitted on rows
to keep, at the position that predicts the answer, and carried to the forget facts.

`das` learns a subspace in which interchanging the streams of two subjects interchanges their
values, by distributed alignment search (Geiger et al., arXiv:2303.02536) on rows to keep. Then the
forget facts are interchanged there: does the source's own value come out, among those of its
relation? Its control: the same search for arbitrary values, which it also fits in part (Arora et
al., arXiv:2402.12560).

Both are those of `transformer_lens.tools.analysis`. Of the weights' difference from `full` two
numbers are read, each a mean over matrices: its length, relative to that of `full`'s matrix, and
its stable rank, the squared ratio of its length to its largest singular value.
"""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.data.facts import EMBEDDED, Fact, load_facts
from lensaudit.data.relations import labelled
from lensaudit.data.spans import Encoded, encode
from lensaudit.groups import grouped
from lensaudit.gym.auditors import SELECTIVE, Case, SeedModels, streams
from lensaudit.gym.registry import AuditorScore, auditor
from lensaudit.models.bridge import bridge_from, hook_name
from lensaudit.scores.separation import auc
from lensaudit.types import padded_rows

if TYPE_CHECKING:
    from transformer_lens.tools.analysis.interchange import SubspaceInterchange
    from transformer_lens.tools.analysis.sparse_probing import SparseProbeResult
else:  # TransformerLens takes seconds to import
    SubspaceInterchange = SparseProbeResult = Any

COORDINATES = 4
"""Of the stream that a sparse probe may read."""
SPLITS = 4
"""Halves of the authors on which it is fitted."""
FEWEST = 4
"""Authors for each of two answers, and for each relation, below which nothing is fitted."""
DEPTH = 0.75
"""Of the layers: where a subspace is looked for."""
RANK = 0.25
"""Dimensions of the subspace, a share of the stream's."""
EPOCHS = 5
BATCH = 64
PARTNERS = 2
"""Sources that a row is interchanged with."""
HELD = 3
"""Of the authors of kept rows one in so many is not fitted on."""


@dataclass(frozen=True)
class RelationFact:
    """A fact as tokens, with its relation."""

    encoded: Encoded
    relation: str

    @property
    def value(self) -> int:
        """First token of the entity."""
        return self.encoded.token_ids[self.encoded.start + 1]


def _facts(bench: SeedModels) -> tuple[list[RelationFact], list[RelationFact]]:
    """Annotated rows to keep, and the forget facts; those in which no relation is found left out.

    Raises:
        InputError: the rows to keep are not annotated.
    """
    kept = load_facts(bench.retain_data or EMBEDDED / "retain.json")
    return _labelled(kept, bench), _labelled(bench.facts.examples, bench)


def _labelled(rows: Sequence[Fact], bench: SeedModels) -> list[RelationFact]:
    own = {one.idx: one.relation for one in labelled(rows)}
    found = ((encode(one, bench.tokenizer), own.get(one.idx)) for one in rows)
    return [RelationFact(one, said) for one, said in found if isinstance(one, Encoded) and said]


@auditor(
    "sparse_probe",
    reads="stream",
    high_means="knows",
    source="transformer_lens.tools.analysis.sparse_probing, fitted on kept rows: arXiv:2305.01610",
)
def sparse_probe(case: Case) -> AuditorScore:
    """AUC of the probe over forget facts of relations with two answers: .5 by guess.

    The layer: the deepest of those where held-out authors of kept rows are read best. Control: a
    probe of shuffled answers reads them worse by `SELECTIVE`.
    """
    kept, asked = _facts(case.bench)
    model, found = case.bench.loaded(case.model), []
    for relation, own in grouped((one.relation, one) for one in kept).items():
        about = [one for one in asked if one.relation == relation]
        if (classes := _two_answers(own)) and {one.value for one in about} == {*classes}:
            found.append(_probed(model, own, about, classes[0]))
    if not found:
        why = f"no relation has two answers that {FEWEST} authors of kept rows have each"
        return AuditorScore(None, control=False, why=why)
    (score, gain), n = map(sum, zip(*found, strict=True)), len(found)
    return AuditorScore(score / n, control=gain / n >= SELECTIVE)


def _two_answers(rows: Sequence[RelationFact]) -> tuple[int, ...]:
    """The two values of a relation, if it has two that enough authors have."""
    authors = Counter(value for value, _ in {(one.value, one.encoded.group) for one in rows})
    classes = tuple(sorted(authors))
    return classes if len(classes) == 2 and min(authors.values()) >= FEWEST else ()


def _probed(
    model: Any, kept: Sequence[RelationFact], asked: Sequence[RelationFact], positive: int
) -> tuple[float, float]:
    """AUC over the forget facts of a relation, and how much better kept rows are read than mixed.

    Both are means over `SPLITS` halves of the authors.
    """
    from transformer_lens.tools.analysis.sparse_probing import sweep_sparse_probe

    fitted, labels = streams(model, [one.encoded for one in kept])
    read, _ = streams(model, [one.encoded for one in asked])
    truth = torch.tensor([one.value == positive for one in asked])
    authors = [one.encoded.group for one in kept]
    numbers = {group: at for at, group in enumerate(dict.fromkeys(authors))}
    groups = torch.tensor([numbers[group] for group in authors])
    best = (0.0, 0.0, 0.0)
    for layer, features in enumerate(fitted):
        sweeps = [
            sweep_sparse_probe(
                features,
                labels == positive,
                ks=(COORDINATES,),
                groups=groups,
                test_fraction=0.5,
                preprocess="standardize",
                n_label_shuffles=1,
                seed=seed,
            )
            for seed in range(SPLITS)
        ]
        probes = [one.results[0] for one in sweeps]
        right = sum(one.metrics.roc_auc for one in probes) / SPLITS
        mixed = [one for sweep in sweeps for one in sweep.label_shuffle_controls[0].roc_auc]
        if right >= best[0]:
            said = [_said(one, read[layer]) for one in probes]
            areas = [auc(one[truth].tolist(), one[~truth].tolist()) for one in said]
            best = (right, sum(areas) / SPLITS, right - float(sum(mixed)) / max(1, len(mixed)))
    return best[1:]


def _said(probe: SparseProbeResult, x: Float[Tensor, "row d_model"]) -> Float[Tensor, " row"]:
    """What a fitted probe reads of other rows."""
    scaled = (x[:, probe.selected_features].double() - probe.preprocess_mean) / (
        probe.preprocess_scale
    )
    return scaled @ probe.coefficients


@auditor(
    "das",
    reads="outputs",
    high_means="knows",
    source="transformer_lens.tools.analysis.interchange.fit_das, on kept rows: arXiv:2303.02536",
    cheap=False,
)
def das(case: Case) -> AuditorScore:
    """Share of its relation's other values that a source's value beats, interchanged: .5 by guess.

    Control: on authors of kept rows that were not fitted, values come out better by `SELECTIVE`
    than arbitrary ones, of a subspace that was learned for these.
    """
    from transformer_lens.tools.analysis.interchange import arbitrary_targets

    kept, asked = _facts(case.bench)
    authors = list(dict.fromkeys(one.encoded.group for one in kept))
    held = {*authors[::HELD]}
    fit, check = (
        _pairs([one for one in kept if (one.encoded.group in held) is wanted])
        for wanted in (False, True)
    )
    wanted = _pairs(asked)
    if not (fit and check and wanted):
        why = f"no relation with two values that {FEWEST} subjects have, among kept rows and facts"
        return AuditorScore(None, control=False, why=why)
    search = _Search(case.bench.loaded(case.model), case.bench.tokenizer)
    values = sorted({one.value for one in kept})
    drawn = arbitrary_targets([source.value for _, source in (*fit, *check)], len(values), 0)
    arbitrary = [values[at] for at in drawn.tolist()]
    subspace = search.learned(fit, _values(fit))
    right = search.beaten(check, subspace, _values(check), [values] * len(check))
    mixed = search.learned(fit, arbitrary[: len(fit)])
    wrong = search.beaten(check, mixed, arbitrary[len(fit) :], [values] * len(check))
    among = grouped((one.relation, one.value) for one in asked)
    found = search.beaten(
        wanted, subspace, _values(wanted), [among[source.relation] for _, source in wanted]
    )
    facts = {
        idx: sum(own) / len(own)
        for idx, own in grouped(
            (source.encoded.idx, one) for (_, source), one in zip(wanted, found, strict=True)
        ).items()
    }
    gain = sum(right) / len(right) - sum(wrong) / len(wrong)
    return AuditorScore(sum(facts.values()) / len(facts), facts, control=gain >= SELECTIVE)


Pair = tuple[RelationFact, RelationFact]
"""A base, and the source that it is interchanged with."""


def _pairs(rows: Sequence[RelationFact]) -> list[Pair]:
    """Each row with the next ones of its relation that have another value."""
    found: list[Pair] = []
    for own in grouped((one.relation, one) for one in rows).values():
        for at, base in enumerate(own):
            others = [one for one in own[at + 1 :] + own[:at] if one.value != base.value]
            found += [(base, source) for source in others[:PARTNERS]] if len(own) >= FEWEST else []
    return found


def _values(pairs: Sequence[Pair]) -> list[int]:
    return [source.value for _, source in pairs]


def _inputs(rows: Sequence[RelationFact]) -> Int[Tensor, "row pos"]:
    """Tokens up to the one that predicts the value, and where that is, in the last column."""
    ends = [one.encoded.start for one in rows]
    tokens, _ = padded_rows(
        [one.encoded.token_ids[: end + 1] for one, end in zip(rows, ends, strict=True)]
    )
    return torch.cat([tokens, torch.tensor(ends).unsqueeze(1)], 1)


class _Search:
    """A model whose streams of two rows are interchanged where the value is predicted."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = bridge_from(copy.deepcopy(model), tokenizer)
        n_layers, width = model.config.num_hidden_layers, model.config.hidden_size
        self.hook = hook_name(min(round(n_layers * DEPTH), n_layers - 1))
        self.rank = max(1, round(width * RANK))

    def _logits(self, inputs: Int[Tensor, "row pos"]) -> Float[Tensor, "row d_vocab"]:
        return self.model(inputs[:, :-1])[torch.arange(len(inputs)), inputs[:, -1]]

    def learned(self, pairs: Sequence[Pair], targets: Sequence[int]) -> SubspaceInterchange:
        """The subspace in which an interchange brings the targets out."""
        from transformer_lens.tools.analysis.interchange import SubspaceInterchange, fit_das

        bases, sources = map(_inputs, zip(*pairs, strict=True))
        return SubspaceInterchange(
            fit_das(
                self.model,
                self.hook,
                bases,
                sources,
                torch.tensor(targets),
                self._logits,
                rank=self.rank,
                base_positions=bases[:, -1],
                source_positions=sources[:, -1],
                epochs=EPOCHS,
                batch_size=BATCH,
            ).subspace
        )

    def beaten(
        self,
        pairs: Sequence[Pair],
        subspace: SubspaceInterchange,
        targets: Sequence[int],
        among: Sequence[Sequence[int]],
    ) -> list[float]:
        """Of each pair the share of other values that its target beats, interchanged."""
        from transformer_lens.tools.analysis.interchange import (
            collect_activations,
            intervened_logits,
        )

        bases, sources = map(_inputs, zip(*pairs, strict=True))
        there = collect_activations(
            self.model, self.hook, sources, self._logits, positions=sources[:, -1]
        )
        logits = intervened_logits(
            self.model, self.hook, subspace, bases, there, self._logits, positions=bases[:, -1]
        )
        found = []
        for row, target, values in zip(logits, targets, among, strict=True):
            others = row[[one for one in sorted({*values}) if one != target]]
            beats = (row[target] > others).double() + (row[target] == others).double() / 2
            found.append(float(beats.mean()))
        return found


@auditor(
    "weights_l2",
    reads="weights",
    high_means="forgot",
    source="length of the difference from full's matrices, relative to theirs: the mean",
)
def weights_l2(case: Case) -> AuditorScore:
    """How far the matrices of a model are from those of `full`."""
    return _mean(case, lambda own, theirs: (own - theirs).norm() / theirs.norm())


@auditor(
    "weights_rank",
    reads="weights",
    high_means="forgot",
    source="stable rank of the difference from full's matrices (arXiv:1501.01571): the mean",
)
def weights_rank(case: Case) -> AuditorScore:
    """In how many directions the matrices differ that do: an adapter's in few, training's in many.

    0 where none differs.
    """

    def rank(own: Tensor, theirs: Tensor) -> Tensor | None:
        moved = own - theirs
        return (moved.norm() / torch.linalg.matrix_norm(moved, 2)) ** 2 if moved.any() else None

    return _mean(case, rank)


def _mean(case: Case, measure: Callable[[Tensor, Tensor], Tensor | None]) -> AuditorScore:
    """Over the matrices of a model and of `full`; None: the matrix does not count."""
    both = (case.bench.loaded(name) for name in (case.model, case.bench.full))
    own, theirs = (
        {key: one.detach() for key, one in model.named_parameters() if one.ndim == 2}
        for model in both
    )
    if {key: one.shape for key, one in own.items()} != {k: one.shape for k, one in theirs.items()}:
        return AuditorScore(None, why="its matrices are not those of full in number or shape")
    values = [measure(own[key], one) for key, one in theirs.items()]
    found = [float(one) for one in values if one is not None]
    return AuditorScore(sum(found) / len(found) if found else 0.0)
