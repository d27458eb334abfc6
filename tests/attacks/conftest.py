"""A finished run of `lensaudit rtt`, which command, log and summary are asked about."""

import pytest
import rtt_support as world


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders: the original, the one that hides, the one that never knew."""
    root = tmp_path_factory.mktemp("models")
    made = {
        "knows": world.knows(),
        "hidden": world.hidden(),
        "never": world.fresh(1),
        "control": world.fresh(2),
    }
    for name, model in made.items():
        model.save_pretrained(root / name)
        world.tokenizer().save_pretrained(root / name)
    return root


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    from lensaudit.attacks.rtt import save_mcq

    return save_mcq(world.dataset(), tmp_path_factory.mktemp("data") / "births")


@pytest.fixture(scope="session")
def finished(models, data, tmp_path_factory):
    """Two studies: one model hides the years, the other never saw them."""
    from lensaudit.cli.main import run

    out = tmp_path_factory.mktemp("out")
    assert run(world.command(models, data, out, unlearned=("hidden", "never"))) == 0
    return out
