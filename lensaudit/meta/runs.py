"""From names and results to judgements: read what is there, measure the rest, write the files.

Models are measured one in memory at a time; an interrupted run goes on where it stopped. Every
model is one evaluation in a folder of its own. A model whose run failed stays to do: it is named
in `to_do.json` with the reason, and the next run tries it again. Attacked models are made, measured
and let go; settings of the attacks are those of `docs/meta_fields.md`: NF4 without double
quantisation; one epoch of relearning, of the model and of retain.
"""

import hashlib
import itertools
import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.attacks.settings import Relearning, relearning_for
from lensaudit.auditing.question import check_asked, splits_of
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.suites import DEMO_DATA
from lensaudit.errors import (
    InputError,
    PartialError,
    VerificationError,
    WorkError,
    failure_in,
    shortened,
)
from lensaudit.files import read_bytes, write_json
from lensaudit.meta.aggregate import aggregated
from lensaudit.meta.documents import (
    COMMAND,
    Lines,
    faithfulness_document,
    faithfulness_table,
    read_thresholds,
    robustness_document,
    robustness_table,
    write_judged,
)
from lensaudit.meta.judging import check_pools, faithfulness, left, stability, usable
from lensaudit.meta.reading import (
    DONE,
    EPOCHS,
    FLUENCY,
    LOG,
    PUBLISHED,
    SUITE_NAMES,
    THRESHOLDS,
    TO_DO,
    UTILITY_PARTS,
    JudgedMetric,
    Values,
    attack_aucs,
    judged,
    known_to_do,
    merged,
    read_values,
    short_name,
    with_s_mia,
)
from lensaudit.meta.records import FaithfulnessRecord, RobustnessRecord
from lensaudit.meta.settings import Attack, FaithfulnessSettings, RobustnessSettings
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.registry import (
    DEMO,
    Registry,
    default_anchor,
    family_of,
    load_registry,
    resolve,
)
from lensaudit.progress import Notice
from lensaudit.results.integrity import is_whole
from lensaudit.results.keyed import keyed_document, write_keyed
from lensaudit.results.owner import check_free, folders_for
from lensaudit.results.roles import InRole, ModelRole, check_roles, ends_as_sources
from lensaudit.settings import MEMORY, ROWS, AnswerGroups, plain, shared
from lensaudit.sweep.plan import ANCHORS, AttackVariant, relearned_rows
from lensaudit.text import digest
from lensaudit.turns import alone

_NOT_IDENTITY = ("activations", "registry", "batch_size", "metrics")
"""Fields of the settings that do not change what a run finds, or are recorded elsewhere."""
_PLACES = (
    *("data", "forget", "holdout", "retain_set", "retain_log"),
    *("tokenizer", "template", "classifier", "align_data", "validity_data"),
)
"""Fields that may name a file or folder; another's text is no place, whatever lies here."""


VARIANTS: Mapping[Attack, AttackVariant] = {"quantize": "nf4", "relearn": "relearn-1ep"}
"""Attack -> the variant of a sweep that it is."""


def _content(value: Any) -> Any:
    """A place as JSON; of files and folders of rows, what is in them."""
    # as the suite reads it: the embedded data, also where a folder has that name
    path = None if value in (None, DEMO_DATA) else Path(value)
    if path is None or not path.exists():
        return value if path is None else str(value)
    files = sorted(path.glob("*.json*")) if path.is_dir() else [path]
    return [hashlib.sha256(read_bytes(one)).hexdigest() for one in files]


def identity_of(name: str, registry: Registry) -> dict[str, Any]:
    """A model's weights: by content for a folder, by name and revision for the Hub.

    A finished result of a Hub checkpoint that was deleted to save space stays usable.
    """
    spec = resolve(name, registry)
    if spec.local is None and spec.adapter is None:
        return {"repo": spec.repo, "revision": spec.revision}
    try:
        return {"weights": open_checkpoint(spec).weights}
    except InputError:  # measuring it will say what is wrong
        return {"unopened": name}


def _folders(names: Sequence[str], parent: Path) -> dict[str, Path]:
    """A folder per model; names that look alike on disk are told apart by a hash."""
    return {name: parent / place.name for name, place in folders_for(names, None).items()}


