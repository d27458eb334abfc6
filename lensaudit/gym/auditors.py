"""What do auditors say of a model? One decorated function each.

An auditor is given cases: a model, its `full`, one that never saw the facts, the data. It says a
score, and of each fact one if it can. Functions that share work between the models of one seed take
all cases at once; that changes the cost, not the answer.

The probe asks whether the answer is linearly there, in the model's own basis. Rows that are to be
kept are said by models that know and by models that never saw the facts. A linear map fitted on
them, from the stream at the position that predicts the answer's first token to a code of that
token, is carried to the forget facts: if a model holds those as it holds the others, their answers
are read too. A rotation of the stream or a swapped readout changes nothing. Its control
(selectivity, arXiv:1909.03368): the same map fitted on shuffled answers. The layer is chosen on
kept rows that were not fitted, so no forget fact decides anything.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.association.evidence import KnowOutcome
from lensaudit.association.opening import open_know
from lensaudit.association.run import ask
from lensaudit.association.settings import KnowSettings
from lensaudit.attacks import rtt as rtt_room
from lensaudit.attacks import worst as worst_room
from lensaudit.attacks.effort import runs as effort_room
from lensaudit.attacks.relearn import relearned
from lensaudit.attacks.rtt.summary import record_of
from lensaudit.attacks.settings import DEMO_RELEARNING, EffortSettings, WorstSettings
from lensaudit.auditing.evaluate import evaluate_into
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.spans import Encoded, make_batch
from lensaudit.data.tofu import DEMO
from lensaudit.evaluation.known import span_values
from lensaudit.groups import batched
from lensaudit.gym.ground import BATCH, Facts, facts_of, said, tokens_of, whole
from lensaudit.gym.registry import AUDITORS as AUDITORS
from lensaudit.gym.registry import AuditorScore, auditor
from lensaudit.metrics.inside.fisher import fisher_layers
from lensaudit.metrics.inside.scores import cka_layers
from lensaudit.metrics.registry import all_metrics
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_model
from lensaudit.patching.controls import controls_of, examined, weakest_of
from lensaudit.patching.outcome import Outcome, summary_of
from lensaudit.patching.prepare import prepare
from lensaudit.patching.scoring import score_all, score_lens, scored
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import unheard
from lensaudit.results.kinds.patch import NOT_NEEDED, Aligned, Examined, PatchSummary, Weakest
from lensaudit.results.reading import brief, document, null
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.representation import weighted_erasure
from lensaudit.settings import Anchors, Caches, Models, Names, Rows, activations_folder, shared
from lensaudit.text import digest
from lensaudit.verdict.collect import judge_run
from lensaudit.verdict.decide import HOLDS
from lensaudit.verdict.thresholds import READABLE_BELOW, TAIL_BELOW
from lensaudit.verdict.views import read_calibration


@dataclass(frozen=True, kw_only=True)
class SeedModels(Caches, Rows, Anchors):
    """Anchors, rows and working folder that the models of one seed share."""

    full: str = "demo/full"
    retain: str = "demo/retain"
    """Never saw the facts: the scale. Absent models are made of another, which nobody is shown."""
    data: str = DEMO
    retain_data: str | None = None
    activations: Path = field(default_factory=activations_folder)
    """Where auditors work."""

    @cached_property
    def facts(self) -> Facts:
        """Forget facts and the rows to keep, read once."""
        return facts_of(self.data, self.retain_data, self.limit)

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer of all models of the seed."""
        return load_tokenizer(open_model(self.full, self.registry))

    @cached_property
    def asked(self) -> tuple[Encoded, ...]:
        """Forget facts as tokens; those that the tokenizer loses are left out."""
        return tokens_of(self.facts.examples, self.tokenizer)

    def loaded(self, name: str) -> Any:
        """A causal model in float32; not to be changed."""
        return _loaded(open_model(name, self.registry))


@lru_cache(maxsize=3)
def _loaded(opened: Checkpoint) -> Any:
    return load_causal(opened)


