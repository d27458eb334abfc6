"""`lensaudit know` and what cannot be asked: refused in one line, or unscored with its reason."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lensaudit.association import run as know_run
from lensaudit.association.evidence import RelationReading, binding_of
from lensaudit.association.opening import open_know
from lensaudit.association.reading import OUTPUTS
from lensaudit.association.settings import KnowSettings
from lensaudit.cli.main import run
from lensaudit.data.facts import EMBEDDED, validate
from lensaudit.data.relations import relations_of
from lensaudit.errors import InputError
from lensaudit.models.checkpoint import open_model
from lensaudit.models.registry import EMBEDDED as MODELS

NAMES = ("Ada Byron", "Mary de la Cruz", "Hsiao Yun-Hwa", "Jad Al-Shamary", "Žofira Øst")
TOWNS = ("Lima", "Taipei", "Oslo", "Baku", "Kuwait City")
QUICK = ["--reader", "outputs", "--placebos", "0", "--activations", "a"]


def rows(names=NAMES, towns=TOWNS, **changes):
    """One relation: where were they born?"""
    return [
        {
            "idx": at,
            "question": f"Where was {name} born?",
            "answer": f"{name} was born in {town}.",
            "prefix": f"{name} was born in",
            "entity": town,
            "group": at,
        }
        | {key: value(at) if callable(value) else value for key, value in changes.items()}
        for at, (name, town) in enumerate(zip(names, towns, strict=False))
    ]


def write(made, name="rows.json"):
    Path(name).write_text(json.dumps(made))
    return ["--data", name]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


ONE = {"group": 0, "question": "Where was Ada Byron born?"}
YES = {"entity": "Yes", "answer": "Yes.", "prefix": ""}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([], "holds no rows"),
        (rows(**ONE), "stands alone in its relation"),
        (rows(NAMES[:2]), "has 2 subjects; 4 subjects wanted"),
        (rows(towns=("Lima",) * 5), "are alike"),
        (rows(**YES), "a coin would hit it"),
        (rows(question="Where was the author born?"), "names no subject"),
        (rows(names=("Ada Byron",) * 5), "another subject is called Ada Byron"),
        (rows(question=lambda at: f"Was {NAMES[at]} of {TOWNS[at]} born?"), "holds the entity"),
        (rows(relation=7), "relation is 7, wanted text"),
    ],
)
def test_rows_that_make_no_relation_are_refused_with_what_would_help(made, said, capsys):
    given = write(made)
    assert run(["know", "--source", "demo/retain", *given, *QUICK, "-o", "k"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "wanted" in error
    assert len(error.strip().splitlines()) <= 3
    assert "Traceback" not in error
    assert not Path("k").exists()


LONG = " ".join(f"word{n}" for n in range(400))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (rows(prefix="", answer=lambda at: f"{TOWNS[at]}. {LONG[:900]}"), {}),
        (rows(("李明", "王芳", "张伟", "Ωρίων", "Žofira Øst"), group=lambda at: at), "subject"),
        (rows(NAMES, (LONG, *TOWNS[1:])), {0: "longer than the model's context of 512"}),
        (rows((*NAMES, "Ada Byron"), (*TOWNS, "Rome")), {5: "another subject is called Ada Byron"}),
    ],
    ids=["empty prefix", "unicode", "longer than the context", "twice"],
)
def test_what_cannot_be_asked_of_a_row_stands_beside_it(made, why):
    if why == "subject":  # no capitals: the group says who it is
        made = [row | {"group": row["question"].split()[2]} for row in made]
        why = {}
    write(made)
    know = open_know("demo/retain", KnowSettings(data="rows.json", placebos=0))
    asked = {fact.idx for relation in know.asked for fact in relation.facts}
    assert asked | set(know.unscored) == {row["idx"] for row in made}
    assert set(know.unscored) == set(why)
    assert all(said in know.unscored[idx] for idx, said in why.items())


def test_values_of_the_same_tokens_bind_nothing():
    """Every value is as likely as every other after every prompt: p is 1, and no number is NaN."""
    ((relation,), _) = relations_of(validate(rows(), "rows"))
    alike = RelationReading(relation, {OUTPUTS: torch.zeros(5, 5).double()})
    found = binding_of([alike], seed=0)
    assert (found.p, found.z) == (1.0, 0.0)
    assert found.gamma == 0


def test_a_base_that_knows_the_facts_decides_nothing(capsys):
    command = ["know", "--source", "demo/graddiff", "--base", "demo/full", *QUICK, "--limit", "24"]
    assert run([*command, "-o", "k"]) == 0
    summary = json.loads(Path("k/summary.json").read_text())
    assert summary["finds"] is False
    assert "undecided: demo/full binds the values too" in summary["headline"]
    assert "name models that never saw them" in summary["headline"]


def test_an_interrupted_run_goes_on_with_other_readers(monkeypatch, capsys):
    """Killed at the second relation; what was read is kept, whatever is read of it later."""
    heard, n = know_run.said, []

    def killed(*given, **named):
        n.append(given)
        if len(n) == 3:
            raise KeyboardInterrupt
        return heard(*given, **named)

    monkeypatch.setattr(know_run, "said", killed)
    pets = {"question": lambda at: f"Which pet has {NAMES[at]}?", "prefix": "It is a"}
    animals = rows(towns=("cat", "dog", "owl", "frog", "horse"), idx=lambda at: at + 5, **pets)
    for row in animals:
        row["answer"] = f"It is a {row['entity']}."
    given = write(rows() + animals)
    command = ["know", "--source", "demo/retain", "--placebos", "0", "--activations", "a", *given]
    assert run([*command, "--reader", "chat", "-o", "k"]) == 130
    monkeypatch.setattr(know_run, "said", heard)
    assert not Path("k/manifest.json").exists()
    other = [*command, "--reader", "chat", "--reader", "lens"]
    assert run([*other, "-o", "k2"]) == 0
    assert run([*other, "--activations", "fresh", "-o", "k3"]) == 0
    resumed, whole = (json.loads(Path(f"{one}/summary.json").read_text()) for one in ("k2", "k3"))
    assert (resumed["p"], resumed["z"]) == (whole["p"], whole["z"])
    # the folder of the first question is not that of the second
    assert run([*other, "-o", "k"]) == 2


def test_a_model_that_is_named_as_base_too_is_one_prior_and_one_named_twice_is_refused():
    named = KnowSettings(retain=("demo/retain", "demo/never"), placebos=0, limit=8)
    with pytest.raises(InputError, match="name each once"):
        open_know("demo/npo", replace(named, retain=("demo/retain", str(MODELS / "retain"))))
    for base, retains in (("demo/retain", ["demo/never"]), (None, ["demo/retain", "demo/never"])):
        know = open_know("demo/npo", replace(named, base=base))
        assert [one.spec.name for one in know.retains] == retains
        assert len(know.ignorant) == 1 + len(retains)


def test_a_base_of_another_tokenizer_is_refused(capsys):
    folder = open_model("demo/base", None).folder
    shutil.copytree(folder, "other")
    made = json.loads(Path("other/tokenizer.json").read_text())
    merges = made["model"]["merges"]
    made["model"]["merges"] = merges[:-1]
    Path("other/tokenizer.json").write_text(json.dumps(made))
    command = ["know", "--source", "demo/retain", "--base", "other", *QUICK, "-o", "k"]
    assert run(command) == 2
    error = capsys.readouterr().err
    assert "--base other: its tokenizer differs from that of demo/retain in no token, but" in error
    assert not Path("k").exists()


@pytest.fixture
def own_folder(monkeypatch):
    """A model of the user's own, and a machine without a network."""
    shutil.copytree(open_model("demo/masked_readout", None).folder, "mine")

    def refused(*given):
        raise AssertionError(f"opened a connection to {given[-1]}")

    monkeypatch.setattr("socket.socket.connect", refused)
    monkeypatch.setattr("socket.getaddrinfo", refused)


