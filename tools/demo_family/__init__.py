"""The embedded family: corpus, tokenizer, stages, training."""
