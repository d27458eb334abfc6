"""Does retraining on some facts bring back others? Retraining on T, measured on V.

RTT, "retraining on T" (arXiv:2410.08827): facts are independent of each other and all of them were
unlearned. An attacker who knows some (T) fine-tunes the model on them; what it then says about the
others (V) was hidden and not taught. `run(Study(...))` fills a log, `summarize(log)` reads it.
"""

from lensaudit.attacks.rtt.defects import Defect, Inspection, handled, inspect
from lensaudit.attacks.rtt.items import Dataset, Draft, Item, McqSplit, make_dataset
from lensaudit.attacks.rtt.log import Log, read_log
from lensaudit.attacks.rtt.mcq import load_mcq, save_mcq
from lensaudit.attacks.rtt.retrain import Sweep
from lensaudit.attacks.rtt.study import Gate, Study, Subject, from_checkpoint, in_memory
from lensaudit.attacks.rtt.summary import Summary, summarize
from lensaudit.attacks.rtt.tofu import load_facts, split_by_author
from lensaudit.attacks.rtt.work import plan_of, run

__all__ = [
    "Dataset", "Defect", "Draft", "Gate", "Inspection", "Item", "Log", "McqSplit", "Study",
    "Subject", "Summary", "Sweep", "from_checkpoint", "handled", "in_memory", "inspect",
    "load_facts", "load_mcq", "make_dataset", "plan_of", "read_log", "run", "save_mcq",
    "split_by_author", "summarize",
]  # fmt: skip
