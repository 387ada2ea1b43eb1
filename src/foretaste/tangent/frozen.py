"""The network under study: checked, frozen in eval mode, and never changed by a call.

The parts: inputs, the frozen network, the state of torch during a pass, the network's outputs, and what is wrong with
an input that a network does not take.
"""

import copy
import logging
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from foretaste.batches import Inputs as Inputs
from foretaste.batches import batches, join_batches, unwrap_logits
from foretaste.batches import count_points as count_points
from foretaste.batches import input_parts as input_parts
from foretaste.batches import take_points as take_points
from foretaste.errors import changed, counted, did_you_mean, is_out_of_memory, whole_number
from foretaste.parameters import choose_names
from foretaste.tangent.attention import AttentionParts
from foretaste.tangent.recurrent import GRUParts, LSTMParts, RNNParts
from foretaste.tangent.stand_ins import BilinearParts, TakenApart

log = logging.getLogger("foretaste")

OUTPUTS = ("sum", "signs", "first", "full", "trace")  # or the number of a logit
Output = str | int
Params = Callable[[str], bool] | Sequence[str] | str | None
PRECISIONS = ("float32", "tf32", "half")  # of this folder; linearize and query know "auto" besides
# How much an output may change in another batch, as a share of the largest output.
OWN_OUTPUT = {torch.float32: 1e-3, torch.float64: 1e-8}
# By the exact type of a module, the class that takes it apart in a copy.
TAKEN_APART: dict[type, type[TakenApart]] = {
    nn.MultiheadAttention: AttentionParts, nn.Bilinear: BilinearParts,
    nn.LSTM: LSTMParts, nn.GRU: GRUParts, nn.RNN: RNNParts,
}  # fmt: skip
PROBE_POINTS = 3  # run through the network before anything else


# ---- Inputs ----


def join_points(*parts: Inputs) -> Inputs:
    """Points of several sets, one after the other."""
    if isinstance(parts[0], Tensor):
        return torch.cat([p for p in parts if isinstance(p, Tensor)])
    return {key: torch.cat([p[key] for p in parts if not isinstance(p, Tensor)]) for key in parts[0]}


