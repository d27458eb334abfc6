"""From what an evaluation names to passes that can run: all that can be wrong is found here."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.data.chat import PLAIN, Template, check_tokenizer, read_template
from lensaudit.data.suites import DEMO_DATA, Suite, load_suite
from lensaudit.errors import InputError
from lensaudit.evaluation.generate import open_classifier
from lensaudit.evaluation.open import open_subject, tokenizer_for
from lensaudit.evaluation.passes import ModelPasses, PassDone
from lensaudit.evaluation.patched import Patching, annotated_set
from lensaudit.evaluation.store import PassStore
from lensaudit.evaluation.subject import PassOptions
from lensaudit.evaluation.view import Asked
from lensaudit.metrics.registry import Conventions
from lensaudit.models.checkpoint import config_of, tell_stored_twice
from lensaudit.models.context import context_of
from lensaudit.models.registry import is_demo, load_registry, resolve
from lensaudit.progress import Notice, unheard
from lensaudit.settings import path_of

if TYPE_CHECKING:
    from lensaudit.patching.audit import Audit
    from lensaudit.patching.controls import Controls

CLASSIFIER_TOKENS: Mapping[Suite, int] = {"tofu": 32, "muse": 512}
"""Where open-unlearning cuts a generation before it rates its fluency."""


def conventions_of(settings: EvaluateSettings) -> Conventions:
    """The choices that need no model."""
    like_mask = "upstream" if settings.mask == "upstream" else "unscored"
    empty = like_mask if settings.empty == "auto" else settings.empty
    return Conventions(empty=empty, retain_value=settings.ref_value)


def open_evaluation(
    model: str,
    settings: EvaluateSettings,
    kept: Path | None,
    *,
    notice: Notice = unheard,
    finished: Callable[[PassDone], None] = unheard,
) -> ModelPasses:
    """The passes over a model and its data; no weights are loaded but a classifier's.

    Args:
        model: name, Hub id or folder.
        settings: what is computed of it.
        kept: folder of finished passes; None keeps none.
        notice: told remarks.
        finished: told each pass.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    from lensaudit.patching.options import parse_memory  # seconds to import

    memory_bytes = parse_memory(settings.memory)
    subject, checkpoint = open_subject(
        model,
        registry=path_of(settings.registry),
        dtype=settings.dtype,
        device=settings.device,
        attn=settings.attn,
        memory_bytes=memory_bytes,
    )
    tell_stored_twice(checkpoint, notice=notice)
    folder = path_of(settings.tokenizer)
    tokenizer = tokenizer_for(checkpoint, folder)
    template = _template(settings)
    check_tokenizer(tokenizer, template, str(folder or model))
    splits = load_suite(
        settings.suite,
        settings.data or (DEMO_DATA if is_demo(model) else None),
        forget_split=settings.forget_split,
        question_key=settings.question_key,
        own=_own(settings),
        limit=settings.limit,
    )
    reference = None
    if settings.reference:
        reference, opened = open_subject(
            settings.reference,
            registry=path_of(settings.registry),
            dtype=settings.dtype,
            device=settings.device,
            attn=settings.attn,
            memory_bytes=memory_bytes,
        )
        tokenizer_for(opened, folder)
    device = subject.conditions.device
    classifier = settings.classifier
    return ModelPasses(
        subject,
        splits,
        Asked(tokenizer, template, settings.mask, context_of(config_of(checkpoint))),
        PassOptions(
            batch_size=settings.batch_size,
            memory_bytes=memory_bytes,
            max_new_tokens=settings.max_new_tokens,
            cleanup=settings.cleanup,
            classifier=open_classifier(classifier, device) if classifier else None,
            classifier_tokens=CLASSIFIER_TOKENS[settings.suite],
        ),
        store=PassStore(kept),
        reference=reference,
        patching=_patching(model, settings, notice),
        finished=finished,
    )


def _template(settings: EvaluateSettings) -> Template:
    if settings.template:
        return read_template(Path(settings.template))
    return Template() if settings.suite == "tofu" else PLAIN


def _patching(model: str, settings: EvaluateSettings, notice: Notice) -> Patching:
    registry = load_registry(settings.registry)
    for name in (settings.full, settings.retain):
        if name is not None:
            resolve(name, registry)

    def data() -> str:
        return annotated_set(
            model,
            suite=settings.suite,
            data=settings.data,
            forget_split=settings.forget_split,
            own=_own(settings),
        )

    def controls(audit: "Audit") -> "Controls":
        from lensaudit.auditing.patch import controls_of  # seconds to import

        return controls_of(audit, settings)

    return Patching(
        model=model,
        full=settings.full,
        retain=settings.retain,
        data=data,
        registry=registry,
        settings={
            name: getattr(settings, name)
            for name in ("exclude", "limit", "fresh", "dtype", "device", "batch_size", "memory")
        },
        controls=controls,
        root=Path(settings.activations),
        notice=notice,
    )


def _own(settings: EvaluateSettings) -> dict[str, Path]:
    given = {
        "forget": settings.forget,
        "holdout": settings.holdout,
        "retain": settings.retain_set,
    }
    own = {name: Path(place) for name, place in given.items() if place is not None}
    if own and settings.suite != "tofu":
        raise InputError("--forget, --holdout and --retain-data belong to --suite tofu")
    return own
