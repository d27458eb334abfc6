"""What runs write and read: typed records, tables, frames and pictures; no torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["frames", "plot"])
