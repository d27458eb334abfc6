"""The smallest call of each command that makes or reads something, on the embedded family."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from support.command_cases import JUDGED, MUSE, OWN, PAIRS, asked, with_wrong_answers

ROWS = OWN["rows.jsonl"]
FILES: Mapping[str, str] = {
    **OWN,
    **MUSE,
    "mcq.jsonl": with_wrong_answers(ROWS),
    "pairs.jsonl": PAIRS,
    "judged.jsonl": JUDGED,
    "ordinary.txt": "The river ran high that spring, and the mill stood idle for a month.\n" * 40,
    "registry.toml": '[models.mine]\nrole = "unlearned"\nrepo = "demo/npo"\n',
    "policy.toml": 'passing = ["erased"]\n',
    "questions.jsonl": asked(("Where was Ilse Quarn born?", "Batu Harbour")),
}
"""Rows and papers that every working folder begins with."""
ANCHORS = "--full demo/full --retain demo/retain"
OUT = "out"


@dataclass(frozen=True)
class Recipe:
    """A call that is as small as it can be and still does all that the command does."""

    name: str
    argv: str
    out: str = OUT
    """The folder or file it makes; empty where it only reads."""
    after: tuple[str, ...] = ()
    """Recipes whose results lie in the working folder, each in a folder of its recipe's name."""
    dry: bool = False
    """Whether the command takes --dry-run."""
    json: bool = True
    """Whether the command takes --json."""
    heavy: bool = False
    """Tens of seconds: asked less often."""
    trains: bool = False
    keeps: bool = True
    """Whether the same call again finds its result and does no work."""
    once: bool = False
    """Whether the file it makes is never written over."""
    python: str = ""
    """The same as an expression of Python, with `la` the package."""
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """Words of the command, without options."""
        words = self.argv.split()
        return " ".join(words[: 2 if words[0] in GROUPS else 1])

    def typed(self, out: str | None = None) -> list[str]:
        """What is typed; the result goes to another folder where one is named."""
        place = self.out if out is None else out
        return [word.replace("{out}", place) for word in self.argv.split()]


GROUPS = (
    "activations",
    "rtt",
    "runs",
    "meta",
    "steer",
    "judge",
    "canaries",
    "sweep",
    "gym",
    "data",
)
UNLEARN = "--batch-size 2 --accumulate 1"

