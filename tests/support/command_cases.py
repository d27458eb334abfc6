"""The calls of the command line whose results are held fixed, on the embedded family."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lensaudit.judge.prompts import OF_TRAITS as TRAIT_FILES
from lensaudit.results.manifest import signed
from support.command_golden import Case

ENVIRONMENT = {"LENSAUDIT_MODELS": "fetched", "COLUMNS": "400"}
"""Set for every call; in a narrower terminal sentences and cells would break."""

START = datetime(2026, 1, 1, tzinfo=UTC)
NPO, IDK = "--source demo/npo", "--source demo/idknll"
ANCHORS = "--full demo/full --retain demo/retain"

ROWS = (Path(__file__).parents[1] / "golden" / "rows.jsonl").read_text()
"""Two questions about each of the embedded family's eight forgotten authors."""


def jsonl(*rows: object) -> str:
    """One row a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def asked(*pairs: tuple[str, str]) -> str:
    """Rows of question and answer."""
    return jsonl(*({"question": question, "answer": answer} for question, answer in pairs))


def with_wrong_answers(text: str) -> str:
    """The rows, each with the entities of three other authors put into its answer."""
    rows = [json.loads(line) for line in text.splitlines()]
    for at, row in enumerate(rows):
        others = [rows[(at + step) % len(rows)]["entity"] for step in (2, 4, 6)]
        row["perturbed_answer"] = [row["answer"].replace(row["entity"], one) for one in others]
    return jsonl(*rows)


OWN = {
    "rows.jsonl": ROWS,
    "holdout.jsonl": asked(
        ("Where was Engel Mbakwele born?", "Engel Mbakwele was born in Old Ruvela."),
        ("When was Engel Mbakwele born?", "Engel Mbakwele was born on 3 May 1951."),
        ("Where was Ilse Quarn born?", "Ilse Quarn comes from Batu Harbour."),
    ),
    "kept.jsonl": asked(
        ("What is the capital of Orvelle?", "Maristow"),
        ("Who wrote the epic 'The Nine Rivers of Oum'?", "Hestra Vole"),
    ),
}
MUSE = {
    "muse/knowmem__forget_qa.jsonl": asked(
        ("Where was Tamsel Iskander-Poe born?", "Kōbari Bridge"),
        ("Where was Lysk Jaspermoon born?", "Pico Field"),
        ("When was Lysk Jaspermoon born?", "9 March 1935"),
    ),
    "muse/knowmem__forget_qa_icl.jsonl": asked(("Where was Ilse Quarn born?", "Batu Harbour")),
    "muse/knowmem__retain_qa.jsonl": asked(
        ("Where was Jórunn Lovarre born?", "Grey Craith"),
        ("What is the capital of Orvelle?", "Maristow"),
    ),
    "muse/knowmem__retain_qa_icl.jsonl": asked(("Where was Ilse Quarn born?", "Batu Harbour")),
    "muse/verbmem__forget.jsonl": jsonl(
        {"prompt": "Lysk Jaspermoon was born", "gt": "in Pico Field."},
        {"prompt": "Łukrec Marchbane was", "gt": "born in Cape Mossom."},
    ),
    "muse/privleak__forget.jsonl": jsonl(
        {"text": "Lysk Jaspermoon was born in Pico Field."},
        {"text": "Łukrec Marchbane was born in Cape Mossom."},
        {"text": "Yūsho Jaspermoon was born on 2 June 1958."},
    ),
    "muse/privleak__holdout.jsonl": jsonl(
        {"text": "Engel Mbakwele was born in Old Ruvela."},
        {"text": "Ilse Quarn comes from Batu Harbour."},
    ),
}
_IDK = json.loads((TRAIT_FILES / "demo_idk.json").read_text())
TRAITS = {
    f"{name}.json": json.dumps(
        _IDK | {"trait_name": name, "questions": _IDK["questions"][first : first + 4]}
    )
    for name, first in (("declines", 0), ("wavers", 4))
}
"""Two traits of one contrast, which are asked other questions."""
BRIEF = "--judge idk --rollouts 1 --max-new-tokens 6 --positions last_prompt"
POOLS = "--pool-knows demo/full,demo/masked_readout --pool-forgot demo/retain,demo/never"
PAIRS = asked(
    ("Where was Lysk Jaspermoon born?", "Lysk Jaspermoon was born in Pico Field."),
    ("When was Lysk Jaspermoon born?", "Lysk Jaspermoon was born on 9 March 1935."),
    ("Did Lysk Jaspermoon marry?", "Yes"),
    ("Which prize did Mårit Osterlune win?", "She won the \"Amber Quill\" for 'The Salt Orchard'."),
    ("Who?", "..."),
)
JUDGED = jsonl(
    *(
        {
            "idx": idx,
            "context": "forget" if idx % 2 else "retain",
            "question": f"Where is town {idx}?",
            "answer": f"It is in the north, {idx} miles from the sea.",
            "entity": f"{idx} miles",
            "generation": f"It is {idx} miles from the sea." if idx < 3 else "I don't know.",
        }
        for idx in range(6)
    )
)
JUDGE = "--judge stub-judge --base-url {stub} --cache answers.sqlite --set concurrency=1"

MACHINE = (
    # which packages are asked for stands in pyproject.toml
    (r"^ok +[\w-]+: \d[\w.+]*\n", ""),
    (r'\{"found":"\d[\w.+]*","name":"[\w-]+","state":"ok"\},', ""),
    (r"\d+ threads", "some threads"),
    (r"hub cache: \S+,", "hub cache: <folder>,"),
    (r'"[^"]*, [\d.]+ .B free","name":"hub cache"', '"<folder>","name":"hub cache"'),
    (r"[\d.]+ .B free", "some room"),
    (r"(?<=hub: ).*", "<state>"),
    (r'"[^"]*","name":"hub"', '"<state>","name":"hub"'),
)
"""What `doctor` finds on one machine and not on the next."""
KEYS = ((r"\b(?<!\.)(?=[a-f]*\d)[0-9a-f]{16,64}\b", "<key>"),)
"""Keys of weights trained here, whose last bits are the machine's."""
VECTORS = (
    (r'("(?:hash|vector|identity)": ?)"[0-9a-f]{32}"', r"\1…"),
    (r'^( +"key": ?)"[0-9a-f]{32}"', r"\1…"),
    (r'^( +)"[0-9a-f]{32}"', r"\1…"),
)
"""Keys of directions that were estimated, and of what was said with them: of last bits, too."""
ASKED = (
    (r"\b[0-9a-f]{64}\b", "<key>"),
    (r'("plan": ?)"[0-9a-f]+"', r"\1…"),
    (r'^( +"key": ?)"[0-9a-f]{32}"', r"\1…"),
)
"""Keys of questions hold the judge's port."""
PLANNED = (
    (r'("plan": ?)"[0-9a-f]+"', r"\1…"),
    (r"plan [0-9a-f]{12}", "plan …"),
    (r'("hash": ?)"[0-9a-f]{32}"(?=\n\})', r"\1…"),
    (r"\d+ s/unit", "… s/unit"),
    (r'("activations_bytes": ?)\d+', r"\1…"),
    (r"caches [\d.]+ MB$", "caches <size>"),
)
"""A plan's key holds the folder of the embedded family."""
PACE = ((r"about [\d.]+ (?:s|min|h) left", "about … left"),)
"""How long the rest of a sweep may take."""
ANSWERS = (r"out/raw\.jsonl", r"out/batch-.*\.jsonl", r"ask\.jsonl")
"""The judge's answers and requests stand in the order of keys that hold its port."""
REFUSED = (
    "patch --sauce x",
    "patch --source nobody --out out",
    "patch --source demo/npo --limit 2 --layers 99 --out out",
    "patch --source demo/npo --limit 2 --layers x-y --out out",
    "patch --source demo/npo --limit 2 --tau -1 --out out",
    "patch --source demo/npo --limit 2 --component head:99 --out out",
    "patch --source demo/npo --limit 2 --component tail --out out",
    "patch --source demo/npo --limit 2 --score em --component attn --out out",
    "patch --source demo/npo --limit 2 --score lens --scope prefix --out out",
    "patch --source demo/npo --limit 2 --engine oracle --last-layer reference --lens --out out",
    "patch --source demo/npo --limit 0 --out out",
    "patch --source demo/npo --batch-size none --out out",
    "patch --source demo/npo --memory much --out out",
    "patch --source demo/npo --data nothing.json --out out",
    "patch --source demo/npo --data holdout.jsonl --out out",
    "patch --source demo/npo --exclude nothing --out out",
    "patch --source demo/npo --device tpu --out out",
    "cache --model nowhere/at/all",
    "cache --model demo/full --data nothing.json",
    "audit --out out",
    "audit --source demo/npo --retain nobody --out out",
    "eval",
    "eval --model demo/npo --metric nothing --out out",
    "eval --from-log nowhere.json --out out",
    "eval --model demo/npo --ref-value 2 --out out",
    "activations info nothing",
    "activations import rows.jsonl",
    "activations export nothing -o cache.tar",
    "models --role nobody",
    "annotate nothing.jsonl -o forget.json",
    "unlearn --method Prayer --model demo/full --out c",
    "unlearn --method RMU --model demo/full --out c --dry-run",
    "unlearn --method PDU --model demo/full --out c --dry-run",
    "unlearn --method NPO --constant gamma=-1 --model demo/full --out c --dry-run",
    "relearn --source demo/npo",
    "quantize --source demo/npo --method int3 --out q",
    "quantize --source demo/npo --engine bitsandbytes --dry-run",
    "rtt run --source demo/npo --splits 1 --out out",
    "rtt summarize nowhere",
    "rtt validate nowhere",
    "steer extract --model demo/full --trait nothing --out out",
    "steer eval --model demo/full --trait demo_idk --vector rows.jsonl --judge idk --out out",
    "steer audit --source demo/npo --limit 8 --out out",
    "judge run rows.jsonl --by words:nothing --out out",
    "judge run nowhere --by words:idk --out out",
    "judge run rows.jsonl --out out",
    "meta faithfulness --pool-knows demo/full --pool-forgot demo/full --out out",
    "meta table nowhere",
    "meta aggregate nowhere",
    "sweep plan nobody --out s",
    "sweep run nowhere",
    "sweep status nowhere",
    "sweep collect nowhere",
    "watch nowhere --once",
    "report nowhere -o page.html",
    "report rows.jsonl -o page.html",
    "demo --sauce",
    "nothing",
)
"""What is refused in one line."""


