"""f_lin on L+ without training (Eq. 5, 8, 10-12): State."""

from foretaste.retrain._given import from_kernels as from_kernels
from foretaste.retrain._linearize import linearize as linearize
from foretaste.retrain._state import State as State
