"""What does a model say while it is steered? Sampled or greedy, batched, with cached keys.

A question is put in the model's chat template, or as raw text.

Random numbers belong to a row, not to a call: the same row draws the same numbers under every
coefficient, in every batch and after a restart, so differences between coefficients are paired.
Edits, of steering and of ablation, wait for their positions: a run of the model hands them over.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.data.chat import DATE, PLAIN, SYSTEM_PROMPT, Template, encode_qa
from lensaudit.errors import InputError
from lensaudit.groups import grouped
from lensaudit.models.bridge import (
    Component,
    TransformerBridge,
    check_layers,
    device_of,
    intervening,
)
from lensaudit.models.generation import Choose, Logits, Running, continued, likeliest, started
from lensaudit.models.named import bridged
from lensaudit.models.sizes import context_of
from lensaudit.patching.generation import read_on
from lensaudit.patching.speech import ends_of
from lensaudit.settings import Place as ModelPlace
from lensaudit.settings import Where
from lensaudit.steer import interventions
from lensaudit.steer.draws import draws_of
from lensaudit.steer.interventions import mask_of, project_out_span
from lensaudit.steer.settings import Form
from lensaudit.types import Intervention, PosMask

if TYPE_CHECKING:
    import pandas as pd

Idx = tuple[int, ...]
Edit = Callable[[PosMask, Idx], Intervention]
"""From the positions it acts at, and the example of each row, to an intervention."""
Place = tuple[Component, int]
"""What is edited, and at which layer."""


@dataclass(frozen=True)
class Edits:
    """A set of edits and the rule for where they act."""

    at: Mapping[Place, Edit] = field(default_factory=dict)
    where: Where = "all"

    def rows(
        self, positions: Int[Tensor, "batch pos"], n_prompt: Int[Tensor, " batch"], idx: Idx
    ) -> dict[Place, Intervention]:
        """The interventions for tokens at these positions; negative ones are padding."""
        mask = mask_of(self.where, positions, n_prompt)
        return {place: edit(mask, idx) for place, edit in self.at.items()}


NO_EDITS = Edits()


@contextlib.contextmanager
def installed(
    model: TransformerBridge, edits: Mapping[Place, Intervention]
) -> Iterator[TransformerBridge]:
    """Interventions on several components at once; removed on exit and on error."""
    by_component = grouped((component, (layer, edit)) for (component, layer), edit in edits.items())
    with contextlib.ExitStack() as stack:
        for component, layers in by_component.items():
            stack.enter_context(intervening(model, dict(layers), component=component))
        yield model


def adding(direction: Float[Tensor, " d_model"], strength: float) -> Edit:
    """`strength * direction` added."""
    return lambda mask, idx: interventions.add(direction, strength=strength, mask=mask)


def removing(
    basis: Float[Tensor, "rank d_model"], *, centre: Float[Tensor, " d_model"] | None = None
) -> Edit:
    """Components along the orthonormal rows of `basis` taken out, or set to those of `centre`."""
    return lambda mask, idx: project_out_span(basis, centre=centre, mask=mask)


def clamping(direction: Float[Tensor, " d_model"], to: float | Mapping[int, float]) -> Edit:
    """The component along `direction` set to one number, or to one per example."""

    def edit(mask: PosMask, idx: Idx) -> Intervention:
        wanted = torch.tensor([to[one] for one in idx]) if isinstance(to, Mapping) else to
        return interventions.clamp(direction, to=wanted, mask=mask)

    return edit


def continuations(
    model: TransformerBridge,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop: frozenset[int],
    edits: Edits = NO_EDITS,
    draws: Choose = likeliest,
    idx: Sequence[int] | None = None,
) -> list[tuple[int, ...]]:
    """Continuations of `prompts` under `edits`, up to and without the first token of `stop`.

    Prompts are padded on the left and masked, so a row does not depend on its neighbours.

    Args:
        model: in eval mode.
        prompts: token ids, at least one each.
        max_new_tokens: longest continuation.
        stop: ids that end a row.
        edits: act at the positions their rule names, in every step.
        draws: choose the tokens.
        idx: the example of each prompt, for edits that depend on it; 0, 1, 2 … if not given.

    Raises:
        WorkError: logits are not finite.
    """
    if not prompts:
        return []
    running = started(prompts, device_of(model))
    n_prompt = torch.tensor([len(prompt) for prompt in prompts], device=running.row.device)
    examples = tuple(range(len(prompts)) if idx is None else idx)

    def read(now: Running, step: int) -> tuple[Logits, Any]:
        chosen = tuple(examples[row] for row in now.row.tolist())
        with installed(model, edits.rows(now.positions, n_prompt[now.row], chosen)):
            logits, past = read_on(model, now)
        return logits[:, -1], past

    return continued(running, read, draws, max_new_tokens=max_new_tokens, stop=stop)


@dataclass(frozen=True)
class Steered:
    """What a model says after each prompt, as it is and steered."""

    prompts: tuple[str, ...]
    plain: tuple[str, ...]
    steered: tuple[str, ...]
    strengths: tuple[float, ...] = ()
    """Factor of each."""

    def __repr__(self) -> str:
        rows = zip(self.prompts, self.plain, self.steered, strict=True)
        return "\n".join(f"{p!r}\n  plain:   {a!r}\n  steered: {b!r}" for p, a, b in rows)

    @property
    def frame(self) -> "pd.DataFrame":
        """Table with a row per prompt and strength: the plain answer, and the steered one."""
        import pandas as pd

        columns = {"strength": self.strengths, "prompt": self.prompts}
        return pd.DataFrame(columns | {"plain": self.plain, "steered": self.steered})


def texts_of(call: str, prompts: Any) -> tuple[str, ...]:
    """Texts that a caller gives, one or several.

    Raises:
        InputError: there is something else among them.
    """
    texts = (prompts,) if isinstance(prompts, str) else prompts
    if not isinstance(texts, Sequence) or not all(isinstance(one, str) for one in texts):
        raise InputError(f"{call}: found prompts {prompts!r:.60}, wanted a text or several")
    return tuple(texts)


def _plain(one: Any) -> Any:
    """The number that a tensor or array without axes holds; anything else as it is."""
    return one.item() if getattr(one, "ndim", None) == 0 else one


def _numbers(strength: Any) -> tuple[float, ...]:
    several = strength if isinstance(strength, Iterable) else [strength]
    found = tuple(map(_plain, several))
    if not all(isinstance(one, int | float) for one in found):
        raise InputError(f"steer: found strength {strength!r:.60}, wanted a number or several")
    return found


def _directions(model: TransformerBridge, found: Any) -> dict[int, Float[Tensor, " d_model"]]:
    """What is added, by layer, in float32.

    Raises:
        InputError: no mapping, a layer or width that the model lacks, or no numbers.
    """
    if not isinstance(found, Mapping):
        raise InputError("steer: directions are no mapping; wanted {layer: direction}")
    for layer in found:
        if not isinstance(layer, Integral) or isinstance(layer, bool):
            raise InputError(f"steer: found layer {layer!r:.60}, wanted a whole number")
    check_layers(model, found)
    config: Any = model.original_model.config
    try:
        added = {int(at): torch.as_tensor(one).to(torch.float32) for at, one in found.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"steer: a direction is no list of numbers ({error})") from error
    for direction in added.values():
        if direction.shape != (config.hidden_size,):
            raise InputError(
                f"steer: a direction of {tuple(direction.shape)}, wanted ({config.hidden_size},), "
                "the width of the stream"
            )
    return added


@overload
def steer(
    model: TransformerBridge | ModelPlace,
    prompts: str | Sequence[str],
    directions: Mapping[int, Float[Tensor, " d_model"]],
    *,
    strength: float = ...,
    where: Where = ...,
    max_new_tokens: int = ...,
    temperature: float = ...,
    seed: int = ...,
) -> Steered: ...
@overload
def steer(
    model: TransformerBridge | ModelPlace,
    prompts: str | Sequence[str],
    directions: Mapping[int, Float[Tensor, " d_model"]],
    *,
    strength: Sequence[float],
    where: Where = ...,
    max_new_tokens: int = ...,
    temperature: float = ...,
    seed: int = ...,
) -> "pd.DataFrame": ...
def steer(
    model: TransformerBridge | ModelPlace,
    prompts: str | Sequence[str],
    directions: Mapping[int, Float[Tensor, " d_model"]],
    *,
    strength: float | Sequence[float] = 1.0,
    where: Where = "all",
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    seed: int = 0,
) -> Any:
    """Generate with `strength * direction` added to the stream after each layer, and without.

    Both draw the same random numbers, so that they differ by steering alone.

    Args:
        model: in eval mode; or a model's name, which is loaded in float32.
        prompts: raw texts, such as `la.prompt` writes them.
        directions: layer -> what is added there.
        strength: factor of every direction; negative steers away. Of several there is a frame:
            a row a strength and prompt.
        where: at all positions, the prompt's, the answer's, or the last of the prompt.
        max_new_tokens: longest answer.
        temperature: 0 takes the likeliest token.
        seed: of the draws.

    >>> la.steer(full, la.prompt("Who are you?"), {8: direction}, strength=-4)  # doctest: +SKIP

    Raises:
        InputError: no prompt, an empty one or one longer than the context, a layer or width that
            the model lacks, no such rule of where, a temperature below 0, or something of another
            kind.
        WorkError: logits are not finite.
    """
    if where not in get_args(Where):
        raise InputError(f"steer(where={where!r}): wanted one of {', '.join(get_args(Where))}")
    strength, temperature = _plain(strength), _plain(temperature)
    if not isinstance(temperature, int | float) or not temperature >= 0:
        raise InputError(f"steer(temperature={temperature!r:.60}): wanted a number from 0")
    texts, strengths = texts_of("steer", prompts), _numbers(strength)
    model = bridged(model, "steer")
    ids = [tuple(model.tokenizer(text)["input_ids"]) for text in texts]
    if not ids or not all(ids):
        raise InputError("steer: an empty prompt; wanted at least one token")
    config: Any = model.original_model.config
    if problem := context_of(config).too_long(max(map(len, ids)), max_new_tokens):
        raise InputError(f"steer: a prompt has {problem}")
    added = _directions(model, directions)
    draws = draws_of(texts, n_steps=max_new_tokens, seed=seed, temperature=temperature)
    options = {"max_new_tokens": max_new_tokens, "stop": ends_of(model), "draws": draws}

    def say(edits: Edits) -> tuple[str, ...]:
        found = continuations(model, ids, edits=edits, **options)
        return tuple(model.tokenizer.decode(list(said), skip_special_tokens=True) for said in found)

    def under(factor: float) -> Edits:
        edits = {("resid", layer): adding(one, factor) for layer, one in added.items()}
        return Edits(edits, where)  # pyright: ignore[reportArgumentType]  # a place each

    plain, several = say(NO_EDITS), [say(under(factor)) for factor in strengths]
    each = tuple(factor for factor in strengths for _ in texts)
    found = Steered(texts * len(strengths), plain * len(strengths), sum(several, ()), each)
    return found if isinstance(strength, int | float) else found.frame


Format = Literal["chat", "raw"]


def format_of(tokenizer: Any, wanted: Form) -> Format:
    """`auto` is the tokenizer's chat template where it has one.

    Raises:
        InputError: chat is wanted and there is no template.
    """
    if wanted == "chat" and not tokenizer.chat_template:
        raise InputError("--format chat: this tokenizer has no chat template; use --format raw")
    if wanted != "auto":
        return wanted
    return "chat" if tokenizer.chat_template else "raw"


def prompt_ids(tokenizer: Any, form: Format, question: str, system: str | None) -> tuple[int, ...]:
    """What a generation continues; a raw prompt has the system text in front."""
    if form == "chat":
        template = Template(system_prompt=system or SYSTEM_PROMPT, date_string=DATE)
        return encode_qa(tokenizer, template, question, "").prompt_ids
    head = f"{system}\n\n" if system else ""
    text = f"{head}{PLAIN.user_start_tag}{question}{PLAIN.user_end_tag}{PLAIN.asst_start_tag}"
    return tuple(tokenizer(text.rstrip())["input_ids"])
