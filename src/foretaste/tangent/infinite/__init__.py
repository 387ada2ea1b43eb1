"""The kernels of infinitely wide networks in closed form: the NTK, and the NNGP. closed_form.py has the derivation."""

from foretaste.tangent.infinite.closed_form import PARAMETRISATIONS as PARAMETRISATIONS
from foretaste.tangent.infinite.closed_form import counterpart as counterpart
from foretaste.tangent.infinite.closed_form import infinite_ntk as infinite_ntk
from foretaste.tangent.infinite.layers import Conv as Conv
from foretaste.tangent.infinite.layers import Covariance as Covariance
from foretaste.tangent.infinite.layers import Dense as Dense
from foretaste.tangent.infinite.layers import Erf as Erf
from foretaste.tangent.infinite.layers import Flatten as Flatten
from foretaste.tangent.infinite.layers import GlobalAveragePool as GlobalAveragePool
from foretaste.tangent.infinite.layers import Identity as Identity
from foretaste.tangent.infinite.layers import Layer as Layer
from foretaste.tangent.infinite.layers import Relu as Relu
from foretaste.tangent.infinite.layers import Residual as Residual
from foretaste.tangent.infinite.layers import Serial as Serial
from foretaste.tangent.infinite.layers import Signal as Signal