@dataclass(frozen=True)
class Case:
    """One model to judge, with what its seed shares."""

    model: str
    """Name or folder."""
    bench: SeedModels
    key: str = ""
    """Content hash of what the model is made of."""
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What a line of scores says of the model."""


NO_LAYER = "no layer of full encodes a fact"
UDS = "arXiv UDS, compute_uds.py (gnueaj/unlearning-depth-score @ fc31639)"


def audit_of(cases: Sequence[Case], **settings: Any) -> Session:
    """An audit of all cases into their `full`."""
    bench = cases[0].bench
    asked = PatchSettings(
        **shared(bench, Caches, Rows, Anchors),
        profile="ke",
        # of an own set validity and alignment are measured on the rows to keep
        align_data=None if bench.data == DEMO else bench.retain_data,
        **settings,
    )
    names = tuple(dict.fromkeys(case.model for case in cases))
    return prepare(names, asked, notice=unheard, maps="align" in settings)


def _depths(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> list[AuditorScore]:
    """Scores of outcomes, one per case."""
    found = {one.source: _depth(one) for one in outcomes}
    return [found[case.model] for case in cases]


def _depth(outcome: Outcome) -> AuditorScore:
    pairs = zip(outcome.encoded, outcome.depth.uds.tolist(), strict=True)
    facts = {one.idx: value for one, value in pairs if math.isfinite(value)}
    if not facts:
        return AuditorScore(None, why=next(iter(outcome.unscored.values()), NO_LAYER))
    return AuditorScore(outcome.uds, facts, ci95=outcome.estimate.ends)


@auditor("uds", reads="stream", high_means="forgot", source=UDS, at_once=True)
def uds(cases: Sequence[Case]) -> list[AuditorScore]:
    """Unlearning Depth Score of all facts, from streams patched into `full`."""
    return _depths(cases, score_all(audit_of(cases))[0])


@auditor(
    "uds_prefix",
    reads="stream",
    high_means="forgot",
    source=f"{UDS}; every token up to the span's end replaced: facts fetched at earlier positions",
    at_once=True,
)
def uds_prefix(cases: Sequence[Case]) -> list[AuditorScore]:
    """UDS where the stream is replaced at the question too."""
    return _depths(cases, score_all(audit_of(cases, scope="prefix"))[0])


@auditor("lens", reads="stream", high_means="forgot", source=UDS, at_once=True)
def lens(cases: Sequence[Case]) -> list[AuditorScore]:
    """Logit Lens depth: the stream read out by `full`'s head, not patched."""
    return _depths(cases, score_lens(audit_of(cases))[0])


@lru_cache(maxsize=16)
def _examined(
    cases: tuple[Case, ...],
) -> tuple[list[tuple[AuditorScore, Examined, Outcome]], Mapping[str, float | None]]:
    """UDS, the controls beside it, and the deltas behind it, of each case; the anchors' own.

    Once for all auditors that read it. A model of another depth has no UDS, and an aligned one.
    """
    with audit_of(cases, align="auto") as session:
        outcomes, anchors = scored(session)
        found = examined(session, outcomes, controls_of(session))
    by_name = {one.source: (_depth(one), found[one.source], one) for one in outcomes}
    return [by_name[case.model] for case in cases], anchors


@auditor(
    "uds_aligned",
    reads="aligned",
    high_means="forgot",
    source="lensaudit.patching.controls: UDS after a map fitted on neutral text",
    at_once=True,
)
def uds_aligned(cases: Sequence[Case]) -> list[AuditorScore]:
    """Aligned UDS; UDS itself where it is so low that nothing needs to be aligned.

    Its control: `full` reads the aligned stream on facts that the model still holds.
    """
    return _mapped(cases, lambda one: (one.uds, one.per_example))


def _mapped(
    cases: Sequence[Case],
    chosen: Callable[[Aligned], tuple[Estimate | None, Mapping[int, float] | None]],
    unmapped: Callable[[AuditorScore, Outcome], AuditorScore] = lambda plain, _: plain,
) -> list[AuditorScore]:
    """A depth that is read once a map is set before, or why there is none; else one of no map."""
    findings = []
    for plain, controls, outcome in _examined(tuple(cases))[0]:
        aligned = controls.aligned
        depth, facts = chosen(aligned)
        if depth is not None:
            readable = _readable(controls)
            findings.append(AuditorScore(depth.value, facts, control=readable, ci95=depth.ends))
        elif (aligned.why or "").startswith(NOT_NEEDED):
            findings.append(unmapped(plain, outcome))
        else:
            findings.append(
                AuditorScore(
                    None, why=(aligned.shared.why if aligned.uds else aligned.why) or NO_LAYER
                )
            )
    return findings