def _finished(folder: Path, key: str) -> Sequence[str]:
    """The metrics that a model's folder holds under the same conditions."""
    done = keyed_document(folder / DONE, key) if is_whole(folder) else None
    return done["metrics"] if done else ()


RESULTS = "results"
"""As --source: every model of the results but the anchors."""


@dataclass(frozen=True)
class MetaRun:
    """Models that are judged on, and how: every name is known, nothing is loaded."""

    names: tuple[str, ...]
    out: Path
    metrics: tuple[JudgedMetric, ...]
    registry: Registry
    full: str
    retain: str
    evaluation: EvaluateSettings | None
    """How models are measured; None: values come from results alone."""
    notice: Notice

    @property
    def keys(self) -> list[str]:
        """What is measured: s_MIA follows from the attack itself and retain's."""
        return [one.usable_as or one.key for one in self.metrics]

    def relearning(self, asked: RobustnessSettings) -> tuple[Relearning, str]:
        """How models are relearned, and on which forget rows: `demo`, `forget10` or a file."""
        assert self.evaluation is not None
        default = relearning_for(demo=self.evaluation.data == DEMO_DATA)
        rows = relearned_rows(self.evaluation, asked.relearn_data)
        return replace(default, lr=asked.relearn_lr or default.lr), rows

    def key(self, name: str, attack: RobustnessSettings | None = None) -> str:
        """Content hash of what a model's finished result depends on, beside its metrics."""
        of_model = identity_of(name, self.registry)
        if attack is not None and attack.attack == "quantize":
            of_model["attack"] = {"method": "nf4"}
        elif attack is not None:
            how, rows = self.relearning(attack)
            of_model["attack"] = asdict(how) | {"data": _content(rows)}
        said = plain(self.evaluation, without=_NOT_IDENTITY)
        anchors = {one: said[one] and identity_of(said[one], self.registry) for one in ANCHORS}
        return digest([of_model, said | {one: _content(said[one]) for one in _PLACES} | anchors])

    def plan(self) -> list[str]:
        """What would be measured; nothing is loaded or written."""
        if self.evaluation is None:
            return [f"{len(self.names)} models, values from results; nothing is measured"]
        wanted, folder = {SUITE_NAMES.get(key, key) for key in self.keys}, self.out / "before"
        places = _folders(self.names, folder).items()
        done = [name for name, at in places if wanted <= {*_finished(at, self.key(name))}]
        return [f"{folder}: {len(self.names)} models x {len(wanted)} metrics, {len(done)} finished"]

    def completed(
        self,
        known: Values,
        names: Iterable[str],
        folder: str,
        extra: Sequence[str] = (),
        attack: RobustnessSettings | None = None,
    ) -> Values:
        """Known values, and those of the named models that lack one, measured now.

        Raises:
            InputError: not one model could be measured; the first reason is given.
            TryAgainError: another process measures into the same folder.
        """
        keys = [*dict.fromkeys((*self.keys, *extra))]
        lacking = [n for n in names if any(math.isnan(known.value(n, key)) for key in keys)]
        if self.evaluation is None or not lacking:
            return known
        place, to_do = self.out / folder, dict[str, str]()
        folders, suite = _folders(lacking, place), [SUITE_NAMES.get(key, key) for key in keys]
        with alone(place):
            others = {name: why for name, why in known_to_do(place).items() if name not in folders}
            for number, (name, own) in enumerate(folders.items(), 1):
                self.notice(f"{folder}: model {number} of {len(lacking)}: {name}")
                reason = self._measure(name, own, suite, attack)
                if reason is not None:
                    to_do[name] = reason
                    self.notice(f"to do: {name}: {reason}")
                write_json(place / TO_DO, others | to_do)
        if len(to_do) == len(lacking):
            first, reason = next(iter(to_do.items()))
            raise InputError(f"none of {len(lacking)} models could be measured; {first}: {reason}")
        done = read_values([own / LOG for name, own in folders.items() if name not in to_do])
        rest = {model: row for model, row in known.rows.items() if model not in lacking}
        return merged([replace(known, rows=rest), done, Values(to_do=to_do)])

    @ends_as_sources()
    def _measure(
        self, name: str, folder: Path, metrics: Sequence[str], attack: RobustnessSettings | None
    ) -> str | None:
        """Measure one model, unless that was done; why it could not be."""
        key = self.key(name, attack)
        known = _finished(folder, key)
        if {*metrics} <= {*known}:
            return None
        import torch  # with all that measures, seconds to import

        from lensaudit.auditing.evaluate import evaluate_into
        from lensaudit.models.device import one_memory_error
        from lensaudit.sweep.unit import attacked

        # what an earlier run found under the same conditions stays in the log
        wanted = tuple(dict.fromkeys((*metrics, *sorted(known))))
        (folder / DONE).unlink(missing_ok=True)
        (folder / LOG).unlink(missing_ok=True)
        assert self.evaluation is not None
        made = name
        try:
            with one_memory_error():
                if attack is not None:
                    how, rows = self.relearning(attack)
                    # an attacked model lives in a folder of its own until it is measured
                    made = str(
                        attacked(
                            open_checkpoint(resolve(name, self.registry)),
                            VARIANTS[attack.attack],
                            self.out / "attacked" / attack.attack / folder.name,
                            device=attack.measuring.device,
                            how=how,
                            rows=rows,
                        )
                    )
                found = evaluate_into(made, replace(self.evaluation, metrics=wanted), folder)
        except (InputError, WorkError, VerificationError, torch.OutOfMemoryError) as error:
            return failure_in(name, "evaluate", error).message
        failed = [entry for entry in found.entries.values() if entry.failed]
        if failed and len(failed) == len(found.entries):
            return failed[0].reason
        done = {"model": name, "key": None if failed else key, "metrics": list(wanted)}
        write_keyed(folder / DONE, done)
        if attack is not None and not attack.keep:
            shutil.rmtree(made, ignore_errors=True)
        return None

    def before(
        self, results: Sequence[Path], side: str | None = None, extra: Sequence[str] = ()
    ) -> Values:
        """Values of the models, and of the retain model where a metric compares with its own."""
        compared = any(one.usable_as for one in self.metrics)
        names = dict.fromkeys((*self.names, self.retain) if compared else self.names)
        known = read_values(results, attack=side) if results else Values()
        found = self.completed(known, names, "before", extra)
        return with_s_mia(found, attack_aucs(found, self.retain))

    def write(
        self,
        name: str,
        record: Any,
        table: Lines,
        options: Mapping[str, Any],
        started: float,
        *,
        fluency: bool = True,
        **inputs: Any,
    ) -> Path:
        """Write a judgement, its table and its manifest; where the judgement is."""
        own = {"metrics": [one.key for one in self.metrics], "full": self.full}
        return write_judged(
            self.out,
            name,
            record,
            table,
            options={**options, **own, "retain": self.retain, "fluency": fluency},
            inputs={"results": [], "weights": {}} | inputs,
            started=started,
            device=self.evaluation.device if self.evaluation else "none",
        )


