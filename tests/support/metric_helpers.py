"""Passes over the trained family and over tiny random models, for the tests of this folder."""

import functools
import json
from pathlib import Path

from lensaudit.data.chat import PLAIN, Template
from lensaudit.data.facts import Fact
from lensaudit.data.suites import Split, load_suite
from lensaudit.evaluation.forward import Tokenization, open_classifier
from lensaudit.evaluation.passes import ModelPasses, Subject
from lensaudit.metrics.registry import all_metrics
from lensaudit.models.conditions import Conditions
from support import SHARED, tiny_model

all_metrics()  # the files of the folder register themselves when they are imported

UPSTREAM = SHARED / "golden" / "open_unlearning"
FAMILY = SHARED / "family"


@functools.cache
def goldens():
    """Every scenario's log."""
    return json.loads((UPSTREAM / "golden.json").read_text())


def tokenizer_of(scenario: str):
    """The tokenizer of a golden scenario."""
    from transformers import AutoTokenizer

    name = goldens()[scenario]["env"]["tokenizer"].replace("models/", "tokenizers/")
    return AutoTokenizer.from_pretrained(UPSTREAM / name)


def subject_in(folder: Path, *, attn: str = "eager") -> Subject:
    """A checkpoint of a trained family as a subject."""

    def load():
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attn
        )

    return Subject(folder.name, conditions_of(f"weights of {folder.name}", attn=attn), load)


def conditions_of(weights: str, *, attn: str = "eager") -> Conditions:
    """Float32 on a CPU."""
    return Conditions(weights, "tokenizer", "float32", "cpu", attn, "right-padded")


def data_of(scenario: str) -> Path:
    """The data folder of a golden scenario."""
    first = scenario.partition("__")[0]
    return UPSTREAM / "data" / (first if first in ("muse", "edge") else "tofu")


def scenario_passes(scenario: str, **changes) -> ModelPasses:
    """The passes of one golden scenario."""
    env, log = goldens()[scenario]["env"], goldens()[scenario]["metrics"]
    suite = env["suite"]
    key = "paraphrased_question" if scenario.endswith("paraq") else "question"
    rated = "forget_Q_A_gibberish" in log
    options = {
        "batch_size": env["batch_size"] if suite == "tofu" else 8,
        "max_new_tokens": env["max_new_tokens"] if suite == "tofu" else None,
        "classifier": _classifier() if rated else None,
    } | changes
    template = Template(**env["template_args"]) if suite == "tofu" else PLAIN
    return ModelPasses(
        subject_in(FAMILY / Path(env["model"]).name, attn=env["attn_implementation"]),
        load_suite(suite, str(data_of(scenario)), question_key=key),
        Tokenization(tokenizer_of(scenario), template, "upstream"),
        **options,
        reference=subject_in(FAMILY / "retain") if env["reference_model"] else None,
    )


def _classifier():
    return open_classifier(str(UPSTREAM / "tiny_classifier"), "cpu", max_tokens=32)


def words(*numbers: int) -> str:
    """Text of the tiny tokenizer."""
    return " ".join(f"w{number}" for number in numbers)


def tiny_split(name: str = "forget", **changes) -> Split:
    """Three questions in the tiny tokenizer's words."""
    rows = tuple(
        Fact(
            idx=idx,
            question=words(5 + idx, 9),
            answer=words(20 + idx, 21, 22),
            prefix="",
            entity="",
            answers={
                "answer": words(20 + idx, 21, 22),
                "paraphrased_answer": words(21, 20 + idx),
                "perturbed_answer": (words(30, 31 + idx), words(32)),
            },
            group=f"idx {idx}",
        )
        for idx in range(3)
    )
    return Split(**{"name": name, "source": name, "rows": rows, "max_new_tokens": 6} | changes)


TINY = Template(
    apply_chat_template=False,
    system_prompt=None,
    date_string=None,
    user_start_tag="w3 ",
    user_end_tag=" w4 ",
    asst_start_tag="w6 ",
    asst_end_tag=" w7 ",
)


def tiny_passes(tokenizer, splits=None, *, seed=0, mask="true", **options):
    """Passes over a tiny random model."""
    subject = Subject(f"tiny {seed}", conditions_of(f"seed {seed}"), lambda: tiny_model(seed))
    splits = splits or [tiny_split(), tiny_split("holdout")]
    return ModelPasses(
        subject,
        {split.name: split for split in splits},
        Tokenization(tokenizer, TINY, mask),
        **{"batch_size": 2} | options,
    )
