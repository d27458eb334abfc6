import json

import pytest

from lensaudit.cli.main import run
from lensaudit.data.tofu import forget_set
from lensaudit.files import json_bytes


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "qa.jsonl"
    rows = [
        {"idx": e.idx, "question": e.question, "answer": e.answer, "group": e.group}
        for e in forget_set("demo")[:12]
    ]
    rows.append({"idx": 900, "question": "Who?", "answer": "...", "group": 9})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_span_is_by_rule_until_somebody_corrects_or_confirms_it(pairs, tmp_path, capsys):
    with pairs.open("a") as file:
        row = {"idx": 901, "question": "Where?", "answer": "In Rome.", "entity": "Rome", "group": 9}
        file.write(json.dumps(row) + "\n")
    out, review = tmp_path / "forget.json", tmp_path / "forget.review.txt"
    command = ["annotate", str(pairs), "-o", str(out)]
    assert run(command) == 0
    made = {row["idx"]: row["span"] for row in json.loads(out.read_text())}
    # a row that names its entity was annotated by whoever did
    assert made == dict.fromkeys(made, "rule") | {901: "reviewed"}
    assert len(made) == 13
    # the row of idx 2 is confirmed, that of idx 3 left out; nobody looked at the others
    blocks = review.read_text().split("\n# idx ")
    (at,) = (n for n, block in enumerate(blocks) if block.startswith("2 "))
    head, _, rest = blocks[at].partition("\n")
    blocks[at] = f"{head[: head.index(' (rule: ')]}\n{rest}"
    confirmed = "\n# idx ".join(block for block in blocks if not block.startswith("3 "))
    review.write_text(confirmed)
    # such a review is never written over
    assert run(command) == 2
    assert review.read_text() == confirmed
    assert run(["annotate", str(review), "-o", str(out)]) == 0
    found = {row["idx"]: row["span"] for row in json.loads(out.read_text())}
    assert 3 in made
    assert found == {idx: said for idx, said in made.items() if idx != 3} | {2: "reviewed"}
    # a file of an earlier version, whose rows do not say it, is known as ours
    rows = json.loads(out.read_text())
    out.write_bytes(json_bytes([{k: v for k, v in row.items() if k != "span"} for row in rows]))
    assert run(["annotate", str(review), "-o", str(out)]) == 0
    assert json.loads(out.read_text()) == rows


def test_a_corrected_review_and_the_pairs_are_never_written_over(pairs, tmp_path, capsys):
    out, review = tmp_path / "forget.json", tmp_path / "forget.review.txt"
    command = ["annotate", str(pairs), "-o", str(out)]
    assert run(command) == 0
    assert run(command) == 0  # nobody touched the review
    capsys.readouterr()
    corrected = review.read_text().split("# idx 900")[0]
    review.write_text(corrected)
    assert run(command) == 2
    assert "name another --review" in capsys.readouterr().err
    assert review.read_text() == corrected
    before = pairs.read_text()
    for more in (["-o", str(pairs)], ["-o", str(out), "--review", str(pairs)]):
        assert run(["annotate", str(pairs), *more]) == 2
        assert "would be written over" in capsys.readouterr().err
    assert run(["annotate", str(review), "-o", str(review)]) == 2
    assert (pairs.read_text(), review.read_text()) == (before, corrected)


def test_nothing_to_score_and_wrong_usage_are_one_line(tmp_path, capsys):
    path = tmp_path / "qa.jsonl"
    path.write_text('{"question": "Who?", "answer": "..."}\n')
    out = tmp_path / "forget.json"
    assert run(["annotate", str(path), "-o", str(out)]) == 2
    assert "no row can be scored" in capsys.readouterr().err
    assert not out.exists()
    assert (tmp_path / "forget.review.txt").exists()
    assert run(["annotate", str(path), "-o", str(out), "--min-logprob", "-1"]) == 2
    assert "--min-logprob: needs --model" in capsys.readouterr().err
    assert run(["annotate", str(tmp_path / "no.jsonl"), "-o", str(out)]) == 2
