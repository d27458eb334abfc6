"""One finished sweep of the embedded family, shared: it takes seconds."""

import pytest
from support.sweep_helpers import SMALL, command, planned


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    """The anchors and demo/npo, as they are and in NF4."""
    root = tmp_path_factory.mktemp("sweep")
    assert planned(root, "demo/npo", variants="base,nf4", more=(*SMALL, "--align", "none")) == 0
    assert command("sweep", "run", root) == 0
    return root
