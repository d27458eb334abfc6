"""One checkpoint is asked: passes, generations, logs, reference models."""
