"""Many checkpoints: what is planned, what is done, what is left, on any number of machines."""
