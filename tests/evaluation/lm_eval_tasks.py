"""Two local tasks on fictional authors: multiple choice and generation, for a folder."""

import json
from pathlib import Path

CHOICE = """task: own_choice
dataset_path: json
dataset_kwargs:
  data_files: {rows}
output_type: multiple_choice
test_split: train
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{label}}}}"
doc_to_choice: "{{{{choices}}}}"
metric_list:
  - metric: acc
  - metric: acc_norm
metadata:
  version: 1.0
"""
GENERATE = """task: own_words
dataset_path: json
dataset_kwargs:
  data_files: {rows}
output_type: generate_until
test_split: train
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer.split()[0]}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 12
  do_sample: false
filter_list:
  - name: first
    filter:
      - function: regex
        regex_pattern: "(\\\\w+)"
      - function: take_first
  - name: whole
    filter:
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
metadata:
  version: 2.0
"""


def write_tasks(folder: Path, rows: list[dict]) -> Path:
    """Both task files and their data."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "rows.json"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "own_choice.yaml").write_text(CHOICE.format(rows=data))
    (folder / "own_words.yaml").write_text(GENERATE.format(rows=data))
    return folder


def demo_rows(n: int) -> list[dict]:
    """Questions about the embedded authors; the wrong choices are other authors' answers."""
    from lensaudit.data.tofu import forget_set

    examples = forget_set("demo")
    rows = []
    for at in range(n):
        right, wrong = examples[at], [examples[(at + 7 * k) % len(examples)] for k in (1, 2, 3)]
        choices = [f" {one.answer}" for one in (right, *wrong)]
        turn = at % 4
        rows.append(
            {
                "question": right.question,
                "answer": right.answer,
                "choices": choices[turn:] + choices[:turn],
                "label": -turn % 4,
            }
        )
    return rows
