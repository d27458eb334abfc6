"""Where other people's tools meet ours: a module a door; nothing of the core imports one."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["frames", "plot"])