@auditor(
    "tail",
    reads="aligned",
    high_means="knows",
    source="facts whose aligned UDS lies below .25: what a mean over facts hides",
    at_once=True,
)
def tail(cases: Sequence[Case]) -> list[AuditorScore]:
    """How many facts are still read? Control and facts as aligned UDS, of a fact 0 or 1."""
    findings = []
    for one in uds_aligned(cases):
        left = {idx: float(value < TAIL_BELOW) for idx, value in (one.facts or {}).items()}
        score = None if one.score is None else sum(left.values())
        findings.append(AuditorScore(score, left or None, control=one.control, why=one.why))
    return findings


@auditor(
    "uds_weakest",
    reads="aligned",
    high_means="forgot",
    source="lensaudit.patching.controls: erasure at the strong layer that is erased least, aligned",
    at_once=True,
)
def uds_weakest(cases: Sequence[Case]) -> list[AuditorScore]:
    """Does one layer hold what the mean over layers has lost? Control and scale as aligned UDS."""
    return _mapped(cases, lambda one: _erasure(one.weakest), _plain_weakest)


def _erasure(one: Weakest | None) -> tuple[Estimate | None, None]:
    return (None if one is None else one.erasure), None


def _plain_weakest(_: AuditorScore, outcome: Outcome) -> AuditorScore:
    """The same of UDS as it is, which needs no map."""
    rows, layers = outcome.encoded, outcome.settings.at_layers
    found = weakest_of(outcome.s1, outcome.depth, rows, layers)
    if found is None:
        return AuditorScore(None, why=NO_LAYER)
    return AuditorScore(found.erasure.value, control=True, ci95=found.erasure.ends)


def _readable(controls: Examined) -> bool:
    """Does `full` read the stream as it is, or once aligned, on facts that the model holds?"""
    shares = (controls.validity.d_share, controls.aligned.d_share)
    unread = [one is not None and one >= READABLE_BELOW for one in shares]
    return not (controls.validity.needed and all(unread))


@auditor(
    "verdict",
    reads="stream",
    high_means="forgot",
    source="lensaudit.verdict: of a run of patch alone; 0 held, 1 erased, .5 neither is shown",
    at_once=True,
)
def verdict(cases: Sequence[Case]) -> list[AuditorScore]:
    """Code of the package's own verdict as a number, with all that it is decided from."""
    (examined, anchors), nulls, findings = _examined(tuple(cases)), read_calibration(), []
    for _, controls, outcome in examined:
        summary = replace(summary_of(outcome, anchors), **vars(controls))
        rows = controls.beside(outcome.rows())
        code = judge_run(summary, rows, nulls).code
        score = 0.0 if code in HOLDS else 1.0 if code == "erased" else 0.5
        findings.append(AuditorScore(score, evidence={"patch": kept_for_verdict(summary, rows)}))
    return findings


SHARED = "lensaudit.patching.alignment: aligned, less the one direction that others' facts share"


@auditor("uds_shared", reads="aligned", high_means="forgot", source=SHARED, at_once=True)
def uds_shared(cases: Sequence[Case]) -> list[AuditorScore]:
    """Is what hides the facts one vector a layer? UDS itself where nothing needs to be aligned."""
    return _mapped(cases, lambda one: (one.shared.uds, None))


@auditor("uds_shared_weakest", reads="aligned", high_means="forgot", source=SHARED, at_once=True)
def uds_shared_weakest(cases: Sequence[Case]) -> list[AuditorScore]:
    """The strong layer that is erased least, without that direction."""
    return _mapped(cases, lambda one: _erasure(one.shared.weakest), _plain_weakest)


@auditor(
    "validity",
    reads="stream",
    high_means="forgot",
    source="lensaudit.patching.controls: drop on facts that the model holds, as a share of noise's",
    at_once=True,
)
def validity(cases: Sequence[Case]) -> list[AuditorScore]:
    """Can `full` read the model at all? A control, entered to see whether it tells truth alone."""
    found = [controls.validity for _, controls, _ in _examined(tuple(cases))[0]]
    return [AuditorScore(one.d_share, why=one.why, ci95=one.ci95) for one in found]


