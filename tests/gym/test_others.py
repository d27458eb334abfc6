"""Auditors that others would reach for: what each reads, and what its control refuses."""

import copy
import csv

import pytest
import torch
from support.pages import ROOT
from transformer_lens.tools.analysis.interchange import SubspaceInterchange
from transformers import AutoModelForCausalLM

from lensaudit.data.facts import EMBEDDED, load_facts
from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.gym import others
from lensaudit.gym.auditors import AUDITORS, Case, SeedModels
from lensaudit.models.bridge import hook_name, n_layers


def score(auditor, model, bench=None):
    (found,) = AUDITORS[auditor].judge([Case(model, bench or SeedModels(), "key", {})])
    return found


@pytest.fixture
def changed(monkeypatch):
    """Have one model's name stand for a changed copy of it."""

    def as_if(name, change):
        plain = SeedModels.loaded

        def loaded(self, asked):
            model = plain(self, asked)
            return change(copy.deepcopy(model)) if asked == name else model

        monkeypatch.setattr(SeedModels, "loaded", loaded)

    return as_if


def test_values_are_interchanged_where_they_are_known_and_come_out_by_chance_where_they_are_not():
    full, never = (score("das", name) for name in ("demo/full", "demo/never"))
    assert full.score > 0.75
    assert abs(never.score - 0.5) < 0.1
    assert full.control
    assert never.control  # it reads the rows to keep
    assert full.score == pytest.approx(sum(full.facts.values()) / len(full.facts))
    assert len(full.facts) > 50
    assert {*full.facts} <= {one.idx for one in SeedModels().facts.examples}


def test_a_subspace_learned_in_an_untrained_model_is_none(changed):
    def untrained(model):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(model.config).eval()

    changed("demo/full", untrained)
    found = score("das", "demo/full")
    assert not found.control
    assert found.score < 0.65


def test_interchanging_the_whole_stream_after_the_last_layer_says_what_the_source_says():
    bench = SeedModels()
    _, asked = others._facts(bench)
    search = others._Search(bench.loaded("demo/full"), bench.tokenizer)
    search.hook = hook_name(n_layers(search.model) - 1)
    pairs = others._pairs(asked)[:6]
    values = sorted({one.value for one in asked})
    whole = SubspaceInterchange(torch.eye(bench.loaded("demo/full").config.hidden_size))
    found = search.beaten(pairs, whole, others._values(pairs), [values] * 6)
    for share, (_, source) in zip(found, pairs, strict=True):
        ids = torch.tensor([source.encoded.token_ids[: source.encoded.start + 1]])
        logits = bench.loaded("demo/full")(ids).logits[0, -1]
        rest = [one for one in values if one != source.value]
        assert share == pytest.approx(float((logits[source.value] > logits[rest]).double().mean()))


def test_a_row_is_interchanged_with_rows_of_its_relation_that_have_another_value():
    pairs = others._pairs(others._facts(SeedModels())[1])
    assert all(base.relation == source.relation for base, source in pairs)
    assert all(base.value != source.value for base, source in pairs)
    bases = [base.encoded.idx for base, _ in pairs]
    assert max(bases.count(idx) for idx in bases) == others.PARTNERS


def test_a_sparse_probe_tells_yes_from_no_where_it_is_known():
    found = {name: score("sparse_probe", f"demo/{name}") for name in ("full", "never")}
    assert found["full"].score == 1
    assert found["never"].score < 0.7
    assert all(one.control for one in found.values())


def test_a_probe_of_a_stream_that_says_nothing_fails_its_control(changed):
    def blank(model):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.mul_(0.0 if "embed" in name or "layers" in name else 1.0)
        return model

    changed("demo/full", blank)
    assert not score("sparse_probe", "demo/full").control


def test_rows_to_keep_without_marked_answers_are_refused(tmp_path):
    rows = [
        {"question": one.question, "answer": one.answer}
        for one in load_facts(EMBEDDED / "retain.json")
    ]
    write_json(tmp_path / "kept.json", rows)
    bench = SeedModels(data=str(EMBEDDED / "forget.json"), retain_data=str(tmp_path / "kept.json"))
    for name in ("das", "sparse_probe"):
        with pytest.raises(InputError, match=r"kept\.json"):
            score(name, "demo/npo", bench)


