"""A real model behind a server of the tests, with the contracts of vLLM and OpenAI.

What vLLM answers to `/v1/completions` and `/v1/chat/completions` was read in its source: `echo`
with `logprobs` and `max_tokens: 0` gives the prompt as text, its tokens, log-probs (the first is
null) and offsets; `prompt_logprobs` a list of null and of objects
`{id: {logprob, rank, decoded_token}}` that hold the prompt's own token first; several prompts give
one choice each, `n` answers as many. Numbers come from Hugging Face's model, the texts of a request
padded on the right.
"""

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from support.judge_server import Answer, JudgeStub, error

_CAN = {"completions": ("echo", "prompt_logprobs", "samples"), "chat": ()}


@functools.cache
def _model(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


class ServedModel(JudgeStub):
    """A checkpoint on 127.0.0.1 while the `with` block lasts."""

    def __init__(self, folder: Path, *, can: Any = None, names: Any = ("served",), **stub: Any):
        """`can`: by path what the server takes; `most`: answers it gives to one request."""
        self.most, self.fails_after = stub.pop("most", 99), stub.pop("fails_after", None)
        super().__init__(**stub)
        self.can, self.names = _CAN if can is None else can, names
        self.serve(folder)
        self.joins = False
        """Are the last two tokens of every text told as one?"""
        self.spoil: Callable[[dict[str, Any]], Any] | None = None
        """What becomes of every text that is scored."""
        self.says: Callable[[str, int], list[dict[str, Any]]] | None = None
        """Choices that stand for sampled answers, by the prompt and how many are wanted."""
        self.times: Counter[str] = Counter()
        """How often a prompt was asked for answers."""
        self.bodies: list[tuple[str, Mapping[str, Any]]] = []
        """Path and body of what was asked for."""

    def serve(self, folder: Path) -> None:
        """Another checkpoint from now on, by the same name."""
        self.model, self.tokenizer = _model(folder)

    def chat(self, body: Mapping[str, Any], key: str) -> Answer | None:
        """As `completions`, of a chat."""
        return self._asked("chat", body)

    def route(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Models and completions."""
        if path.endswith("/models") and self.names is not None:
            rows = [{"id": one, "object": "model", "root": one} for one in self.names]
            return Answer.of({"object": "list", "data": rows})
        if path.endswith("/completions"):
            return self._asked("completions", json.loads(body))
        return error(404, "not_found", f"no {path} here")

    def _asked(self, kind: str, body: Mapping[str, Any]) -> Answer:
        with self._lock:
            self.bodies.append((kind, body))
            if self.fails_after is not None and len(self.bodies) > self.fails_after:
                return error(500, "server_error", "the engine is dead")
        wanted = next((one for one in ("echo", "prompt_logprobs") if one in body), "samples")
        if kind not in self.can:
            return error(404, "not_found", "no such path")
        if wanted not in self.can[kind]:
            return error(400, "bad_request", f"{wanted} is not supported")
        texts = self._prompts(kind, body)
        sampled = wanted == "samples"
        rows = self._answers(texts[0], body) if sampled else self._scored(texts, wanted)
        rows = [self.spoil(row) or row for row in rows] if self.spoil and not sampled else rows
        choices = [{"index": at, **row} for at, row in enumerate(rows)]
        if kind == "chat":
            choices = [
                one if "message" in one else {**one, "message": {"content": one.pop("text")}}
                for one in choices
            ]
        reply = {"object": "text_completion", "model": body["model"], "choices": choices}
        if kind == "chat" and wanted != "samples":
            reply["prompt_logprobs"] = choices[0].pop("prompt_logprobs")
        return Answer.of(reply)

    def _prompts(self, kind: str, body: Mapping[str, Any]) -> list[str]:
        if kind == "completions":
            return [body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
        how = {"add_generation_prompt": body.get("add_generation_prompt", True)}
        how["continue_final_message"] = body.get("continue_final_message", False)
        return [self.tokenizer.apply_chat_template(body["messages"], tokenize=False, **how)]

    @torch.no_grad()
    def _scored(self, texts: list[str], wanted: str) -> list[dict[str, Any]]:
        rows = [self.tokenizer(text)["input_ids"] for text in texts]
        longest = max(map(len, rows))
        padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in rows])
        logprobs = self.model(padded).logits.double().log_softmax(-1)
        own = logprobs[:, :-1].gather(-1, padded[:, 1:, None])[..., 0].tolist()
        return [
            self._told(text, ids, nats[: len(ids) - 1], wanted)
            for text, ids, nats in zip(texts, rows, own, strict=True)
        ]

    def _told(self, text: str, ids: list[int], own: list[float], wanted: str) -> dict[str, Any]:
        names = [self.tokenizer.decode([one]) for one in ids]
        if self.joins:
            names = [*names[:-2], names[-2] + names[-1]]
            own = [*own[:-2], own[-2] + own[-1]]
        if wanted == "echo":
            offsets = [sum(map(len, names[:at])) for at in range(len(names))]
            told = {"tokens": names, "token_logprobs": [None, *own], "text_offset": offsets}
            return {"text": text, "logprobs": told, "prompt_logprobs": None}
        rows = [
            {str(one): {"logprob": p, "rank": 1, "decoded_token": name}}
            for one, p, name in zip(ids[1:], own, names[1:], strict=True)
        ]
        return {"text": " and", "logprobs": None, "prompt_logprobs": [None, *rows]}

    @torch.no_grad()
    def _answers(self, text: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        n, greedy = min(body.get("n", 1), self.most), body.get("temperature") == 0
        if self.says is not None:
            return self.says(text, n)
        with self._lock, torch.random.fork_rng():
            # the same answers, whoever asks first: a seed for each time that a prompt is asked
            self.times[text] += 1
            torch.manual_seed(crc32(f"{self.times[text]} {text}".encode()))
            ids = self.tokenizer(text, return_tensors="pt")["input_ids"]
            # as many as the longest value has: the first line is all that is read
            many = {"max_new_tokens": min(body["max_tokens"], 8), "do_sample": not greedy}
            made = self.model.generate(ids, num_return_sequences=n, pad_token_id=0, **many)
        said = self.tokenizer.batch_decode(made[:, ids.shape[1] :], skip_special_tokens=True)
        return [{"text": one, "finish_reason": "stop"} for one in said]