@auditor(
    "cka",
    reads="stream",
    high_means="forgot",
    source="compute_representation_baselines.py (gnueaj/unlearning-depth-score @ fc31639)",
    at_once=True,
)
def cka(cases: Sequence[Case]) -> list[AuditorScore]:
    """How far the streams' geometry went from full's to retain's."""
    audit = audit_of(cases)
    return [AuditorScore(null(weighted_erasure(cka_layers(audit, one.model)))) for one in cases]


@auditor(
    "fisher",
    reads="weights",
    high_means="forgot",
    source="compute_representation_baselines.py (gnueaj/unlearning-depth-score @ fc31639)",
    at_once=True,
    cheap=False,
)
def fisher(cases: Sequence[Case]) -> list[AuditorScore]:
    """Fisher information where retain has it and full lacks it; 0.1 % of each layer."""
    audit = audit_of(cases)
    return [
        AuditorScore(null(weighted_erasure(fisher_layers(audit, one.model)[0.001])))
        for one in cases
    ]


@auditor(
    "greedy",
    reads="outputs",
    high_means="knows",
    source="share of facts said word for word, teacher-forced after the prefix",
)
def greedy(case: Case) -> AuditorScore:
    """Share of the facts whose every token is the model's first choice."""
    bench = case.bench
    found = said(bench.loaded(case.model), bench.asked).tolist()
    facts = {one.idx: float(yes) for one, yes in zip(bench.asked, found, strict=True)}
    return AuditorScore(sum(facts.values()) / len(facts), facts)


OUTPUTS = {
    "exact_memorization": True,
    "extraction_strength": True,
    "forget_Q_A_Prob": True,
    "mia_loss": True,
    "mia_min_k": True,
    "mia_min_k_plus_plus": True,
    "mia_zlib": True,
    "leak_exact": True,
    "mia_entropy": False,
    "mia_gradnorm": False,
    "forget_Q_A_PARA_Prob": False,
    "forget_truth_ratio": False,
    "forget_quality": False,
    "privleak": False,
    "em_erasure": False,
    "extraction_strength_generative": False,
    "forget_Q_A_ROUGE": False,
    "forget_Q_A_jailbreak_ROUGE": False,
}
"""Metrics of the suite about the forget set that read outputs, and whether they are cheap: the
others generate, take gradients, read several splits or are asked by name."""


def _metric(name: str) -> Callable[[Case], AuditorScore]:
    def found(case: Case) -> AuditorScore:
        bench = case.bench
        own = bench.data != DEMO
        settings = EvaluateSettings(
            metrics=(name,),
            **shared(bench, Caches, Rows, Anchors, data=None if own else DEMO),
            forget=Path(bench.data) if own else None,
            retain_set=Path(bench.retain_data) if own and bench.retain_data else None,
        )
        # one folder a model: metrics share their passes there
        folder = bench.activations / "suite" / digest(str(case.model))[:16]
        entry = evaluate_into(case.model, settings, folder).entries[name]
        known = {one.idx for one in bench.facts.examples}
        numbers = all_metrics()[name].numbers(entry)
        facts = {idx: value for idx, value in numbers.items() if idx in known}
        return AuditorScore(entry.value, facts or None, why=entry.reason)

    return found


for _name, _cheap in OUTPUTS.items():
    auditor(
        _name,
        reads="outputs",
        high_means=all_metrics()[_name].high_means,
        source=all_metrics()[_name].source,
        cheap=_cheap,
    )(_metric(_name))

STEPS = 8
"""Of the line between two models."""


