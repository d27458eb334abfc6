"""Which auditor is right? Models whose truth is planted and proven, and what auditors say of them.

A recipe plants a truth, an auditor guesses it; either is one decorated function:

    @recipe("scaled", truth="hidden", how="all logits a tenth of what they were")
    def scaled(ground, strength): ...

    @auditor("greedy", reads="outputs", high_means="knows", source="...")
    def greedy(case): ...
"""

import lazy_loader

# loaded when they are used: the settings of the room are read without torch
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
