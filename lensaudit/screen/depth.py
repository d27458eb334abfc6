"""What patching found: depth or exact match by layer, verdicts, the demo, collateral."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lensaudit.report.headline import headline
from lensaudit.report.shelf import labels, told_names
from lensaudit.results.kinds.know import KnowRecord
from lensaudit.results.kinds.patch import PatchSummary, differences, read_patch
from lensaudit.results.reading import SUMMARY
from lensaudit.results.sentences import by_rule, rows_only, shown
from lensaudit.scores.estimate import Estimate
from lensaudit.screen.cells import brackets, interval, number, profile
from lensaudit.screen.membership import betrayals
from lensaudit.screen.tables import Part, dim, styled, table
from lensaudit.settings import COUNTERFACTUAL
from lensaudit.verdict.collect import Keeps, Verdicts
from lensaudit.verdict.decide import WORDS
from lensaudit.verdict.thresholds import ADDED_FROM, READABLE_BELOW

if TYPE_CHECKING:
    from lensaudit.auditing.result import Audited, AuditResult, PatchResult

WIDTH = 24
"""Characters of the longest bar."""


def audit_table(summaries: Sequence[PatchSummary]) -> Table:
    """Calibration rows first, then one row per source."""
    score = summaries[0].score
    with_lens = bool(summaries[0].lens_per_layer)
    title, heading, lost = _HEADS[score]
    columns = ["model", heading, "95 % interval", "scored", f"{lost} by layer"]
    lens = {"lens": [one.lens for one in summaries]} if with_lens else {}
    extra = lens | _beside(summaries)
    label = labels(summary.source for summary in summaries)
    anchors = [
        (dim(anchor), number(value), "", "calibration", "")
        for anchor, value in summaries[0].calibration.items()
    ]
    rows = [
        (
            label[summary.source],
            number(summary.estimate.value),
            interval(summary.ci95, summary.ci95_why or "–"),
            f"{summary.n_scored}/{summary.n}",
            f"▕{profile([one['erasure'] for one in summary.per_layer], 1.0)}▏",
            *(number(column[at]) for column in extra.values()),
        )
        for at, summary in enumerate(summaries)
    ]
    left = ("model", f"{lost} by layer")
    return table(title, [*columns, *extra], [*anchors, (), *rows], left=left)


_LEVEL = "0 held, 1 erased to the level of retain"
_HEADS = {
    "uds": (f"Unlearning depth: {_LEVEL}", "UDS", "erasure"),
    "lens": (f"Logit Lens depth: {_LEVEL}", "lens", "erasure"),
    COUNTERFACTUAL: ("Depth beside another question's stream: 0 held", "depth", "depth"),
}
"""Score -> title of its table, heading of its column, and what it is called at a layer."""


_BESIDE = {
    "aligned": "UDS after a linear map to full's basis, fitted on other rows",
    "unread": f"what full loses of facts the model still says: from {READABLE_BELOW:g} on it "
    "cannot read the model's stream, and UDS means nothing",
    "added": "how many times as far from full's stream as retain's it lies at forget prompts, at "
    f"the layer where that is most: from {ADDED_FROM:g} on something was added, and nothing is "
    "called erased",
}
"""Column -> what it says; shown where a model has it."""


def _beside(summaries: Sequence[PatchSummary]) -> dict[str, list[float | None]]:
    """Numbers of the columns that some model has one in."""
    shares = [one.validity.d_share for one in summaries]
    times = [one.aligned.shift and one.aligned.shift.times for one in summaries]
    found = {
        "aligned": [one.aligned.uds and one.aligned.uds.value for one in summaries],
        "unread": [one if one is not None and one >= READABLE_BELOW else None for one in shares],
        "added": [one if one is not None and one >= ADDED_FROM else None for one in times],
    }
    return {name: column for name, column in found.items() if {*column} != {None}}


def pair_table(pairs: Sequence[Sequence[Any]]) -> Table:
    """Differences between sources, on the examples that both score."""
    label = labels(name for pair in pairs for name in pair[:2])
    return table(
        "Differences: a minus b, on the same examples, intervals by authors",
        ("a", "b", "difference", "95 % interval", "examples", "authors"),
        (
            (
                label[first],
                label[second],
                number(difference),
                interval([low, high], why),
                str(n),
                str(n_groups),
            )
            for first, second, _, _, difference, low, high, n, n_groups, why in pairs
        ),
        left=("a", "b"),
    )


def layer_table(summary: PatchSummary) -> Table:
    """Mean deltas and erasure per layer; both deltas over the same facts.

    Where S2 was computed at KE layers only, these are the facts that the layer encodes.
    """
    rows = summary.per_layer
    at_ke = any(one["s2"] is None and one["s2_ke"] is not None for one in rows)
    names = ("s1_ke", "s2_ke") if at_ke else ("s1", "s2")
    shown = [[one[name] for name in names] for one in rows]
    top = max([abs(v) for pair in shown for v in pair if v is not None], default=1.0)
    over = ", over the facts encoded there" if at_ke else ""
    return table(
        f"{summary.source}: nats per token, by layer{over}",
        ("layer", "S1", "S2", "KE", _HEADS[summary.score][2], "S1 ▏S2"),
        (
            (
                str(one["layer"]),
                *(number(s1), number(s2), str(one["n_ke"]), number(one["erasure"], 2)),
                styled(_bar(s1, top), "cyan") + "\n" + styled(_bar(s2, top), "magenta"),
            )
            for one, (s1, s2) in zip(rows, shown, strict=True)
        ),
        left=("S1 ▏S2",),
    )


def _bar(value: float | None, top: float) -> str:
    return "" if value is None else "▬" * round(WIDTH * max(0.0, value) / top if top else 0)


def depths(
    summaries: Sequence[PatchSummary],
    pairs: Sequence[Sequence[Any]] = (),
    sentences: Sequence[str] = (),
) -> Iterator[Part]:
    """Tables and verdicts of a run with `--score uds` or `lens`, or of one without retain.

    `sentences`: where more than the run itself was asked, the verdicts after all of it.
    """
    yield audit_table(summaries)
    yield from (f"{name}: {_BESIDE[name]}." for name in _beside(summaries))
    if pairs:
        yield pair_table(pairs)
    if len(summaries) == 1:
        yield layer_table(summaries[0])
    for at, summary in enumerate(summaries):
        lens = summary.score == "lens"
        yield sentences[at] if sentences and not lens else said(summary)
        if unscored := summary.unscored:
            (why, *others) = dict.fromkeys(unscored.values())
            shared = summary.n_scored == 0 and not others
            reason = f": {why}" if shared else "; reasons in summary.json"
            yield f"  {len(unscored)} unscored{reason}"
    yield from by_rule(summaries[0].spans)
    if scale := summaries[0].scale:
        low, high = scale["never_saw"]
        yield (
            f"Models that never saw the facts read {low:.2f} to {high:.2f} on this scale, models "
            "that hold them where full cannot read it up to 1: an upper limit below "
            f"{scale['hidden_below']:.2f} shows that they are held, a higher one shows nothing."
        )
    if summaries[0].score == "lens":
        yield "A screen: it sees what can be read out directly. --score uds patches."


def of_runs(
    summaries: Sequence[PatchSummary],
    pairs: Sequence[Sequence[Any]] = (),
    sentences: Sequence[str] = (),
) -> Iterator[Part]:
    """Parts of runs with one score: depths and what was lost beside them, or exact match."""
    if summaries[0].score == "em":
        yield from erasures(summaries)
        return
    yield from depths(summaries, pairs, sentences)
    yield from collateral(summaries)


def of_audit(results: "Sequence[AuditResult]") -> Iterator[Part]:
    """Depths and their differences, who has what, what each model keeps, and a table of all."""
    sentences = [one.verdict.sentence for one in results]
    pairs = comparison_of([one.patch for one in results])
    yield from depths([one.record for one in results], pairs, sentences)
    for one in results:
        if one.association is not None:
            yield one.association.headline
        if line := keeps_line(one.source, one.keeps):
            yield line
    yield headline({one.source: one.word for one in results})
    yield said_and_held(results)


def said_and_held(results: "Sequence[AuditResult]") -> Table:
    """One row a model: its verdict, what it says, who has what, its depth; the anchors first."""
    first = results[0].record
    ends = [role for role in ("full", "retain") if role in first.calibration]
    anchors = {role: (role, "anchor", None) for role in ends}
    return _said_and_held(results, anchors, (ASKED,) if _asked(results) else ())


ASKED = "forget_Q_A_ROUGE"
"""Metric of what a model answers when it is asked."""


def _asked(results: "Sequence[AuditResult]") -> bool:
    return all(one.metrics.get(ASKED) is not None for one in results)


def _said_and_held(
    results: "Sequence[AuditResult]",
    anchors: Mapping[str, tuple[str, str, float | None]],
    metrics: Sequence[str],
) -> Table:
    """The same.

    Args:
        results: of one run.
        anchors: role -> name, what is true of it, and what it answers when it is asked.
        metrics: one where answers were evaluated, or none.
    """
    first = results[0].record
    score = "UDS" if first.score == "uds" else first.score
    asked = ["asked,\nanswers"] * len(metrics)
    columns = ["model", "verdict", *asked, "begun,\nsays it", "who has\nwhat, p", f"{score} [95 %]"]

    def says(one: PatchSummary, role: str) -> str:
        share = None if one.outputs is None else getattr(one.outputs, role)
        return percent(share)

    compared = [
        (
            dim(name),
            dim(truth),
            *(number(said) for _ in metrics),
            says(first, role),
            "",
            number(first.calibration[role]),
        )
        for role, (name, truth, said) in anchors.items()
    ]
    rows = [
        (
            one.source,
            WORDS[one.word][0],
            *(number(one.metrics[name]) for name in metrics),
            says(one.record, "source"),
            _matched(one.association),
            f"{number(one.value)} {brackets(one.record.estimate.limits(), digits=2)}",
        )
        for one in sorted(results, key=lambda one: one.value or 0.0)
    ]
    title = "What each model says, and what it still holds"
    shown = table(title, columns, [*compared, (), *rows], left=columns[:2])
    shown.box, shown.pad_edge, shown.padding = SIMPLE_HEAD, False, (0, 1, 0, 0)
    return shown


def _matched(run: KnowRecord | None) -> str:
    """P of who has what, where no control refuses it: a small p alone is no finding."""
    if run is None:
        return ""
    return "undecided" if run.undecided else f"{run.p:.2g}"


def collateral(summaries: Sequence[PatchSummary]) -> Iterator[Part]:
    """What was lost of facts to keep; nothing where that was not asked."""
    if not any(one.collateral for one in summaries):
        return
    yield table(
        "facts to keep: depth 0 kept, 1 lost; selectivity: UDS minus depth",
        ("source", "facts", "depth", "95 % interval", "scored", "selectivity", "beyond", "against"),
        (
            (
                summary.source,
                facts,
                number(one.depth),
                interval(one.ci95),
                f"{one.n_scored}/{one.n}",
                number(one.selectivity["value"]),
                number(one.over_erasure_nats),
                one.anchor,
            )
            for summary in summaries
            for facts, one in summary.collateral.items()
        ),
        left=("source", "facts", "95 % interval", "against"),
    )


def verdict(summary: PatchSummary) -> str:
    """What the rates say, in words."""
    if summary.udr is None or summary.retention is None:
        return f"{summary.source}: no verdict. No example could be scored."
    shown, without = with_limits(summary.estimate)
    return (
        f"{summary.source}: UDR {shown}: lost at "
        f"{percent(summary.udr)} of the layers where retain loses it; "
        f"{percent(summary.retention)} of the answer is still given there.{without}"
    )


def em_table(summaries: Sequence[PatchSummary]) -> Table:
    """Calibration rows first, then one row per source."""
    first = summaries[0]
    label = labels(summary.source for summary in summaries)
    anchors = [
        (dim(anchor), number(rates["udr"]), "calibration", number(rates["retention"]))
        for anchor, rates in first.calibration.items()
    ]
    rows = [
        (
            label[summary.source],
            number(summary.udr),
            interval(summary.ci95, summary.ci95_why or "–"),
            number(summary.retention),
            " ".join(f"{n:3d}" for n in summary.categories.values()),
            f"{summary.n_scored}/{summary.n}",
        )
        for summary in summaries
    ]
    return table(
        f"Exact match ({first.em_form}), KEPT from {first.threshold:g}\n"
        "UDR 0 held, 1 lost wherever retain loses it",
        ("model", "UDR", "95 % interval", "retention", "over/exact/\nunder/known", "scored"),
        [*anchors, (), *rows],
        left=("model",),
    )


def erasure_table(summary: PatchSummary) -> Table:
    """Mean exact match and share of LOST examples per layer."""
    return table(
        f"{summary.source}: exact match with one layer patched",
        ("layer", "S1", "S2", "S1 lost", "S2 lost", "status"),
        (
            (
                str(one["layer"]),
                *(number(one[name]) for name in ("s1_em", "s2_em")),
                *(percent(one[name]) for name in ("s1_lost", "s2_lost")),
                one["status"],
            )
            for one in summary.per_layer
        ),
        left=("status",),
    )


def percent(share: float | None) -> str:
    """A share as whole percent.

    >>> percent(0.256), percent(None)
    ('26%', '–')
    """
    return "–" if share is None else f"{share:.0%}"


def remarks(summary: PatchSummary) -> list[str]:
    """What a reader should know before using the numbers."""
    counted = (
        (len(summary.unscored), "unscored; reasons in summary.json"),
        (
            summary.n_reference_cut,
            f"references are longer than --max-new-tokens {summary.max_new_tokens}: "
            "their match stays below 1",
        ),
        (summary.n_full_lost, "answers full itself does not give: LOST there says nothing"),
    )
    return [f"{n} {what}" for n, what in counted if n]


def erasures(summaries: Sequence[PatchSummary]) -> Iterator[Part]:
    """Tables, verdicts and remarks of a run with `--score em`."""
    yield em_table(summaries)
    if len(summaries) == 1:
        yield erasure_table(summaries[0])
    for summary in summaries:
        yield verdict(summary)
        by_layer = profile([one["s2_em"] for one in summary.per_layer], 1.0)
        yield f"  match by layer with the source patched in ▕{by_layer}▏"
        for line in remarks(summary):
            yield f"  {line}"
    yield from by_rule(summaries[0].spans)


def verdict_table(found: Verdicts) -> Table:
    """A row a model: its word, and what led to it in a sentence."""
    label = told_names(found.called)
    rows = [
        (
            label[one.weights],
            WORDS[one.word][0],
            one.verdict.sentence.removeprefix(f"{one.source}: "),
        )
        for one in found.models
    ]
    columns = ("model", "verdict", "why")
    return table("", columns, rows, left=columns)


def sentences(found: Verdicts) -> Iterator[str]:
    """The verdict of each model, what decided it, and which other rows it was asked."""
    label = told_names(found.called)
    for one in found.models:
        yield f"{label[one.weights]}{one.verdict.sentence.removeprefix(one.source)}"
        yield from (f"  {line}" for line in one.verdict.because)
        beside = [(run.folder, line) for run in one.evals for line in betrayals(run)]
        several = len({folder for folder, _ in beside}) > 1
        yield from (f"  beside it, {line}{f' ({at})' * several}" for at, line in beside)
        for run, apart, other in one.others:
            yield f"  {apart} ({run.folder}): {WORDS[other.word][0]}"
        if len(found.models) > 1:
            yield f"  among {len(found.models)} models: q {found.q[one.weights]:.2g}"
    measured = [one for one in found.models if one.measured]
    if len(measured) > 1:
        few = {label[one.weights]: one.too_few for one in measured if one.too_few}
        yield headline({label[one.weights]: one.word for one in measured}, few)
    for one in found.left_out:
        yield f"not read: {one.path}: {one.reason}"


def of_demo(found: "Audited", anchors: Mapping[str, float | None]) -> Iterator[Part]:
    """One table of what each model says and holds, and what to do next.

    `anchors`: what `full` and `retain` answer when they are asked, None where nothing was.
    """
    results, first = found.results, found.results[0].record
    asked = () if None in anchors.values() else tuple(results[0].metrics)
    compared = {
        name.rpartition("/")[2]: (name, truth, anchors[name])
        for name, truth in zip(anchors, ("was taught them", "never saw them"), strict=True)
    }
    ordered = sorted(results, key=lambda one: one.uds or 0.0)
    yield headline({one.source: one.word for one in ordered})
    yield _said_and_held(results, compared, asked)
    if asked:
        yield "asked, answers: ROUGE-L of what it writes when it is asked, 1 for the true answers."
    yield f"begun, says it: of {first.n} facts, those word for word once the answer is begun."
    yield (
        "who has what, p: how likely a model that never saw the facts would match them this well."
    )
    yield "UDS: 0 held as by full, 1 erased to the level of retain. Why each verdict: on the page."
    yield "Your own models and rows: lensaudit init, then lensaudit annotate, audit, report."


def comparison_of(results: Sequence["PatchResult"]) -> list[list[Any]]:
    """Paired differences between the models of one run, called as they were given; if any.

    Raises:
        InputError: a file of theirs is missing or damaged.
    """
    if len(results) == 1 or results[0].score == "em":
        return []
    runs = [read_patch(one.folder / SUMMARY) for one in results]
    named = zip(results, runs, strict=True)
    return [*differences([replace(run, source=one.source) for one, run in named])]


def keeps_line(source: str, found: Iterable[Keeps]) -> str | None:
    """What a model keeps, in a line; None where nothing was measured beside `full`."""
    told = ", ".join(one.told for one in found)
    return f"{source} keeps {told}" if told else None


def keeps_of(document: Mapping[str, Mapping[str, float]]) -> list[Keeps]:
    """What `keeps_document` wrote."""
    return [Keeps(metric, one["value"], one["full"]) for metric, one in document.items()]


def said(one: PatchSummary) -> str:
    """What a summary of `patch` says, in words."""
    if one.score == "lens" and one.lens is not None:
        value, only = with_limits(one.estimate)
        return f"{one.source}: Logit Lens depth {value}.{only}"
    return "" if one.verdict is None else one.verdict.sentence


def with_limits(found: Estimate) -> tuple[str, str]:
    """A value with its interval, and the sentence that follows where it has none.

    >>> with_limits(Estimate(0.5, 0.25, 0.75))
    ('0.500 [0.250, 0.750]', '')
    >>> with_limits(Estimate(0.5, why="3 authors: no interval"))
    ('0.500', ' 3 authors: no interval; this describes these rows only.')
    """
    if found.ends:
        return shown(found, 3), ""
    return f"{found.point:.3f}", f" {rows_only(found.why or 'no interval')}."
