"""Training the network anew on what is labelled: a copy, in the background if wanted, so that labelling goes on."""

import copy
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.label.book import Label, LabelKind
from foretaste.label.pool import Pool
from foretaste.losses import find_loss
from foretaste.network import TunedText, fit, fit_tuned, make_head, reset, seeded, training_length
from foretaste.tangent import Inputs, Params, ntk

log = logging.getLogger("foretaste")

STABLE_SHARE = 0.3  # of the largest learning rate at which the linearised training is stable
RATE_POINTS = 256  # labelled points that the rate is measured on

TrainFunction = Callable[[nn.Module, Inputs, Tensor], object]


class TrainingStopped(Exception):
    """The program ends while a training is under way, or somebody has stopped it."""


def stop_at_exit(done: int = 0, total: int = 0) -> None:
    """Raise once the main thread has ended. Python then waits for a thread that trains; torch must not be cut off."""
    if not threading.main_thread().is_alive():
        raise TrainingStopped(f"the program ends after {done} of {total} steps")


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """How a network is trained: by the user's function, or by ``ft.fit`` with these options.

    ``own``: the network is the learner's own and starts from new weights each time; a user's network goes on from its
    weights. ``params``: what is trained, unless the options say otherwise; it is what Θ is of.
    """

    loss: str
    own: bool
    train: TrainFunction | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    params: Params = None

    def takes_soft_labels(self, kind: LabelKind) -> bool:
        """Whether probabilities of other items can be trained on beside the labels."""
        return self.own and self.train is None and not kind.regression


def copied_network(net: nn.Module) -> nn.Module:
    """A copy with tensors of its own: the user may go on training theirs, and Θ is of the weights as they were.

    A network that cannot be copied (it holds a lock, or a weight that autograd has made) is used as it is.
    """
    try:
        return copy.deepcopy(net)
    except Exception as error:  # deepcopy calls whatever the user's modules define
        log.info("the network cannot be copied (%s); do not change it while the learner is in use", error)
        return net


def make_own_network(x: Inputs, kind: LabelKind, seed: int) -> nn.Module:
    """A small head for these inputs, flattened, with new weights; it scales its inputs by what they are in ``x``.

    Columns of features are scaled each by itself. Pixels have one scale: a pixel that is nearly always black would
    otherwise count as much as one that tells classes apart (MNIST, 100 labels: 75 % against 82 %).
    """
    if not isinstance(x, Tensor):
        raise ValueError("the pool is a dict of tensors, for which there is no default network; give net=")
    if x.dtype == torch.bool or x.dim() < 2:
        raise ValueError(
            f"the pool is a tensor {tuple(x.shape)} of {x.dtype}; expected one row of numbers for each item, as "
            "pool.float() gives, or pool[:, None] where an item is one number"
        )
    x_ND = x.flatten(1).float()
    if x.dim() > 2:
        mean_D, one = x_ND.mean(0), x_ND.std(0, correction=0).square().mean().sqrt().clamp_min(1e-6)
        x_ND = torch.stack([mean_D - one, mean_D + one])  # two rows with these moments
    with seeded(seed, torch.device("cpu")):
        return make_head(x_ND, kind.C).eval()


def carry_outputs(old: nn.Module, new: nn.Module, new_of: Sequence[int], summed: bool) -> None:
    """Give a network the weights of another whose outputs were other classes: c became ``new_of[c]``.

    Outputs of classes that became one are ``summed``, or averaged; an output that is new says 0 everywhere.
    """
    with torch.no_grad():
        for (name, there), (_, here) in zip(old.state_dict().items(), new.state_dict().items()):
            if here.shape == there.shape and name not in _last_names(new):
                here.copy_(there)
        for there, here in zip(_last_layer(old).parameters(), _last_layer(new).parameters()):
            here.zero_()
            counts = torch.tensor([max(1, new_of.count(c)) for c in range(len(here))], dtype=here.dtype)
            here.index_add_(0, torch.tensor(new_of), there)
            if not summed:
                here.div_(counts.view(-1, *[1] * (here.dim() - 1)))


def _last_layer(net: nn.Module) -> nn.Linear:
    return [module for module in net.modules() if isinstance(module, nn.Linear)][-1]


def _last_names(net: nn.Module) -> set[str]:
    last = _last_layer(net)
    return {name for name, value in net.named_parameters() if any(value is own for own in last.parameters())}


def train_network(
    net: nn.Module,
    pool: Pool,
    labels: Mapping[int, Label],
    kind: LabelKind,
    plan: TrainingPlan,
    draw: int,
    look: Callable[[int, int], object] = stop_at_exit,
    soft: Mapping[int, Tensor] | None = None,
) -> nn.Module:
    """A trained copy of ``net``; ``net`` is only read. Raises ``Diverged`` if the loss became NaN.

    ``draw`` is the number of this training, for its seed. ``look`` is called with steps done and their number, now and
    then; what it raises ends the training. ``soft`` has probabilities of other items, which are trained on beside the
    labels, in as many steps as the labels alone would take.
    """
    at, soft = list(labels), soft or {}
    net = copy.deepcopy(net)
    parameter = next(net.parameters())
    x = pool.take([*at, *soft], parameter.device, parameter.dtype)
    values = [labels[p] for p in at]
    doubted = plan.train is None and any(map(kind.doubt, values))
    if kind.multi or doubted:
        y = kind.targets(values, parameter.dtype).to(parameter.device)
    else:
        y = torch.tensor(values, dtype=parameter.dtype if kind.regression else torch.int64, device=parameter.device)
    if plan.own:
        with seeded(plan.seed + draw, parameter.device):
            reset(net)
    if plan.train is not None:
        plan.train(net, x, y)
    else:
        options = {"progress": look, "params": plan.params, **plan.options}
        if soft:
            y_C = kind.targets(values).to(parameter.device)
            y = torch.cat([y_C, torch.stack(list(soft.values()))]).to(parameter.dtype)
            steps, epochs = options.get("steps"), options.pop("epochs", None)
            options["steps"] = training_length(net, len(at), options.get("batch_size", 32), steps, epochs)[1]
        if plan.own and options.get("max_lr") is None:
            assert isinstance(x, Tensor)  # of ``make_own_network``
            options["max_lr"] = stable_rate(net.eval(), x, kind, plan.loss, options["params"])
        options |= {"loss": plan.loss, "seed": plan.seed + draw}
        if isinstance(net, TunedText):
            fit_tuned(net, x, y, options=options)
        else:
            fit(net, x, y, **options)
    return net.eval()


def stable_rate(net: nn.Module, x: Tensor, kind: LabelKind, loss: str, params: Params = None) -> float:
    """A learning rate that does not diverge, at most that of ``ft.fit``.

    On the squared error averaged over n points and C classes, f moves by 2η Θ(f − y)/(nC) a step, which is stable up
    to η = nC/λmax(Θ). Cross-entropy has at most a quarter of the curvature, and is averaged over points only.
    """
    criterion, n = find_loss(loss), min(len(x), RATE_POINTS)
    largest = float(torch.linalg.eigvalsh(ntk(net, x[:n], params=params))[-1])
    most = n * kind.C / largest if criterion.quadratic else 8 * n / largest
    return min(criterion.max_lr, STABLE_SHARE * most)
