"""Look-ahead active learning: what a network would become if a point were labelled, without retraining it.

Letters, used everywhere as the last part of a name: L labelled points, U candidates (the pool), W watched points,
C classes, P parameters, N any points; lower case for a chunk of them. ``j`` is a candidate, ``i`` a watched point.
``theta_LU`` is (L, U), ``scores_U`` is (U,).
"""

from foretaste import acquire as acquire
from foretaste import testing as testing
from foretaste.acquire import register as register
from foretaste.acquire import strategies as strategies
from foretaste.network import fit as fit
from foretaste.query import Query as Query
from foretaste.query import query as query
from foretaste.retrain import State as State
from foretaste.retrain import linearize as linearize
from foretaste.tangent import ntk as ntk

__version__ = "0.1.0"
