import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lensaudit.doors.generation import patched_generation
from lensaudit.errors import InputError, WorkError
from lensaudit.models.bridge import intervening, logits_of, residuals, user_hooks
from lensaudit.models.generation import stop_ids
from lensaudit.patching import generation
from lensaudit.patching.generation import (
    as_guessed,
    generate,
    patched_rows,
    rows_that_fit,
)
from lensaudit.patching.interventions import replace_at
from lensaudit.patching.sources import as_patched
from lensaudit.patching.speech import ends_of

PROMPTS = [[1, 7, 9, 33, 12, 5, 40], [1, 22], [9], [1, 50, 41, 8, 17, 17, 3, 29, 30, 31, 6]]
N_NEW = 8


def slowly(model, prompt, *, n_new, stop=frozenset(), patch=None):
    """The definition: one whole forward pass per token, no cache, no padding.

    `patch` is (layer, value): it acts at the last prompt token in every pass, since each pass
    computes that position anew.
    """
    said = []
    for _ in range(n_new):
        tokens = torch.tensor([[*prompt, *said]])
        edits = {}
        if patch is not None:
            at = torch.zeros_like(tokens, dtype=torch.bool)
            at[0, len(prompt) - 1] = True
            edits = {patch[0]: replace_at(patch[1].expand(1, tokens.shape[1], -1), at)}
        with intervening(model, edits):
            token = int(logits_of(model, tokens)[0, -1].argmax())
        if token in stop:
            break
        said.append(token)
    return tuple(said)


def prompt_ends(model, prompts):
    """Every layer's stream at each prompt's last token: [prompt, layer, d_model]."""
    return torch.stack([residuals(model, torch.tensor([p]))[0][0, :, -1] for p in prompts])


def all_rows(ends):
    n_prompts, n_layers, _ = ends.shape
    return {
        "row_prompt": torch.arange(n_prompts).repeat_interleave(n_layers).tolist(),
        "layer": list(range(n_layers)) * n_prompts,
        "value": ends.flatten(0, 1),
    }


def test_cached_and_padded_generation_says_what_whole_passes_say(tiny):
    model = tiny()
    said = generate(model, PROMPTS, max_new_tokens=N_NEW, stop=frozenset())
    assert said == [slowly(model, p, n_new=N_NEW) for p in PROMPTS]
    assert len(set(said)) == len(said)  # else agreement would show nothing


def test_every_patched_row_says_what_hooked_whole_passes_say(tiny):
    full, source = tiny(0), tiny(1)
    ends = prompt_ends(source, PROMPTS)
    said = patched_rows(full, PROMPTS, **all_rows(ends), max_new_tokens=N_NEW, stop=frozenset())
    wanted = [
        slowly(full, prompt, n_new=N_NEW, patch=(layer, ends[at, layer]))
        for at, prompt in enumerate(PROMPTS)
        for layer in range(3)
    ]
    assert said == wanted
    plain = generate(full, PROMPTS, max_new_tokens=N_NEW, stop=frozenset())
    changed = [said[at * 3 + layer] != plain[at] for at in range(4) for layer in range(3)]
    assert sum(changed) > 6  # the patch is seen


SEVERAL_EXAMPLES_ONE_MODEL = [HealthCheck.function_scoped_fixture]


@settings(
    deadline=None,
    derandomize=True,
    max_examples=6,
    suppress_health_check=SEVERAL_EXAMPLES_ONE_MODEL,
)
@given(st.permutations(range(4)), st.integers(1, 4))
def test_neighbours_in_a_batch_do_not_matter(tiny_pair, order, size):
    full, ends = tiny_pair
    stop = frozenset({5, 9})
    together = patched_rows(full, PROMPTS, **all_rows(ends), max_new_tokens=6, stop=stop)
    for start in range(0, 4, size):
        chosen = list(order[start : start + size])
        prompts = [PROMPTS[at] for at in chosen]
        said = patched_rows(full, prompts, **all_rows(ends[chosen]), max_new_tokens=6, stop=stop)
        assert said == [together[at * 3 + layer] for at in chosen for layer in range(3)]


@pytest.fixture
def tiny_pair(tiny):
    """`full`, and the prompt ends of another model."""
    return tiny(0), prompt_ends(tiny(1), PROMPTS)


