"""The empirical neural tangent kernel (Eq. 4)."""

from typing import Any

from torch import Tensor, nn

from foretaste.tangent._gram import Progress, checked, gram, prepare
from foretaste.tangent._inputs import Inputs, size
from foretaste.tangent._plan import Plan
from foretaste.tangent._subject import Output, Params, subject


def ntk(
    net: nn.Module,
    x: Inputs,
    x2: Inputs | None = None,
    *,
    output: Output = "sum",
    params: Params = None,
    budget: int | float | str | None = None,
    precision: str = "float32",
    progress: Progress | None = None,
) -> Tensor:
    """Θ(x, x2) = ∇f(x) ∇f(x2)ᵀ of a network in eval mode, (N, N2) in float64; x2 None is x, at half the work.

    output: which function of the outputs is differentiated. "sum" is Σ_c f_c / √C, "first" the paper's single logit,
        an int that logit, "full" all of them: (N, N2, C, C), "trace" the mean of its diagonal, Σ_c Θ_cc / C, for less.
    params: None is every parameter that requires grad; else a callable(name) -> bool, or names.
    budget: bytes, or "8GB", that the engine's own tensors may take, Θ included; ``plan`` tells what it would do.
    precision: "float32", or on a CUDA device "tf32" or "half", several times faster: see ``tangent.gram``.
    progress: called with (points done, points to do), once a chunk.
    """
    sets, pair = pairing(x, x2)
    how: dict[str, Any] = {"output": output, "params": params, "budget": budget, "precision": precision}
    theta = gram(net, sets, [pair], **how, progress=progress)[0][pair]
    if output != "full":
        return theta
    n, m = size(sets[pair[0]]), size(sets[pair[1]])
    return theta.view(n, theta.shape[0] // n, m, -1).permute(0, 2, 1, 3)


def plan(
    net: nn.Module,
    x: Inputs,
    x2: Inputs | None = None,
    *,
    output: Output = "sum",
    params: Params = None,
    budget: int | float | str | None = None,
) -> Plan:
    """What ``ntk`` would do: passes, points at a time, estimated peak memory. Costs a few points' passes."""
    sets, pair = pairing(x, x2)
    subj = subject(net, output=output, params=params)
    return prepare(subj, checked(subj, sets), [pair], (), budget)[1]


def pairing(x: Inputs, x2: Inputs | None) -> tuple[dict[str, Inputs], tuple[str, str]]:
    return ({"x": x}, ("x", "x")) if x2 is None else ({"x": x, "x2": x2}, ("x", "x2"))
