"""A judge on this machine that speaks OpenAI's protocol: for tests and for trying without a key."""
