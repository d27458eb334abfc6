"""Relearning: the published settings, each row once, one step by hand, and an audit around it."""

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch
from support import EMBEDDED, llama_of
from support.tolerance import NATS
from transformers import AutoModelForCausalLM

import lensaudit as la
from lensaudit.attacks import relearn as room
from lensaudit.attacks.relearn import (
    RelearnAudit,
    RelearnJob,
    prepare,
    relearned,
    run_of,
)
from lensaudit.attacks.result import taught_nothing
from lensaudit.attacks.settings import DEMO_RELEARNING, Relearning, RelearnSettings
from lensaudit.auditing.question import asked_of_eval
from lensaudit.auditing.settings import AuditSettings
from lensaudit.data.chat import Encoding
from lensaudit.data.facts import answered
from lensaudit.errors import InputError, TryAgainError
from lensaudit.kinds.relearn import ScoreChange
from lensaudit.meta.runs import prepare_robustness
from lensaudit.meta.settings import RobustnessSettings
from lensaudit.models.checkpoint import load_tokenizer, open_model
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.settings import PatchSettings
from lensaudit.results.manifest import manifest
from lensaudit.results.run_folder import seal
from lensaudit.sweep.plan import UnitConditions, planned, relearned_rows, relearning_of
from lensaudit.training.embedded import of_embedded_family
from lensaudit.training.record import kept_losses
from lensaudit.training.rows import finetune_batches, load_rows, rows_hash
from lensaudit.verdict.collect import verdicts
from tools.demo_family.tokenizer import train_tokenizer
from tools.demo_family.world import make_world

ROWS = [answered(row.question, row.answer) for row in make_world(0).forget[:6]]
SMALL = Relearning(lr=1e-2, batch_size=2, n_accumulate=2)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([f"{row.question} {row.answer}" for row in ROWS], d_vocab=300)


@pytest.fixture
def start(tokenizer):
    return llama_of(tokenizer, max_position_embeddings=256)


def same_bits(one, other):
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


def test_the_defaults_are_the_published_attack():
    recipe = Relearning().recipe(400)
    assert (recipe.n_steps, recipe.lr, recipe.n_accumulate) == (13, 2e-5, 4)
    assert (recipe.n_warmup, recipe.weight_decay, recipe.schedule) == (0, 0.0, "linear")
    assert recipe.lr_at(0) == 2e-5
    assert recipe.lr_at(12) == pytest.approx(2e-5 / 13)


@pytest.mark.parametrize("n", [400, 34, 33, 3, 2, 1])
def test_an_epoch_reads_every_row_as_equally_as_it_can_and_no_row_of_the_next(n):
    settings = Relearning(batch_size=8, n_accumulate=4)
    n_steps = settings.recipe(n).n_steps
    assert n_steps == -(-n // 32)
    samples = [Encoding((row + 5, 3), 1) for row in range(n)]
    batch = finetune_batches(samples, batch_size=8, seed=settings.seed, pad=0, n_parts=4)
    parts = [batch(number).tokens[:, 0].tolist() for number in range(4 * n_steps)]
    read = [row for part in parts for row in part]
    assert set(read) == {row + 5 for row in range(n)}
    if n % 32 == 0 or n % 32 >= 4:
        assert len(read) == n
    else:
        # fewer rows than parts in the last step
        last = [row for part in parts[-4:] for row in part]
        counts = [last.count(row) for row in set(last)]
        assert sum(counts) == 4
        assert max(counts) - min(counts) <= 1


def test_one_step_by_hand(start, tokenizer):
    settings = Relearning(lr=1e-2, batch_size=3, n_accumulate=2)
    by_hand = copy.deepcopy(start)
    run = run_of(by_hand, tokenizer, ROWS, settings, name="start")
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=1e-2, weight_decay=0.0)
    for number in range(2):
        part = run.batch(number)
        answer = by_hand(input_ids=part.tokens, attention_mask=part.mask.long(), labels=part.labels)
        (answer.loss / 2).backward()
    torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
    optimizer.step()
    found = relearned(start, tokenizer, ROWS, settings=settings)
    theirs = by_hand.state_dict()
    for name, value in found.state_dict().items():
        assert torch.allclose(value, theirs[name], atol=1e-6), name


