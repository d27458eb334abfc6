"""Forward passes of a bridged model without the wrappers that no hook uses.

TransformerLens puts a wrapper with hook points around every module. A wrapper costs Python in every
pass: about half of the time of a small model (`benchmarks.bridge`). While a pass
runs, the modules underneath stand in place of the wrappers without hooks; what is computed is the
same to the last bit.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SAME_BITS = frozenset(
    {
        *("GPTNeoXForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "GemmaForCausalLM"),
        *("GraniteForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"),
        *("OlmoeForCausalLM", "PhiForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM"),
        *("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "SmolLM3ForCausalLM", "StableLmForCausalLM"),
    }
)
"""Architectures whose logits are tested to be those with the wrappers, in every type of numbers.
In the others TransformerLens computes attention or norms in another order."""


@dataclass(frozen=True)
class _Wrapped:
    """A module and the wrapper in its place."""

    siblings: dict[str, Any]
    """Name -> module, of the module that holds it."""
    name: str
    wrapper: Any
    bare: Any

    @property
    def holds(self) -> bool:
        """Nobody has put another module there, or under the wrapper, since."""
        under = self.wrapper._modules.get("_original_component")
        return self.siblings.get(self.name) is self.wrapper and (
            under is self.bare or bare(under) is self.bare
        )


Hooks = Mapping[int, Any]


def of_user(hooks: Hooks) -> bool:
    """Is a hook of a module the user's? Those of libraries serve a model as it is.

    >>> of_user({0: print}), of_user({})
    (True, False)
    """
    return any(
        not getattr(hook, "__module__", "").startswith(
            ("transformer_lens.", "transformers.", "torch.", "lensaudit.models.large.")
        )
        for hook in hooks.values()
    )


_Listeners = tuple[Sequence[Hooks], Sequence[Hooks]]
"""Where hooks of some modules stand, at hook points and elsewhere: TransformerLens, which empties
and fills these mappings, has hooks of its own elsewhere, which serve others."""


def _heard(at_points: Sequence[Hooks], elsewhere: Sequence[Hooks]) -> bool:
    return any(at_points) or any(map(of_user, filter(None, elsewhere)))


@dataclass(frozen=True)
class _Part:
    """A wrapper of the model and the wrappers inside it."""

    outer: _Wrapped
    inner: tuple[_Wrapped, ...]
    own: _Listeners
    """At what enters and leaves the outer wrapper."""
    inside: _Listeners

    @property
    def unheard(self) -> tuple[_Wrapped, ...]:
        """Wrappers of the part that no hook uses; none of them where a hook is set inside."""
        if _heard(*self.inside):
            return ()
        return self.inner if _heard(*self.own) else (self.outer, *self.inner)


@contextlib.contextmanager
def unheard_left_out(bridge: Any) -> Iterator[None]:
    """While the block lasts, the model under `bridge` runs without wrappers that no hook uses."""
    out = [one for part in _parts_of(bridge) for one in part.unheard]
    for one in out:
        one.siblings[one.name] = one.bare
    try:
        yield
    finally:
        for one in out:
            one.siblings[one.name] = one.wrapper


def bare(module: Any) -> Any:
    """The Hugging Face module under a bridge component."""
    while getattr(module, "original_component", None) is not None:
        module = module.original_component
    return module


def _parts_of(bridge: Any) -> tuple[_Part, ...]:
    """The wrapped parts of a model: looked for once, and again after one was exchanged."""
    known: tuple[_Part, ...] = vars(bridge).get("_wrapped_parts", ())
    if not known or not all(one.holds for part in known for one in (part.outer, *part.inner)):
        known = tuple(map(_part, _wrapped_in(bridge.original_model)))
        vars(bridge)["_wrapped_parts"] = known
    return known


def _part(outer: _Wrapped) -> _Part:
    inner = [*_wrapped_in(outer.bare)]
    for one in inner:  # which grows
        inner += _wrapped_in(one.bare)
    own = [outer.wrapper, outer.wrapper.hook_in, outer.wrapper.hook_out]
    inside = [one for one in _components(outer.wrapper) if all(one is not mine for mine in own)]
    return _Part(outer, tuple(inner), _listeners(own), _listeners(inside))


def _wrapped_in(module: Any) -> Iterator[_Wrapped]:
    """The outermost wrappers in a module, as deep as they are."""
    for name, one in module._modules.items():
        if (under := bare(one)) is not one:
            yield _Wrapped(module._modules, name, one, under)
        elif one is not None:
            yield from _wrapped_in(one)


def _components(wrapper: Any) -> Iterator[Any]:
    """A wrapper and all that it holds, but for the modules underneath."""
    yield wrapper
    for name, one in wrapper._modules.items():
        if one is not None and name != "_original_component":
            yield from _components(one)


def _listeners(modules: list[Any]) -> _Listeners:
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return (
        [getattr(one, kind) for one in modules if hasattr(one, "fwd_hooks") for kind in kinds],
        [getattr(one, kind) for one in modules if not hasattr(one, "fwd_hooks") for kind in kinds],
    )
