"""One checkpoint, one folder: patch, evaluate, audit and cache, with plan, progress and failure."""