_RECIPES = (
    Recipe("cache", "cache --model demo/full --limit 4", out="activations", dry=True),
    Recipe(
        "patch",
        "patch --source demo/npo --limit 4 --layers 8,15 --out {out}",
        dry=True,
        python="la.patch('demo/npo', limit=4, layers='8,15', out='{out}')",
    ),
    Recipe(
        "patch two",
        "patch --source demo/npo --source demo/idknll --limit 4 --layers 8,15 --out {out}",
        dry=True,
    ),
    Recipe(
        "patch own",
        f"patch --source demo/idknll {ANCHORS} --data rows.jsonl --limit 4 --layers 15"
        " --out {out}",
        dry=True,
    ),
    Recipe("patch lens", "patch --source demo/npo --limit 4 --score lens --out {out}", dry=True),
    Recipe(
        "patch em",
        "patch --source demo/npo --limit 3 --score em --max-new-tokens 4 --layers 15 --out {out}",
        dry=True,
    ),
    Recipe(
        "eval",
        "eval --model demo/npo --limit 2 --metric exact_memorization --metric extraction_strength"
        " --out {out}",
        dry=True,
        python="la.evaluate('demo/npo', limit=2, metrics=('exact_memorization',"
        " 'extraction_strength'), out='{out}')",
    ),
    Recipe(
        "eval own",
        "eval --model demo/npo --data rows.jsonl --holdout holdout.jsonl"
        " --limit 2 --metric extraction_strength --metric mia_loss --out {out}",
        dry=True,
    ),
    Recipe(
        "audit",
        "audit --source demo/npo --limit 4 --suite none --association none --align none"
        " --out {out}",
        dry=True,
        python="la.audit('demo/npo', limit=4, suite='none', association='none', align='none',"
        " out='{out}')",
    ),
    Recipe(
        "know",
        "know --source demo/npo --limit 8 --reader outputs --out {out}",
        dry=True,
        python="la.know('demo/npo', limit=8, readers=('outputs',), out='{out}')",
    ),
    Recipe(
        "worst",
        "worst --source demo/npo --limit 2 --attack greedy --out {out}",
        dry=True,
        heavy=True,
        python="la.worst('demo/npo', limit=2, attack=('greedy',), out='{out}')",
    ),
    Recipe(
        "sample",
        "sample --source demo/npo --limit 2 --samples 2 --k 2 --max-new-tokens 4 --out {out}",
        dry=True,
    ),
    Recipe(
        "unlearn",
        f"unlearn --model demo/full --method GradAscent --steps 1 {UNLEARN} --out {{out}}",
        dry=True,
        trains=True,
    ),
    Recipe(
        "relearn",
        f"relearn --source demo/npo --epochs 0.05 {UNLEARN} --out {{out}}",
        dry=True,
        trains=True,
    ),
    Recipe("quantize", "quantize --source demo/npo --engine torch --out {out}", dry=True),
    Recipe(
        "effort",
        "effort --source demo/npo --limit 4 --arm neutral --weights full --steps 1 --rows 2"
        " --splits 2 --lr 1e-3 --workers 1 --out {out}",
        dry=True,
        heavy=True,
        trains=True,
    ),
    Recipe(
        "rtt",
        f"rtt run --source demo/npo {ANCHORS} --data mcq.jsonl --splits 2 --v-runs 1 --lr 1e-3"
        " --epochs 1 --readout answer --loss-on answer --min-drop 0 --min-baseline 0 --out {out}",
        dry=True,
        heavy=True,
        trains=True,
    ),
    Recipe("rtt summarize", "rtt summarize rtt", out="", after=("rtt",)),
    Recipe("rtt validate", "rtt validate demo --splits 2", out=""),
    Recipe(
        "steer extract",
        "steer extract --model demo/full --trait demo_idk --layers 8 --method mean_diff"
        " --position prompt_last --out {out}",
        dry=True,
    ),
    Recipe(
        "steer eval",
        "steer eval --model demo/full --trait demo_idk"
        " --vector steer-extract/vectors/mean_diff_layer8.safetensors --judge idk --questions 2"
        " --rollouts 1 --max-new-tokens 4 --coefficients 0,2 --out {out}",
        after=("steer extract",),
        dry=True,
    ),
    Recipe(
        "steer sweep",
        "steer sweep --model demo/full --trait demo_idk --vectors steer-extract/vectors --layers 8"
        " --judge idk --questions 2 --rollouts 1 --max-new-tokens 4 --temperature 0 --out {out}",
        after=("steer extract",),
        dry=True,
    ),
    Recipe(
        "steer audit",
        f"steer audit --source demo/npo {ANCHORS} --data rows.jsonl --kept demo --layers 12"
        " --n-retain 4 --set folds=2 --set randoms=1 --max-new-tokens 2 --experiment ablate"
        " --out {out}",
        dry=True,
        heavy=True,
    ),
    Recipe("judge", "judge run judged.jsonl --by words:idk --out {out}", dry=True),
    Recipe("judge calibrate", "judge calibrate --by idk --words idk", out=""),
    Recipe(
        "meta faithfulness",
        "meta faithfulness --pool-knows demo/full,demo/masked_readout"
        " --pool-forgot demo/retain,demo/never --metric exact_memorization --limit 2"
        " --out {out}",
        dry=True,
        heavy=True,
    ),
    Recipe(
        "meta robustness",
        "meta robustness --attack quantize --source demo/npo --filter none"
        " --metric exact_memorization --limit 2 --data demo --out {out}",
        dry=True,
        heavy=True,
    ),
    Recipe(
        "meta table",
        "meta table meta-faithfulness --out {out}",
        after=("meta faithfulness",),
    ),
    Recipe("meta aggregate", "meta aggregate audit --no-fluency --out {out}", after=("audit",)),
    Recipe(
        "sweep plan",
        "sweep plan demo/npo --variants base --metric exact_memorization --limit 2"
        " --association none --out {out}",
        dry=True,
    ),
    Recipe("sweep run", "sweep run sweep-plan", out="sweep-plan", after=("sweep plan",), dry=True),
    Recipe("sweep status", "sweep status sweep-run", out="", after=("sweep run",)),
    Recipe("sweep collect", "sweep collect sweep-run --out {out}", after=("sweep run",)),
    Recipe("sweep verify", "sweep verify sweep-run --sample 1", out="", after=("sweep run",)),
    Recipe(
        "watch",
        "watch checkpoints --once --set settled=0 --data demo --metric exact_memorization --limit 2"
        " --association none --out {out}",
        after=("quantize",),
        more={"checkpoints/checkpoint-1": "quantize"},
        heavy=True,
    ),
    Recipe("gym ls", "gym ls", out=""),
    Recipe("annotate", "annotate pairs.jsonl -o {out}.json", out="annotated", keeps=False),
    Recipe(
        "canaries draw", "canaries draw --people 8 -o {out}", json=False, keeps=False, once=True
    ),
    Recipe(
        "report",
        "report patch eval -o {out}.html",
        out="page",
        after=("patch", "eval"),
        json=False,
        keeps=False,
    ),
    Recipe("verdict", "verdict patch know", out="", after=("patch", "know")),
    Recipe("export", "export patch --to eee -o {out}", after=("patch",), json=False, keeps=False),
    Recipe("verify", "verify patch eval know", out="", after=("patch", "eval", "know")),
    Recipe("runs ls", "runs ls patch eval know", out="", after=("patch", "eval", "know")),
    Recipe("runs show", "runs show patch", out="", after=("patch",)),
    Recipe("runs diff", "runs diff patch patch-own", out="", after=("patch", "patch own")),
    Recipe("activations ls", "activations ls", out="", after=("cache",)),
    Recipe("activations info", "activations info demo-full", out="", after=("cache",)),
    Recipe("activations verify", "activations verify", out="", after=("cache",)),
    Recipe(
        "activations export",
        "activations export demo-full -o {out}.tar",
        out="cache",
        after=("cache",),
        keeps=False,
        once=True,
    ),
    Recipe("models", "models", out=""),
    Recipe("doctor", "doctor", out=""),
    Recipe("init", "init . --force", out="lensaudit.toml", dry=True, keeps=False),
)
RECIPES = {one.name: one for one in _RECIPES}
MAKERS = tuple(one.name for one in _RECIPES if one.out and one.keeps)
"""Recipes that leave a result folder behind."""