def pool(names: Sequence[str], side: str, registry: Registry) -> list[str]:
    """The models of a pool; `published` stands for the 30 of the UDS meta-evaluation.

    >>> len(pool(["published"], "knows", load_registry()))
    30
    """
    listed = [spec.name for spec in registry.values() if spec.role == f"pool_{side}"]
    parts = [part for text in names for part in text.split(",") if part]
    many = (listed if part == PUBLISHED else [short_name(part)] for part in parts)
    return [*itertools.chain.from_iterable(many)]


def prepare_faithfulness(settings: FaithfulnessSettings, notice: Notice) -> MetaRun:
    """Models of both pools, the one that knows first, with every name and every result checked.

    Raises:
        InputError: the pools are empty or overlap, or results cannot be read.
    """
    registry = load_registry(settings.measuring.registry)
    pools: dict[ModelRole, list[str]] = {
        "knows": pool(settings.knows, "knows", registry),
        "forgot": pool(settings.forgot, "forgot", registry),
    }
    how = _prepared(pools, settings, notice, measuring=settings.run or not settings.results)
    here = {} if how.evaluation is None else {m: identity_of(m, registry) for m in how.names}
    weights = {name: one["weights"] for name, one in here.items() if "weights" in one}
    known = read_values(settings.results) if settings.results else Values()
    for values in (Values(weights=weights), known):
        check_pools(pools["knows"], pools["forgot"], values)
    return how


