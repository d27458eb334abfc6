"""Is unlearned knowledge gone, or only hidden? An audit of language models from inside.

The names below are the Python API; each is loaded when it is first used, so that importing the
package costs nothing.

    import lensaudit as la

    full = la.load_model("demo/full")
    cache = la.open_activations("demo/npo")
    with la.intervening(full, {8: la.replace_at(stream, mask)}):
        logits = la.logits_of(full, tokens)
"""

import lazy_loader

__version__ = "0.2.0"

_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """The name, imported when it is first used; of one that there is not, the nearest."""
    try:
        return _get(name)
    except AttributeError as error:
        import difflib

        near = difflib.get_close_matches(name, __all__)
        hint = f"; did you mean {', '.join(f'la.{one}' for one in near)}?" if near else ""
        raise AttributeError(f"lensaudit has no {name!r}{hint}", name=name) from error
