"""A planned unit without a result is named, and nothing else is."""

import pytest
from support.sweep_helpers import toy_sweep

from lensaudit.errors import InputError
from lensaudit.results.planned import missing_in


@pytest.mark.parametrize("content", ["[]", '{"units": []}', '{"anchors": {}, "command": "meta"}'])
def test_a_plan_that_is_none_of_a_sweep_says_nothing(tmp_path, content):
    (tmp_path / "plan.json").write_text(content)
    assert not [*missing_in([tmp_path])]


def test_a_plan_that_was_edited_is_refused(tmp_path):
    plan = toy_sweep(tmp_path).file
    plan.write_text(plan.read_text().replace("m0", "m9"))
    with pytest.raises(InputError, match="was changed after it was made"):
        list(missing_in([tmp_path]))
