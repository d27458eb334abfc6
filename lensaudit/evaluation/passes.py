"""A model to ask, loaded when its first pass runs; each pass runs once and serves every metric.

A pass may look inside: retain and the model are then patched into `full`, in a session that is
opened when such a pass is asked for. TransformerLens is imported no earlier: most do without.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from lensaudit.data.chat import Encoding, answer_of, decode
from lensaudit.data.suites import Split
from lensaudit.errors import Failure, InputError, VerificationError, WorkError, failure_in
from lensaudit.evaluation.forward import (
    JAILBREAK,
    Tokenization,
    encode,
    generations,
    gradient_norm,
    not_finite,
    said,
    traces,
    view_of,
)
from lensaudit.evaluation.store import Arrays, kept
from lensaudit.metrics.registry import ANNOTATED, Measured, Read, Record, Trace
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, config_of, load_tokenizer, open_model
from lensaudit.models.conditions import Conditions, conditions_of
from lensaudit.models.device import one_memory_error, resolve_device, resolve_dtype
from lensaudit.models.large.placement import where_spread
from lensaudit.models.sizes import ContextWindow, Sizes, context_of, planned_bytes, sizes_on_disk
from lensaudit.progress import Notice, unheard
from lensaudit.settings import Cleanup
from lensaudit.text import digest

if TYPE_CHECKING:
    from lensaudit.patching.session import Session

NO_RETAIN = (
    "no retain model was patched in: run `lensaudit audit --inside`, or `eval` with --retain "
    "(a log holds no activations)"
)
PASS_VERSION = 1
"""Raised when the meaning of a stored pass changes."""
AUTO_BATCH = 32
"""Starting size of `--batch-size auto`, open-unlearning's for TOFU; halved while memory lacks."""

_LACKING = {
    "reference": "no reference model; name one with --reference",
    "gradient": "needs all weights at once, and the model is brought block by block; name a "
    "--device or --dtype it fits in",
    "fluency": "no text classifier; name one with --classifier",
}
"""Kind of pass -> message where what it needs is missing."""

T = TypeVar("T")
Prompts = Mapping[int, tuple[int, ...]]
"""Tokens of a question by idx."""


@dataclass
class Subject:
    """A model to ask: what decides its numbers, and the weights once they are needed."""

    name: str
    conditions: Conditions
    """What a pass depends on beside texts. Batches are not part of a pass's key: a run that did
    not fit into memory goes on with smaller ones, and finds its finished passes."""
    open: Callable[[], Any]
    obeyed: Mapping[str, Any] = field(default_factory=dict)
    """What its generation configuration, or its tokenizer's end of text, changes about a greedy
    continuation; part of its key."""
    in_blocks: bool = False
    """It does not fit, and is brought block by block: there are no gradients."""
    sizes: Sizes | None = None
    """What tells how many texts fit into memory at once; None: not known."""
    alias: Mapping[str, str] = field(default_factory=dict)
    """Of a short name: what it stands for."""
    context: ContextWindow = field(default_factory=ContextWindow)
    """How long a text it reads."""
    _model: Any = field(default=None, repr=False)

    @property
    def model(self) -> Any:
        """The model in eval mode, loaded on first use."""
        if self._model is None:
            self._model = self.open().eval()
        return self._model

    def release(self) -> None:
        """Forget the weights; they are loaded again if they are needed again."""
        self._model = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def open_subject(
    name: str, *, registry: Path | None, dtype: str, device: str, attn: str, memory_bytes: int
) -> tuple[Subject, Checkpoint]:
    """A model to ask, with the checkpoint behind it.

    The plain Hugging Face model is loaded, not the bridge: output-level metrics read nothing
    inside it, and the bridge's hook points cost time.

    What `memory_bytes` says is left to activations where blocks are brought one by one.

    Raises:
        InputError: no such model, or a broken checkpoint.
    """
    spread = memory_bytes if device == "auto" else None
    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    checkpoint = open_model(name, registry, allow_packed=True)

    def load() -> Any:
        return load_causal(
            checkpoint, dtype=getattr(torch, dtype), device=device, attn=attn, spread=spread
        )

    conditions = conditions_of(checkpoint, dtype=dtype, device=device, attention=attn)
    placement = where_spread(checkpoint, dtype=getattr(torch, dtype), device=device, spread=spread)
    in_blocks = placement is not None and placement.way != "whole"
    subject = Subject(
        name,
        conditions,
        load,
        in_blocks=in_blocks,
        sizes=sizes_on_disk(checkpoint, dtype),
        alias=checkpoint.spec.alias,
        context=context_of(config_of(checkpoint)),
    )
    return subject, checkpoint


