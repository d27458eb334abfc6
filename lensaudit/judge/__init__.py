"""Who says what an answer is worth: a word list, or a language model behind an endpoint."""
