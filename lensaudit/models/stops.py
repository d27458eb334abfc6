"""What ends a text, where a checkpoint's `config.json` does not say it."""

from lensaudit.models.checkpoint import Checkpoint, load_tokenizer
from lensaudit.models.generation import stop_ids, stop_of
from lensaudit.models.generation_settings import generation_config_of, own_end


def told_stops(*checkpoints: Checkpoint) -> dict[str, dict[str, list[int]]]:
    """For a key: by weights, what ends a text where it is not what `config.json` names.

    Empty for usual checkpoints: their ends are part of the weights' hash.
    """
    told = {}
    for one in checkpoints:
        ends = stop_ids(generation_config_of(one).eos_token_id, None)
        if not ends:  # a large tokenizer takes a second to load
            ends = stop_of(one, load_tokenizer(one))
        if ends != stop_ids(own_end(one), None):
            told[one.weights] = sorted(ends)
    return {"stop": told} if told else {}
