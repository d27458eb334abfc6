"""Which facts come out? Many attacks on each, and the same ones on models that never knew."""
