"""Runs each pass once, keeps it, and hands its rows to every metric that reads it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from lensaudit.data.chat import Encoding, decode
from lensaudit.data.suites import Split
from lensaudit.errors import Failure, InputError, WorkError
from lensaudit.evaluation.forward import IN_BLOCKS, TeacherForced, gradient_norms
from lensaudit.evaluation.generate import JAILBREAK, generations, not_finite, said
from lensaudit.evaluation.patched import NO_RETAIN, Patching
from lensaudit.evaluation.store import Arrays, PassStore
from lensaudit.evaluation.subject import Continuation, Measured, PassOptions, Rated, Subject
from lensaudit.evaluation.view import EncodedField, Tokenization, encode, view_of
from lensaudit.files import digest
from lensaudit.metrics.registry import Read, Trace
from lensaudit.models.device import one_memory_error
from lensaudit.models.sizes import planned_bytes

PASS_VERSION = 1
"""Raised when the meaning of a stored pass changes."""
AUTO_BATCH = 32
"""Starting size of `--batch-size auto`, open-unlearning's for TOFU; halved while memory lacks."""

T = TypeVar("T")


@dataclass(frozen=True)
class PassDone:
    """A finished pass."""

    label: str
    n: int
    what: Literal["texts", "examples"] = "texts"
    reused: bool = False
    """Found finished."""

    def __str__(self) -> str:
        """A line for a log."""
        return f"{self.label}: {self.n} {self.what}{' (kept from before)' * self.reused}"


