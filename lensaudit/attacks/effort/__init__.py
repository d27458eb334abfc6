"""How hard is it to bring forgotten knowledge back? Recovery by the length of an attack.

An attack that recovers after one step on four rows and one that needs a day of training are not
the same finding. `effort("demo/npo", out="E")` retrains a model on rows of several kinds and reads
the facts that are held out after 1, 2, 4 … steps, beside `full` and `retain` retrained alike.
"""