def find_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that has a NaN or an infinity.

    Looks at the extremes only, so no copy of a tensor is made, and reads once: a read waits for the device.
    """
    some = {name: t.detach() for name, t in tensors.items() if t.is_floating_point() and t.numel()}
    if not some:
        return None
    finite = [torch.isfinite(torch.stack(t.aminmax())).all() for t in some.values()]
    read = torch.stack([flag.to(finite[0].device) for flag in finite]).tolist()
    return next((name for name, good in zip(some, read) if not good), None)


def check_inputs(x: Inputs, name: str, device: torch.device, like: Inputs | None = None) -> None:
    """Raise with every fault of ``x`` at once. Points must have the shapes and float types of those of ``like``."""
    if not isinstance(x, (Tensor, Mapping)):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a tensor or a dict of tensors")
    if not input_parts(x):
        raise ValueError(f"{name} is an empty dict; expected at least one tensor")
    faults: list[str] = []
    for key, v in input_parts(x).items():
        label = part_label(name, key)
        if not isinstance(v, Tensor):
            raise TypeError(f"{label} is a {type(v).__name__}; expected a tensor")
        if v.is_nested or v.layout != torch.strided:
            kind = "a nested tensor" if v.is_nested else f"of layout {v.layout}"
            raise ValueError(
                f"{label} is {kind}; expected a dense tensor: convert it with .to_dense() or pad its points"
            )
        if v.dim() == 0:
            faults.append(f"{label} has no dimensions; the first must be the points")
            continue
        if v.shape[0] != count_points(x):
            faults.append(f"{label} has {v.shape[0]} points where another entry of the dict has {count_points(x)}")
        if v.device != device:
            faults.append(f"{label} is on {v.device} and the network on {device}; move it with .to({str(device)!r})")
        elif find_not_finite({key: v}) is not None:
            faults.append(f"{label} has {int((~torch.isfinite(v)).sum())} NaN or infinite values")
    if like is not None and not faults:
        faults += compare_points(x, name, like)
    if faults:
        raise ValueError("; ".join(faults))


def compare_points(x: Inputs, name: str, like: Inputs) -> list[str]:
    """How the points of ``x`` differ in shape or type from those of ``like``."""
    a = {k: tuple(v.shape[1:]) for k, v in input_parts(x).items()}
    b = {k: tuple(v.shape[1:]) for k, v in input_parts(like).items()}
    if a != b:
        got, want = (str(s.get("", s)) for s in (a, b))
        return [f"{name} has points of shape {got}; expected {want} as the others have"]
    faults = []
    for key, want_part in input_parts(like).items():
        came, wanted = input_parts(x)[key].dtype, want_part.dtype
        if came != wanted and (came.is_floating_point or wanted.is_floating_point):
            label = part_label(name, key)
            faults.append(f"{label} is {came}; expected {wanted} as the others are: convert it with .to({wanted})")
    return faults


def part_label(name: str, key: str) -> str:
    return f"{name}[{key!r}]" if key else name


# ---- The frozen network ----


@dataclass(frozen=True)
class FrozenNetwork:
    """A network in eval mode, and the parameters that its gradients are taken in.

    ``net`` is a copy of the user's network that shares its tensors (``share_tensors``): hooks and replaced parameters
    are the copy's. Calls use detached inputs and parameters and cloned buffers. So nothing on the user's network can
    change, even if a call fails or is interrupted, and several threads can use the network at once.
    """

    net: nn.Module
    params: dict[str, Tensor]
    output: Output
    device: torch.device
    dtype: torch.dtype
    recurrent: bool = False  # has recurrences that cuDNN would run
    unruled: frozenset[str] = frozenset()  # parameters whose rule was seen to fail
    shared: set[nn.Module] = field(default_factory=set, repr=False, compare=False)  # see survey.find_shared
    surveys: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # a cache of survey.py

    def call(self, x: Inputs, params: dict[str, Tensor] | None = None, attached: bool = False) -> Tensor:
        """f(x), (N, C), with ``params`` in place of some of the network's parameters.

        attached: with the network's own parameters, to which autograd can go back. For checks on a few points.
        """
        state = {} if attached else {k: p.detach() for k, p in self.net.named_parameters()}
        state |= {k: b.clone() for k, b in self.net.named_buffers()}
        state |= params or {}
        # Detached: an input with a graph of its own (features of a backbone) would be taken for a recorded layer.
        parts = {k: v.clone() if v.is_inference() else v.detach() for k, v in input_parts(x).items()}
        args, kwargs = ((), parts) if isinstance(x, Mapping) else ((parts[""],), {})
        with without_cudnn() if self.recurrent else nullcontext():  # its recurrences have no gradient in eval mode
            return unwrap_logits(functional_call(self.net, state, args, kwargs))

    def heads(self, f_NC: Tensor) -> Tensor:
        """(N, B): the functions of the outputs whose gradients make Θ. B is 1, or C for "full" and "trace"."""
        match self.output:
            case "sum":
                return f_NC.sum(1, keepdim=True) / math.sqrt(f_NC.shape[1])
            case "signs":
                return f_NC @ balanced_signs(f_NC.shape[1]).to(f_NC)[:, None]
            case "full":
                return f_NC
            case "trace":
                return f_NC / math.sqrt(f_NC.shape[1])
            case "first":
                return f_NC[:, :1]
            case k:
                return f_NC[:, int(k), None]


def balanced_signs(C: int) -> Tensor:
    """(C,): ±1/√C, signs as balanced as C allows, always the same for one C: a contrast between classes.

    Σ_c f_c is 1 wherever a network has learned 0/1 targets, so its gradient says little about what was learned. Over
    pairs of CIFAR10 images, the correlation of κ (foretaste.acquire.cover) with that of "trace" is 0.87 to 0.92 for
    "sum" and 0.999 for these signs (heads of 32 to 512 units on features, 60 labels).
    """
    return (torch.randperm(C, generator=torch.Generator().manual_seed(0)) % 2 * 2.0 - 1) / math.sqrt(C)


def share_tensors(net: nn.Module) -> nn.Module:
    """A copy of ``net`` whose modules are new and whose tensors are the network's own.

    A network that cannot be copied (it holds a lock, an open file) is used as it is.
    """
    memo: dict[int, Any] = {id(t): outside_inference(t) for t in (*net.parameters(), *net.buffers())}
    for m in net.modules():
        for value in vars(m).values():
            if isinstance(value, Tensor):
                # A plain attribute: torch's older weight_norm and prune keep a computed weight there.
                memo[id(value)] = value
            elif type(value) in (dict, OrderedDict, set) and not value:
                memo[id(value)] = type(value)()  # empty dicts of hooks: a dozen per module, half of deepcopy's time
    try:
        made = copy.deepcopy(net, memo)
        take_apart(made)
        return made
    except Exception as e:
        log.debug("the network cannot be copied (%s: %s) and is used as it is", type(e).__name__, e)
        return net


def take_apart(net: nn.Module) -> None:
    """Give each module of a copy of a network the class that takes it apart (stand_ins.py), if there is one."""
    for m in list(net.modules()):
        own: Any = m
        if isinstance(m, nn.TransformerEncoderLayer):
            own.activation_relu_or_gelu = 0  # its fast path would not call its modules
        if isinstance(m, nn.TransformerEncoder):
            own.use_nested_tensor = False  # likewise; and its outputs at padded positions are others
        parts = TAKEN_APART.get(type(m))
        if parts is not None and "forward" not in vars(m) and parts.fits(m):
            own.__class__ = parts
            own.covered = ()
            own.__dict__["stand_ins"] = own.make_stand_ins()  # not registered: the network's modules stay as they are


def outside_inference(t: Tensor) -> Tensor:
    """The tensor itself, or a copy that autograd accepts if it was made in torch.inference_mode()."""
    if not t.is_inference():
        return t
    with torch.inference_mode(False):
        return nn.Parameter(t.clone(), t.requires_grad) if isinstance(t, nn.Parameter) else t.clone()


def unwrap(net: nn.Module) -> nn.Module:
    """The module inside torch.compile, DistributedDataParallel or DataParallel. Hooks and vmap need that one."""
    while True:
        if isinstance(inner := getattr(net, "_orig_mod", None), nn.Module):
            net = inner
        elif isinstance(net, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            net = net.module
        else:
            return net


def read_output(output: object) -> Output:
    """The name of an output, or the number of a logit as an int. Raises a ValueError if it is neither."""
    if isinstance(output, str):
        if output not in OUTPUTS:
            raise ValueError(f"unknown output {output!r}{did_you_mean(output, OUTPUTS)}; or the number of a logit")
        return output
    try:
        return whole_number("output", output, -(2**63))
    except ValueError as e:
        raise ValueError(f"{e}, the number of a logit, or one of {', '.join(OUTPUTS)}") from None


def freeze(net: nn.Module | FrozenNetwork, *, output: Output = "sum", params: Params = None) -> FrozenNetwork:
    """Check ``net`` and choose its parameters. Raises a ValueError that says what to do.

    A network that is frozen already is not copied again; ``output`` and ``params`` are those given here.
    """
    if isinstance(net, FrozenNetwork):
        own = net.net
    elif isinstance(net, nn.Module):
        own = unwrap(net)
        check_eval_mode(own)
        own = share_tensors(own)
    else:
        raise TypeError(f"net is a {type(net).__name__}; expected a torch.nn.Module")
    chosen = choose_parameters(own, params)
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
    if not isinstance(net, FrozenNetwork) and (name := find_not_finite(dict(own.named_parameters()))):
        raise ValueError(f"parameter {name!r} has NaN or infinite values; the network has diverged: retrain it")
    output = read_output(output)
    recurrent = tensors[0].is_cuda and any(isinstance(m, nn.RNNBase) for m in own.modules())
    return FrozenNetwork(own, chosen, output, tensors[0].device, tensors[0].dtype, recurrent)


def check_eval_mode(net: nn.Module) -> None:
    """Raise if a module uses batch statistics, even in eval mode, or changes its weights when it is called."""
    for name, m in net.named_modules():
        if m.training:
            which = f"submodule {name!r}" if name else "net"
            raise ValueError(f"{which} is in train mode, so Θ depends on the batch; call net.eval() first")
    for name, m in net.named_modules():
        if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.max_norm is not None:
            raise ValueError(
                f"module {name!r} is an {type(m).__name__} with max_norm={m.max_norm:g}, which rewrites its weights in "
                "every forward pass, so there are no fixed weights to take a gradient in; call net once on all points, "
                "which shortens its rows, then set max_norm = None on that module"
            )
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is None and m.running_var is None:
            raise ValueError(
                f"module {name!r}, a {type(m).__name__}, has no running statistics, so it normalises by those of the "
                "batch even in eval mode, and an output depends on the other points; train it with "
                "track_running_stats=True, or use a GroupNorm or LayerNorm in its place"
            )


def choose_parameters(net: nn.Module, params: Params) -> dict[str, Tensor]:
    """The parameters that ``params`` selects, detached, by name. Those without entries add nothing and are left out."""
    every = {k: p for k, p in net.named_parameters() if p.numel()}
    if not every:
        raise ValueError("net has no parameters; its tangent kernel is zero")
    if params is None:
        chosen = {k: p.detach() for k, p in every.items() if p.requires_grad}
        if not chosen:
            raise ValueError("no parameter of net requires grad; unfreeze some, or name them with params=")
        return chosen
    return {name: every[name].detach() for name in choose_names(net, params)}


# ---- The state of torch during a pass ----


@contextmanager
def without_modes() -> Iterator[None]:
    """Outside of the caller's ``torch.set_default_device`` and ``torch.inference_mode``. Also a decorator."""
    with (
        torch.device("cpu") if torch.get_default_device().type != "cpu" else nullcontext(),
        torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext(),
    ):
        yield


