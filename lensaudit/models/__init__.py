"""Models: names, checkpoints, and the bridge to TransformerLens."""
