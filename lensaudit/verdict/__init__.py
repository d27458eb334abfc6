"""What may be said of a model: views of results, one decision, one sentence."""