@contextmanager
def isolated(device: torch.device, precision: str = "float32") -> Iterator[None]:
    """Gradients on, autocast off, and the random state restored at the end, whatever the caller's settings are.

    precision: with "tf32" and "half", a CUDA device computes float32 products in TF32, otherwise in float32.
    """
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        torch.autocast(device.type, enabled=False),
        torch.enable_grad(),
        float32_products(precision) if device.type == "cuda" else nullcontext(),
    ):
        yield


def without_cudnn() -> AbstractContextManager[None]:
    """Use torch's own kernels: vmap can batch their recurrences, and their float64 convolutions are faster."""
    return changed((torch.backends.cudnn, "enabled", False))


def float32_products(precision: str) -> AbstractContextManager[None]:
    """Compute products and convolutions of float32 tensors in true float32 or in TF32, reproducibly."""
    cudnn: Any = torch.backends.cudnn
    places = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    used = "tf32" if precision in ("tf32", "half") else "ieee"
    return changed((cudnn, "deterministic", True), *((place, "fp32_precision", used) for place in places))


# ---- The network's outputs ----


def probe_outputs(frozen: FrozenNetwork, x: Inputs, name: str = "x", *, kernel_follows: bool = False) -> int:
    """Run a few points and return C. Raises unless outputs are (N, C) and finite, and each depends on its own point.

    Points that influence one another have no gradient of their own (attention over the batch, a hand-written norm on
    batch statistics). So the output of a point fed alone must equal its output in a batch.

    kernel_follows: skip this comparison, because Θ of these points is computed next, which compares outputs.
    """
    k = min(PROBE_POINTS, count_points(x))
    few = count_points(x) <= PROBE_POINTS  # a kernel of so few points does not compare outputs
    with isolated(frozen.device), torch.no_grad():
        with explained(frozen, take_points(x, slice(k)), name):
            together = frozen.call(take_points(x, slice(k)))
        if not isinstance(together, Tensor):
            raise TypeError(
                f"net returns a {type(together).__name__}; expected a tensor (N, C), or an object or dict that has one "
                "as its logits: wrap net in a module that returns its logits"
            )
        if together.dim() != 2 or together.shape[0] != k:
            raise ValueError(f"net returns {tuple(together.shape)} for {k} points; expected ({k}, C)")
        if not torch.isfinite(together).all():
            raise ValueError(f"net returns NaN or infinite outputs for the first points of {name}")
        if few or not kernel_follows:
            alone = torch.cat([frozen.call(take_points(x, slice(i, i + 1))) for i in range(k)])
            check_apart(compare_outputs(together, alone), OWN_OUTPUT[frozen.dtype])
    check_output(frozen, together.shape[1])
    return together.shape[1]