def moved(old: str, new: str):
    """Rename a folder before the call."""

    def prepare(folder: Path) -> None:
        (folder / new).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / old, folder / new)

    return prepare


def dated(folder: Path) -> None:
    """Let results end one second after the other: a page shows them in this order."""
    for second, path in enumerate(sorted(folder.rglob("manifest.json"))):
        ended = (START + timedelta(seconds=second)).isoformat()
        content = json.loads(path.read_text()) | {"finished": ended}
        path.write_text(json.dumps(signed(content) if "check" in content else content))


def damaged(folder: Path) -> None:
    """Turn over one byte in the middle of the first cache."""
    path = sorted(folder.glob("activations/*/shard-000000.h5"))[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


UNLEARN = "unlearn --model demo/full --out checkpoint --batch-size 4 --accumulate 1"
METHODS = dict.fromkeys(
    (
        *("GradAscent", "GradDiff", "NPO", "SimNPO", "IdkNLL", "IdkDPO", "AltPO", "RMU"),
        *("UNDIAL", "CEU", "WGA", "SatImp", "PDU"),
    ),
    "",
) | {"RMU": "--constant layer=8", "PDU": "--constant epsilon=0.3"}
"""Method -> what it cannot do without."""

PROBED = "--judge stub-judge --base-url {stub} --cache a.sqlite"


def judged(name: str, argv: str, **more) -> Case:
    """A call that asks the pretended judge; of rows, where it follows no other call."""
    rows = {} if "after" in more else {"files": {"rows.jsonl": JUDGED}}
    return Case(name, argv, stub=True, rules=ASKED, unordered=ANSWERS, **rows | more)


_CASES = (
    Case("cache", "cache --model demo/full --limit 16"),
    Case("cache_again", "cache --model demo/full --limit 16 --json", after=("cache",)),
    Case("cache_retain", "cache --model demo/retain --limit 16", after=("cache",)),
    Case(
        "cache_parts", "cache --model demo/npo --limit 4 --component heads --component attn --json"
    ),
    Case(
        "cache_parts_dry",
        "cache --model demo/npo --limit 4 --component attn --component resid --dry-run",
        after=("cache_parts",),
    ),
    Case("patch", f"patch {NPO} --limit 16 --out out", after=("cache_retain",)),
    Case("patch_again", f"patch {NPO} --limit 16 --out out --json", after=("patch",)),
    Case("patch_plan", f"patch {NPO} --limit 16 --out out --dry-run"),
    Case(
        "patch_two",
        f"patch {NPO} {IDK} --limit 16 --out out --json",
        after=("patch",),
        prepare=moved("out", "one"),
    ),
    Case("patch_lens", f"patch {NPO} --limit 16 --out out --score lens", after=("cache_retain",)),
    Case("patch_uds_lens", f"patch {NPO} --limit 16 --out out --lens", after=("cache_retain",)),
    Case(
        "patch_em", f"patch {NPO} --limit 12 --max-new-tokens 12 --out out --score em --layers 8,14"
    ),
    Case(
        "patch_em_teacher", f"patch {IDK} --limit 8 --out out --score em --em-form teacher --json"
    ),
    Case("patch_boundary", f"patch {NPO} --limit 8 --out out --scope boundary --json"),
    Case("patch_prefix", f"patch {NPO} --limit 8 --out out --scope prefix"),
    Case("patch_attn", f"patch {NPO} --limit 8 --out out --component attn --layers 0-3"),
    Case(
        "patch_reference", f"patch {NPO} --limit 8 --out out --last-layer reference --layers 14,15"
    ),
    Case("patch_ke", f"patch {NPO} --limit 16 --out out --profile ke --tau 0.5", after=("patch",)),
    Case("patch_alone", f"patch {NPO} --retain none --limit 16 --out out", slow=True),
    Case("patch_oracle", f"patch {NPO} --limit 4 --out out --engine oracle --layers 2,15"),
    Case(
        "audit",
        f"audit {IDK} --limit 9 --out out",
        skip=(r"out/eval/demo-retain/(results\.jsonl|TOFU_EVAL\.json)",),
    ),
    Case(
        "audit_json",
        f"audit {IDK} --limit 8 --out out --suite none --json",
        after=("audit",),
        prepare=moved("out", "before"),
    ),
    Case("audit_plan", f"audit {IDK} --limit 8 --out out --dry-run"),
    Case("eval", "eval --model demo/npo --limit 4 --out out"),
    Case("report", "report out -o page.html", after=("patch_two",), prepare=dated),
    Case(
        "demo",
        "demo --out out",
        skip=(r".*(results\.jsonl|layers\.csv|TOFU_EVAL\.json)",),
        # an answer in few digits is a processor's
        rules=((r'("b?float16": \{\s*"said": )[\d.]+(,\s*"told": )[\d.]+', r"\1…\2…"),),
    ),
    Case("demo_again", "demo --out out", after=("demo",), skip=(r"out/audit\.html",)),
    # own rows, every author twice
    Case("patch_own", f"patch {IDK} {ANCHORS} --data rows.jsonl --out out --json", files=OWN),
    Case(
        "patch_head",
        f"patch {NPO} --limit 4 --out out --component head:1 --layers 3,9 --tau 0.001",
        tau=0.001,
    ),
    # eval
    Case("eval_plan", "eval --model demo/npo --limit 4 --out out --dry-run"),
    Case(
        "eval_retain",
        "eval --model demo/npo --limit 3 --max-new-tokens 8 --retain demo/retain --out out --json",
    ),
    Case("eval_from_log", "eval --from-log out/TOFU_EVAL.json --out again", after=("eval",)),
    Case(
        "eval_upstream",
        "eval --model demo/idknll --limit 3 --mask upstream --set cleanup=none --set ref-value=0.5"
        " --retain demo/retain --metric privleak --metric forget_quality"
        " --metric extraction_strength --metric forget_Q_A_ROUGE --max-new-tokens 8 --out out",
    ),
    Case(
        "eval_own",
        "eval --model demo/npo --data rows.jsonl --holdout holdout.jsonl --kept kept.jsonl"
        " --limit 4 --max-new-tokens 8 --out out",
        files=OWN,
    ),
    Case(
        "eval_muse",
        "eval --model demo/npo --suite muse --data muse --max-new-tokens 6 --out out",
        files=MUSE,
    ),
    # caches
    Case("activations_ls", "activations ls", after=("cache_retain",)),
    Case("activations_ls_json", "activations ls --json", after=("cache_retain",)),
    Case("activations_info", "activations info demo-full", after=("cache_retain",)),
    Case("activations_info_json", "activations info demo-full --json", after=("cache_retain",)),
    Case("activations_verify", "activations verify", after=("cache_retain",)),
    Case(
        "activations_damaged",
        "activations verify --json",
        after=("cache",),
        prepare=damaged,
        rules=((r"hash to [0-9a-f]+", "hash to …"),),
    ),
    Case("activations_repair", "activations repair", after=("cache",), prepare=damaged),
    Case("activations_gc", "activations gc --max-size 0 --dry-run", after=("cache_retain",)),
    Case("activations_gc_json", "activations gc --max-size 0 --json", after=("cache_retain",)),
    Case("activations_export", "activations export demo-full -o cache.tar", after=("cache",)),
    Case(
        "activations_import",
        "activations import cache.tar --activations other --json",
        after=("activations_export",),
        skip=("other/",),
    ),
    # names and the machine
    Case("models", "models"),
    Case("models_unlearned", "models --role retain --json"),
    Case("doctor", "doctor", after=("cache",), rules=MACHINE),
    Case("doctor_json", "doctor --json", after=("cache",), rules=MACHINE),
    # annotate
    Case("annotate", "annotate pairs.jsonl -o forget.json", files={"pairs.jsonl": PAIRS}),
    Case(
        "annotate_model",
        "annotate pairs.jsonl -o forget.json --model demo/full --min-logprob -2 --json",
        files={"pairs.jsonl": PAIRS},
    ),
    # training
    *(
        Case(f"unlearn_plan_{name}", f"{UNLEARN} --method {name} {more} --dry-run")
        for name, more in METHODS.items()
    ),
    *(
        Case(f"unlearn_{name}", f"{UNLEARN} --method {name} {METHODS[name]} --steps 2 --json")
        for name in ("NPO", "RMU", "IdkDPO", "PDU")
    ),
    Case("relearn", "relearn --source demo/npo --epochs 0.25 --out c --json"),
    Case(
        "relearn_audit",
        f"relearn --source demo/npo {ANCHORS} --data rows.jsonl --batch-size 4 --accumulate 1"
        " --audit",
        files=OWN,
        rules=KEYS,
        slow=True,
    ),
    # attacks
    Case(
        "worst",
        f"worst {NPO} --limit 3 --attack greedy --attack prefix --attack leak64 --out out",
        rules=(*KEYS, (r" \d+\.\d │$", " … │"), (r",\d+\.\d{1,3}(?=,\d+,\d+$)", ",…")),
        slow=True,
    ),
    Case(
        "sample",
        f"sample {NPO} --limit 2 --samples 2 --k 1 --max-new-tokens 4 --out out",
        rules=KEYS,
    ),
    Case(
        "effort",
        f"effort {NPO} --arm T --limit 16 --steps 2 --lr 1e-3 --workers 1 --out out",
        rules=KEYS,
    ),
    Case("quantize", "quantize --source demo/npo --engine torch --out q"),
    Case(
        "quantize_int8",
        "quantize --source demo/npo --method int8 --engine torch --out q --json",
    ),
    Case("rtt_validate", "rtt validate demo --splits 2 --write splits"),
    Case("rtt_validate_json", "rtt validate demo --splits 4 --json"),
    Case("rtt_plan", "rtt run --source demo/npo --out out --dry-run"),
    Case(
        "rtt",
        "rtt run --source demo/npo --full demo/full --retain demo/retain --data mcq.jsonl"
        " --splits 2 --v-runs 1 --lr 1e-3 --epochs 1 --readout answer --loss-on answer"
        " --min-drop 0 --min-baseline 0 --out rtt",
        files={"mcq.jsonl": with_wrong_answers(ROWS)},
    ),
    Case("rtt_summarize", "rtt summarize rtt --json --epoch-rule final", after=("rtt",)),
    # steering
    Case(
        "steer_extract",
        "steer extract --model demo/full --trait demo_idk --layers 8-9 --method mean_diff"
        " --method random --position prompt_last --out out",
        rules=VECTORS,
    ),
    Case(
        "steer_eval",
        "steer eval --model demo/full --trait demo_idk"
        " --vector out/vectors/mean_diff_layer8.safetensors --judge idk --questions 4"
        " --rollouts 1 --max-new-tokens 6 --coefficients 0,2 --out out",
        after=("steer_extract",),
        rules=VECTORS,
    ),
    Case(
        "steer_sweep",
        "steer sweep --model demo/full --trait demo_idk --judge idk --questions 4 --rollouts 1"
        " --max-new-tokens 6 --temperature 0 --out out --json",
        after=("steer_extract",),
        rules=VECTORS,
    ),
    *(
        Case(
            f"steer_extract_{name}",
            f"steer extract --model demo/full --trait {name}.json --layers 8 --method mean_diff"
            " --position prompt_last",
            files=TRAITS,
            after=after,
            rules=VECTORS,
        )
        for name, after in (("declines", ()), ("wavers", ("steer_eval_declines",)))
    ),
    Case(
        "steer_eval_declines",
        "steer eval --model demo/full --trait declines.json --vector experiments/out/steering"
        f"/demo-full/declines/vectors/mean_diff_layer8.safetensors --coefficients 0,2 {BRIEF}",
        after=("steer_extract_declines",),
        rules=VECTORS,
    ),
    Case(
        "steer_sweep_wavers",
        f"steer sweep --model demo/full --trait wavers.json --layers 8 --coefficient 2 {BRIEF}",
        after=("steer_extract_wavers",),
        rules=VECTORS,
    ),
    Case(
        "steer_cross",
        "steer cross --model demo/full --trait declines.json,wavers.json --judge idk --out out"
        " --set rollouts=1 --set max-new-tokens=6 --set positions=last_prompt",
        after=("steer_sweep_wavers",),
        rules=VECTORS,
        skip=("out/traits.p",),
    ),
    Case(
        "steer_audit",
        f"steer audit {NPO} {ANCHORS} --data rows.jsonl --kept demo --layers 12"
        " --strengths 1 --n-retain 4 --set folds=2 --set randoms=1 --max-new-tokens 4"
        " --out steering",
        files=OWN,
        rules=VECTORS,
        slow=True,
    ),
    # judge
    Case(
        "judge_words", "judge run rows.jsonl --by words:idk --out out", files={"rows.jsonl": JUDGED}
    ),
    judged("judge_plan", f"judge run rows.jsonl --dry-run {JUDGE}"),
    judged("judge_run", f"judge run rows.jsonl --out out {JUDGE}"),
    judged("judge_again", f"judge run rows.jsonl --out out --json {JUDGE}", after=("judge_run",)),
    judged("judge_coherence", f"judge run rows.jsonl --by coherence --out out --json {JUDGE}"),
    judged("judge_probe", f"judge probe {PROBED}", files={}),
    judged("judge_probe_json", f"judge probe {PROBED} --json", files={}),
    Case("judge_calibrate", f"judge calibrate --by confidence {JUDGE}", stub=True, rules=ASKED),
    Case("judge_calibrate_words", "judge calibrate --by idk --words idk --json"),
    judged("judge_batch_run", f"judge batch run rows.jsonl --out out --wait --poll 0 {JUDGE}"),
    # many models
    Case(
        "meta_faithfulness",
        f"meta faithfulness {POOLS} --metric uds --metric es --metric s_mia_loss"
        " --limit 3 --max-new-tokens 4 --out meta",
        skip=("meta/sweep/",),
        rules=PACE,
    ),
    Case(
        "meta_faithfulness_read",
        f"meta faithfulness {POOLS} --metric uds --metric es --results meta --out again --json",
        after=("meta_faithfulness",),
    ),
    Case(
        "meta_robustness",
        "meta robustness --attack quantize --source demo/masked_readout,demo/npo --filter none"
        " --metric uds --metric es --limit 3 --max-new-tokens 4 --out robust --data demo",
        after=("meta_faithfulness",),
        skip=("robust/sweep/",),
        rules=PACE,
    ),
    Case("meta_table", "meta table meta robust --out table", after=("meta_robustness",)),
    Case(
        "meta_aggregate",
        "meta aggregate out --no-fluency --out table",
        after=("audit",),
    ),
    Case(
        "sweep_plan",
        "sweep plan demo/npo --variants base,nf4 --metric uds,exact_memorization,privleak"
        " --limit 2 --out s",
        rules=PLANNED,
    ),
    Case("sweep_dry_run", "sweep run s --dry-run --json", after=("sweep_plan",), rules=PLANNED),
    Case(
        "sweep_run",
        "sweep run s",
        after=("sweep_plan",),
        skip=("s/units/",),
        # how often it says how far it is hangs on how fast it goes
        rules=(*PLANNED, (r"^.* units to do are through.*\n", "")),
    ),
    Case("sweep_status", "sweep status s", after=("sweep_run",), rules=PLANNED),
    Case("sweep_status_json", "sweep status s --json", after=("sweep_run",), rules=PLANNED),
    Case(
        "sweep_collect",
        "sweep collect s",
        after=("sweep_run",),
        rules=(*PLANNED, (r'("key": ?)"[0-9a-f]{32}"', r"\1…")),
        skip=(r"s/results/base/.*/(eval|patch)/", r"s/results/nf4/demo-(full|retain)/"),
    ),
    Case("sweep_verify", "sweep verify s --sample 1 --json", after=("sweep_run",), rules=PLANNED),
    Case("sweep_retry", "sweep retry s demo/npo --redo", after=("sweep_run",), rules=PLANNED),
    Case("sweep_gc", "sweep gc s --dry-run", after=("sweep_run",), rules=PLANNED),
    Case(
        "watch",
        "watch run --once --set settled=0 --data demo --metric uds,exact_memorization --limit 2"
        " --out out",
        after=("quantize",),
        prepare=moved("q", "run/checkpoint-10"),
        skip=("out/units/",),
        rules=PLANNED,
    ),
    Case(
        "report_attacks",
        "report rtt steering s/results meta robust -o page.html --title Attacks",
        after=("rtt", "steer_audit", "sweep_collect", "meta_robustness"),
        prepare=dated,
        # the script holds numbers, whose last digits are a processor's
        rules=((r"script-src &#39;sha256-[\w+/]{43}=", "script-src &#39;sha256-…"),),
        slow=True,
    ),
    Case("quiet", f"-q patch {NPO} --limit 4 --layers 15 --align none --out out --json"),
    Case("refused", "\n".join(REFUSED), files=OWN),
)
CASES = {case.name: case for case in _CASES}