def run_faithfulness(settings: FaithfulnessSettings, how: MetaRun) -> FaithfulnessRecord:
    """Faithfulness of every metric: faithfulness.json, written with its .csv and a manifest.

    Raises:
        InputError: the pools are empty or overlap, or results cannot be read.
    """
    started, n = time.monotonic(), len(pool(settings.knows, "knows", how.registry))
    knows, forgot = how.names[:n], how.names[n:]
    values = how.before(settings.results)
    check_pools(knows, forgot, values)
    found = [faithfulness(one, knows, forgot, values) for one in how.metrics]
    record = faithfulness_document(found, knows, forgot, values)
    how.write(
        "faithfulness",
        record,
        faithfulness_table(record),
        {"knows": list(knows), "forgot": list(forgot)},
        started,
        results=[str(one) for one in settings.results],
        weights=dict(values.weights),
    )
    return record


def prepare_robustness(settings: RobustnessSettings, notice: Notice) -> MetaRun:
    """Models that are attacked, with every name checked.

    Raises:
        InputError: names, results or thresholds are wrong or missing.
    """
    wanted = settings.run or not (settings.before and settings.after)
    _thresholds(settings)
    if settings.relearn_data is not None:
        from lensaudit.training.rows import load_rows  # seconds to import

        load_rows(settings.relearn_data, part="forget")
    models = _candidates(settings)
    if not models:
        raise InputError("no model to judge robustness on; name some with --source")
    for results, side in ((settings.before, "before"), (settings.after, settings.attack)):
        if results:
            read_values(results, attack=side)
    return _prepared({"source": models}, settings, notice, measuring=wanted)


def run_robustness(settings: RobustnessSettings, how: MetaRun) -> RobustnessRecord:
    """Robustness of every metric to one attack: robustness-<attack>.json, with .csv and manifest.

    Only models that some metric can use are attacked.

    Raises:
        InputError: no models, or results cannot be read.
    """
    started, models, attack, by = time.monotonic(), how.names, settings.attack, settings.by
    thresholds, fluency = _thresholds(settings), not settings.no_fluency
    known = read_values(settings.after, attack=attack) if settings.after else Values()
    extra = (*UTILITY_PARTS, *((FLUENCY,) if fluency else ()))
    everyone = replace(how, names=(*models, how.full, how.retain))
    values = everyone.before(settings.before, "before", extra if by != "none" else ())
    rows = aggregated(values, full=how.full, fluency=fluency)
    utility = {row.model: row.utility_rel for row in rows if row.utility_rel is not None}
    chosen = [
        usable(
            one,
            models,
            values,
            utility_rel=utility,
            by=by,
            threshold=thresholds.get(one.usable_as or one.key, math.nan),
        )
        for one in how.metrics
    ]
    if by != "none" and how.full in values.to_do:
        waits = {how.full: values.why_not(how.full, "")}
        chosen = [replace(one, to_do={**one.to_do, **waits}) for one in chosen]
    wanted = dict.fromkeys(model for one in chosen for model in left(models, one))
    wanted |= {how.retain: None} if attack == "relearn" else {}
    after = how.completed(known, wanted, f"after-{attack}", attack=settings)
    after = with_s_mia(after, attack_aucs(values, how.retain))
    found = [
        stability(one, attack, models, row, values, after, retain=how.retain, form=settings.form)
        for one, row in zip(how.metrics, chosen, strict=True)
    ]
    conditions = {"filter": by, "retain": how.retain}
    record = robustness_document(
        found,
        attack,
        form=settings.form,
        models=models,
        thresholds=thresholds,
        conditions=conditions,
    )
    how.write(
        f"robustness-{attack}",
        record,
        robustness_table(record),
        {"attack": attack, "form": settings.form, "models": list(models), **conditions},
        started,
        fluency=fluency,
    )
    return record