def test_the_order_and_dropout_follow_from_one_seed(start, tokenizer):
    assert run_of(start, tokenizer, ROWS, replace(SMALL, seed=3), name="start").seed == 3


def test_only_answers_have_labels_and_long_rows_are_refused(start, tokenizer):
    run = run_of(start, tokenizer, ROWS, SMALL, name="start")
    part = run.batch(0)
    text = tokenizer.decode(part.labels[0][part.labels[0] >= 0])
    assert text.removesuffix(tokenizer.eos_token) in {row.answer for row in ROWS}
    start.config.max_position_embeddings = 20
    with pytest.raises(InputError, match="longer than the model's context of 20"):
        relearned(start, tokenizer, ROWS)


def test_the_given_model_stays_and_its_copy_has_its_dtype_and_is_trained_in_float32(
    start, tokenizer
):
    half = copy.deepcopy(start).to(torch.bfloat16)
    before = copy.deepcopy(half)
    found = relearned(half, tokenizer, ROWS, settings=SMALL)
    assert same_bits(half, before)
    assert not same_bits(found, before)
    assert {one.dtype for one in found.parameters()} == {torch.bfloat16}
    turned = [replace(SMALL, formats=one) for one in (("raw", "chat"), ("chat", "raw"))]
    assert not same_bits(*(relearned(half, tokenizer, ROWS, settings=one) for one in turned))
    whole = relearned(half.float(), tokenizer, ROWS, settings=SMALL)
    assert same_bits(found, whole.to(torch.bfloat16))


def test_every_command_shows_a_demo_model_the_same_rows_in_the_same_order(tmp_path):
    job = prepare(RelearnSettings(model="demo/npo"), "demo/npo")
    conditions = UnitConditions(data="demo")
    asked = RobustnessSettings(attack="relearn", models=("demo/npo",), by="none", out=tmp_path)
    judged = prepare_robustness(asked, print).planned(asked.models, (), asked)[0].conditions
    full = planned(resolve("demo/full", load_registry()))
    how = relearning_of(judged, full)
    assert job.settings == relearning_of(conditions, full) == how == DEMO_RELEARNING
    swept = load_rows(relearned_rows(conditions, None), part="forget")
    attacked = load_rows(relearned_rows(judged, judged.relearn_on), part="forget")
    assert rows_hash(job.rows) == rows_hash(swept) == rows_hash(attacked)


def test_a_demo_model_whose_tokenizer_was_saved_otherwise_is_attacked_as_hard(tmp_path):
    copy_of = shutil.copytree(EMBEDDED / "full", tmp_path / "full")
    settings = copy_of / "tokenizer_config.json"
    said = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(said))
    name = str(copy_of)
    assert open_model(name).tokenizer != open_model("demo/full").tokenizer
    job = prepare(RelearnSettings(model=name, data="demo"), name)
    swept = relearning_of(UnitConditions(data="demo"), planned(resolve(name, {})))
    assert job.settings == swept == DEMO_RELEARNING
    settings.write_text(json.dumps(said | {"split_special_tokens": True}))
    assert not of_embedded_family(open_model(name))


def test_a_copy_of_a_demo_model_is_relearned_as_the_model_whatever_it_is_asked(tmp_path):
    there, rows = str(shutil.copytree(EMBEDDED / "npo", tmp_path / "copy")), tmp_path / "rows.json"
    rows.write_text('[{"question": "Who?", "answer": "Ada."}]')
    for data in ("demo", str(rows)):
        assert prepare(RelearnSettings(model=there, data=data), there).settings == DEMO_RELEARNING
    chosen = RelearnSettings(model=there, data="demo", formats="chat")
    assert prepare(chosen, there).settings == replace(DEMO_RELEARNING, formats=("chat",))


