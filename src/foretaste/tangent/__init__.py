"""∇θ f(x), and Θ contracted from it within a memory budget (Eq. 4)."""

from foretaste.tangent.frozen import OUTPUTS as OUTPUTS
from foretaste.tangent.frozen import PRECISIONS as PRECISIONS
from foretaste.tangent.frozen import PROBE_POINTS as PROBE_POINTS
from foretaste.tangent.frozen import FrozenNetwork as FrozenNetwork
from foretaste.tangent.frozen import Inputs as Inputs
from foretaste.tangent.frozen import Output as Output
from foretaste.tangent.frozen import Params as Params
from foretaste.tangent.frozen import check_inputs as check_inputs
from foretaste.tangent.frozen import count_points as count_points
from foretaste.tangent.frozen import freeze as freeze
from foretaste.tangent.frozen import isolated as isolated
from foretaste.tangent.frozen import outputs as outputs
from foretaste.tangent.frozen import probe_outputs as probe_outputs
from foretaste.tangent.frozen import take_points as take_points
from foretaste.tangent.frozen import to_float64 as to_float64
from foretaste.tangent.infinite.counterpart import counterpart as counterpart
from foretaste.tangent.infinite.kernel import infinite_ntk as infinite_ntk
from foretaste.tangent.kernel import gram as gram
from foretaste.tangent.kernel import ntk as ntk
from foretaste.tangent.kernel import plan as plan
from foretaste.tangent.memory import PeakMemory as PeakMemory
from foretaste.tangent.memory import resolve_budget as resolve_budget
from foretaste.tangent.precision import PrecisionChoice as PrecisionChoice
from foretaste.tangent.precision import kernel_holds as kernel_holds
from foretaste.tangent.precision import precisions_to_try as precisions_to_try
from foretaste.tangent.precision import rank_correlation as rank_correlation
