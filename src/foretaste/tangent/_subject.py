"""The network under study: unwrapped, checked, and called so that nothing is left behind on it."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from foretaste.tangent._inputs import Inputs, check, finite, size, take

Output = str | int
OUTPUTS = ("sum", "first", "full", "trace")  # or the number of a logit
Params = Callable[[str], bool] | Sequence[str] | None


@dataclass(frozen=True)
class Subject:
    """A network in eval mode and the parameters its tangent is taken in.

    It is only ever called on detached parameters and cloned buffers: no ``.grad``, running statistic or
    ``requires_grad`` flag of the user's network can change, whatever happens.
    """

    net: nn.Module
    params: dict[str, Tensor]
    output: Output
    device: torch.device
    dtype: torch.dtype
    recurrent: bool = False

    def call(self, x: Inputs, params: dict[str, Tensor] | None = None) -> Tensor:
        state = {k: p.detach() for k, p in self.net.named_parameters()}
        state |= {k: b.clone() for k, b in self.net.named_buffers()}
        state |= params or {}
        return self._run(x, state)

    def bare(self, x: Inputs) -> Tensor:
        """On the network's own parameters; for the few points on which everything else is checked."""
        return self._run(x, {k: b.clone() for k, b in self.net.named_buffers()})

    def _run(self, x: Inputs, state: dict[str, Tensor]) -> Tensor:
        args, kwargs = ((), dict(x)) if not isinstance(x, Tensor) else ((x,), {})
        with without_cudnn() if self.recurrent else nullcontext():  # its recurrences have no gradient in eval mode
            return functional_call(self.net, state, args, kwargs)

    def heads(self, f_NC: Tensor) -> Tensor:
        """(N, B): the outputs whose gradients make the kernel. B is 1, or C for "full" and "trace"."""
        match self.output:
            case "sum":
                return f_NC.sum(1, keepdim=True) / math.sqrt(f_NC.shape[1])
            case "full":
                return f_NC
            case "trace":
                return f_NC / math.sqrt(f_NC.shape[1])
            case "first":
                return f_NC[:, :1]
            case k:
                return f_NC[:, int(k), None]


