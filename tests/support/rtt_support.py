"""A world of birth years, small enough to be learned, hidden and retrained in seconds."""

from functools import cache
from random import Random

N_NAMES, N_YEARS, N_SPLITS = 96, 8, 4
WORDS = ("When", "was", "born", "?", "Question", "Answer", ":", ".", "A", "B", "C", "D")
YEARS = tuple(f"y{n}" for n in range(N_YEARS))
NAMES = tuple(f"n{n}" for n in range(N_NAMES))


@cache
def tokenizer():
    """One token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<bos>", "<eos>", *WORDS, *YEARS, *NAMES]
    table = {word: number for number, word in enumerate(words)}
    inner = Tokenizer(models.WordLevel(table, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


@cache
def dataset():
    """Every name has one year of eight; options are four of them, the place is balanced."""
    from lensaudit.attacks.rtt import McqItem, make_dataset

    random = Random(5)
    drafts = []
    for number, name in enumerate(NAMES):
        right = random.choice(YEARS)
        others = random.sample([year for year in YEARS if year != right], 3)
        place = number % 4
        choices = (*others[:place], right, *others[place:])
        drafts.append(McqItem(f"When was {name} born?", choices, place))
    return make_dataset("births", {f"split_{n}": drafts[n::N_SPLITS] for n in range(N_SPLITS)})


def fresh(seed: int):
    """Two layers of 64, random; the caller's random stream is untouched."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


@cache
def knows():
    """A model that has memorised every year."""
    from lensaudit.attacks.rtt.readout import train_sample
    from lensaudit.training.rows import finetune_batches
    from lensaudit.training.train import FineTuning, Recipe, TrainingRun, train

    samples = [train_sample(tokenizer(), item, "answer") for item in dataset().items]
    batches = finetune_batches(samples, batch_size=16, seed=0, pad=0)
    model = fresh(0)
    recipe = Recipe(n_steps=300, lr=3e-3, n_warmup=20, weight_decay=0.0)
    train(model, TrainingRun(FineTuning(), batches, recipe, identity={}))
    return model


def hidden():
    """The same trunk; the readout's rows of the years are exchanged."""
    import copy

    import torch

    model = copy.deepcopy(knows())
    ids = tokenizer().convert_tokens_to_ids(list(YEARS))
    moved = ids[3:] + ids[:3]
    with torch.no_grad():
        model.lm_head.weight[ids] = model.lm_head.weight[moved].clone()
    return model


ATTACK = (
    "--lr 1e-3 --lr 4e-3 --epochs 3 --batch-size 8 --warmup 4 --loss-on answer --readout answer"
)


def command(models, data, out, *more, unlearned=("hidden",)):
    """Words of `lensaudit rtt run` on models in folders."""
    names = [part for name in unlearned for part in ("--source", str(models / name))]
    anchors = ["--full", str(models / "knows"), "--retain", str(models / "control")]
    places = ["--data", str(data), "--out", str(out)]
    return ["rtt", "run", *names, *anchors, *places, *ATTACK.split(), *more]