@auditor(
    "interpolation",
    reads="weights",
    high_means="forgot",
    source="weights (1 - a) source + a full: the least a at which half of full's facts are said",
)
def interpolation(case: Case) -> AuditorScore:
    """How far from `full` must one stay? 0: the model says them itself; 1: only `full` does.

    The steps are eighths. Facts: the least a at which each is said. A model whose tensors are not
    full's in number has no such line.
    """
    bench = case.bench
    model, full, encoded = bench.loaded(case.model), bench.loaded(bench.full), bench.asked
    theirs, own = dict(full.named_parameters()), dict(model.named_parameters())
    if any(name not in own or own[name].shape != one.shape for name, one in theirs.items()):
        return AuditorScore(None, why="its tensors are not those of full in number or shape")
    steps = range(STEPS + 1)
    facts = torch.stack([said(_between(model, theirs, step / STEPS), encoded) for step in steps])
    half = facts.sum(1) >= said(full, encoded).sum() / 2
    by_step = torch.cat([half.unsqueeze(1), facts], 1).T.tolist()
    score, *least = [next((at / STEPS for at in steps if yes[at]), 1.0) for yes in by_step]
    return AuditorScore(score, dict(zip([one.idx for one in encoded], least, strict=True)))


def _between(model: Any, theirs: Mapping[str, Tensor], share: float) -> Any:
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            # what full has not, it has as 0
            weight.lerp_(theirs.get(name, torch.zeros_like(weight)), share)
    return made


@auditor(
    "probe",
    reads="aligned",
    high_means="knows",
    source="linear probe in the model's own basis, fitted on kept rows, selectivity control: "
    "arXiv:1909.03368",
)
def probe(case: Case) -> AuditorScore:
    """Is the answer linearly there, in whatever basis? See `probed`."""
    return probed(case.bench.loaded(case.model), case.bench.facts, case.bench.tokenizer)


@auditor(
    "worst_excess",
    reads="outputs",
    high_means="knows",
    source="arXiv:2502.15836: facts that any attack brings out, beyond those of retain",
    cheap=False,
)
def worst_excess(case: Case) -> AuditorScore:
    """The cheap list of attacks, its excess over `retain`; of a fact, how far it stands out."""
    bench = case.bench
    arms = (open_model(name, bench.registry).weights for name in (bench.retain, case.model))
    if len(set(arms)) == 1:
        return AuditorScore(0.0)  # the control arm itself: nothing in excess of it
    settings = WorstSettings(**shared(bench, Caches, Rows, Models, retain=(bench.retain,)))
    opened = worst_room.open_worst(case.model, settings)
    found = worst_room.summary_of(opened, worst_room.run_all(opened), "cheap")
    facts = {fact.idx: fact.statistic for fact in found.facts if fact.statistic is not None}
    return AuditorScore(
        found.excess,
        facts or None,
        ci95=found.ci95,
        evidence={"worst": brief(document(found) | {"source": ""})},
    )


@lru_cache(maxsize=8)
def _who_has_what(case: Case) -> KnowOutcome:
    """What a model says of every value after every person's prompt, beside `retain`.

    Below fourteen people the verdict hears a small p only where `retain` binds none of the values.
    """
    bench = case.bench
    arms = {open_model(name, bench.registry).weights for name in (bench.retain, case.model)}
    settings = KnowSettings(
        base="demo/base" if bench.data == DEMO else None,
        retain=(bench.retain,) * (len(arms) - 1),
        readers=("outputs", "lens", "foreign"),
        placebos=0,
        retain_data=bench.retain_data,
        **shared(bench, Caches, Rows, Names),
    )
    return ask(open_know(case.model, settings))


@auditor(
    "assignment",
    reads="outputs",
    high_means="knows",
    source="assignment test (model-X randomisation, arXiv:1610.02351): who has what, permuted",
)
def assignment(case: Case) -> AuditorScore:
    """Standard deviations by which the true assignment of values to people stands out."""
    found = _who_has_what(case).run
    evidence = {"know": brief(document(found) | {"source": ""})}
    return AuditorScore(found.z, control=found.failed is None, evidence=evidence)


@auditor(
    "bits",
    reads="outputs",
    high_means="knows",
    source="evidence by betting (arXiv:1903.06991), beside a uniform guess",
)
def bits(case: Case) -> AuditorScore:
    """Mean bits a fact by which the true value is likelier than others of its relation."""
    found = _who_has_what(case)
    mean, facts = found.run.bits_familiar, {one.idx: one.familiar for one in found.facts}
    return AuditorScore(mean.value, facts, ci95=mean.ends)


# what trains: minutes a model


