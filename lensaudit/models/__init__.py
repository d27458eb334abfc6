"""Who is asked: names, checkpoints, and the bridge to TransformerLens."""
