"""Score books and text books on disk: whatever happens to one, no number changes silently."""

from dataclasses import replace

import pytest
import torch
from support import checkpoint_of, lines_of
from support.audit_helpers import anew, audit_in, run, save_family, save_questions

from lensaudit.data.spans import Encoded
from lensaudit.patching import score_cache, scoring
from lensaudit.patching.score_cache import ScoreCache, ScoreEntry
from lensaudit.patching.sources import next_rows
from lensaudit.patching.stages import ke_layers
from lensaudit.plans.depth import plan_of

ENCODED = [
    Encoded(idx, idx // 2, tuple(range(3 + idx, 12 + idx)), n_prompt=4, start=5, end=8)
    for idx in range(8)
]
KEY = {"full": "f" * 32, "donor": "d" * 32}


def test_each_score_is_read_against_the_baseline_of_its_own_batch(tmp_path):
    # in bfloat16 the same row has another log-prob in another batch
    first, second = ScoreEntry(-1.0, {0: -1.5}), ScoreEntry(-1.0625, {1: -1.0625, 2: -2.0})
    for book in (ScoreCache(tmp_path, KEY, "one"), ScoreCache(tmp_path, KEY, "one")):
        for entry in (first, second):
            book.add([(ENCODED[0], entry)])
    book = ScoreCache(tmp_path, KEY, "one")
    found = book.deltas(ENCODED[:1], range(4))[0]
    assert found[:3].tolist() == [0.5, 0.0, 0.9375]
    assert found[3].isnan()
    # no layer of S1 counts as knowledge because two batches differ
    assert ke_layers(book, ENCODED[0], range(3), tau=0.05) == [0, 2]


def test_a_fresh_run_begins_a_book_once_and_keeps_what_it_computes(tmp_path, tiny_tokenizer):
    save_family(save_questions(tmp_path, n=3), tiny_tokenizer)
    run(audit_in(tmp_path)[0])
    audit = anew(audit_in(tmp_path)[0])
    (source,) = audit.sources.values()
    book = audit.scores(source.weights)
    assert all(book.missing(e, [0]) for e in audit.encoded)
    book.add([(audit.encoded[0], ScoreEntry(-1.0, {0: -2.0}))])
    with audit:  # what was opened is let go
        pass
    with audit:
        assert audit.scores(source.weights) is not book
        assert audit.read(source.weights, audit.encoded[:1], [0]).tolist() == [[1.0]]
    assert audit.scores(source.weights).missing(audit.encoded[0], [0]) == []


def test_a_plan_changes_nothing_that_a_fresh_run_finds(tmp_path, tiny_tokenizer):
    save_family(save_questions(tmp_path, n=3), tiny_tokenizer)
    first = audit_in(tmp_path)[0]
    sound = run(first).s1
    # what an earlier run left is wrong: a fresh one must not believe it
    book = first.scores(first.retain.weights)
    wrong = {layer: -99.0 for layer in first.settings.at_layers}
    book.add([(e, ScoreEntry(-1.0, wrong)) for e in first.encoded])
    kept = book.path.read_bytes()
    audit = anew(audit_in(tmp_path)[0])
    n_rows = plan_of(audit).n_rows
    assert book.path.read_bytes() == kept
    assert n_rows == 3 * 3 * 4  # examples, models (full, retain, a) and layers: all of them
    assert torch.equal(run(audit).s1, sound)


def test_a_fresh_run_replaces_what_it_computed_again_and_only_that(
    tmp_path, tiny_tokenizer, monkeypatch
):
    save_family(save_questions(tmp_path), tiny_tokenizer)
    with audit_in(tmp_path, ("a", "b"), profile="full")[0] as audit:
        run(audit)
        untouched = audit.scores(audit.sources[str(tmp_path / "b")].weights).path
    before = {path: lines_of(path) for path in (tmp_path / "activations" / "scores").iterdir()}
    assert len(before) == 4  # retain, full, a, b: nine examples each, a line an example
    assert {len(rows) for rows in before.values()} == {9}
    keep, kept = ScoreCache.add, []

    def killed(self, scored):
        if kept:
            raise KeyboardInterrupt
        kept.extend(scored)
        keep(self, scored)

    monkeypatch.setattr(ScoreCache, "add", killed)
    with (
        pytest.raises(KeyboardInterrupt),
        anew(audit_in(tmp_path, limit=3, profile="full")[0]) as audit,
    ):
        run(audit)
    # what was there is there, and after it what was computed until then
    now = {path: lines_of(path) for path in before}
    assert all(now[path][:9] == rows for path, rows in before.items())
    assert sum(map(len, now.values())) == 4 * 9 + len(kept)
    assert 0 < len(kept) <= 3
    monkeypatch.undo()
    with anew(audit_in(tmp_path, limit=3, profile="full")[0]) as audit:
        run(audit)
        asked = {score_cache.example_hash(one) for one in audit.encoded}
        source = audit.sources[str(tmp_path / "a")].weights
        path = audit.scores(source).path
    assert len(asked) == 3
    after = lines_of(path)
    others = [row for row in before[path] if row["example"] not in asked]
    assert after[:6] == others  # rows of other questions, as they were
    assert {row["example"] for row in after[6:]} == asked
    for place, rows in before.items():
        whole = {(row["example"], at) for row in rows for at in row["scores"]}
        left = [(row["example"], at) for row in lines_of(place) for at in row["scores"]]
        assert sorted(left) == sorted(whole)
    assert [one for one in before if lines_of(one) == before[one]] == [untouched]


def test_a_line_loses_the_layers_that_a_later_one_has(tmp_path):
    book = ScoreCache(tmp_path, KEY, "one")
    book.add([(ENCODED[0], ScoreEntry(-1.0, {0: -1.5, 1: -1.6})), (ENCODED[1], ScoreEntry(-2.0))])
    book.forget(2)
    assert book.missing(ENCODED[0], [0, 1]) == [0, 1]
    book.add([(ENCODED[0], ScoreEntry(-1.0, {1: -9.0})), (ENCODED[1], ScoreEntry(-3.0))])
    assert book.supersede(2) == 1
    said = [(row["baseline"], row["scores"]) for row in lines_of(book.path)]
    assert said == [(-1.0, {"0": -1.5}), (-1.0, {"1": -9.0}), (-3.0, {})]


def test_a_result_says_which_versions_computed_its_scores(tmp_path, tiny_tokenizer, monkeypatch):
    save_family(save_questions(tmp_path, n=3), tiny_tokenizer)

    def scored(version, **settings):
        for room in (score_cache, scoring):
            monkeypatch.setattr(room, "computed_by", lambda: version)
        audit, notices = audit_in(tmp_path, **settings)
        (outcome,), _ = scoring.score_all(audit)
        made = scoring.manifest_of(audit, {}, 0.0, scores_by=outcome.computed_by)
        assert made.inputs["scores_computed_by"] == outcome.computed_by
        return outcome.computed_by, [line for line in notices if "versions" in line]

    n = 3 * 2  # examples, of S1 and S2, at each layer
    assert scored("torch 1", layers="0") == ({"torch 1": n}, [])
    found, said = scored("torch 2", layers="0-1")
    assert found == {"torch 1": n, "torch 2": n}
    assert said == [
        f"{n} of {2 * n} scores were computed earlier under other versions "
        f"({n} by torch 1; here torch 2); --fresh computes them anew"
    ]
    assert scored("torch 2", layers="0-1", fresh=True) == ({"torch 2": 2 * n}, [])


def test_what_another_row_stands_for_is_known_by_the_words_of_all_rows():
    rows, full = ENCODED[:3], checkpoint_of("demo/full")
    changed = [*rows[:2], replace(rows[2], token_ids=(*rows[2].token_ids[:-1], 99))]
    # the positions are the same: what is handed over is not
    one, other = next_rows(full, rows), next_rows(full, changed)
    assert one.given == other.given
    assert one.key != other.key