@auditor(
    "relearn_gain",
    reads="training",
    high_means="knows",
    source="one pass over the forget rows: gain in span log-prob beyond retain's, nats per token",
    cheap=False,
    at_once=True,
)
def relearn_gain(cases: Sequence[Case]) -> list[AuditorScore]:
    """What a pass brings back, beyond what it teaches a model that had nothing."""
    bench = cases[0].bench
    floor = _gain(bench, bench.retain)
    findings = []
    for case in cases:
        own = _gain(bench, case.model)
        facts = {idx: own[idx] - floor[idx] for idx in own}
        findings.append(AuditorScore(sum(facts.values()) / len(facts), facts))
    return findings


def _gain(bench: SeedModels, name: str) -> dict[int, float]:
    model = bench.loaded(name)
    taught = relearned(model, bench.tokenizer, bench.facts.forget, settings=DEMO_RELEARNING)
    after = span_values(taught, bench.asked)
    return {idx: after[idx] - before for idx, before in span_values(model, bench.asked).items()}


@auditor(
    "effort",
    reads="training",
    high_means="forgot",
    source="lensaudit.attacks.effort: optimiser steps on other facts until half of full's return",
    cheap=False,
    at_once=True,
)
def effort(cases: Sequence[Case]) -> list[AuditorScore]:
    """E_50 in steps; twice the longest attack where half never return, which ties those models.

    Unscored where the positive control is lost before: longer attacks say nothing.
    """
    bench = cases[0].bench
    settings = EffortSettings(
        arms=("T",),
        retain_data=bench.retain_data,
        lrs=effort_room.DEMO_LRS if bench.data == DEMO else (),
        workers=1,
        **shared(bench, Rows, Models, retain=(bench.retain,)),
    )
    names = list(dict.fromkeys(case.model for case in cases))
    ready = effort_room.prepare(names, settings, bench.activations / "effort")
    arms = {one.source: one.arms["T"] for one in effort_room.run(ready)}
    return [_e50(arms[case.model], settings.steps) for case in cases]


def _e50(arm: Mapping[str, Any], longest: int) -> AuditorScore:
    if arm["e50"] is not None and not arm["censored"]["e50"]:
        return AuditorScore(float(arm["e50"]))
    return AuditorScore(None, why=arm["reason"]) if arm["reason"] else AuditorScore(2.0 * longest)


@auditor(
    "rtt",
    reads="training",
    high_means="knows",
    source="arXiv:2410.08827: accuracy on half of the authors after retraining on the others",
    cheap=False,
)
def rtt(case: Case) -> AuditorScore:
    """Retraining on T, measured on V; embedded facts only."""
    bench = case.bench
    if bench.data != DEMO:
        return AuditorScore(None, why="needs multiple-choice facts")
    log = rtt_room.Log()
    study = rtt_room.Study(
        rtt_room.split_by_author(*rtt_room.load_statements(DEMO)),
        bench.tokenizer,
        rtt_room.in_memory("full", bench.loaded(bench.full)),
        rtt_room.in_memory(case.model, bench.loaded(case.model)),
        rtt_room.in_memory("retain", bench.loaded(bench.retain)),
        rtt_room.DEMO_STUDY,
    )
    rtt_room.run(study, log, defects="keep")
    (summary,) = rtt_room.summarize(log)
    retrained, told = summary.main.accuracies["B"], document(record_of(summary))
    kept = {"main": told["main"], "gate": told["gate"], "models": {}, "n_groups": told["n_groups"]}
    return AuditorScore(retrained.point, ci95=retrained.ends, evidence={"rtt": [brief(kept)]})


RIDGE = 1e-2
"""Of the fit, in units of the mean variance of a dimension."""
CODE = 64
"""Dimensions of the random code of a token."""
FEWEST = 32
"""Kept rows below which nothing is fitted."""
SELECTIVE = 0.1
"""How far the probe must be above the shuffled one, on kept rows, for its score to mean much."""


