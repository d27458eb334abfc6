"""Logs of Inspect: samples are facts, scores are depth, bits and worst case."""

from collections.abc import Sequence
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from lensaudit.doors.export.model import Exported, Files, as_json, names_of
from lensaudit.doors.settings import ExportSettings
from lensaudit.errors import InputError, need, told_by
from lensaudit.verdict.collect import Verdicts

INSPECT = "0.3.285"
"""Version of inspect-ai that was tried."""


def inspect_log(models: Sequence[Exported], found: Verdicts, settings: ExportSettings) -> Files:
    """Logs of Inspect: samples are facts, scores are depth, bits and worst case."""
    need("inspect_ai", called="inspect-ai", extra="inspect")
    files = {}
    try:
        for folder, one in zip(names_of(models), models, strict=True):
            files[f"{folder}lensaudit_inspect.json"] = _logged(one, settings)
    except (ImportError, TypeError, ValueError, AttributeError) as error:
        version = metadata.version("inspect-ai")
        said = told_by(error)
        raise InputError(
            f"inspect-ai {version}: {said}; {INSPECT} was tried: pip install inspect-ai=={INSPECT}"
        ) from error
    return files


def _logged(one: Exported, settings: ExportSettings) -> bytes:
    """The log of a model, as Inspect itself writes it."""
    from inspect_ai.log import (  # pyright: ignore[reportMissingImports]
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalResults,
        EvalSample,
        EvalScore,
        EvalSpec,
        write_eval_log,
    )
    from inspect_ai.scorer import Score  # pyright: ignore[reportMissingImports]

    key = sha256(as_json(one.said).encode()).hexdigest()[:22]
    n = len(one.facts)
    scores = [
        EvalScore(
            name=r.name,
            scorer=f"lensaudit/{r.name}",
            scored_samples=r.found.n,
            metrics={
                "mean": EvalMetric(
                    name="mean", value=r.found.point, metadata={**r.found.limits(), **r.details}
                )
            },
            metadata={"title": r.title, "lower_is_better": r.lower_is_better, "unit": r.unit},
        )
        for r in one.scored
    ]
    samples = [
        EvalSample(
            id=fact.idx,
            epoch=1,
            uuid=f"{key}-{fact.idx}",
            input=fact.question,
            target=fact.entity,
            scores={
                **{name: Score(value=value) for name, value in fact.scores.items()},
                **{
                    name: Score.unscored(reason="unscored", explanation=why)
                    for name, why in fact.unscored.items()
                },
            },
            metadata={"answer": fact.answer, **fact.layers},
        )
        for fact in one.facts
    ]
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            eval_id=key,
            run_id=key,
            task_id=key,
            created=one.finished.isoformat(),
            task="lensaudit",
            model=one.name,
            dataset=EvalDataset(
                name=settings.dataset, samples=n, sample_ids=[fact.idx for fact in one.facts]
            ),
            config=EvalConfig(),
            packages=dict(one.versions),
            metadata=one.said,
        ),
        results=EvalResults(
            total_samples=n, completed_samples=n, scores=scores, metadata=one.unscored
        ),
        samples=samples,
    )
    with TemporaryDirectory() as folder:
        write_eval_log(log, str(Path(folder) / "log.json"), format="json")
        return (Path(folder) / "log.json").read_bytes()
