"""The empirical neural tangent kernel (Eq. 4)."""

from torch import Tensor, nn

from foretaste.tangent._gram import gram
from foretaste.tangent._inputs import Inputs
from foretaste.tangent._subject import Output, Params


def ntk(
    net: nn.Module,
    x: Inputs,
    x2: Inputs | None = None,
    *,
    output: Output = "sum",
    params: Params = None,
    budget: int | str | None = None,
) -> Tensor:
    """Θ(x, x2), (N, N2) in float64; ``output="full"`` gives (N, N2, C, C). See DESIGN for the rest."""
    sets = {"x": x} if x2 is None else {"x": x, "x2": x2}
    pair = ("x", "x") if x2 is None else ("x", "x2")
    theta = gram(net, sets, [pair], output=output, params=params, budget=budget)[0][pair]
    if output != "full":
        return theta
    c = theta.shape[0]
    raise NotImplementedError(c)