@given(
    cut=st.lists(st.integers(0, N_NEW), min_size=4, max_size=4),
    other=st.lists(st.lists(st.integers(1, 60), max_size=N_NEW), min_size=4, max_size=4),
    stop=st.integers(0, 3),
)
@settings(
    max_examples=30,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_what_was_guessed_does_not_change_what_is_said(tiny, cut, other, stop):
    model = tiny()
    free = generate(model, PROMPTS, max_new_tokens=N_NEW, stop=frozenset())
    ends = frozenset(ids[stop] for ids in free[:2])
    said = generate(model, PROMPTS, max_new_tokens=N_NEW, stop=ends)
    # each begins as what is said, and goes on in its own way
    guesses = [(*ids[:n], *more)[:N_NEW] for ids, n, more in zip(said, cut, other, strict=True)]
    guesses = [tuple(one for one in ids if one not in ends) for ids in guesses]
    assert as_guessed(model, PROMPTS, guesses, max_new_tokens=N_NEW, stop=ends) == said


def test_a_good_guess_is_read_once(tiny, monkeypatch):
    model, how = tiny(), {"max_new_tokens": N_NEW, "stop": frozenset()}
    said = generate(model, PROMPTS, **how)
    n_calls, asked = [], generation.cached_logits
    monkeypatch.setattr(
        generation, "cached_logits", lambda *args, **more: n_calls.append(1) or asked(*args, **more)
    )
    monkeypatch.setattr(generation, "generate", None)
    assert as_guessed(model, PROMPTS, said, **how) == said
    assert len(n_calls) == 1


def test_a_row_ends_before_its_first_stop_token_and_the_others_go_on(tiny):
    model = tiny()
    plain = generate(model, PROMPTS, max_new_tokens=N_NEW, stop=frozenset())
    stop = frozenset({plain[0][2], plain[3][5]})
    said = generate(model, PROMPTS, max_new_tokens=N_NEW, stop=stop)
    for short, long in zip(said, plain, strict=True):
        ends = [at for at, token in enumerate(long) if token in stop]
        assert short == long[: min(ends, default=N_NEW)]
    assert len(said[0]) <= 2
    assert max(map(len, said)) > 2


def test_no_hook_stays_after_generation_or_after_a_failure(tiny):
    model = tiny()

    def broken(resid):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generate(model, PROMPTS, max_new_tokens=2, stop=frozenset(), interventions={1: broken})
    assert user_hooks(model) == []


def test_logits_that_are_not_finite_are_an_error_not_a_text(tiny):
    with pytest.raises(WorkError, match="not finite"):
        generate(
            tiny(),
            PROMPTS,
            max_new_tokens=2,
            stop=frozenset(),
            interventions={1: lambda resid: resid * torch.nan},
        )
    broken = tiny()
    broken.original_model.lm_head.weight.data[3] = torch.inf
    with pytest.raises(WorkError, match="not finite"):
        as_guessed(broken, PROMPTS, [(1,)] * 4, max_new_tokens=2, stop=frozenset())


def test_ad_hoc_generation_names_its_layers_and_shows_the_plain_text_first(tiny):
    full, source = tiny(0), tiny(1)
    said = patched_generation(full, source, "w7 w9 w33", max_new_tokens=5, layers=[0, 2])
    assert [one.layer for one in said] == [None, 0, 2]
    ids = full.tokenizer("w7 w9 w33")["input_ids"]
    plain = slowly(full, ids, n_new=5, stop=ends_of(full))
    assert said[0].text == full.tokenizer.decode(list(plain), skip_special_tokens=True)
    assert said[1].text != said[0].text
    assert patched_generation(full, source, "w7 w9 w33", max_new_tokens=5, layers=[]) == said[:1]


def test_the_two_last_layer_conventions_differ_at_the_last_layer_only(tiny):
    full, source = tiny(0), tiny(1)
    texts = {
        mode: patched_generation(full, source, "w7 w9 w33 w12", last_layer=mode, max_new_tokens=6)
        for mode in ("resid_post", "reference")
    }
    assert texts["resid_post"][:3] == texts["reference"][:3]
    stack, final_norm = residuals(source, torch.tensor([[7, 9]]))
    values = as_patched(stack[0, :, -1], final_norm[0, -1], "reference")
    assert torch.equal(values[:2], stack[0, :2, -1])
    assert torch.equal(values[2], final_norm[0, -1])
    assert not torch.allclose(values[2], stack[0, 2, -1], atol=0.1)


@pytest.mark.parametrize(("prompt", "layers"), [("", None), ("w7", [3]), ("w7", [-1])])
def test_ad_hoc_generation_refuses_what_the_model_lacks(tiny, prompt, layers):
    with pytest.raises(InputError):
        patched_generation(tiny(0), tiny(1), prompt, layers=layers)


def test_ad_hoc_generation_refuses_a_prompt_that_a_context_does_not_hold(tiny):
    full, source = tiny(0), tiny(1)
    n = source.original_model.config.max_position_embeddings
    long = " ".join(["w7"] * (n + 1))
    with pytest.raises(InputError, match=rf"prompt has {n + 1} tokens, longer .* context of {n}"):
        patched_generation(full, source, long, layers=[0])


def test_more_memory_holds_more_rows(tiny):
    model = tiny()
    assert rows_that_fit(model, 50, 1) == 1
    assert rows_that_fit(model, 50, 1 << 24) > rows_that_fit(model, 500, 1 << 24) > 1
    assert rows_that_fit(model, 50, 1 << 24) > rows_that_fit(model, 50, 1 << 24, n_logits=49) > 1


def test_a_text_ends_by_one_rule_whatever_generates():
    assert stop_ids([128001, 128008], 128009) == {128001, 128008}
    assert stop_ids(None, 128009) == {128009}
    assert stop_ids(None, None) == frozenset()
