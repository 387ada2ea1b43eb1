"""Bayesian strategies by dropout (Gal and Ghahramani 2016): BALD and BatchBALD.

K networks are drawn from one by dropping units; the same units for all points, so that outputs of one draw belong
together. A label is worth asking for if the draws disagree about it while each is sure.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretaste.acquire import LazyGains, StudyHints, register
from foretaste.errors import real_number, whole_number
from foretaste.losses import probabilities
from foretaste.pick.badge import find_last_layer, last_layer_inputs, last_layer_map
from foretaste.pick.request import Request
from foretaste.pick.select import highest_scores
from foretaste.tangent import FrozenNetwork, check_inputs, outputs

WHOLE_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # these drop a channel, with all its positions
JOINT_CHUNK = 2**22  # numbers of (configurations, candidates · C) at a time: 32 MB
SATURATED = 1e-9  # nats: what a label can still tell, when the draws cannot be told apart any further


@dataclass(frozen=True)
class DropoutOptions:
    """The options of ``bald``, and with ``configurations`` of ``batchbald``.

    samples: K, how many networks are drawn.
    rate: None draws by the network's own dropout layers. A number drops that share of the last layer's inputs instead,
        for a network that has none.
    layer: the module whose input ``rate`` drops, if the network does not end in an nn.Linear.
    """

    samples: int = 100
    rate: float | None = None
    layer: str | None = None

    def __post_init__(self) -> None:
        whole_number("samples", self.samples, 2)
        if self.rate is not None and not 0 < real_number("rate", self.rate) < 1:
            raise ValueError(f"rate={self.rate}; expected a share between 0 and 1, of units to drop")
        if not isinstance(self.layer, str | None):
            raise ValueError(f"layer={self.layer!r}; expected the name of a module, or None")
        if self.layer is not None and self.rate is None:
            raise ValueError(f'layer={self.layer!r} is where a rate drops units; give options={{"rate": 0.5}} too')


@register("bald", needs="classes", select="own", options=DropoutOptions, study=StudyHints(small={"samples": 10}))
def bald(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """BALD (Houlsby et al. 2011; Gal et al. 2017): H(mean_k p_k) − mean_k H(p_k), the highest are picked.

    The information that a label gives about which of K networks, drawn by dropout, is right. Cost: KUP, and with
    ``rate`` UP + KUCD.
    """
    o = DropoutOptions(**options)
    scores_U = mutual_information(draw_networks(request, o.samples, o.rate, o.layer, "bald"))
    return highest_scores(scores_U, request.batch_size, request.generator), scores_U


@dataclass(frozen=True)
class BatchBALDOptions(DropoutOptions):
    """Those of ``DropoutOptions``, and

    configurations: up to this many joint labels of a batch are enumerated; beyond that, this many are drawn.
    """

    configurations: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("configurations", self.configurations, 1)


@register("batchbald", needs="classes", select="own", options=BatchBALDOptions, study=StudyHints(small={"samples": 10}))
def batchbald(request: Request, **options: Any) -> tuple[Tensor, Tensor]:
    """BatchBALD (Kirsch et al. 2019): the batch whose labels together tell the most about which network is right.

    Greedy on H(y_B) − mean_k Σ_{j∈B} H(p_kj), which is submodular. Labels of B are enumerated while there are few, and
    drawn beyond. K draws differ by log K nats at most: when a batch has gained that, the rest of it is picked in the
    order of ``bald``, and ``q.info["informative"]`` is how many picks came before. Scores are those of ``bald``.
    """
    o = BatchBALDOptions(**options)
    p_KUC = draw_networks(request, o.samples, o.rate, o.layer, "batchbald")
    scores_U = mutual_information(p_KUC)
    order_U = torch.randperm(request.U, generator=request.generator)
    lazy = LazyGains(scores_U, order_U, look=16)  # weighing the draws costs as much as that
    joint, picks = JointLabels(p_KUC, o.configurations, request.generator), list[int]()
    while len(picks) < request.batch_size:
        best, gain = lazy.pop(joint.gains)
        if not gain > SATURATED:
            break
        joint.add(best)
        picks.append(best)
        request.progress(len(picks), request.batch_size)
    request.info["informative"] = len(picks)
    alone = scores_U.tolist()
    rest = sorted(lazy.others(picks), key=lambda j: -alone[j])
    return torch.tensor(picks + rest[: request.batch_size - len(picks)]), scores_U


# --- information ---


def mutual_information(p_KUC: Tensor) -> Tensor:
    """(U,): H(mean_k p_k) − mean_k H(p_k), in nats."""
    whole_U = torch.special.entr(p_KUC.mean(0)).sum(1)
    return (whole_U - own_entropies(p_KUC)).clamp_min_(0)


def own_entropies(p_KUC: Tensor) -> Tensor:
    """(U,): mean_k H(p_k)."""
    return sum((torch.special.entr(p_UC).sum(1) for p_UC in p_KUC), p_KUC.new_zeros(p_KUC.shape[1])) / len(p_KUC)


class JointLabels:
    """Labels of the points picked so far, as M configurations, and what one more point adds.

    Given configuration m, draw k is right with probability w_mk ∝ Π_{j∈B} p_kj(y_mj). So the label of j has entropy
    H(Σ_k w_mk p_kj), and j adds Σ_m π_m H(Σ_k w_mk p_kj) − mean_k H(p_kj), with π_m the probability of m. Drawn
    configurations each come from one of the K networks in turn, and have π_m = 1/M.
    """

    def __init__(self, p_KUC: Tensor, most: int, generator: torch.Generator) -> None:
        self.p_KUC, self.generator = p_KUC, generator
        self.K, _, self.C = p_KUC.shape
        self.most = max(1, math.ceil(most / self.K)) * self.K  # as many from each network
        self.own_U = own_entropies(p_KUC)
        self.picked: list[int] = []
        self.log_MK = p_KUC.new_zeros(1, self.K)
        self.share_M = p_KUC.new_ones(1)
        self.drawn_M: Tensor | None = None  # the network that a configuration was drawn from; None: enumerated

    def gains(self, at: Tensor) -> Tensor:
        """(n,): the information that each of these points adds."""
        w_MK = self.log_MK.softmax(1)
        step = max(1, JOINT_CHUNK // (len(w_MK) * self.C))
        found = []
        for part in at.split(step):
            q_MnC = (w_MK @ self.p_KUC[:, part].flatten(1)).view(len(w_MK), len(part), self.C)
            found.append(self.share_M @ torch.special.entr(q_MnC).sum(2))
        return torch.cat(found) - self.own_U[at]

    def add(self, j: int) -> None:
        """Pick a point."""
        self.picked.append(j)
        if self.drawn_M is None and len(self.share_M) * self.C > self.most:
            self.drawn_M = torch.arange(self.most, device=self.p_KUC.device) % self.K
            self.share_M = self.own_U.new_full((self.most,), 1 / self.most)
            self.log_MK = self.own_U.new_zeros(self.most, self.K)
            for i in self.picked:
                self._draw(i)
        elif self.drawn_M is not None:
            self._draw(j)
        else:
            self.log_MK = (self.log_MK[:, None] + self.p_KUC[:, j].T.log()).flatten(0, 1)
            self.share_M = self.log_MK.exp().mean(1)
            possible = self.share_M > 0
            self.log_MK, self.share_M = self.log_MK[possible], self.share_M[possible]

    def _draw(self, j: int) -> None:
        assert self.drawn_M is not None
        p_MC = self.p_KUC[self.drawn_M, j]
        e_MC = torch.empty(p_MC.shape, dtype=torch.float64).exponential_(generator=self.generator).clamp_min_(1e-30)
        y_M = (p_MC / e_MC.to(p_MC)).argmax(1)  # y with probability p(y), the same on every device
        self.log_MK = self.log_MK + self.p_KUC[:, j, y_M].T.log()


# --- networks drawn by dropout ---


def draw_networks(request: Request, samples: int, rate: float | None, layer: str | None, strategy: str) -> Tensor:
    """(K, U, C): probabilities of classes by each draw, float64. Raises before any work if nothing can be dropped."""
    frozen = request.frozen
    check_inputs(request.x_U, "x_U", frozen.device)
    if rate is None:
        layers = [m for m in frozen.net.modules() if isinstance(m, (nn.Dropout, *WHOLE_CHANNELS))]
        sites: dict[nn.Module, float] = {m: m.p for m in layers if m.p > 0}
        if not sites:
            raise ValueError(
                f"strategy {strategy!r} draws networks by dropout, and this network has no nn.Dropout with p > 0; "
                f'options={{"rate": 0.5}} drops half of the last layer\'s inputs instead'
            )
        return _collect(request, samples, lambda: _outputs_with(frozen, request, sites, inputs=False))
    name = find_last_layer(frozen, request.x_U, layer)
    module = frozen.net.get_submodule(name)
    if layer is not None or not isinstance(module, nn.Linear):
        return _collect(request, samples, lambda: _outputs_with(frozen, request, {module: rate}, inputs=True))
    _, h_UD = last_layer_inputs(frozen, request.x_U, name, last=True)
    W_CD, b_C = last_layer_map(frozen, module)

    def drawn() -> Tensor:
        return F.linear(h_UD * _mask((1, h_UD.shape[1]), rate, request.generator, h_UD), W_CD, b_C)

    return _collect(request, samples, drawn)


def _collect(request: Request, samples: int, draw: Callable[[], Tensor]) -> Tensor:
    parts = []
    for k in range(samples):
        parts.append(probabilities(draw(), request.loss))
        request.progress(k + 1, samples)
    return torch.stack(parts)


def _outputs_with(frozen: FrozenNetwork, request: Request, sites: dict[nn.Module, float], inputs: bool) -> Tensor:
    with dropping(frozen.net, sites, request.generator, inputs):
        return outputs(frozen, request.x_U, name="x_U")


@contextmanager
def dropping(
    net: nn.Module, sites: dict[nn.Module, float], generator: torch.Generator, inputs: bool
) -> Iterator[None]:  # fmt: skip
    """Drop a share of what these modules return, or of their ``inputs``: the same units for every point."""
    masks: dict[tuple[int, int, torch.Size], Tensor] = {}
    calls: dict[int, int] = {}

    def masked(module: nn.Module, t: Tensor) -> Tensor:
        n = calls[id(module)] = calls.get(id(module), -1) + 1  # a module that is called twice has two masks
        key = (id(module), n, t.shape[1:])
        if key not in masks:
            whole = isinstance(module, WHOLE_CHANNELS)
            shape = (1, t.shape[1], *[1] * (t.dim() - 2)) if whole else (1, *t.shape[1:])
            masks[key] = _mask(shape, sites[module], generator, t)
        return t * masks[key]

    def after(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return masked(module, out)

    def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (masked(module, args[0]), *args[1:])

    def start(module: nn.Module, args: Any, kwargs: Any) -> None:
        calls.clear()

    with ExitStack() as hooks:
        hooks.enter_context(net.register_forward_pre_hook(start, with_kwargs=True))
        for m in sites:
            hooks.enter_context(m.register_forward_pre_hook(before) if inputs else m.register_forward_hook(after))
        yield


def _mask(shape: tuple[int, ...], rate: float, generator: torch.Generator, like: Tensor) -> Tensor:
    keep = torch.rand(shape, generator=generator) >= rate
    return keep.to(like) / (1 - rate)
