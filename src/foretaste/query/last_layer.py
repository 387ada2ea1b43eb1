"""The features of ``badge``: what goes into a network's last layer. It is found by running the network."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.errors import did_you_mean
from foretaste.lookahead import BinaryOutputs
from foretaste.tangent import PROBE_POINTS, FrozenNetwork, Inputs, count_points, isolated, take_points, to_float64

RecordedCall = tuple[Any, Any]  # the input of a layer, and its output


def find_last_layer(frozen: FrozenNetwork, x: Inputs, layer: str | None) -> str:
    """The name of the last nn.Linear whose output is the network's, or ``layer``, if it has an input for each point.

    Three points are run. In ``BinaryOutputs`` names start with "net.", which the caller need not know.
    """
    inside = "net." if isinstance(frozen.net, BinaryOutputs) else ""
    modules = {name: m for name, m in frozen.net.named_modules() if name}
    if layer is not None:
        known = [name.removeprefix(inside) for name in modules if name != "net" or not inside]
        if layer not in known:
            raise ValueError(f"unknown layer {layer!r}{did_you_mean(layer, known, 'The network has')}")
        last_layer_inputs(frozen, take_points(x, slice(PROBE_POINTS)), inside + layer)
        return inside + layer
    linear: dict[str, nn.Module] = {name: m for name, m in modules.items() if isinstance(m, nn.Linear)}
    linear |= {"": frozen.net} if isinstance(frozen.net, nn.Linear) else {}
    with _record_calls(linear) as calls:
        f_NC = _run_frozen(frozen, take_points(x, slice(PROBE_POINTS)))
    for name, (_, out) in reversed(calls.items()):
        if _same_tensor(out, _of_last_layer(frozen, f_NC)):
            return name
    raise ValueError(
        f"no nn.Linear of this network returns what the network returns ({', '.join(linear) or 'it has none'}), so the "
        'features before the last layer are unknown; options={"layer": name} names the module whose input they are'
    )


def last_layer_inputs(
    frozen: FrozenNetwork, x: Inputs, layer: str, *, chunk_size: int = 256, last: bool = False
) -> tuple[Tensor, Tensor]:
    """f (N, C) and the inputs of ``layer``, flattened to (N, D); both float64.

    last: the layer's output must be f, at every point. NaN or infinity raises and names the first point.
    """
    module = frozen.net.get_submodule(layer)
    f_chunks, h_chunks = [], []
    for start in range(0, count_points(x), chunk_size):
        with _record_calls({layer: module}) as calls:
            f_nC = _run_frozen(frozen, take_points(x, slice(start, start + chunk_size)))
        h_nD, out = calls.get(layer, (None, None))
        if not isinstance(h_nD, Tensor) or h_nD.dim() < 2 or len(h_nD) != len(f_nC):
            came = "is not called" if layer not in calls else f"is given {_shape_text(h_nD)}"
            raise ValueError(f"layer {layer!r} {came} for {len(f_nC)} points; expected ({len(f_nC)}, D)")
        for what, values in (("outputs", f_nC), ("features", h_nD)):
            if not (finite := torch.isfinite(values.flatten(1)).all(1)).all():
                bad = start + int((~finite).nonzero()[0])
                raise ValueError(f"net gives NaN or infinite {what}, first at point {bad} of x_U")
        if last and not _same_tensor(out, _of_last_layer(frozen, f_nC)):
            raise ValueError(
                f"layer {layer!r} returns what the network does at the first points and not at points {start} and "
                'after; name the module whose input is to be the features with options={"layer": name}'
            )
        f_chunks.append(to_float64(f_nC))
        h_chunks.append(to_float64(h_nD.flatten(1)))
    return torch.cat(f_chunks), torch.cat(h_chunks)


def _of_last_layer(frozen: FrozenNetwork, f_NC: Tensor) -> Tensor:
    """What the last layer returns if the network returns f_NC."""
    return f_NC[:, 1:] if isinstance(frozen.net, BinaryOutputs) else f_NC


def _run_frozen(frozen: FrozenNetwork, x: Inputs) -> Tensor:
    with isolated(frozen.device), torch.no_grad():
        return frozen.call(x)


@contextmanager
def _record_calls(modules: dict[str, nn.Module]) -> Iterator[dict[str, RecordedCall]]:
    """The last call of each module, in the order of the calls. Tensors are cloned: later layers may write in place."""
    calls: dict[str, RecordedCall] = {}

    def hook(name: str) -> Any:
        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            calls.pop(name, None)
            given = args[0] if args else next(iter(kwargs.values()), None)
            calls[name] = (_clone_tensors(given), _clone_tensors(out))

        return keep

    handles = []
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_hook(hook(name), with_kwargs=True))
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _clone_tensors(v: Any) -> Any:
    return v.clone() if isinstance(v, Tensor) else v


def _same_tensor(out: Any, f_NC: Tensor) -> bool:
    return isinstance(out, Tensor) and out.shape == f_NC.shape and bool((out == f_NC).all())


def _shape_text(v: Any) -> str:
    return str(tuple(v.shape)) if isinstance(v, Tensor) else f"a {type(v).__name__}"
