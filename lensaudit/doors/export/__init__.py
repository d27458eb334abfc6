"""What was found of a model, in files of other tools."""
