"""How sure is the area between two pools of models, each of which counts by itself?"""

import math

from lensaudit.scores.areas import A_NAN, area_limits
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import Values
from lensaudit.scores.separation import auc


def auc_limits(knows: Values, forgot: Values) -> Estimate:
    """Area under the ROC curve with limits that do not collapse at complete separation.

    The areas A with (estimate - A)^2 <= z^2 var(A), var by Hanley and McNeil with both sample sizes
    replaced by their mean (Newcombe 2006, method 5).

    Raises:
        ValueError: an empty pool.
    """
    estimate = auc(knows, forgot)
    if math.isnan(estimate):
        return Estimate(None, why=A_NAN)
    return area_limits(estimate, len(knows), len(forgot))