def compare_outputs(together: Tensor, alone: Tensor) -> Tensor:
    """(2,): the largest change of an output between two batches, and the largest output."""
    return torch.stack([(alone - together).abs().max(), together.abs().max()])


def check_apart(compared: Tensor, tolerance: float) -> None:
    """Raise if outputs depend on the other points of their batch. compared: by ``compare_outputs``."""
    gap, scale = compared.tolist()
    if gap > tolerance * max(scale, 1e-12):
        raise ValueError(
            f"points influence one another: an output changes by {gap:.1e} when its point is fed without the others; "
            "Θ needs each output to depend on its own input only"
        )


def check_output(frozen: FrozenNetwork, C: int) -> None:
    """Raise if ``output`` is the number of a logit that a network of C outputs does not have."""
    if isinstance(frozen.output, int) and not -C <= frozen.output < C:
        raise ValueError(f"output={frozen.output} but net has {counted(C, 'output')}")


@without_modes()
def outputs(
    net: nn.Module | FrozenNetwork, x: Inputs, *, chunk_size: int = 256, name: str = "x", precision: str = "float32"
) -> Tensor:
    """f on every point, computed without gradients and in chunks.

    Args:
        net: a network in eval mode.
        x: the points: a tensor, or a dict of tensors that is given as ``net(**x)``. The first dimension counts them.
        chunk_size: how many points go through the network at once (default 256).
        name: what errors call ``x`` (default "x").
        precision: of float32 products on a CUDA device, "float32" (default) or "tf32". A CPU ignores it.

    Returns:
        A float64 tensor (N, C).

    Raises:
        ValueError: if the network is in train mode, if it does not take ``x`` (another width or dtype), or if an
            output is NaN or infinite.

    Example:
        >>> import torch
        >>> from foretaste.tangent import outputs
        >>> net = torch.nn.Linear(4, 3).eval()
        >>> outputs(net, torch.ones(10, 4)).shape
        torch.Size([10, 3])
    """
    frozen = net if isinstance(net, FrozenNetwork) else freeze(net)
    check_inputs(x, name, frozen.device)
    with isolated(frozen.device, precision), torch.no_grad(), explained(frozen, take_points(x, slice(2)), name):
        f_NC = join_batches([(at, frozen.call(chunk)) for at, chunk in batches(frozen.net, x, chunk_size)])
    if not torch.isfinite(f_NC).all():
        bad = int((~torch.isfinite(f_NC)).any(1).nonzero()[0])
        raise ValueError(f"net returns NaN or infinite outputs, first at point {bad} of {name}")
    return to_float64(f_NC)


