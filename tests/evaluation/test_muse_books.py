"""MUSE Books to its end, on a stand-in that lies there as the Hub's data set does."""

import json

import pytest
from rouge_score.rouge_scorer import RougeScorer
from support import EMBEDDED
from support.generated import read_rows

from lensaudit import hub
from lensaudit.cli.main import run

LONG = 2_600
"""Words of a passage of which not all is read: 2,048 tokens are."""


def passages(rows, words):
    """Texts of a book: answers of several rows, with line breaks and curly quotes."""
    said = [f"“{row['answer']}”\n" for row in rows]
    return [" ".join((" ".join(said[at:] + said[:at]) + " ").split(" ")[:words]) for at in range(6)]


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """A clone of the data set: a folder a configuration, a Parquet file a split, and the card."""
    from datasets import Dataset

    place = tmp_path_factory.mktemp("hub") / "MUSE-Books"
    forget, retain, held = (
        read_rows(EMBEDDED / "data" / name)
        for name in ("forget10_perturbed.jsonl", "retain_perturbed.jsonl", "holdout10.jsonl")
    )

    def qa(rows):
        return [{name: row[name] for name in ("question", "answer")} for row in rows]

    texts, others = passages(forget, 60), passages(held, 60)
    texts[5] = " ".join(f"word{n % 97}" for n in range(LONG))
    halves = [(text.split(" ")[:20], text.split(" ")[20:50]) for text in texts[:5]]
    parts = {
        ("knowmem", "forget_qa"): qa(forget[:6]),
        ("knowmem", "forget_qa_icl"): qa(forget[-3:]),
        ("knowmem", "retain_qa"): qa(retain[:6]),
        ("knowmem", "retain_qa_icl"): qa(retain[-3:]),
        ("verbmem", "forget"): [{"prompt": " ".join(a), "gt": " ".join(b)} for a, b in halves],
        ("privleak", "forget"): [{"text": one} for one in texts],
        ("privleak", "retain"): [{"text": one} for one in passages(retain, 60)],
        ("privleak", "holdout"): [{"text": one} for one in others],
        ("raw", "forget"): [{"text": "\n".join(texts)}],
    }
    card = ["---", "configs:"]
    for config in dict.fromkeys(one for one, _ in parts):
        card += [f"- config_name: {config}", "  data_files:"]
        for name, split in parts:
            if name == config:
                card += [f"  - split: {split}", f"    path: {config}/{split}-*"]
                file = place / config / f"{split}-00000-of-00001.parquet"
                file.parent.mkdir(parents=True, exist_ok=True)
                Dataset.from_list(parts[name, split]).to_parquet(str(file))
    (place / "README.md").write_text("\n".join([*card, "---", ""]))
    return place


@pytest.fixture
def there(books, tmp_path, monkeypatch):
    """The Hub answers, and the data set is the stand-in."""
    import datasets

    real = datasets.load_dataset

    def load(repo, config, split):
        assert repo == "muse-bench/MUSE-Books"
        return real(str(books), config, split=split, cache_dir=str(tmp_path / "cache"))

    monkeypatch.setattr(hub, "reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_books_are_evaluated_judged_and_compared_with_the_retrained_model(there, capsys):
    asked = "eval --suite muse --data muse-bench/MUSE-Books"
    assert run(f"{asked} --model demo/retain --out retrained -q".split()) == 0
    given = f"{asked} --model demo/full --retain-log retrained --out target"
    assert run(given.split()) == 0
    log = json.loads((there / "target" / "MUSE_EVAL.json").read_text())
    retrained = json.loads((there / "retrained" / "MUSE_EVAL.json").read_text())
    summary = json.loads((there / "target" / "MUSE_SUMMARY.json").read_text())
    metrics = (
        *("forget_knowmem_ROUGE", "retain_knowmem_ROUGE", "forget_verbmem_ROUGE"),
        *("extraction_strength", "exact_memorization", "privleak", "mia_min_k", "mia_zlib"),
    )
    assert {name: summary[name] for name in metrics if summary[name] is None} == {}

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    for name in metrics[:3]:
        rows = log[name]["value_by_index"].values()
        again = [
            scorer.score(row["ground_truth"], row["generation"])["rougeL"].fmeasure for row in rows
        ]
        assert [row["rougeL_f1"] for row in rows] == pytest.approx(again)
        assert log[name]["agg_value"] == pytest.approx(sum(again) / len(again))
    assert len(log["forget_knowmem_ROUGE"]["value_by_index"]) == 6
    assert len(log["forget_verbmem_ROUGE"]["value_by_index"]) == 5
    # full was taught what the books say, the retrained model was not
    own, other = (one["mia_min_k"]["auc"] for one in (log, retrained))
    assert summary["privleak"] == pytest.approx(100 * ((1 - own) - (1 - other)) / (1 - other))
    assert own > other
    # what is read of a passage ends after 2,048 tokens, and is more than this model can hold
    why = "2049 tokens, longer than the model's context of 512"
    assert log["mia_min_k"]["forget"]["unscored"] == {"5": why}
    assert log["mia_min_k"]["forget"]["value_by_index"]["5"] == {"score": None}
    assert run(["judge", "run", "target", "--by", "words:idk", "--out", "judged"]) == 0
    assert "forget_knowmem_ROUGE" in capsys.readouterr().out