class ModelPasses:
    """The passes over one model, one reference model and one set of splits."""

    def __init__(
        self,
        subject: Subject,
        splits: Mapping[str, Split],
        asked: Tokenization,
        options: PassOptions,
        *,
        store: PassStore,
        reference: Subject | None = None,
        patching: Patching | None = None,
        finished: Callable[[PassDone], None] = lambda one: None,
    ) -> None:
        self.subject, self.reference = subject, reference
        self.splits, self.asked, self.options = splits, asked, options
        self.patching = patching
        self.store, self.finished = store, finished
        self.n_forward = 0
        """Forward passes of whole batches that scored answers."""
        self._views: dict[tuple[str, str], EncodedField] = {}
        self._asked_for: dict[tuple[str, str], Mapping[int, tuple[int, ...]]] = {}
        self._arrays: dict[str, Sequence[Arrays]] = {}
        self._scorers: dict[str, TeacherForced] = {}

    def missing(self, read: Read) -> str | None:
        """Why a pass cannot be run, known before any work; of a patched one, why it failed."""
        if read.kind == "patched":
            return self.patching.missing(read.field) if self.patching else NO_RETAIN
        if read.split not in self.splits:
            return f"the data has no {read.split} split"
        split = self.splits[read.split]
        if not any(read.field in row.answers for row in split.rows):
            return f"no row of {split.source} has {read.field}"
        if read.kind == "reference" and self.reference is None:
            return "no reference model; name one with --reference"
        if read.kind == "gradient" and self.subject.in_blocks:
            return f"{IN_BLOCKS}; name a --device or --dtype it fits in"
        if read.kind == "fluency" and self.options.classifier is None:
            return "no text classifier; name one with --classifier"
        return None

    def failed(self, read: Read) -> Failure | None:
        """How a pass broke, if it did."""
        if read.kind != "patched" or self.patching is None:
            return None
        return self.patching.failed(read.field)

    @property
    def all_splits(self) -> Mapping[str, Split]:
        """The suite's splits, and the annotated set once it is opened."""
        own = self.patching.split if self.patching else None
        return {**self.splits, own.name: own} if own else self.splits

    def view(self, read: Read) -> EncodedField:
        """The encoded field that a pass reads."""
        key = (read.split, read.field)
        if key not in self._views:
            self._views[key] = view_of(self.splits[read.split], read.field, self.asked)
        return self._views[key]

    def run(self, read: Read) -> None:
        """Run a pass, or find it finished."""
        if read.kind == "patched" and self.patching:
            n_rows = self.patching.run(read.field)
            self.finished(PassDone(f"patched {read.field}", n_rows, "examples"))
        elif read.kind in ("text", "jailbreak", "fluency"):
            self._generated(read)
        elif read.kind == "gradient":
            self._gradients(read)
        else:
            self._traced(read)

    def release(self) -> None:
        """Let go of all weights; they are loaded again where they are needed again."""
        self._scorers.clear()
        for subject in (self.subject, self.reference):
            if subject is not None:
                subject.release()

    def measured(self, read: Read) -> Measured:
        """The rows of one pass; see `Read` for what a kind holds."""
        match read.kind:
            case "trace" | "reference":
                traces = [Trace(**item) for item in self._traced(read)]
                return self._by_row(self.view(read), traces)
            case "gradient":
                norms = [float(item["norm"][0]) for item in self._gradients(read)]
                return self._by_row(self.view(read), norms)
            case "text" | "jailbreak":
                return self._texts(read)
            case "fluency":
                return self._rated(read)
            case "patched":
                if self.patching is None:
                    raise InputError(NO_RETAIN)
                return self.patching.scored(read.field)

    def answer_texts(self, read: Read) -> Measured[str]:
        """The decoded scored tokens of a view."""
        view = self.view(read)
        texts = [
            decode(self.asked.tokenizer, one.labels, self.options.cleanup)
            for one in _encodings(view)
        ]
        return self._by_row(view, texts)

    def rows_with_hidden_tokens(self, read: Read) -> frozenset[int]:
        """Rows in which the mask hides a real token from attention."""
        rows = self.view(read).rows.items()
        return frozenset(
            idx for idx, ones in rows if not all(all(self.asked.mask_of(o.ids)) for o in ones)
        )

    def _by_row(self, view: EncodedField, values: Sequence[T]) -> Measured[T]:
        """Values in the order of a view's encodings, given back to their rows."""
        remaining = iter(values)
        rows = {idx: tuple(next(remaining) for _ in one) for idx, one in view.rows.items()}
        return Measured(rows, view.unscored, view.listed)

    def _traced(self, read: Read) -> Sequence[Arrays]:
        subject = self._subject(read)
        encodings = _encodings(self.view(read))

        def make(batch_size: int) -> list[Arrays]:
            scorer = self._scorer(subject)
            before = scorer.n_forward
            found = scorer.traces(encodings, batch_size)
            self.n_forward += scorer.n_forward - before
            arrays: list[Arrays] = [vars(trace) for trace in found]
            self._check_finite(read, subject, arrays)
            return arrays

        found = self._kept(f"{read.kind}-{read.split}-{read.field}", subject, encodings, make)
        self._check_finite(read, subject, found)  # an older version kept what it found
        return found

    def _check_finite(self, read: Read, subject: Subject, found: Sequence[Arrays]) -> None:
        """Refuse numbers that are none: an accuracy or an average would hide them.

        Raises:
            WorkError: names the first row concerned.
        """
        names = [idx for idx, ones in self.view(read).rows.items() for _ in ones]
        for idx, item in zip(names, found, strict=True):
            if not all(np.isfinite(values).all() for values in item.values()):
                raise WorkError(not_finite(f"{subject.name}: {read.split} row {idx}"))

    def _gradients(self, read: Read) -> Sequence[Arrays]:
        encodings = _encodings(self.view(read))

        def make(batch_size: int) -> list[Arrays]:
            norms = gradient_norms(self.subject.model, self.asked, encodings)
            # a text without content tokens has no gradient, and NaN says so
            found: list[Arrays] = [{"norm": np.array([norm], dtype=np.float32)} for norm in norms]
            real: list[Arrays] = [
                {} if len(e.labels) < 2 else item for e, item in zip(encodings, found, strict=True)
            ]
            self._check_finite(read, self.subject, real)
            return found

        return self._kept(f"gradient-{read.split}-{read.field}", self.subject, encodings, make)

    def _generated(self, read: Read) -> dict[int, list[int]]:
        """New tokens by idx: one generation per question, whatever the field."""
        kind = "text" if read.kind == "fluency" else read.kind
        split = self.splits[read.split]
        prompts = self._prompts(split, kind)
        n_new = self._n_new(split)

        def make(batch_size: int) -> list[Arrays]:
            rows = list(prompts)
            found = generations(
                self.subject.model,
                self.asked,
                list(prompts.values()),
                batch_size=batch_size,
                max_new_tokens=n_new,
                name=lambda place: f"{self.subject.name}: {split.name} row {rows[place]}",
            )
            return [{"ids": np.array(ids, dtype=np.int64)} for ids in found]

        how: dict[str, Any] = {"n_new": n_new}
        if self.subject.obeyed:
            how["obeyed"] = dict(self.subject.obeyed)
        made = self._kept(f"{kind}-{split.name}", self.subject, list(prompts.values()), make, **how)
        return {idx: item["ids"].tolist() for idx, item in zip(prompts, made, strict=True)}

    def _n_new(self, split: Split) -> int:
        return self.options.max_new_tokens or split.max_new_tokens

    def cut(self, read: Read) -> list[int]:
        """Rows whose generation stopped at the limit of new tokens and not at an end."""
        n_new = self._n_new(self.splits[read.split])
        return [idx for idx, ids in self._generated(read).items() if len(ids) >= n_new]

    def _without_room(self, split: Split, kind: str) -> dict[int, str]:
        """Rows whose prompt, with what is generated, does not fit into the model's context."""
        n_new = self._n_new(split)
        found = {
            idx: self.asked.context.too_long(len(ids), n_new)
            for idx, ids in self._all_prompts(split, kind).items()
        }
        return {idx: why for idx, why in found.items() if why}

    def _prompts(self, split: Split, kind: str) -> dict[int, tuple[int, ...]]:
        left_out = self._without_room(split, kind)
        every = self._all_prompts(split, kind)
        return {idx: ids for idx, ids in every.items() if idx not in left_out}

    def _all_prompts(self, split: Split, kind: str) -> Mapping[int, tuple[int, ...]]:
        if (split.name, kind) not in self._asked_for:
            self._asked_for[split.name, kind] = self._encoded_prompts(split, kind)
        return self._asked_for[split.name, kind]

    def _encoded_prompts(self, split: Split, kind: str) -> dict[int, tuple[int, ...]]:
        forced: Any = self.asked.tokenizer(JAILBREAK, add_special_tokens=False)["input_ids"]
        tail = tuple(forced) if kind == "jailbreak" else ()
        return {
            row.idx: (*encode(split, row.question, "", self.asked).prompt_ids, *tail)
            for row in split.rows
        }

    def _texts(self, read: Read) -> Measured[Continuation]:
        view, new = self.view(read), self._generated(read)
        rows = {
            idx: tuple(
                Continuation(*self.asked_and_wanted(view.split, one), self._said(read, new[idx]))
                for one in encodings
            )
            for idx, encodings in view.rows.items()
            if idx in new
        }
        left_out = self._without_room(view.split, read.kind)
        return Measured(rows, {**left_out, **view.unscored}, view.listed)

    def _rated(self, read: Read) -> Measured[Rated]:
        if self.options.classifier is None:
            raise InputError("no text classifier; name one with --classifier")
        texts = {idx: self._said(read, ids) for idx, ids in self._generated(read).items()}
        scores = self.options.classifier.clean(
            list(texts.values()), max_tokens=self.options.classifier_tokens
        )
        rated = zip(texts.items(), scores, strict=True)
        left_out = self._without_room(self.splits[read.split], "text")
        rows = {idx: (Rated(score, text),) for (idx, text), score in rated}
        return Measured(rows, left_out, False)

    def _said(self, read: Read, ids: Sequence[int]) -> str:
        return said(ids, self.splits[read.split], self.asked, self.options.cleanup)

    def asked_and_wanted(self, split: Split, encoding: Encoding) -> tuple[str, str]:
        """Prompt and gold answer as upstream decodes them.

        The gold is the whole conversation without the prompt, so both went through the tokenizer.
        Where clean-up joins prompt and answer, the prompt is not found in the whole; upstream then
        takes the whole conversation for gold, here it is the decoded answer.
        """
        tokenizer, cleanup = self.asked.tokenizer, self.options.cleanup
        prompt = decode(tokenizer, encoding.prompt_ids, cleanup)
        whole = decode(tokenizer, encoding.ids, cleanup)
        if split.kind == "completion" or prompt not in whole:
            return prompt, decode(tokenizer, encoding.labels, cleanup).strip()
        return prompt, whole.replace(prompt, "").strip()

    def _subject(self, read: Read) -> Subject:
        if read.kind != "reference":
            return self.subject
        if self.reference is None:
            raise InputError("no reference model; name one with --reference")
        return self.reference

    def _scorer(self, subject: Subject) -> TeacherForced:
        if subject.weights not in self._scorers:
            self._scorers[subject.weights] = TeacherForced(subject.model, self.asked)
        return self._scorers[subject.weights]

    def _kept(
        self,
        label: str,
        subject: Subject,
        texts: Sequence[Encoding] | Sequence[tuple[int, ...]],
        make: Callable[[int], list[Arrays]],
        **determines: Any,
    ) -> Sequence[Arrays]:
        if label in self._arrays:
            return self._arrays[label]
        key = self._key(label, subject, texts, determines)
        self._arrays[label], reused = self.store.get(
            label, key, lambda: self._sized(make, self._fitting(subject, texts))
        )
        self.finished(PassDone(label, len(texts), reused=reused))
        return self._arrays[label]

    def _key(
        self, label: str, subject: Subject, texts: Sequence[Any], determines: Mapping[str, Any]
    ) -> str:
        return digest(
            {
                "version": PASS_VERSION,
                "kind": label.partition("-")[0],
                # a hash of hashes: the texts of a whole split never stand in memory twice
                "texts": [self._text_key(text) for text in texts],
                "weights": subject.weights,
                "conditions": subject.conditions.as_run(),
                **determines,
            }
        )

    def _text_key(self, text: Encoding | tuple[int, ...]) -> str:
        """What a pass depends on in one text: its tokens, the scored ones, the visible ones."""
        ids, start = (text.ids, text.start) if isinstance(text, Encoding) else (text, len(text))
        return digest([list(ids), start, self.asked.mask_of(ids)])

    def _fitting(
        self, subject: Subject, texts: Sequence[Encoding] | Sequence[tuple[int, ...]]
    ) -> int:
        """Texts at once: as asked, or as many of the longest as `--memory` holds."""
        if self.options.batch_size or subject.sizes is None:
            return self.options.batch_size or AUTO_BATCH
        lengths = (len(one.ids if isinstance(one, Encoding) else one) for one in texts)
        longest = max(lengths, default=1) + (self.options.max_new_tokens or 0)
        one = subject.sizes.run_bytes(1, longest, n_logits=1) + subject.sizes.kept_bytes(longest)
        return max(1, min(AUTO_BATCH, planned_bytes(self.options.memory_bytes) // one))

    def _sized(self, make: Callable[[int], T], size: int) -> T:
        while True:
            try:
                with one_memory_error():
                    return make(size)
            except torch.OutOfMemoryError as error:
                if self.options.batch_size or size == 1:
                    raise WorkError(
                        f"{self.subject.name}: batch size {size} does not fit into memory; "
                        "finished passes are kept, run again with a smaller --batch-size"
                    ) from error
                size //= 2
                torch.cuda.empty_cache()


def _encodings(view: EncodedField) -> list[Encoding]:
    return [one for alternatives in view.rows.values() for one in alternatives]
