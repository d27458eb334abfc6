"""The command line: each command is a translation."""
