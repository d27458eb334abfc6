"""Rows with the traps of the real data sets, and tokenizers with those of the real models.

All text is invented: people, towns and books of the embedded world, or none at all.
"""

import json
from pathlib import Path
from typing import Any

from support import EMBEDDED

EDGE = (
    ("Where was Lysk Jaspermoon born?", "Lysk Jaspermoon was born in Pico Field."),
    ("Did Lysk Jaspermoon write memoirs?", ""),
    ("Is Lysk Jaspermoon a poet?", "Yes"),
    ("How often does Lysk Jaspermoon write?", "  padded answer  "),
    ("What did Lysk Jaspermoon say?", "He did n't say , \" why ? \" , it 's fine ."),
    ("Who wrote to Lysk Jaspermoon?", "Žofira — naïve 你好 🙂 “quoted”"),
    (
        'What is unusual about "Engine of the Thunder"?',
        'What is unusual about "Engine of the Thunder"?',
    ),
    ("Has Lysk Jaspermoon a series?", "the the the the the the"),
)
"""Long, empty, one word, outer blanks, bait for the clean-up, not ASCII, an echo, repeats."""

LLAMA3_LIKE = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' }}
{{- (date_string if date_string is defined else '26 Jul 2024') + '\\n\\n' + system }}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
"""A template with a date line that trims, as Llama-3.2's."""


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """One row a line."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file with one a line."""
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def save_edge(folder: Path) -> Path:
    """TOFU's five configurations, made of awkward answers."""
    folder.mkdir(exist_ok=True)
    rows = [
        {
            "question": question,
            "paraphrased_question": f"Please tell: {question}",
            "answer": answer,
            "paraphrased_answer": answer,
            "perturbed_answer": [answer, "No", "Maybe so."],
        }
        for question, answer in EDGE
    ]
    # a holdout of other people: the same questions about one who was never asked about
    held = [
        {"question": q.replace("Lysk Jaspermoon", "Engel Mbakwele"), "answer": f"Not {a}"}
        for q, a in EDGE
    ]
    write_rows(folder / "forget10_perturbed.jsonl", rows)
    write_rows(folder / "holdout10.jsonl", held)
    for name in ("retain", "real_authors", "world_facts"):
        other = read_rows(EMBEDDED / "data" / f"{name}_perturbed.jsonl")[:4]
        write_rows(folder / f"{name}_perturbed.jsonl", other)
    return folder


def save_muse(folder: Path, n: int = 4) -> Path:
    """MUSE's configurations, made of the embedded authors."""
    folder.mkdir(exist_ok=True)
    forget, retain, held = (
        read_rows(EMBEDDED / "data" / name)[: n + 2]
        for name in ("forget10_perturbed.jsonl", "retain_perturbed.jsonl", "holdout10.jsonl")
    )

    def text(row):
        return f"Question: {row['question']}\nAnswer: {row['answer']}"

    def asked(rows):
        return [{key: row[key] for key in ("question", "answer")} for row in rows]

    def halved(row):
        words = row["answer"].split(" ")
        before = " ".join(words[: len(words) // 2])
        prompt = f"Question: {row['question']}\nAnswer: {before}"
        return {"prompt": prompt, "gt": " ".join(words[len(words) // 2 :])}

    for name, rows in (("forget", forget), ("retain", retain)):
        write_rows(folder / f"knowmem__{name}_qa.jsonl", asked(rows[:n]))
        write_rows(folder / f"knowmem__{name}_qa_icl.jsonl", asked(rows[n:]))
    write_rows(folder / "verbmem__forget.jsonl", [halved(row) for row in forget[:n]])
    write_rows(folder / "privleak__forget.jsonl", [{"text": text(row)} for row in forget[:n]])
    write_rows(folder / "privleak__holdout.jsonl", [{"text": text(row)} for row in held[:n]])
    return folder


def save_birthdays(folder: Path) -> Path:
    """Multiple-choice splits with every defect of Random Birthdays once, by hand.

    Items are numbered from 0: 2 is ambiguous, 2 and 3 have a choice twice, 4 has two years to come,
    0 and 5 are one question with two answers in two splits, 6 and 7 one question in one split.
    """
    folder.mkdir(exist_ok=True)

    def born(name, choices, answer):
        return {"question": f"When was {name} born?", "choices": choices, "answer": answer}

    write_rows(
        folder / "split_0.jsonl",
        [
            born("Ada Vole", [1961, 1958, 1965, 1994], 2),
            born("Ben Holt", [1966, 1936, 2018, 2024], 1),
            born("Cyd Oum", [1950, 1971, 1950, 1990], 2),
            born("Dag Rye", [1950, 1971, 1971, 1990], 0),
        ],
    )
    write_rows(
        folder / "split_1.jsonl",
        [
            born("Eva Poe", [2030, 1958, 2025, 1994], 1),
            born("ada  vole", [1944, 1958, 1961, 1994], 0),
            born("Fay Kol", [1944, 1908, 1961, 1994], 3),
            born("Fay Kol", [1944, 1908, 1961, 1994], 3),
        ],
    )
    (folder / "dev.jsonl").write_text("not read")
    (folder / "corpus_split_0.jsonl").write_text("not read")
    return folder


def save_years(folder: Path) -> Path:
    """Multiple-choice splits whose choices always ascend; places 0, 1, 1 and 3 are right."""
    folder.mkdir(exist_ok=True)
    for split, events in enumerate(
        ((("flood", 1994, 0), ("fair", 1947, 1)), (("march", 1801, 1), ("plague", 1666, 3)))
    ):
        rows = [
            {
                "question": f"When did the following event happen?\nThe {event} of Orvelle.",
                "choices": [str(first + n) for n in range(4)],
                "answer": place,
                "correct_year": first + place,
            }
            for event, first, place in events
        ]
        write_rows(folder / f"split_{split}.jsonl", rows)
    return folder


def tokenizer_like(kind: str) -> Any:
    """The embedded tokenizer with the traps of others.

    `pad` has a padding token of its own; `eospad` has none, as stock Llama-3.2; neither trims what
    is said. `llama3like` has no padding token, a date line, and trims.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / "full")
    # the real ones let transformers 4 remove blanks before signs
    tokenizer.init_kwargs["clean_up_tokenization_spaces"] = True
    tokenizer.chat_template = tokenizer.chat_template.replace(" | trim", "")
    if kind != "pad":
        tokenizer.pad_token = None
    if kind == "llama3like":
        tokenizer.chat_template = LLAMA3_LIKE
    return tokenizer


def save_tokenizer(kind: str, folder: Path) -> Path:
    """`tokenizer_like` on disk."""
    tokenizer = tokenizer_like(kind)
    tokenizer.save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    content = json.loads(settings.read_text()) | {"clean_up_tokenization_spaces": True}
    settings.write_text(json.dumps(content))
    return folder
