"""What a result shows of itself is what its files say."""

from dataclasses import replace

import numpy as np
import pytest

import lensaudit as la


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    place = tmp_path_factory.mktemp("shown")
    few = {"limit": 4, "layers": "14,15", "align": "none"}
    return la.patch("demo/npo", place / "out", activations=place / "kept", **few)


def test_a_notebook_shows_the_numbers_and_no_markup_of_others(found):
    text = found._repr_html_()
    for one in found.summary["per_layer"]:
        assert f"<td>{one['s1']:.3f}</td>" in text
    assert "4 of 4 examples scored" in text
    verdict = found.record.verdict and replace(found.record.verdict, sentence="<script>x")
    record = replace(found.record, source="<script>x", verdict=verdict)
    shown = replace(found, record=record)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;x" in shown


@pytest.mark.parametrize("what", ["layers", "examples", "depth"])
def test_a_picture_holds_what_it_is_asked_for(found, what, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = found.plot(what)
    drawn = axes.images if what == "examples" else axes.lines
    assert drawn
    if what == "depth":
        assert drawn[0].get_xdata()[0] == pytest.approx(found.uds)


def test_an_unknown_picture_names_the_known_ones(found):
    with pytest.raises(ValueError, match="layers, examples, depth"):
        found.plot("layer")


def test_exact_match_is_drawn_as_what_is_lost(found, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    settings = {"activations": found.folder.parent / "kept", "limit": 4, "layers": "14,15"}
    em = la.patch("demo/npo", tmp_path / "em", score="em", **settings)
    s1, s2 = (line.get_ydata() for line in em.plot().lines)
    for at, layer in enumerate(em.summary["per_layer"]):
        assert s1[at] == pytest.approx(1 - layer["s1_em"])
        assert s2[at] == pytest.approx(1 - layer["s2_em"])
        assert f"<td>{layer['s2_em']:.3f}</td>" in em._repr_html_()
    # erasure stands where retain lost the answer: its mean by example is the score
    image = em.plot("examples").images[0].get_array()
    assert np.ma.masked_invalid(image).mean(axis=1).mean() == pytest.approx(em.value)
