"""Relations, a file a kind: what is asked, options, folders, and what surrounds a call."""

from campaign.relations import asking, options, places, surroundings

SLICE_RECIPES = ("cache", "patch", "eval", "judge")
"""What the shelf must hold for the slice of the default test run."""
__all__ = ["SLICE_RECIPES", "asking", "options", "places", "surroundings"]
