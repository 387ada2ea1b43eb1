"""What a network would become with one more label, without training (Eq. 5, 8, 10-12).

state.py says what a ``State`` is, kernel_settings.py with which settings it is made. linearize.py makes one, from a
network or from kernels. dense.py and direct.py are its two kinds; factors.py holds what kept labels take,
cross_entropy.py solves labels under cross-entropy. graph.py bends Θ along the unlabelled pool, pool_state.py is the
state on that. targets.py turns labels into targets, problem.py holds the outputs and the blocks of Θ, solve.py solves
with them.
"""

from foretaste.lookahead.dense import DenseState as DenseState
from foretaste.lookahead.dense import OtherCandidates as OtherCandidates
from foretaste.lookahead.dense import Posterior as Posterior
from foretaste.lookahead.graph import FEWEST_POINTS as FEWEST_POINTS
from foretaste.lookahead.graph import Graph as Graph
from foretaste.lookahead.graph import Placed as Placed
from foretaste.lookahead.graph import PoolEvidence as PoolEvidence
from foretaste.lookahead.graph import PoolKernel as PoolKernel
from foretaste.lookahead.graph import choose_gamma as choose_gamma
from foretaste.lookahead.graph import read_pool as read_pool
from foretaste.lookahead.graph import weigh_ridges as weigh_ridges
from foretaste.lookahead.kernel_settings import METHODS as METHODS
from foretaste.lookahead.kernel_settings import WATCH_BY as WATCH_BY
from foretaste.lookahead.kernel_settings import KernelSettings as KernelSettings
from foretaste.lookahead.large_labels import LANDMARKS as LANDMARKS
from foretaste.lookahead.large_labels import LargeLabels as LargeLabels
from foretaste.lookahead.linearize import carry_misfit as carry_misfit
from foretaste.lookahead.linearize import check_points as check_points
from foretaste.lookahead.linearize import from_kernels as from_kernels
from foretaste.lookahead.linearize import linearise as linearise
from foretaste.lookahead.linearize import linearize as linearize
from foretaste.lookahead.linearize import watched_points as watched_points
from foretaste.lookahead.linearize import watched_rows as watched_rows
from foretaste.lookahead.pool_state import PoolState as PoolState
from foretaste.lookahead.pool_state import as_pool_state as as_pool_state
from foretaste.lookahead.pool_state import soft_labels as soft_labels
from foretaste.lookahead.pool_state import unbent as unbent
from foretaste.lookahead.problem import PriorKernel as PriorKernel
from foretaste.lookahead.solve import cholesky as cholesky
from foretaste.lookahead.solve import leave_one_out as leave_one_out
from foretaste.lookahead.solve import misfit_ridge as misfit_ridge
from foretaste.lookahead.solve import ridge_factor as ridge_factor
from foretaste.lookahead.state import State as State
from foretaste.lookahead.targets import binary_params as binary_params
from foretaste.lookahead.targets import label_rules as label_rules
from foretaste.lookahead.targets import settle_binary as settle_binary
from foretaste.losses import BinaryOutputs as BinaryOutputs
