"""∇θ f(x), and Θ contracted from it within a memory budget (Eq. 4)."""

from foretaste.tangent._gram import gram as gram
from foretaste.tangent._inputs import Inputs as Inputs
from foretaste.tangent._inputs import check as check_inputs  # noqa: F401
from foretaste.tangent._inputs import size as size
from foretaste.tangent._inputs import take as take
from foretaste.tangent._ntk import ntk as ntk
from foretaste.tangent._ntk import plan as plan
from foretaste.tangent._subject import Output as Output
from foretaste.tangent._subject import Params as Params
from foretaste.tangent._subject import Subject as Subject
from foretaste.tangent._subject import outputs as outputs
from foretaste.tangent._subject import subject as subject
from foretaste.tangent.infinite import counterpart as counterpart
from foretaste.tangent.infinite import infinite_ntk as infinite_ntk
