"""`rouge` of the document: word overlap of what the model says, row by row."""

from rouge_score.rouge_scorer import RougeScorer

from lensaudit.metrics.options import Choice
from lensaudit.metrics.registry import Read, mean_of, metric

READS = {"tofu": [Read("text", "forget")], "row_value": mean_of("score")}
KIND = {"rouge_type": Choice("recall", one_of=("recall", "fmeasure"))}


@metric("example_rouge", high_means="knows", source="evaluation.md", options=KIND, **READS)
def rouge(context):
    """ROUGE-L of the greedy answer against the true one; its mean over rows is made by eval."""
    scorer, kind = RougeScorer(["rougeL"], use_stemmer=True), context.options["rouge_type"]
    said = context.passes.measured(context.reads[0]).rows
    texts = {idx: (one["ground_truth"], one["generation"]) for idx, (one,) in said.items()}
    found = {idx: scorer.score(*both)["rougeL"] for idx, both in texts.items()}
    rows = {idx: {"score": getattr(one, kind)} for idx, one in found.items()}
    return {"agg_value": None, "value_by_index": rows}
