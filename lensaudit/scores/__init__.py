"""Numbers from tensors: no model, no file."""
