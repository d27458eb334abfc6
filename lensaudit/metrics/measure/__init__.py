"""The passes over a model that metrics share, and the logs they are kept in."""