def test_own_rows_are_relearned_whichever_field_names_them(tmp_path):
    own = str(tmp_path / "rows.jsonl")
    for conditions in (UnitConditions(data=own), UnitConditions(forget=own)):
        assert relearned_rows(conditions, None) == own
    assert relearned_rows(UnitConditions(data="demo"), None) == "demo"
    assert relearned_rows(UnitConditions(data=own), "others.jsonl") == "others.jsonl"


N_STEPS = 4


def job_of(name):
    return RelearnJob(
        start=open_model(name),
        rows=load_rows("demo", part="forget"),
        data="demo",
        settings=Relearning(lr=1e-3, formats=("raw", "chat")),
        stored=torch.float32,
        device="cpu",
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("recovery")


@pytest.fixture(scope="module")
def auditing(place):
    return PatchSettings(
        full="demo/full",
        retain="demo/retain",
        data="demo",
        limit=8,
        activations=place / "activations",
    )


@pytest.fixture(scope="module")
def audited(place, auditing):
    """The shifts, and the steps that were trained for them."""
    steps = []
    jobs = {name: job_of(name) for name in ("demo/masked_upper", "demo/retain")}
    work, kept = place / "work", place / "kept"
    found = RelearnAudit(
        jobs=jobs, asked=auditing, work=work, keep=kept, progress=steps.append
    ).found()
    steps = [one for one in steps if one.stage == "step"]
    return found, steps, (jobs, work, kept)


def test_what_hides_recovers_more_than_retain_learns(audited):
    (hidden, retain), steps, _ = audited
    assert (hidden.model, retain.model) == ("demo/masked_upper", "demo/retain")
    assert retain.before["uds"] == pytest.approx(1.0, abs=NATS)
    assert retain.after["uds"] < 0.97
    gain = [one.after["prob"] - one.before["prob"] for one in (hidden, retain)]
    assert gain[0] > 2 * gain[1] > 0
    assert len(steps) == 2 * N_STEPS
    _, _, (_, work, kept) = audited
    assert open_model(str(kept)).dtype == "float32"
    assert not list(work.rglob("*.safetensors"))


def test_the_first_rows_are_read_untrained_and_trained_as_transformers_reads_them(audited):
    (_, retain), _, (jobs, _, kept) = audited
    job = jobs["demo/masked_upper"]

    def by_transformers(folder):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        run = job.run(model, load_tokenizer(job.start))
        parts = [run.batch(number) for number in range(job.recipe.n_accumulate)]
        asked = [{"input_ids": part.tokens, "attention_mask": part.mask.long()} for part in parts]
        with torch.no_grad():
            nll = [
                model(**one, labels=part.labels).loss.item()
                for one, part in zip(asked, parts, strict=True)
            ]
        return sum(nll) / len(nll)

    losses = kept_losses(kept)
    assert len(losses.steps) == N_STEPS
    assert losses.steps[0] == pytest.approx(by_transformers(job.start.folder), abs=NATS)
    assert losses.after == pytest.approx(by_transformers(kept), abs=NATS)
    # what never knew the rows is taught them, too
    assert taught_nothing(kept) is retain.remark is None


def test_the_same_audit_is_read_and_another_is_not(audited, auditing, monkeypatch):
    found, _, (jobs, work, kept) = audited
    monkeypatch.setattr(RelearnJob, "make", None)
    assert RelearnAudit(jobs=jobs, asked=auditing, work=work).found() == found
    assert RelearnAudit(jobs=jobs, asked=auditing, work=work, keep=kept).plan().splitlines() == [
        f"{kept} holds this model already",
        f"nothing to do: {work} holds this run already",
    ]
    fewer = {"demo/masked_upper": jobs["demo/masked_upper"]}
    other = RelearnAudit(jobs=fewer, asked=auditing, work=work, keep=kept)
    with pytest.raises(InputError, match=r"holds the result of another run; .*--force"):
        other.found()
    with pytest.raises(TypeError):  # it would train
        RelearnAudit(jobs=fewer, asked=auditing, work=work).found()
    replacing = replace(other, force=True).plan().splitlines()
    assert replacing[1].startswith("scores of demo/masked_upper before and after; writes ")


def test_scores_that_were_changed_since_are_refused(audited, auditing, tmp_path):
    _, _, (jobs, work, kept) = audited
    copied = shutil.copytree(work, tmp_path / "work")
    scores = (work / "audit.json").read_text()
    (copied / "audit.json").write_text(scores.replace("0", "1"))
    edited = RelearnAudit(jobs=jobs, asked=auditing, work=copied, keep=kept)
    with pytest.raises(InputError, match=r"audit.json: was changed after .*--force"):
        edited.check()
    assert "scores of demo/masked_upper and" in replace(edited, force=True).plan()


@pytest.mark.parametrize("data", ["demo", "forget10", "~/rows.json", "rows.json"])
def test_data_means_what_it_means_to_an_audit(data, auditing, tmp_path):
    asked = replace(auditing, data=data)
    suite = RelearnAudit(jobs={}, asked=asked, work=tmp_path).suite
    theirs = asked_of_eval(AuditSettings(data=data))
    for name in ("data", "forget", "forget_split"):
        assert getattr(suite, name) == getattr(theirs, name)


def test_what_cannot_be_asked_is_refused_before_anything_is_trained(
    auditing, tmp_path, monkeypatch
):
    def refused(*given):
        raise InputError("no such rows")

    monkeypatch.setattr(room, "open_in", refused)
    jobs = {"demo/masked_upper": job_of("demo/masked_upper")}
    with pytest.raises(InputError, match="no such rows"):
        RelearnAudit(jobs=jobs, asked=auditing, work=tmp_path / "work").check()


def test_an_audit_that_was_killed_after_its_scores_is_sealed_by_the_next(audited, auditing):
    found, _, (jobs, work, _) = audited
    (work / "manifest.json").rename(work / "begun.json")
    (work / "attacked" / "demo-retain").mkdir(parents=True)
    assert RelearnAudit(jobs=jobs, asked=auditing, work=work).found() == found
    assert not list(work.glob("attacked")) + list(work.glob("begun.json"))
    (model,) = verdicts([work]).models
    assert model.weights == open_model("demo/masked_upper").weights


def test_an_audit_that_was_killed_before_its_scores_gives_way_to_another(
    place, auditing, monkeypatch
):
    jobs = {"demo/masked_upper": job_of("demo/masked_upper")}
    other = {name: replace(job, settings=SMALL) for name, job in jobs.items()}
    made = []

    def shifts(pairs, *given):
        made.append([json.loads((at / "manifest.json").read_text()) for at in pairs.values()])
        raise KeyboardInterrupt

    monkeypatch.setattr(room, "shifts", shifts)
    work, kept = place / "killed", place / "killed_of"
    for asked in (jobs, other):
        with pytest.raises(KeyboardInterrupt):
            RelearnAudit(jobs=asked, asked=auditing, work=work, keep=kept, force=True).found()
    ((first,), (second,)) = made
    assert first["inputs"]["key"] != second["inputs"]["key"]


SCORED = ScoreChange(model="demo/masked_upper", before={"uds": 0.0}, after={"uds": 0.0})


def untrained(job, out, report=None, *, force=False):
    """A sealed folder, as of a training: nothing is trained, and what is there stays."""
    if not job.folder(out, force=force).is_done:
        job.begin(job.folder(out, force=force))
        (out / "config.json").write_text("{}")
        made = manifest(
            "relearn", kind="checkpoint", options={}, inputs={}, device="cpu", started=0.0
        )
        seal(out, made, key=job.key, files=["config.json"])


@pytest.fixture
def quick(auditing, tmp_path, monkeypatch):
    """An audit that trains and scores nothing, and what it does, once, instead of scoring."""
    scoring = []

    def shifts(*given):
        while scoring:
            scoring.pop()()
        return [SCORED]

    monkeypatch.setattr(room, "shifts", shifts)
    monkeypatch.setattr(RelearnJob, "make", untrained)
    jobs = {name: job_of(name) for name in ("demo/masked_upper", "demo/retain")}
    return RelearnAudit(jobs=jobs, asked=auditing, work=tmp_path / "work"), scoring


@pytest.mark.parametrize("keep", [None, "kept"])
def test_an_audit_leaves_the_checkpoints_that_another_one_scores(quick, keep, tmp_path):
    asked, scoring = quick
    if keep is not None:
        asked = replace(asked, keep=tmp_path / keep, work=tmp_path / keep / "audit")
    there = asked.work / "attacked" / "demo-retain" / "config.json"

    def another():
        with pytest.raises(TryAgainError, match="another process works in it"):
            replace(asked).found()
        assert there.exists()

    scoring.append(another)
    assert asked.found() == (SCORED,)
    assert not there.exists()
    assert (asked.keep is None) or (asked.keep / "config.json").exists()


def test_a_checkpoint_that_is_kept_is_made_once(quick, tmp_path, monkeypatch):
    """The audit holds its folder meanwhile, where whoever makes it again would wait for it."""
    made, make = [], RelearnAudit._make

    def counted(audit, name, folder):
        made.append(folder.name)
        return make(audit, name, folder)

    monkeypatch.setattr(RelearnAudit, "_make", counted)
    kept = tmp_path / "kept"
    assert replace(quick[0], keep=kept, work=kept / "audit").found() == (SCORED,)
    assert sorted(made) == ["demo-retain", "kept"]


def test_a_plan_counts_no_checkpoint_that_a_killed_audit_has_trained(quick):
    asked, _ = quick
    there = asked.work / "attacked" / "demo-masked_upper"
    asked.check()
    asked.run.begin()
    asked._make("demo/masked_upper", there)
    lines = replace(asked).plan().splitlines()
    assert lines[0] == f"{there} holds this model already"
    assert lines[1].startswith("relearning of demo by demo/retain: ")
    assert len(lines) == len(asked.jobs["demo/retain"].plan(None)) + 2


def test_an_audit_goes_beside_one_that_ended_after_its_folder_was_chosen(quick):
    asked, _ = quick
    asked.check()
    assert asked.run.path == asked.work
    otherwise(asked).found()
    theirs = (asked.work / "manifest.json").read_text()
    asked.found()
    assert (asked.work / "manifest.json").read_text() == theirs
    assert (asked.work.with_name(f"work-{asked.run.key[:8]}") / "audit.json").exists()


def otherwise(asked, **changes):
    """The same models attacked by other settings."""
    jobs = {name: replace(job, settings=SMALL) for name, job in asked.jobs.items()}
    return replace(asked, jobs=jobs, **changes)


def test_an_audit_takes_its_own_files_alone_from_the_attacked_checkpoints(quick, tmp_path):
    asked, scoring = quick
    kept = tmp_path / "kept"
    asked = replace(asked, keep=kept, work=kept / "audit")
    notes = [asked.work / "attacked" / name for name in ("demo-retain/mine.txt", "mine.txt")]
    scoring.append(lambda: [one.write_text("mine") for one in notes])
    for again in (asked, replace(asked)):
        again.found()
        assert sorted(asked.work.glob("attacked/**/*.*")) == notes
    replacing = otherwise(asked, force=True)
    with pytest.raises(InputError, match=r"demo-retain: is not empty and holds no run"):
        replacing.check()
    notes[0].unlink()
    replace(replacing).found()
    assert sorted(asked.work.glob("attacked/**/*.*")) == notes[1:]


def test_its_model_is_the_one_that_was_patched(audited, auditing, place):
    _, _, (_, work, _) = audited
    given = ("full", "retain", "data", "limit", "activations")
    options = {name: getattr(auditing, name) for name in given}
    la.patch("demo/masked_upper", place / "patch", align="none", **options)
    (model,) = verdicts([work, place / "patch"]).models
    assert model.weights == open_model("demo/masked_upper").weights
    assert "relearn_gain" in {one.name for one in model.views}
    inputs = json.loads((work / "manifest.json").read_text())["inputs"]
    for role, name in {"source": "demo/masked_upper", "full": "demo/full"}.items():
        assert inputs[role] == {"name": name, "weights": open_model(name).weights}
