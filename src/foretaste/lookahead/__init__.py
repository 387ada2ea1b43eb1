"""What a network would become with one more label, without training (Eq. 5, 8, 10-12).

state.py says what a ``State`` is, settings.py with which settings it is made. linearize.py makes one, from a network or
from kernels. dense.py and direct.py are its two kinds; factors.py holds what kept labels take, cross_entropy.py solves
labels under cross-entropy. targets.py turns labels into targets, problem.py holds the outputs and the blocks of Θ,
solve.py solves with them.
"""

from foretaste.lookahead.dense import DenseState as DenseState
from foretaste.lookahead.kernel_settings import METHODS as METHODS
from foretaste.lookahead.kernel_settings import WATCH_BY as WATCH_BY
from foretaste.lookahead.kernel_settings import KernelSettings as KernelSettings
from foretaste.lookahead.linearize import carry_misfit as carry_misfit
from foretaste.lookahead.linearize import check_points as check_points
from foretaste.lookahead.linearize import from_kernels as from_kernels
from foretaste.lookahead.linearize import linearise as linearise
from foretaste.lookahead.linearize import linearize as linearize
from foretaste.lookahead.linearize import watched_points as watched_points
from foretaste.lookahead.linearize import watched_rows as watched_rows
from foretaste.lookahead.solve import cholesky as cholesky
from foretaste.lookahead.solve import misfit_ridge as misfit_ridge
from foretaste.lookahead.state import PriorKernel as PriorKernel
from foretaste.lookahead.state import State as State
from foretaste.lookahead.targets import binary_params as binary_params
from foretaste.lookahead.targets import label_rules as label_rules
from foretaste.lookahead.targets import settle_binary as settle_binary
from foretaste.losses import BinaryOutputs as BinaryOutputs