def to_float64(t: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return t.cpu().double() if t.device.type == "mps" else t.double()


# ---- Why a network does not take an input ----


@contextmanager
def explained(frozen: FrozenNetwork, x: Inputs, name: str) -> Iterator[None]:
    """Replace torch's error about inputs of another width or type by one that names the argument.

    x: a few of the points. Inputs are never converted: the caller decides whether to scale bytes or round float64.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        flat = [part_label(name, k) for k, v in input_parts(x).items() if v.dim() == 1]
        if flat and isinstance(error, IndexError):
            raise ValueError(f"{flat[0]} has one dimension, and net wants more ({error}); expected (N, ...)") from error
        if faults := find_misfit(frozen, x, name, error):
            raise ValueError("; ".join(faults)) from error
        shapes = {k: (tuple(v.shape), v.dtype) for k, v in input_parts(x).items()}
        error.add_note(f"raised by net on the first points of {name}: {shapes.get('', shapes)}")
        raise


def find_misfit(frozen: FrozenNetwork, x: Inputs, name: str, error: Exception) -> list[str]:
    """What the network cannot take about ``x``, judged by the layer that raised. Empty if ``x`` is not at fault.

    A module that is not torch's own may fail for any reason, so its message must speak of types.
    """
    m, got = frozen.net, None
    for frame, _ in walk_tb(error.__traceback__):  # the innermost forward is last
        code, running = frame.f_code, frame.f_locals.get("self")
        if code.co_name == "forward" and isinstance(running, nn.Module):
            m, got = running, next((frame.f_locals.get(argument) for argument in code.co_varnames[1:2]), None)
    if not isinstance(got, Tensor):
        return []
    label = next((label for label, inner in frozen.net.named_modules() if inner is m), "")
    torchs_own = type(m).__module__.startswith("torch.nn.") and not list(m.children())
    typed = torchs_own or re.search("dtype|scalar type|Input type", str(error))
    mistyped = got.dtype != frozen.dtype and typed and not isinstance(m, nn.Embedding)
    faults = type_faults(frozen, x, name) if mistyped else []
    if wanted := describe_misfit(m, got):
        shapes = {k: tuple(v.shape[1:]) for k, v in input_parts(x).items()}
        layer = f"its layer {label!r}, a {type(m).__name__}," if label else f"a {type(m).__name__}, which"
        faults.append(
            f"{name} has points of shape {shapes.get('', shapes)}, which net does not take: {layer} {wanted}; "
            "give points like those that net was trained on"
        )
    return faults


def type_faults(frozen: FrozenNetwork, x: Inputs, name: str) -> list[str]:
    """The parts of ``x`` that have another type than the network's parameters, and how to convert them."""
    faults = []
    convert = ".float()" if frozen.dtype == torch.float32 else ".double()"
    alone = isinstance(x, Tensor) or len(x) == 1  # of several inputs the integers may be indices
    for key, t in input_parts(x).items():
        label = part_label(name, key)
        if t.dtype == frozen.dtype or not (alone or t.is_floating_point()):
            continue
        fix = f"convert it with {label}{convert}"
        if t.dtype == torch.uint8:
            fix = f"scale bytes with foretaste.network.prepare({label}), as the training data were"
        shape = tuple(t.shape[1:])
        faults.append(f"{label} has points of {t.dtype}, shape {shape}, and net's parameters are {frozen.dtype}; {fix}")
    return faults


def describe_misfit(m: nn.Module, got: Tensor) -> str:
    """What layer ``m`` expects where ``got`` has another shape, or indices that are too large; "" if it fits."""
    came = f"got an input of shape {tuple(got.shape)}"
    match m:
        case nn.Linear() if not got.dim() or got.shape[-1] != m.in_features:
            return f"expects {m.in_features} features and {came}"
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d() if (
            got.dim() != len(m.kernel_size) + 2 or got.shape[1] != m.in_channels
        ):
            space = ("length", "height, width", "depth, height, width")[len(m.kernel_size) - 1]
            return f"expects (points, {m.in_channels}, {space}) and {came}"
        case nn.modules.batchnorm._BatchNorm() if got.dim() < 2 or got.shape[1] != m.num_features:
            return f"expects {m.num_features} channels and {came}"
        case nn.LayerNorm() if tuple(got.shape[-len(m.normalized_shape) :]) != tuple(m.normalized_shape):
            return f"expects a last shape of {tuple(m.normalized_shape)} and {came}"
        case nn.Embedding() if got.is_floating_point():
            return f"expects integer indices and got {got.dtype}; convert them with .long()"
        case nn.Embedding() if got.numel() and not 0 <= int(got.min()) <= int(got.max()) < m.num_embeddings:
            return f"expects indices 0 to {m.num_embeddings - 1} and got {int(got.min())} to {int(got.max())}"
    return ""
