"""What metrics read inside a model. Listing metrics imports none of it: it needs torch."""
