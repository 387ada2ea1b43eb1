"""The network under study: unwrapped, checked, and called so that nothing is left behind on it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from foretaste.errors import did_you_mean

# What a network is fed: one tensor, or a dict of tensors called as ``net(**x)``; the first dimension is the points.


Inputs = Tensor | Mapping[str, Tensor]


def input_parts(x: Inputs) -> dict[str, Tensor]:
    return dict(x) if isinstance(x, Mapping) else {"": x}


def count_points(x: Inputs) -> int:
    return next(iter(input_parts(x).values())).shape[0]


def take_points(x: Inputs, at: Any) -> Inputs:
    """The points ``at`` (a slice or an index tensor)."""
    return {k: v[at] for k, v in x.items()} if isinstance(x, Mapping) else x[at]


def input_bytes(x: Inputs) -> int:
    return sum(v.numel() * v.element_size() for v in input_parts(x).values())


def all_finite(t: Tensor) -> bool:
    """No NaN or infinity, told by the extremes: no copy as large as the tensor is made."""
    if not t.is_floating_point() or t.numel() == 0:
        return True
    return bool(torch.isfinite(torch.stack(t.aminmax())).all())


def check_inputs(x: Inputs, name: str, device: torch.device, like: Inputs | None = None) -> None:
    """Raise with every fault of ``x`` at once; ``like`` is an input whose point shape it must share."""
    if not isinstance(x, (Tensor, Mapping)):
        hint = "; torch.from_numpy makes one of an array" if type(x).__module__ == "numpy" else ""
        raise TypeError(f"{name} is a {type(x).__name__}; expected a tensor or a dict of tensors{hint}")
    if not input_parts(x):
        raise ValueError(f"{name} is an empty dict; expected at least one tensor")
    faults: list[str] = []
    for key, v in input_parts(x).items():
        label = f"{name}[{key!r}]" if key else name
        if not isinstance(v, Tensor):
            raise TypeError(f"{label} is a {type(v).__name__}; expected a tensor")
        if v.dim() == 0:
            faults.append(f"{label} has no dimensions; the first must be the points")
            continue
        if v.shape[0] != count_points(x):
            faults.append(f"{label} has {v.shape[0]} points where another entry of the dict has {count_points(x)}")
        if v.device != device:
            faults.append(f"{label} is on {v.device} and the network on {device}; move it with .to({str(device)!r})")
        elif not all_finite(v):
            faults.append(f"{label} has {int((~torch.isfinite(v)).sum())} NaN or infinite values")
    if like is not None and not faults:
        a = {k: tuple(v.shape[1:]) for k, v in input_parts(x).items()}
        b = {k: tuple(v.shape[1:]) for k, v in input_parts(like).items()}
        if a != b:
            got, want = (str(s.get("", s)) for s in (a, b))
            faults.append(f"{name} has points of shape {got}; expected {want} as the others have")
    if faults:
        raise ValueError("; ".join(faults))


# The network under study: unwrapped, checked, and called so that nothing is left behind on it.


Output = str | int
OUTPUTS = ("sum", "first", "full", "trace")  # or the number of a logit
Params = Callable[[str], bool] | Sequence[str] | None


@dataclass(frozen=True)
class FrozenNetwork:
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


def freeze(net: nn.Module, *, output: Output = "sum", params: Params = None) -> FrozenNetwork:
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
    chosen = choose_parameters(net, params)
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
        if not all_finite(p.detach()):
            raise ValueError(f"parameter {name!r} has NaN or infinite values; the network has diverged: retrain it")
    if not (output in OUTPUTS or (isinstance(output, int) and not isinstance(output, bool))):
        raise ValueError(f"unknown output {output!r}{did_you_mean(output, OUTPUTS)}; or the number of a logit")
    recurrent = tensors[0].is_cuda and any(isinstance(m, nn.RNNBase) for m in net.modules())
    return FrozenNetwork(net, chosen, output, tensors[0].device, tensors[0].dtype, recurrent)


def choose_parameters(net: nn.Module, params: Params) -> dict[str, Tensor]:
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
        raise ValueError(f"unknown parameter {unknown[0]!r}{did_you_mean(unknown[0], every)}")
    if not params:
        raise ValueError("params= is empty; expected at least one parameter name")
    return {k: every[k].detach() for k in params}


@contextmanager
def isolated(device: torch.device, precision: str = "float32") -> Iterator[None]:
    """RNG state as found, autocast off, gradients on: what the passes need whatever surrounds them.

    precision: of float32 products on a CUDA device, "float32" or "tf32", whatever the user's own setting.
    """
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        torch.autocast(device.type, enabled=False),
        torch.enable_grad(),
        float32_products(precision) if device.type == "cuda" else nullcontext(),
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
def float32_products(precision: str) -> Iterator[None]:
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


PROBE_POINTS = 3


def probe_outputs(frozen: FrozenNetwork, x: Inputs, name: str = "x") -> int:
    """Run a few points; return C. Raises unless outputs are (N, C), finite, and each point's own.

    Points that influence one another (a BatchNorm of one's own on batch statistics, attention over the batch)
    have no per-point gradient: each output alone must equal the same output in company.
    """
    k = min(PROBE_POINTS, count_points(x))
    with isolated(frozen.device), torch.no_grad():
        together = frozen.call(take_points(x, slice(k)))
        if not isinstance(together, Tensor):
            raise TypeError(
                f"net returns a {type(together).__name__}; expected a tensor (N, C): wrap it to return logits"
            )
        if together.dim() != 2 or together.shape[0] != k:
            raise ValueError(f"net returns {tuple(together.shape)} for {k} points; expected ({k}, C)")
        if not torch.isfinite(together).all():
            raise ValueError(f"net returns NaN or infinite outputs for the first points of {name}")
        alone = torch.cat([frozen.call(take_points(x, slice(i, i + 1))) for i in range(k)])
    tolerance = 1e-3 if frozen.dtype == torch.float32 else 1e-8
    scale = max(float(together.abs().max()), 1e-12)
    if (gap := float((alone - together).abs().max())) > tolerance * scale:
        raise ValueError(
            f"points influence one another: an output changes by {gap:.1e} when its point is fed alone; "
            "Θ needs each output to depend on its own input only"
        )
    if isinstance(frozen.output, int) and not -together.shape[1] <= frozen.output < together.shape[1]:
        raise ValueError(f"output={frozen.output} but net has {together.shape[1]} outputs")
    return together.shape[1]


def outputs(
    net: nn.Module | FrozenNetwork, x: Inputs, *, chunk_size: int = 256, name: str = "x", precision: str = "float32"
) -> Tensor:
    """f on every point, (N, C) in float64, in eval mode and without gradients."""
    frozen = net if isinstance(net, FrozenNetwork) else freeze(net)
    check_inputs(x, name, frozen.device)
    with isolated(frozen.device, precision), torch.no_grad():
        chunks = [frozen.call(take_points(x, slice(i, i + chunk_size))) for i in range(0, count_points(x), chunk_size)]
    f_NC = torch.cat(chunks)
    if not torch.isfinite(f_NC).all():
        bad = int((~torch.isfinite(f_NC)).any(1).nonzero()[0])
        raise ValueError(f"net returns NaN or infinite outputs, first at point {bad} of {name}")
    return to_float64(f_NC)


def to_float64(t: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return t.cpu().double() if t.device.type == "mps" else t.double()
