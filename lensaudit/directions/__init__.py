"""Does one direction hide the answers? Add, ablate, clamp, restore, mediate."""
