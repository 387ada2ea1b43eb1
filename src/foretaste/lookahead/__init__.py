"""f_lin on L+ without training (Eq. 5, 8, 10-12): State."""

from foretaste.lookahead.dense import DenseState as DenseState
from foretaste.lookahead.labels import label_rules as label_rules
from foretaste.lookahead.linearize import METHODS as METHODS
from foretaste.lookahead.linearize import PRECISION_CHOICES as PRECISION_CHOICES
from foretaste.lookahead.linearize import check_settings as check_settings
from foretaste.lookahead.linearize import from_kernels as from_kernels
from foretaste.lookahead.linearize import linearize as linearize
from foretaste.lookahead.linearize import watched_points as watched_points
from foretaste.lookahead.state import State as State
from foretaste.lookahead.state import cholesky as cholesky
