"""What does a steered model answer? A finished run of `lensaudit steer eval` or `steer sweep`."""

from typing import Annotated

from pydantic import AfterValidator

from lensaudit.results.reading import JsonObject, lacking


def _points(content: JsonObject) -> JsonObject:
    return lacking(content, "trait", "layers" if "layers" in content else "coefficients")


SteeringRecord = Annotated[JsonObject, AfterValidator(_points)]
"""Scores by coefficient (`results.json`), or by layer (`layer_sweep.json`)."""
