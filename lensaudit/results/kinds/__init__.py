"""Kinds of result: a file a kind, with the record that its command writes and everybody reads."""
