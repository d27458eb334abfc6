"""Kinds of result that rooms above the core write: a file a kind.

Each holds the record that its command writes and everybody reads, its row of the table of kinds in
`KINDS`, and in `VIEWS` what it says of its model. The core finds them by this folder, and imports
none by name.
"""
