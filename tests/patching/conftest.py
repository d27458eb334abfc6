import pytest
from support.audit_helpers import save_family, save_questions


@pytest.fixture(scope="session")
def tiny_family(tmp_path_factory, tiny_tokenizer):
    """Folder of `full`, `retain`, `a` and `b`, and their questions."""
    return save_questions(save_family(tmp_path_factory.mktemp("family"), tiny_tokenizer))
