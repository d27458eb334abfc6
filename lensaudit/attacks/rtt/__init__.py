"""Does retraining on some facts bring back others? Retraining on T, measured on V.

RTT, "retraining on T" (arXiv:2410.08827): facts are independent of each other and all of them were
unlearned. An attacker who knows some (T) fine-tunes the model on them; what it then says about the
others (V) was hidden and not taught. `run(Study(...))` fills a log, `summarize(log)` reads it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
