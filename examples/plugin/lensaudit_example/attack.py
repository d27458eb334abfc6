"""An attack: it is run on the source, on `full` and on models that never knew."""

from lensaudit.attacks.arm import AttackFindings
from lensaudit.attacks.registry import attack


@attack("example_capitals", new_tokens=24)
def capitals(arm):
    """The question in capitals."""
    prompts = {fact.idx: arm.ids(arm.asked(fact).upper()) for fact in arm.facts}
    return AttackFindings(arm.told(prompts, tokens=24))
