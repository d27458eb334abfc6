"""Two local tasks on fictional authors: multiple choice and generation, for a folder."""

import json
from pathlib import Path


def write_tasks(folder: Path, rows: list[dict]) -> Path:
    """Both task files and their data."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "rows.json"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    for task in Path(__file__).parent.glob("own_*.yaml"):
        (folder / task.name).write_text(task.read_text().replace("ROWS", str(data)))
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