def tokenizer_for(checkpoint: Checkpoint, folder: Path | None) -> Any:
    """The tokenizer in `folder`, or the checkpoint's own.

    Raises:
        InputError: it cannot be loaded, or has tokens that the model does not.
    """
    if folder is None:
        return load_tokenizer(checkpoint)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; --tokenizer wants one with tokenizer.json")
    named = replace(checkpoint.spec, name=str(folder))
    return load_tokenizer(replace(checkpoint, spec=named, folder=folder))


def not_patched() -> "Session":
    """Refuse to look inside.

    Raises:
        InputError: always.
    """
    raise InputError(NO_RETAIN)


def rows_lack(read: Read, splits: Mapping[str, Split]) -> str | None:
    """Why a pass over rows of a suite has nothing to read; None: it has."""
    if read.split not in splits:
        return f"the data has no {read.split} split"
    split = splits[read.split]
    known = any(read.field in row.answers for row in split.rows)
    return None if known else f"no row of {split.source} has {read.field}"


@dataclass(eq=False)
class ModelPasses:
    """The passes over one model, one reference model and one set of splits."""

    subject: Subject
    splits: Mapping[str, Split]
    asked: Tokenization
    folders: Sequence[Path] = ()
    """Where finished passes are kept, the first of them this run's; none: nowhere."""
    fresh: bool = False
    """Run every pass anew; a finished one stays until then."""
    reference: Subject | None = None
    opened: Callable[[], "Session"] = not_patched
    """Opens what is patched; raises InputError where it cannot."""
    notice: Notice = unheard
    """Told how a patched pass broke."""
    finished: Notice = unheard
    """Told each finished pass."""
    batch_size: int | None = None
    """None: as large as fits, from `AUTO_BATCH` down."""
    memory_bytes: int = 2 << 30
    """Above the weights; batches that nobody named follow from it."""
    max_new_tokens: int | None = None
    """None: what the split says."""
    cleanup: Cleanup = "upstream"
    classifier: Callable[[Sequence[str]], list[float]] | None = None
    """How fluent texts are, 0 to 1."""
    answered: Callable[[Sequence[int]], Sequence[int] | None] = lambda prompt: None
    """Tokens that `patch` has heard after a prompt, to their end; None: it was not asked."""
    _views: dict[tuple[str, str, ContextWindow], Measured[Encoding]] = field(
        default_factory=dict, init=False
    )
    _asked_for: dict[tuple[str, str], tuple[Prompts, Mapping[int, str]]] = field(
        default_factory=dict, init=False
    )
    _arrays: dict[str, Sequence[Arrays]] = field(default_factory=dict, init=False)
    _inside: dict[str, Measured[float] | Failure] = field(default_factory=dict, init=False)

    @cached_property
    def session(self) -> "Session | InputError":
        """What is patched, or why nothing can be."""
        try:
            return self.opened()
        except InputError as error:
            return error

    @property
    def patched(self) -> "Session | None":
        """What is patched, where it was opened."""
        found = vars(self).get("session")
        return None if isinstance(found, InputError) else found

    def missing(self, read: Read) -> str | None:
        """Why a pass cannot be run, known before any work; of a patched one, why it failed."""
        if read.kind == "patched":
            if isinstance(self.session, InputError):
                return failure_in(self.subject.name, read.field, self.session).message
            return _broken(failed) if (failed := self.failed(read)) else None
        if (why := rows_lack(read, self.splits)) is not None:
            return why
        lacking = {
            "reference": self.reference is None,
            "gradient": self.subject.in_blocks,
            "fluency": self.classifier is None,
        }
        return _LACKING[read.kind] if lacking.get(read.kind) else None

    def failed(self, read: Read) -> Failure | None:
        """How a patched pass broke, if it did."""
        found = self._inside.get(read.field) if read.kind == "patched" else None
        return found if isinstance(found, Failure) else None

    @property
    def all_splits(self) -> Mapping[str, Split]:
        """The suite's splits, and the annotated set once it is opened."""
        if (known := self.patched) is None:
            return self.splits
        rows = (
            replace(one, answers={"answer": one.answer, "entity": one.entity})
            for one in known.examples
        )
        return {**self.splits, ANNOTATED: Split(ANNOTATED, str(known.settings.data), tuple(rows))}

    def view(self, read: Read) -> Measured[Encoding]:
        """The encoded field that a pass reads, as far as the model that reads it goes."""
        by = self.reference if read.kind == "reference" else None
        key = (read.split, read.field, by.context if by else self.asked.context)
        if key not in self._views:
            self._views[key] = view_of(
                self.splits[read.split], read.field, replace(self.asked, context=key[-1])
            )
        return self._views[key]

    def run(self, read: Read) -> None:
        """Run a pass, or find it finished."""
        if read.kind != "patched":
            self._made(read)
            return
        self._scored(read.field)
        n_examples = len(self.all_splits[read.split].rows)
        self.finished(f"patched {read.field}: {n_examples} examples")

    def release(self) -> None:
        """Let go of all weights; they are loaded again where they are needed again."""
        for subject in filter(None, (self.subject, self.reference)):
            subject.release()

    def measured(self, read: Read) -> Measured[Any]:
        """The rows of one pass, for the caller to change; see `Read` for what a kind holds."""
        if read.kind == "patched":
            found = self._scored(read.field)
            assert isinstance(found, Measured)  # see `missing`
            return deepcopy(found)
        if read.kind in ("text", "jailbreak"):
            return self._texts(read)
        if read.kind == "fluency":
            return self._rated(read)
        values = [
            float(item["norm"][0]) if read.kind == "gradient" else Trace(**deepcopy(item))
            for item in self._made(read)
        ]
        return self._by_row(self.view(read), values)

    def answer_texts(self, read: Read) -> Measured[str]:
        """The decoded scored tokens of a view."""
        view = self.view(read)
        return self._by_row(view, [self._decoded(one.labels) for one in view.values])

    def cut(self, read: Read) -> list[int]:
        """Rows whose generation stopped at the limit of new tokens and not at an end."""
        n_new = self.n_new(self.splits[read.split])
        return [idx for idx, ids in self._new_tokens(read).items() if len(ids) >= n_new]

    def asked_and_wanted(self, split: Split, encoding: Encoding) -> tuple[str, str]:
        """Prompt and gold answer as upstream decodes them.

        The gold is the whole conversation without the prompt, so both went through the tokenizer.
        Where clean-up joins prompt and answer, the prompt is not found in the whole; upstream then
        takes the whole conversation for gold, here it is the decoded answer.
        """
        prompt, whole = self._decoded(encoding.prompt_ids), self._decoded(encoding.ids)
        before = self._decoded(encoding.begun_ids)
        if split.kind == "completion" or before not in whole:
            return prompt, self._decoded(encoding.labels).strip()
        return prompt, whole.replace(before, "").strip()

    def _decoded(self, ids: Sequence[int]) -> str:
        return decode(self.asked.tokenizer, ids, self.cleanup)

    def _by_row(self, view: Measured[Encoding], values: Sequence[T]) -> Measured[T]:
        """Values in the order of a view's encodings, given back to their rows."""
        remaining = iter(values)
        rows = {idx: tuple(next(remaining) for _ in one) for idx, one in view.rows.items()}
        return Measured(rows, dict(view.unscored), view.listed)

    def _scored(self, score: str) -> Measured[float] | Failure:
        """The rows of a score, patched once.

        A failure is kept as the reason of this score: the other metrics are worth having.
        """
        from lensaudit.metrics.inside.scores import score_inside  # seconds to import

        if isinstance(self.session, InputError):
            raise self.session
        if score not in self._inside:
            try:
                with one_memory_error():
                    self._inside[score] = score_inside(self.session, self.subject.name, score)
            except (InputError, WorkError, VerificationError, torch.OutOfMemoryError) as error:
                broken = self._inside[score] = failure_in(self.subject.name, score, error)
                self.notice(f"{score}: {_broken(broken)}")
        return self._inside[score]

    def _made(self, read: Read) -> Sequence[Arrays]:
        """The numbers of a pass, text by text."""
        if read.kind in ("text", "jailbreak", "fluency"):
            return self._generated(read)
        subject = self.reference if read.kind == "reference" else self.subject
        assert subject is not None  # see `missing`
        view = self.view(read)

        def make(batch_size: int) -> list[Arrays]:
            if read.kind == "gradient":
                norms = (gradient_norm(subject.model, self.asked, one) for one in view.values)
                found: list[Arrays] = [{"norm": np.array([one], np.float32)} for one in norms]
            else:
                found = [*map(vars, traces(subject.model, self.asked, view.values, batch_size))]
            names = [idx for idx, ones in view.rows.items() for _ in ones]
            for idx, text, item in zip(names, view.values, found, strict=True):
                # a text without content tokens has no gradient, and NaN says so; of all others
                # an accuracy or an average would hide numbers that are none
                real = read.kind != "gradient" or len(text.labels) > 1
                if real and not all(np.isfinite(values).all() for values in item.values()):
                    raise WorkError(not_finite(f"{subject.name}: {read.split} row {idx}"))
            return found

        label, split = f"{read.kind}-{read.split}-{read.field}", self.splits[read.split]
        return self._kept(label, subject, view.values, make, split)

    def _generated(self, read: Read) -> Sequence[Arrays]:
        """New tokens by question: one generation for each, whatever the field."""
        split, kind = self.splits[read.split], _asking(read)
        prompts, _ = self._prompts(read)
        n_new = self.n_new(split)

        def make(batch_size: int) -> list[Arrays]:
            heard = {idx: self.answered(ids) for idx, ids in prompts.items()}
            said = {idx: ids for idx, ids in heard.items() if ids is not None and len(ids) < n_new}
            rows = [idx for idx in prompts if idx not in said]
            new = generations(
                self.subject.model,
                self.asked,
                [prompts[idx] for idx in rows],
                batch_size=batch_size,
                max_new_tokens=n_new,
                name=lambda place: f"{self.subject.name}: {split.name} row {rows[place]}",
            )
            said |= dict(zip(rows, new, strict=True))
            return [{"ids": np.array(said[idx], dtype=np.int64)} for idx in prompts]

        obeyed = {"obeyed": dict(self.subject.obeyed)} if self.subject.obeyed else {}
        how: dict[str, Any] = {"n_new": n_new, **obeyed}
        return self._kept(
            f"{kind}-{split.name}", self.subject, list(prompts.values()), make, split, **how
        )

    def _new_tokens(self, read: Read) -> dict[int, list[int]]:
        """Generated tokens by idx."""
        made = zip(self._prompts(read)[0], self._generated(read), strict=True)
        return {idx: item["ids"].tolist() for idx, item in made}

    def n_new(self, split: Split) -> int:
        """Tokens that an answer to a row of the split may have."""
        return split.how.get("max_new_tokens") or self.max_new_tokens or split.max_new_tokens

    def _prompts(self, read: Read) -> tuple[Prompts, Mapping[int, str]]:
        """What is continued, by idx, and why the other rows are not: they do not fit."""
        split, kind = self.splits[read.split], _asking(read)
        if (split.name, kind) not in self._asked_for:
            forced: Any = self.asked.tokenizer(JAILBREAK, add_special_tokens=False)["input_ids"]
            tail = tuple(forced) if kind == "jailbreak" else ()
            every = {row.idx: self._prompt(split, row.question, tail) for row in split.rows}
            n_new, context = self.n_new(split), self.asked.context
            why = {idx: context.too_long(len(ids), n_new) for idx, ids in every.items()}
            self._asked_for[split.name, kind] = (
                {idx: ids for idx, ids in every.items() if why[idx] is None},
                {idx: one for idx, one in why.items() if one is not None},
            )
        return self._asked_for[split.name, kind]

    def _prompt(self, split: Split, question: str, tail: tuple[int, ...]) -> tuple[int, ...]:
        """What is continued; `tail` begins the answer, where a thought would have ended."""
        encoded = encode(split, question, "", self.asked)
        return (*encoded.begun_ids, *tail) if tail else encoded.prompt_ids

    def answers(self, read: Read) -> dict[int, str | None]:
        """What was answered, by idx, without thoughts; None: the thought was cut."""
        split, prompts = self.splits[read.split], self._prompts(read)[0]
        return {
            idx: said(prompts[idx], ids, split, self.asked, self.cleanup)
            for idx, ids in self._new_tokens(read).items()
        }

    def thoughts(self, read: Read) -> tuple[int, int]:
        """How many answers lost a thought, and how many of these were nothing but a cut one."""
        prompts, asked, how = self._prompts(read)[0], self.asked.tokenizer, self.cleanup
        new = self._new_tokens(read)
        answers = {idx: answer_of(asked, prompts[idx], ids, how) for idx, ids in new.items()}
        lost = [one for idx, one in answers.items() if one != self._decoded(new[idx])]
        return len(lost), lost.count(None)

    def _unheard(self, read: Read, answers: Mapping[int, str | None]) -> dict[int, str]:
        """Why the other rows have no answer."""
        n_new = self.n_new(self.splits[read.split])
        why = f"the thought was cut at {n_new} tokens"
        cut = {idx: why for idx, text in answers.items() if text is None}
        return {**self._prompts(read)[1], **cut}

    def _texts(self, read: Read) -> Measured[Record]:
        """What was asked, wanted and said, an alternative each."""
        view, answers, split = self.view(read), self.answers(read), self.splits[read.split]
        rows: dict[int, tuple[Record, ...]] = {}
        for idx, generation in ((idx, answers.get(idx)) for idx in view.rows):
            if generation is None:
                continue
            rows[idx] = tuple(
                {"input": prompt, "ground_truth": gold, "generation": generation}
                for prompt, gold in (self.asked_and_wanted(split, one) for one in view.rows[idx])
            )
        return Measured(rows, {**self._unheard(read, answers), **view.unscored}, view.listed)

    def _rated(self, read: Read) -> Measured[Record]:
        """Generations and how fluent a classifier finds them, 0 to 1."""
        assert self.classifier is not None  # see `missing`
        answers = self.answers(read)
        texts = {idx: text for idx, text in answers.items() if text is not None}
        scores = self.classifier(list(texts.values()))
        rows = {
            idx: ({"score": score, "generation": text},)
            for (idx, text), score in zip(texts.items(), scores, strict=True)
        }
        return Measured(rows, self._unheard(read, answers))

    def _kept(
        self,
        label: str,
        subject: Subject,
        texts: Sequence[Encoding] | Sequence[tuple[int, ...]],
        make: Callable[[int], list[Arrays]],
        split: Split,
        **determines: Any,
    ) -> Sequence[Arrays]:
        """The numbers of a pass: of this run, of an earlier one, or made now."""
        if label in self._arrays:
            return self._arrays[label]

        def sized() -> list[Arrays]:
            named = split.how.get("batch_size")
            size = named or self._fitting(subject, texts, determines.get("n_new", 0))
            while True:
                try:
                    with one_memory_error():
                        return make(size)
                except torch.OutOfMemoryError as error:
                    if named or self.batch_size or size == 1:
                        raise WorkError(
                            f"{self.subject.name}: batch size {size} does not fit into memory; "
                            "finished passes are kept, run again with a smaller --batch-size"
                        ) from error
                    size //= 2
                    torch.cuda.empty_cache()

        key = digest(
            {
                "version": PASS_VERSION,
                "kind": label.partition("-")[0],
                # a hash of hashes: the texts of a whole split never stand in memory twice
                "texts": [self._text_key(text) for text in texts],
                "weights": subject.conditions.weights,
                "conditions": subject.conditions.as_run(),
                **determines,
            }
        )
        self._arrays[label], reused = kept(self.folders, label, key, sized, fresh=self.fresh)
        self.finished(f"{label}: {len(texts)} texts{' (kept from before)' * reused}")
        return self._arrays[label]

    def _text_key(self, text: Encoding | tuple[int, ...]) -> str:
        """What a pass depends on in one text: its tokens, the scored ones, the visible ones."""
        ids, start = (text.ids, text.start) if isinstance(text, Encoding) else (text, len(text))
        return digest([list(ids), start, self.asked.mask_of(ids)])

    def _fitting(
        self, subject: Subject, texts: Sequence[Encoding] | Sequence[tuple[int, ...]], n_new: int
    ) -> int:
        """Texts at once: as asked, or as many of the longest, continued, as `--memory` holds."""
        if self.batch_size or subject.sizes is None:
            return self.batch_size or AUTO_BATCH
        lengths = (len(one.ids if isinstance(one, Encoding) else one) for one in texts)
        longest = max(lengths, default=1) + n_new
        one = subject.sizes.run_bytes(1, longest, n_logits=1) + subject.sizes.kept_bytes(longest)
        return max(1, min(AUTO_BATCH, planned_bytes(self.memory_bytes) // one))


def _broken(failure: Failure) -> str:
    return f"patching failed: {failure.message}"


def _asking(read: Read) -> str:
    """The kind of generation that a pass reads: fluency is rated of the plain one."""
    return "text" if read.kind == "fluency" else read.kind