def unfinished(record: FaithfulnessRecord | RobustnessRecord, folder: Path) -> PartialError | None:
    """The error that names what is to do."""
    to_do = {model: why for one in record.metrics for model, why in one.to_do.items()}
    if not to_do:
        return None
    lines = [f"{name} ({why.removeprefix('to do: ')})" for name, why in to_do.items()]
    return PartialError(
        f"to do: {shortened(lines, 3, ', ')}; results so far are in {folder}, run the same command "
        "again"
    )


def _prepared(
    asked: Mapping[ModelRole, Sequence[str]],
    settings: FaithfulnessSettings | RobustnessSettings,
    notice: Notice,
    *,
    measuring: bool,
) -> MetaRun:
    """The settings of a run; every name is checked before anything is loaded."""
    check_free(settings.out, COMMAND)
    given, names = settings.measuring, [*itertools.chain.from_iterable(asked.values())]
    full = given.full or default_anchor("full", names)
    retain = given.retain or default_anchor("retain", names)
    evaluation, registry = None, load_registry(given.registry)
    if measuring:
        _check_machine(given)
        for name in (*names, full, retain):
            resolve(name, registry)
        # the embedded data where any model comes along with it: attacked ones are folders
        own = given.forget is None and any(map(family_of, names))
        for name in names:
            check_asked(name, given, given.registry)
        data = given.data or (DEMO_DATA if own else None)
        chosen = shared(given, AnswerGroups, full=full, retain=retain, data=data)
        evaluation = EvaluateSettings(**chosen)
        _check_rows(full, evaluation)
    roles: Mapping[ModelRole, Sequence[str]] = {**asked, "full": [full], "retain": [retain]}
    check_roles(
        InRole(role, name, digest(identity_of(name, registry)) if measuring else name)
        for role, some in roles.items()
        for name in some
    )
    metrics = tuple(judged(settings.metrics))
    return MetaRun(tuple(names), settings.out, metrics, registry, full, retain, evaluation, notice)


def _check_machine(given: AnswerGroups) -> None:
    """Refuse a device that is not there, and a budget that is none; the usual ones are.

    Raises:
        InputError: which it is.
    """
    if given.device not in ("auto", "cpu"):
        from lensaudit.models.device import resolve_device  # seconds to import

        resolve_device(given.device)
    if given.memory != MEMORY:
        from lensaudit.patching.options import parse_memory  # seconds to import

        parse_memory(given.memory)


def _check_rows(full: str, evaluation: EvaluateSettings) -> None:
    """Refuse rows on this machine that the suite cannot ask; the Hub is asked by the run alone.

    Raises:
        InputError: the files lack what the suite reads, or cannot be read.
    """
    data, own = evaluation.data, (evaluation.forget, evaluation.holdout, evaluation.retain_set)
    named = data is not None and (data.endswith(ROWS) or Path(data).exists())
    if any(own) or data == DEMO_DATA or named:
        splits_of(full, evaluation)


def _candidates(settings: RobustnessSettings) -> list[str]:
    """The named models; `results` stands for all in the results but the anchors."""
    named = [part for text in settings.models for part in text.split(",") if part]
    found: list[str] = []
    if RESULTS in named:
        if not settings.before:
            raise InputError("--source results: needs --before, the results to take them from")
        anchors = {settings.measuring.full or "full", settings.measuring.retain or "retain"}
        anchors |= {f"{one}_{epoch}" for one in anchors for epoch in EPOCHS}
        anchors |= {f"{DEMO}full", f"{DEMO}retain"}
        listed = read_values(settings.before, attack="before").models
        found = [model for model in listed if model not in anchors]
    return list(dict.fromkeys([*found, *(short_name(one) for one in named if one != RESULTS)]))


def _thresholds(settings: RobustnessSettings) -> Mapping[str, float]:
    if settings.by != "both":
        return {}
    if settings.thresholds is None:
        raise InputError(
            "--filter both needs the pools' thresholds: name a faithfulness.json (or published) "
            "with --faithfulness, or filter by utility alone"
        )
    if settings.thresholds == PUBLISHED:
        return THRESHOLDS
    return read_thresholds(Path(settings.thresholds))
