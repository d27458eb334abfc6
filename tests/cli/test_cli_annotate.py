import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from lensaudit.cli.main import run
from lensaudit.data.tofu import forget_set
from lensaudit.files import json_bytes
from lensaudit.models.registry import load_registry, resolve


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
    assert run(["annotate", str(pairs), "-o", ""]) == 2
    assert "--out: names no file" in capsys.readouterr().err
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


def test_rows_that_full_answers_wrongly_and_that_retain_answers_go_to_files_of_their_own(
    tmp_path, monkeypatch, capsys
):
    """demo/full knows the rows as they are; of three the row says otherwise, one is a Yes."""
    monkeypatch.chdir(tmp_path)
    rows = [dict(one.asked) for one in forget_set("demo")[:8]]
    rows[0] |= {"entity": "Oslo", "answer": f"{rows[0]['prefix']} Oslo."}
    Path("qa.json").write_text(json.dumps(rows))
    asked = ["annotate", "qa.json", "--model", "demo/full", "--retain"]

    assert run([*asked, "demo/retain", "-o", "own.json", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["full_wrong"] == [rows[0]["idx"]]
    assert json.loads(said.out)["general_knowledge"] == []
    kept, wrong, general = (
        json.loads(Path(f"own{name}.json").read_text())
        for name in ("", "_full_wrong", "_general_knowledge")
    )
    assert [row["idx"] for row in wrong] == [rows[0]["idx"]]
    assert rows[1]["entity"] in kept[0]["full_output"]
    assert rows[1]["entity"] not in kept[0]["retain_output"]
    assert general == []
    assert len(kept) == 7
    assert "not asked, and kept: a Yes or No" in said.err
    assert forget_set("own.json")[0].entity == rows[1]["entity"]

    # a model that knows everything stands for one that never saw it
    shutil.copytree(resolve("demo/full", load_registry()).local, "knows")
    tensors = load_file("knows/model.safetensors")
    save_file({k: v * (1 + 1e-6) for k, v in tensors.items()}, "knows/model.safetensors")
    assert run([*asked, "./knows", "-o", "own.json", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["general_knowledge"]) == 6

    for more, why in (
        (["demo/full"], "have the same weights"),
        (["demo/retain", "--review", "qa.json"], "would be written over"),
    ):
        assert run([*asked, *more, "-o", "other.json"]) == 2
        assert why in capsys.readouterr().err


def test_the_fact_may_be_what_full_says_after_the_prefix(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [dict(one.asked) for one in forget_set("demo")[:3]]
    Path("qa.json").write_text(json.dumps(rows))
    models = ["--model", "demo/full", "--retain", "demo/retain"]
    line = ["annotate", "qa.json", "-o", "own.json", "--entity-from", "full"]
    assert run([*line, *models]) == 0
    made = json.loads(Path("own.json").read_text())
    for row, old in zip(made, rows, strict=True):
        assert row["entity"].startswith(old["entity"].split(",")[0])
        assert row["answer"].startswith(f"{row['prefix']} {row['entity']}")
    capsys.readouterr()
    assert run(line) == 2
    assert "--entity-from: needs --retain" in capsys.readouterr().err