def test_without_a_relation_of_two_answers_there_is_no_score(tmp_path):
    kept = [
        {
            name: getattr(one, name)
            for name in ("idx", "question", "answer", "prefix", "entity", "group", "relation")
        }
        for one in load_facts(EMBEDDED / "retain.json")
        if one.entity not in ("Yes", "No")
    ]
    write_json(tmp_path / "kept.json", kept)
    bench = SeedModels(data=str(EMBEDDED / "forget.json"), retain_data=str(tmp_path / "kept.json"))
    found = score("sparse_probe", "demo/npo", bench)
    assert (found.score, found.control) == (None, False)
    assert "two answers" in found.why


def test_one_matrix_moved_in_one_direction_has_that_length_and_rank_one(changed):
    length = 0.25

    def moved(model):
        weight = model.model.layers[3].mlp.up_proj.weight
        step = torch.outer(torch.ones(len(weight)), torch.ones(weight.shape[1]))
        with torch.no_grad():
            weight += step * (length * weight.norm() / step.norm())
        return model

    changed("demo/npo", lambda _: moved(copy.deepcopy(SeedModels().loaded("demo/full"))))
    n_matrices = sum(
        one.ndim == 2 for _, one in SeedModels().loaded("demo/full").named_parameters()
    )
    assert score("weights_l2", "demo/npo").score == pytest.approx(length / n_matrices, rel=1e-4)
    assert score("weights_rank", "demo/npo").score == pytest.approx(1, rel=1e-3)


def test_two_directions_of_one_length_are_a_stable_rank_of_two(changed):
    def moved(model):
        with torch.no_grad():
            for at in range(2):
                model.model.layers[3].mlp.up_proj.weight[at, at] += 3.0
        return model

    changed("demo/npo", lambda _: moved(copy.deepcopy(SeedModels().loaded("demo/full"))))
    assert score("weights_rank", "demo/npo").score == pytest.approx(2, rel=1e-3)


def test_a_relation_has_two_answers_if_enough_authors_have_each_and_nobody_a_third():
    def rows(*values):
        return [
            others.RelationFact(Encoded(author, author, (1, value), 1, 0, 1), "relation")
            for author, value in enumerate(values)
        ]

    assert others._two_answers(rows(*[7] * 4, *[5] * 4)) == (5, 7)
    assert others._two_answers(rows(*[7] * 4, *[5] * 3)) == ()
    assert others._two_answers(rows(*[7] * 4, *[5] * 4, *[6] * 4)) == ()


def test_full_itself_is_at_no_distance():
    assert [score(name, "demo/full").score for name in ("weights_l2", "weights_rank")] == [0, 0]


def test_matrices_of_another_shape_are_not_compared(changed):
    def wider(model):
        model.resize_token_embeddings(model.config.vocab_size + 8)
        return model

    changed("demo/npo", wider)
    found = score("weights_l2", "demo/npo")
    assert found.score is None
    assert "number or shape" in found.why


def test_the_page_says_what_its_rows_say():
    """Areas counted pair by pair: no code of the package."""
    rows = list(csv.DictReader((ROOT / "benchmarks" / "gym_others.csv").open()))
    page = (ROOT / "docs" / "evidence" / "gym_auditors.md").read_text()
    for name, sign in (("sparse_probe", 1), ("das", 1), ("weights_l2", -1), ("weights_rank", -1)):
        read = [row for row in rows if row[name]]
        absent = [float(row[name]) for row in read if row["truth"] == "absent"]
        areas = {}
        for row in read:
            if row["truth"] in ("hidden", "intact"):
                above = [sign * (float(row[name]) - one) for one in absent]
                area = sum((one > 0) + (one == 0) / 2 for one in above) / len(absent)
                areas[row["mechanism"], row["strength"]] = area
        worst, _ = min(areas, key=lambda one: areas[one])
        said = (
            f"| `{name}` | {len(areas)} | {sum(areas.values()) / len(areas):.2f} "
            f"| {sum(area < 0.5 for area in areas.values())} "
            f"| `{worst}` {min(areas.values()):.2f} | {min(absent):.2f} to {max(absent):.2f} |"
        )
        assert said in page
