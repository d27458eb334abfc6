"""What the experiments on `know` go on with: only what was asked alike, of the same weights."""

import pytest
import torch

from experiments.know import gym, worlds


@pytest.fixture(scope="module")
def asked():
    return gym.asked_of_demo()


def tables(asked, value):
    return [gym.RelationReading(one, {"outputs": torch.full((1, 1), value)}) for one in asked]


def test_readings_are_kept_under_the_weights_the_dtype_and_the_questions(asked, tmp_path):
    place = tmp_path / "seed-1" / "npo.pt"
    keys = [
        gym.key_of(asked, "demo/npo"),
        gym.key_of(asked, "demo/npo", dtype="bfloat16"),
        gym.key_of(asked, "demo/graddiff"),
        gym.key_of(asked[1:], "demo/npo"),
    ]
    assert len({*keys}) == len(keys)
    assert gym.key_of((*asked,), "demo/npo") == keys[0]
    for value, key in enumerate(keys):
        once = iter([tables(asked, float(value))])
        for _ in range(2):
            found = gym.kept_tables(place, asked, key, once.__next__)
            assert [one.by_reader["outputs"].item() for one in found] == [value] * len(asked)


def test_a_file_that_does_not_say_what_was_asked_is_read_anew(asked, tmp_path):
    torch.save([{"outputs": torch.zeros(1, 1)}], tmp_path / "npo.pt")
    assert not gym.is_kept(tmp_path / "npo.pt", "key")
    assert gym.kept_or_read(tmp_path / "npo.pt", "key", lambda: 3) == 3


def test_a_world_is_asked_again_where_its_line_is_of_another_question(tmp_path):
    place, seen = tmp_path / "demo-retain.jsonl", []

    def went_on(*evidence, weights="a"):
        asked = [{"seed": s, "weights": weights, "evidence": e} for s, e in enumerate(evidence)]
        before = len(seen)
        lines = worlds.going_on(place, asked, lambda seed: seen.append(seed) or {"p": 0.5})
        assert lines == [{**one, "p": 0.5} for one in asked]
        return seen[before:]

    assert went_on(False, False) == [0, 1]
    assert went_on(True, False, False) == [0, 2]
    assert went_on(False, False, False) == went_on(True, False) == []
    assert went_on(True, False, weights="b") == [0, 1]


def test_of_few_worlds_there_are_no_limits_of_e(capsys):
    line = {f"p_{kind}": 0.5 for kind in gym.KINDS}
    evidence = {"e": [1.0, 30.0], "e_uniform": [2.0, 2.0], "named": 1, "k": 32}
    worlds.show("demo/retain", [{"seed": seed, **line, **evidence} for seed in (1, 2)])
    (own, uniform) = capsys.readouterr().out.splitlines()[-2:]
    assert "mean 15.500 [–, –]; e >= 20: 0.5000 [–, –]; worlds with a fact named: 2 of 2" in own
    assert "mean 2.000 [–, –]" in uniform
