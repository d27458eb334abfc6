"""Every limit that a verdict is decided by, in units of the control arm: 0 never knew, 1 as `full`.

They were set on the tune half of the gym; errors on the rest: docs/evidence/gym_verdict.md.
"""

ALPHA = 0.05
"""Chance that a model that never knew is found to hold the facts, shared by the groups of views;
and that any other test finds something where nothing is held."""
FEWEST_AUTHORS = 5
"""Authors below which nothing is ruled out."""
RULED_OUT_BELOW = 0.2
"""One-sided upper limit of the share held under which a view rules out that it is held."""
HELD_FROM = 0.75
"""Lower limit of the share held from which the facts are held: a depth below .25."""
SAYS_HALF = 0.5
"""Share of `full`'s excess over models that never knew from which a model answers."""
TELLS = 0.25
"""Least difference between what `full` and `retain` say for answers to tell anything."""

COMES_BACK = 0.5
"""Share that retraining on other facts brings back from which, without an interval too, a model is
not called erased: too few authors were held out to tell how much it is."""
TYPES_APART = 0.1
"""Difference of what a model says in two types of numbers from which it was not audited as it runs;
models of the embedded family differ by .04 and less."""

TAIL_BELOW = 0.25
"""Depth of one fact under which it is still read."""
TAIL_SHARE, TAIL_LEAST = 0.05, 3
"""More than so many of the facts, and at least so many, are a tail: of models that never knew 0 to
3 of 64 are read on the tune half of the gym; at .04 those of one seed had a tail."""
HELD_AT_LAYER = 0.5
"""Share held at one strong layer from which, by its upper limit, the facts may be held there alone:
a depth is a mean over layers, and facts in the last two of sixteen leave .84 of it."""
STRONG_LAYER = 0.3
"""Mean S1 of a strong layer, as a share of the largest: where `full` has most to lose."""
SHARED_DROP = 0.25
"""How much of an aligned depth may go with one direction that the facts of other authors share."""
ADDED_FROM = 1.6
"""Times as far from `full`'s stream as `retain`'s lies, at the layer where that is largest, from
which something was added that may drown the facts. On the tune half of the gym models that never
knew, and to which nothing was added, reach 1.51; what gates add lies 2.3 times as far and more,
a rerouted stream 1.2 to 11."""
FLOOR_MARGIN = 0.1
"""How far above models that never knew the plain stream may surely lie."""

OTHERS_ZERO, OTHERS_SPREAD, OTHERS_SEEDS = 0.447, 0.058, 5
"""Depth beside another question's stream that models read which never saw the facts (tune half of
the gym): mean, standard deviation as a share of it, seeds."""
OTHERS_NEVER_SAW = (0.40, 0.49)
"""Range of the same."""
OTHERS_HELD_FROM = 0.5
"""Lower limit of the share held from which that scale says hidden. Not three quarters: with eight
authors the limits of `full` itself are 0 and .18."""
OTHERS_HIDDEN_BELOW = (1 - OTHERS_HELD_FROM) * OTHERS_ZERO
"""Upper limit of that depth under which a model hides the facts; above it nothing is shown."""

ALIGN_FROM = 0.1
"""Depth from which alignment runs: a rotation of a few directions reads little more."""
OTHER_BASIS_GAP = 0.1
"""Lower limit of depth minus aligned depth from which the basis is what hides."""
READABLE_BELOW = 0.10
"""`d_share` under which `full` reads a model. Tuned on half of the planted mechanisms."""
SHUFFLED_FROM = 0.9
"""Depth through maps of shuffled pairs from which a map invents nothing."""
VALIDITY_NEEDED_FROM = 0.25
"""Drop on the facts, in units of mean S1, from which validity is a ratio of two numbers that are
not both small."""
CALIBRATED_WITHIN = 0.02
"""How far `full` may be from 0 and `retain` from 1; the published code is off by 0.002."""
LEAST_SPREAD = 0.05
"""Of never-trained models: those of a few seeds are more alike than those to come."""
OWN_SPREAD_FROM = 4
"""A run's own never-trained models from which their spread counts; below that only their mean."""
