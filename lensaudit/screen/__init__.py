"""What a person reads of a result: tables and sentences, for a terminal or a notebook.

A function takes a result and gives its parts in order, each a table or a line; whoever asked prints
them: a command (`lensaudit/cli/terminal.py`), or `la.show`.
"""