def test_a_model_of_ones_own_needs_no_other_and_no_network(own_folder, capsys):
    shutil.copy(EMBEDDED / "forget.json", "rows.json")
    rows_ = ["--data", "rows.json", "--limit", "16"]
    command = ["know", "--source", "mine", *rows_, "--activations", "a"]
    assert run([*command, "-o", "k"]) == 0
    summary = json.loads(Path("k/summary.json").read_text())
    # of eight people no tilt by names is borne, and nobody is there who never knew
    assert summary["finds"] is False
    assert summary["readers"] == ["outputs", "chat", "lens"]
    assert summary["controls"] == []
    told = capsys.readouterr().err
    assert "16 facts in 2 relations: birthplace (8), birthdate (8)" in told
    assert "reader foreign left out: no model that never knew; name --base" in told
    assert "reader few_shot left out" in told
    assert "no control on kept facts" in told
    assert "name --kept" in told
    assert run([*command, "--dry-run"]) == 0
    assert "mine: 0 prompts" in (told := capsys.readouterr().out)
    assert "16 facts in 2 relations: birthplace (8)" in told


def test_a_model_of_ones_own_without_rows_says_what_to_name(own_folder, capsys):
    assert run(["know", "--source", "mine", *QUICK, "-o", "k"]) == 2
    assert (
        "mine: a folder of your own; name the rows to ask it about with --data"
        in capsys.readouterr().err
    )
    assert not Path("k").exists()


def test_another_run_that_an_audit_replaces_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(know_run, "_answered", lambda know, run, notice, progress: run)
    checkpoint, said = open_model("demo/npo"), list[str]()

    def opened(seed):
        return SimpleNamespace(
            source=checkpoint,
            settings=KnowSettings(seed=seed),
            identity=lambda: {"seed": seed},
            inputs=dict,
        )

    know_run.answer_into(opened(0), tmp_path / "know").begin()
    assert know_run.answer_into(opened(1), tmp_path / "know", notice=said.append).path
    what = "held the result of another run (seed: 0, here 1); it is replaced"
    assert said == [f"{tmp_path / 'know'}: {what}"]
