"""Doors to other people's tools, a module each; nothing of the core imports one."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["frames", "plot"])