def unwrap(net: nn.Module) -> nn.Module:
    """The module inside torch.compile, DistributedDataParallel or DataParallel: hooks and vmap need it bare."""
    while True:
        if isinstance(inner := getattr(net, "_orig_mod", None), nn.Module):
            net = inner
        elif isinstance(net, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            net = net.module
        else:
            return net


def subject(net: nn.Module, *, output: Output = "sum", params: Params = None) -> Subject:
    """Check ``net`` and choose its parameters; raises a ValueError that says what to do."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"net is a {type(net).__name__}; expected a torch.nn.Module")
    net = unwrap(net)
    if net.training:
        raise ValueError("net is in train mode, so Θ depends on the batch; call net.eval() first")
    if training := [name for name, m in net.named_modules() if m.training]:
        raise ValueError(
            f"submodule {training[0]!r} is in train mode, so Θ depends on the batch; call net.eval() first"
        )
    chosen = select(net, params)
    tensors = list(chosen.values())
    if half := {str(p.dtype) for p in tensors if p.dtype not in (torch.float32, torch.float64)}:
        raise ValueError(
            f"net has parameters in {', '.join(sorted(half))}, too coarse for a ranking by Θ; use net.float(), "
            "or a float32 copy"
        )
    if len({p.device for p in tensors}) > 1 or len({p.dtype for p in tensors}) > 1:
        raise ValueError(
            "parameters are of several devices or dtypes; move the network to one with net.to(device, dtype)"
        )
    for name, p in net.named_parameters():
        if not finite(p.detach()):
            raise ValueError(f"parameter {name!r} has NaN or infinite values; the network has diverged: retrain it")
    if not (output in OUTPUTS or (isinstance(output, int) and not isinstance(output, bool))):
        raise ValueError(f"unknown output {output!r}{nearest(output, OUTPUTS)}; or the number of a logit")
    recurrent = tensors[0].is_cuda and any(isinstance(m, nn.RNNBase) for m in net.modules())
    return Subject(net, chosen, output, tensors[0].device, tensors[0].dtype, recurrent)


def select(net: nn.Module, params: Params) -> dict[str, Tensor]:
    every = dict(net.named_parameters())
    if not every:
        raise ValueError("net has no parameters; its tangent kernel is zero")
    if params is None:
        chosen = {k: p.detach() for k, p in every.items() if p.requires_grad}
        if not chosen:
            raise ValueError("no parameter of net requires grad; unfreeze some, or name them with params=")
        return chosen
    if callable(params):
        chosen = {k: p.detach() for k, p in every.items() if params(k)}
        if not chosen:
            raise ValueError(f"params= selects none of the {len(every)} parameters: {', '.join(list(every)[:8])}, ...")
        return chosen
    if isinstance(params, str):
        raise TypeError(f"params is a string; expected a sequence of names, [{params!r}], or a callable")
    if unknown := [k for k in params if k not in every]:
        raise ValueError(f"unknown parameter {unknown[0]!r}{nearest(unknown[0], every)}")
    if not params:
        raise ValueError("params= is empty; expected at least one parameter name")
    return {k: every[k].detach() for k in params}


def nearest(name: object, names: Iterable[str]) -> str:
    close = get_close_matches(str(name), list(names), 1)
    return f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(map(str, list(names)[:20]))}"


@contextmanager
def untouched(device: torch.device, precision: str = "float32") -> Iterator[None]:
    """RNG state as found, autocast off, gradients on: what the passes need whatever surrounds them.

    precision: of float32 products on a CUDA device, "float32" or "tf32", whatever the user's own setting.
    """
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        torch.autocast(device.type, enabled=False),
        torch.enable_grad(),
        products_in(precision) if device.type == "cuda" else nullcontext(),
    ):
        yield


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Torch's own kernels: its recurrences can be batched, its float64 convolutions are twice as fast."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


PRECISIONS = ("float32", "tf32", "half")  # of the engine; linearize and query have "auto" besides


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Matrix products and convolutions of float32 tensors in true float32, or in TF32; the same every time."""
    cudnn: Any = torch.backends.cudnn
    places = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    before, repeatable = [p.fp32_precision for p in places], cudnn.deterministic
    try:
        cudnn.deterministic = True
        for p in places:
            p.fp32_precision = "ieee" if precision == "float32" else "tf32"
        yield
    finally:
        cudnn.deterministic = repeatable
        for p, was in zip(places, before):
            p.fp32_precision = was


PROBE = 3


def probe(subj: Subject, x: Inputs, name: str = "x") -> int:
    """Run a few points; return C. Raises unless outputs are (N, C), finite, and each point's own.

    Points that influence one another (a BatchNorm of one's own on batch statistics, attention over the batch)
    have no per-point gradient: each output alone must equal the same output in company.
    """
    k = min(PROBE, size(x))
    with untouched(subj.device), torch.no_grad():
        together = subj.call(take(x, slice(k)))
        if not isinstance(together, Tensor):
            raise TypeError(
                f"net returns a {type(together).__name__}; expected a tensor (N, C): wrap it to return logits"
            )
        if together.dim() != 2 or together.shape[0] != k:
            raise ValueError(f"net returns {tuple(together.shape)} for {k} points; expected ({k}, C)")
        if not torch.isfinite(together).all():
            raise ValueError(f"net returns NaN or infinite outputs for the first points of {name}")
        alone = torch.cat([subj.call(take(x, slice(i, i + 1))) for i in range(k)])
    tolerance = 1e-3 if subj.dtype == torch.float32 else 1e-8
    scale = max(float(together.abs().max()), 1e-12)
    if (gap := float((alone - together).abs().max())) > tolerance * scale:
        raise ValueError(
            f"points influence one another: an output changes by {gap:.1e} when its point is fed alone; "
            "Θ needs each output to depend on its own input only"
        )
    if isinstance(subj.output, int) and not -together.shape[1] <= subj.output < together.shape[1]:
        raise ValueError(f"output={subj.output} but net has {together.shape[1]} outputs")
    return together.shape[1]


def outputs(
    net: nn.Module | Subject, x: Inputs, *, chunk_size: int = 256, name: str = "x", precision: str = "float32"
) -> Tensor:
    """f on every point, (N, C) in float64, in eval mode and without gradients."""
    subj = net if isinstance(net, Subject) else subject(net)
    check(x, name, subj.device)
    with untouched(subj.device, precision), torch.no_grad():
        chunks = [subj.call(take(x, slice(i, i + chunk_size))) for i in range(0, size(x), chunk_size)]
    f_NC = torch.cat(chunks)
    if not torch.isfinite(f_NC).all():
        bad = int((~torch.isfinite(f_NC)).any(1).nonzero()[0])
        raise ValueError(f"net returns NaN or infinite outputs, first at point {bad} of {name}")
    return exact(f_NC)


def exact(t: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return t.cpu().double() if t.device.type == "mps" else t.double()
