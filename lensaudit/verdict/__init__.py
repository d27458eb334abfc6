"""The verdict of a model: views of results, one decision, one sentence."""
