"""LL4AL (Yoo and Kweon 2019, arXiv 1905.03677): points whose loss a module trained for that predicts to be high."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.acquire import OwnTraining, StudyHints, register
from foretaste.losses import LOSSES
from foretaste.network import Fit, LossPrediction, feature_layers, fit_ll4al, fit_ll4al_alone, predict_losses
from foretaste.pick.request import Request
from foretaste.pick.select import highest_scores
from foretaste.tangent import check_inputs, freeze


@dataclass(frozen=True)
class LL4ALOptions:
    """The options of ``ll4al``. Give ``module`` or ``layers``.

    module: the ``LossPrediction`` that ``foretaste.network.fit_ll4al`` trained beside the network.
    layers: names of feature layers; a module is then trained on the finished network now.
    steps: of that training; default 600.
    """

    module: LossPrediction | None = None
    layers: Any = None
    steps: int = 600

    def __post_init__(self) -> None:
        if self.module is None and self.layers is None:
            raise ValueError(
                "strategy 'll4al' needs the module trained beside the network: result, module = "
                'foretaste.network.fit_ll4al(net, x_L, y_L, layers=[...]), then options={"module": module}; '
                'or options={"layers": [...]}, which trains one on the finished network and is not the paper\'s method'
            )
        if self.module is not None and self.layers is not None:
            raise ValueError("module and layers were both given; a trained module knows its layers")
        if self.module is not None and not isinstance(self.module, LossPrediction):
            raise TypeError(f"module is a {type(self.module).__name__}; expected the LossPrediction of fit_ll4al")


def train_with_module(
    net: nn.Module, x_L: Tensor, y_L: Tensor, *, layers: Any = None, **settings: Any
) -> tuple[Fit, dict[str, Any]]:
    """Train network and module together by ``fit_ll4al``, on every feature layer by default. Returns both results."""
    layers = feature_layers(net) if layers is None else layers
    trained, module = fit_ll4al(net, x_L, y_L, layers=layers, **settings)
    return trained, {"module": module}


TRAINING = OwnTraining(
    fit=train_with_module,
    options=("layers", "reduction", "weight", "margin", "stop", "hidden"),
    max_lr={name: loss.ll4al_max_lr for name, loss in LOSSES.items()},
)


@register("ll4al", select="own", options=LL4ALOptions, study=StudyHints(trains=TRAINING))
def ll4al(
    request: Request, module: LossPrediction | None = None, layers: Any = None, steps: int = 600
) -> tuple[Tensor, Tensor]:
    """The points whose predicted loss l̂(x) is highest (Yoo and Kweon 2019). For classes and for regression.

    Only the order of predicted losses was trained. With ``layers`` a module is first trained on the finished network;
    in the paper both are trained together, which shapes the network's features. Cost: one pass over the pool.
    """
    frozen = freeze(request.given_net, params=lambda name: True)
    check_inputs(request.x_U, "x_U", frozen.device)
    if module is None:
        if not isinstance(request.x_L, Tensor | None):
            raise TypeError(
                f"x_L is a {type(request.x_L).__name__}; a module is trained here on one tensor of points. Wrap the "
                'network, or train the module elsewhere and give options={"module": module}'
            )
        if request.x_L is None or request.L == 0:
            raise ValueError(
                "x_L is empty, and a loss-prediction module learns from labelled points; label two or more"
            )
        check_inputs(request.x_L, "x_L", frozen.device, like=request.x_U)
        seed = int(torch.randint(2**62, (), generator=request.generator))
        y_L = torch.as_tensor(request.y_L)
        module = fit_ll4al_alone(frozen.net, request.x_L, y_L, layers=layers, loss=request.loss, steps=steps, seed=seed)
    p = next(module.parameters())
    if (p.device, p.dtype) != (frozen.device, frozen.dtype):
        raise ValueError(
            f"module is on {p.device} in {p.dtype}, the network on {frozen.device} in {frozen.dtype}; use module.to()"
        )
    losses_U = predict_losses(frozen.net, module, request.x_U)
    return highest_scores(losses_U, request.batch_size, request.generator), losses_U
