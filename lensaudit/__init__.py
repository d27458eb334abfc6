"""Is unlearned knowledge gone, or only hidden? An audit of language models from inside."""

__version__ = "0.1.0"
