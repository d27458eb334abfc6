"""Judges of answers: word lists, or a language model behind an endpoint."""
