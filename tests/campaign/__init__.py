"""Commands asked in combinations that no test combines: relations around the scores."""
