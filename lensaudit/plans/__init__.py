"""How much is left to do: forward passes, rows and bytes, counted before any model is loaded."""
