"""What does a model still say? One file per family of metrics, one decorated function each."""
