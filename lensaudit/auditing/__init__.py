"""One checkpoint, one folder: patch, evaluate and audit, with progress and failure."""
