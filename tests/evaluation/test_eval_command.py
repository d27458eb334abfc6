"""`lensaudit eval` from the command line to its files."""

import json
import shutil

import pytest
from support import EMBEDDED
from support.generated import save_tokenizer

from lensaudit.auditing.evaluate import open_evaluation
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.cli.main import run
from lensaudit.data.tofu import forget_set
from lensaudit.evaluation import passes as opening
from lensaudit.scores.intervals import clustered_mean

NAMES = ("forget_quality", "privleak", "exact_memorization", "forget_Q_A_ROUGE")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Another tokenizer, and a log that is none."""
    folder = tmp_path_factory.mktemp("made")
    save_tokenizer("llama3like", folder / "llama3like")
    (folder / "summary.json").write_text('{"mia_loss": 0.5}')
    return folder


def command(out, *more, model="npo", metrics=NAMES, data="demo", suite="tofu"):
    chosen = [part for name in metrics for part in ("--metric", name)]
    models = f"--model {EMBEDDED / model} --tokenizer {EMBEDDED / 'full'}"
    says = any("ROUGE" in one or "gibberish" in one for one in metrics)
    little = "--batch-size 8 --limit 4" + " --max-new-tokens 8" * says
    asked = f"eval {models} --suite {suite} --data {data} {little} --out {out}"
    return [*asked.split(), *chosen, *map(str, more)]


def log(out):
    return json.loads((out / "TOFU_EVAL.json").read_text())


def loads(monkeypatch):
    """How often weights are loaded from now on."""
    counted, known = [], opening.load_causal

    def load(checkpoint, **options):
        counted.append(checkpoint)
        return known(checkpoint, **options)

    monkeypatch.setattr(opening, "load_causal", load)
    return counted


def test_a_retain_reference_that_comes_later_is_used_and_no_pass_is_run_again(
    tmp_path, monkeypatch, capsys
):
    five = ("--limit", "5")
    assert run(command(tmp_path / "npo", *five)) == 0
    assert log(tmp_path / "npo")["forget_quality"]["reason"].startswith("no retain reference")
    assert log(tmp_path / "npo")["privleak"]["agg_value"] is None
    assert run(command(tmp_path / "retain", *five, model="retain")) == 0
    counted = loads(monkeypatch)
    assert run(command(tmp_path / "npo", *five, "--retain-log", tmp_path / "retain")) == 0
    assert counted == []
    assert "kept from before" in capsys.readouterr().err
    found = log(tmp_path / "npo")
    assert found["forget_quality"]["agg_value"] < 1
    assert found["forget_quality"]["n_retain"] == 5
    assert found["privleak"]["retain_auc"] == log(tmp_path / "retain")["mia_min_k"]["agg_value"]
    otherwise = (*five, "--retain-log", tmp_path / "retain", "--set", "empty=upstream", "--dry-run")
    assert run(command(tmp_path / "other", *otherwise)) == 2
    assert "made with another --set empty" in capsys.readouterr().err


def test_a_retain_model_of_many_is_evaluated_once(tmp_path, monkeypatch):
    metrics = ("forget_quality",)
    retain = ["--retain", EMBEDDED / "retain"]
    assert run(command(tmp_path / "a", *retain, metrics=metrics)) == 0
    counted = loads(monkeypatch)
    assert run(command(tmp_path / "b", *retain, model="graddiff", metrics=metrics)) == 0
    assert len(counted) == 1
    assert run(command(tmp_path / "alone" / "b", *retain, model="graddiff", metrics=metrics)) == 0
    assert len(counted) == 3
    # and compared with as its log is
    given = ("--retain-log", tmp_path / "a" / "retain")
    assert run(command(tmp_path / "c", *given, model="graddiff", metrics=metrics)) == 0
    found = [log(tmp_path / one)["forget_quality"] for one in ("b", "alone/b", "c")]
    assert found[0] == found[1] == found[2]


def test_an_interrupted_run_keeps_its_finished_passes(tmp_path, monkeypatch, capsys):
    from lensaudit.evaluation import passes

    known = passes.generations

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(passes, "generations", interrupted)
    assert run(command(tmp_path)) == 130
    assert not (tmp_path / "TOFU_EVAL.json").exists()
    kept = sorted(path.name for path in (tmp_path / "passes").iterdir())
    assert any(name.startswith("trace-forget-answer") for name in kept)
    monkeypatch.setattr(passes, "generations", known)
    capsys.readouterr()
    assert run(command(tmp_path)) == 0
    said = capsys.readouterr().err
    assert "trace-forget-answer: 4 texts (kept from before)" in said
    assert "text-forget: 4 texts\n" in said


def test_intervals_of_the_embedded_suite_count_authors(tmp_path):
    assert run(command(tmp_path, "--limit", 16, metrics=("mia_loss", "exact_memorization"))) == 0
    found = log(tmp_path)
    entry = found["exact_memorization"]
    scores = {int(idx): one["score"] for idx, one in entry["value_by_index"].items()}
    authors = [idx // 8 for idx in scores]
    assert sorted(authors) == [author for author in range(8) for _ in range(2)]
    wanted = clustered_mean(list(scores.values()), authors, bounds=(0.0, 1.0))
    assert entry["interval_95"] == pytest.approx([wanted.low, wanted.high])
    for one in (entry, found["mia_loss"]):
        assert "interval_95_assumes" not in one


def test_own_rows_to_keep_without_authors_are_named_before_work(tmp_path):
    for name, more in (("named", {"author": "Ada"}), ("alone", {})):
        row = {"question": "Who?", "answer": "Ada.", **more}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    asked = EvaluateSettings(
        metrics=("retain_Q_A_Prob",),
        retain_set=tmp_path / "alone.jsonl",
        holdout=tmp_path / "named.jsonl",
    )
    said = []
    open_evaluation("demo/npo", asked, notice=said.append)
    assert said == [
        f"{tmp_path}/alone.jsonl: no row names an author: each row is counted as its own author: "
        "intervals may be too narrow"
    ]


THINKING = (
    "{%- for m in messages %}{{ '[' + m.role + ']\\n' }}{%- if m.role == 'assistant' %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{{ m.content + '[end]\\n' }}{%- endfor %}"
    "{{ '[assistant]\\n' if add_generation_prompt }}"
)


def test_a_cut_thought_is_no_answer_and_is_told(tmp_path, capsys):
    folder = shutil.copytree(EMBEDDED / "full", tmp_path / "thinks")
    (folder / "chat_template.jinja").write_text(THINKING)
    rouge = ("forget_Q_A_ROUGE",)

    def asked(how):
        out, tokenizer = tmp_path / how, ("--tokenizer", folder, "--think", how)
        code = run(command(out, *tokenizer, model="full", metrics=rouge))
        assert code == (how == "full")  # 1: no value at all
        capsys.readouterr()
        notes = json.loads((out / "manifest.json").read_text())["inputs"]["notes"]
        return log(out)["forget_Q_A_ROUGE"], [one for one in notes if "thought" in one]

    found, told = asked("full")
    assert found["agg_value"] is None
    assert "the thought was cut at 8 tokens" in found["reason"]
    assert told == [
        "4 answers of forget text begin with a thought, which is left out; 4 of these thoughts "
        "were cut and have no answer: unscored; raise --max-new-tokens, or ask with --think empty"
    ]
    found, told = asked("empty")
    assert found["agg_value"] is not None
    assert told == []
    golds = [one["ground_truth"] for one in found["value_by_index"].values()]
    assert golds == [one.answer for one in forget_set("demo", limit=4)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--metric", "nope"], "no metric 'nope'"),
        (["--think", "full"], "--think full: its chat template has no place for a thought"),
        (
            ["--metric", "forget_Q_A_gibberish", "--classifier", EMBEDDED / "full"],
            "is not a text classifier",
        ),
        (["--question-key", "ask"], "no text under 'ask'"),
        (["--metric", "mia_reference", "--reference", "/nowhere"], "no such folder"),
        (["--metric", "uds", "--exclude", "nothing"], "no filter 'nothing'; wanted one of v2"),
        (["--data", "MADE/llama3like"], "holds none of"),
        (["--retain-log", "MADE/summary.json"], "wanted an object"),
        (["--retain-log", EMBEDDED / "data" / "forget.json"], "holds list, wanted a JSON object"),
    ],
)
def test_bad_input_is_one_line_before_any_work(made, tmp_path, monkeypatch, capsys, more, said):
    more = [str(part).replace("MADE", str(made)) for part in more]
    counted = loads(monkeypatch)
    assert run(command(tmp_path, *more)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) <= 3
    assert counted == []


def test_a_reference_with_other_tokens_is_refused(tmp_path, monkeypatch, capsys):
    """Its tokens are those of the model that is evaluated: another vocabulary reads other words."""
    other = tmp_path / "other"
    shutil.copytree(EMBEDDED / "retain", other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    one, two = list(vocab)[-2:]
    vocab[one], vocab[two] = vocab[two], vocab[one]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    counted = loads(monkeypatch)
    asked = (
        f"eval --model {EMBEDDED / 'npo'} --metric mia_reference --data demo --limit 2 --dry-run"
    )
    assert run([*asked.split(), "--reference", str(other)]) == 2
    assert "its tokenizer has other tokens than that of" in capsys.readouterr().err
    assert run([*asked.split(), "--reference", str(EMBEDDED / "retain")]) == 0
    assert counted == []


def test_a_file_of_nobodys_is_refused_by_the_plan_too(tmp_path, capsys):
    (tmp_path / "results.jsonl").write_text('{"a": 1}\n')
    asked = "eval --model demo/npo --limit 2 --metric forget_Q_A_Prob --dry-run --out"
    assert run([*asked.split(), str(tmp_path)]) == 2
    assert "results.jsonl: was written by an unknown program" in capsys.readouterr().err


def test_the_tokenizers_end_of_text_is_in_the_key_where_no_file_names_one(tmp_path):
    folder = shutil.copytree(EMBEDDED / "npo", tmp_path / "npo")
    asked = EvaluateSettings(metrics=("forget_Q_A_ROUGE",), data="demo")
    assert open_evaluation(str(folder), asked).subject.obeyed == {}
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    opened = open_evaluation(str(folder), asked)
    assert opened.subject.obeyed == {"eos_token_id": opened.asked.tokenizer.eos_token_id}
