"""Special functions of scipy, without what they bring along and nothing here asks for.

scipy.special reads every name of numpy, and with them imports `f2py` and `testing`. Here both are
imported once somebody uses them.
"""

import lazy_loader
import numpy as np

for _part in ("f2py", "testing"):
    setattr(np, _part, lazy_loader.load(f"numpy.{_part}", suppress_warning=True))

from scipy.special import bdtrc, betaincinv, gammaln, ndtri, stdtr, stdtrit  # noqa: E402

__all__ = ["bdtrc", "betaincinv", "gammaln", "ndtri", "stdtr", "stdtrit"]