def probed(model: Any, facts: Facts, tokenizer: Any) -> AuditorScore:
    """Share of other answers that the true one beats, a mean over facts: .5 by guess.

    Fitted on rows to keep; the layer is chosen on a third of them. Control: on these the map is
    better by `SELECTIVE` than one that was fitted on shuffled answers.
    """
    kept = tokens_of(whole(facts.kept), tokenizer)
    asked = tokens_of(facts.examples, tokenizer)
    if len(kept) < FEWEST or len(asked) < 2:
        return AuditorScore(None, control=False, why=f"{len(kept)} rows to keep, wanted {FEWEST}")
    x_kept, y_kept = streams(model, kept)
    x_asked, y_asked = streams(model, asked)
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))
    fit, check = order[len(kept) // 3 :], order[: len(kept) // 3]
    code = torch.randn(
        int(max(y_kept.max(), y_asked.max())) + 1, CODE, generator=torch.Generator().manual_seed(1)
    )
    code = code / code.norm(dim=1, keepdim=True)
    mixed = y_kept[fit].roll(len(fit) // 2)
    right, wrong = (
        [ranks(fitted(x[fit], code[labels]), x[check], y_kept[check], code).mean() for x in x_kept]
        for labels in (y_kept[fit], mixed)
    )
    layer = int(torch.stack(right).argmax())
    found = ranks(fitted(x_kept[layer][fit], code[y_kept[fit]]), x_asked[layer], y_asked, code)
    by_fact = {one.idx: value for one, value in zip(asked, found.tolist(), strict=True)}
    known = {idx: value for idx, value in by_fact.items() if math.isfinite(value)}
    score = sum(known.values()) / len(known) if known else None
    return AuditorScore(score, known, control=float(right[layer] - wrong[layer]) >= SELECTIVE)


def streams(
    model: Any, rows: Sequence[Encoded]
) -> tuple[Float[Tensor, "layer row d_model"], Int[Tensor, " row"]]:
    """The stream before the answer's first token, of every layer but the last, and that token.

    transformers gives the last one after the final norm, so it is left out.
    """
    found = []
    for rows_at_once in batched(rows, BATCH):
        with torch.no_grad():
            stack = model(make_batch(rows_at_once).tokens, output_hidden_states=True).hidden_states
        starts = [one.start for one in rows_at_once]
        found.append(torch.stack(stack[1:-1])[:, range(len(starts)), starts])
    return torch.cat(found, 1), torch.tensor([one.token_ids[one.start + 1] for one in rows])


Affine = Callable[[Float[Tensor, "row d_model"]], Float[Tensor, "row code"]]


def fitted(x: Float[Tensor, "row d_model"], y: Float[Tensor, "row code"]) -> Affine:
    """Ridge regression as a map; each dimension in units of its own spread."""
    mean = x.mean(0)
    centred = (x - mean).double()
    gram = centred.T @ centred
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    targets = (y - y.mean(0)).double()
    matrix = torch.linalg.solve(gram + ridge, centred.T @ targets).float()
    return lambda rows: (rows - mean) @ matrix


def ranks(
    probe: Affine,
    x: Float[Tensor, "row d_model"],
    labels: Int[Tensor, " row"],
    code: Float[Tensor, "token code"],
) -> Float[Tensor, " row"]:
    """Share of the other rows' answers that each row's own one beats; ties count half.

    NaN for a row whose answer all others share.
    """
    choices = labels.unique()
    scores = probe(x) @ code[choices].T
    own = scores.gather(1, (choices == labels[:, None]).int().argmax(1, keepdim=True))
    beaten = (own > scores).double() + (own == scores).double() / 2
    others = len(choices) - 1
    return (beaten.sum(1) - 0.5) / others if others else torch.full((len(x),), torch.nan)


KEPT = (
    "source",
    "score",
    "n_scored",
    "n_groups",
    "scope",
    "uds",
    "ci95",
    "ci90",
    "ci95_why",
    "lens",
    "lens_ci95",
    "lens_ci95_why",
    "lens_n_scored",
    "weakest",
    "validity",
    "aligned",
    "outputs",
    "told",
    "floor",
    "calibration",
)
"""Fields of a summary that its views are made of."""


def kept_for_verdict(summary: PatchSummary, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `of_patch` reads of a run, in five digits and without a name: for a table of many."""
    depths = ("idx", "uds", "uds_aligned")
    own = document(summary) | {"source": ""}
    found = {name: own[name] for name in KEPT if name in own}
    return brief({**found, "rows": [{name: row.get(name) for name in depths} for row in rows]}, 5)
