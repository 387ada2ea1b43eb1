"""Points as a network takes them, one tensor or a dict of tensors: some of them, and batches without their padding.

A network whose points are padded (token ids) may say how long each of them is, by a method ``padded_lengths(x)`` that
returns (N,). Padding then stands at the end of the dimension after the points, in every tensor. A pass takes such
points longest first, and cuts each batch to its longest point.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.losses import BinaryOutputs

# A network's input: one tensor, or a dict of tensors, given as ``net(**x)``. The first dimension counts the points.
Inputs = Tensor | Mapping[str, Tensor]


def input_parts(x: Inputs) -> dict[str, Tensor]:
    """The tensors of ``x`` by key; a single tensor has the key ""."""
    return dict(x) if isinstance(x, Mapping) else {"": x}


def count_points(x: Inputs) -> int:
    """N, the length of the first dimension."""
    return x.shape[0] if isinstance(x, Tensor) else next(iter(x.values())).shape[0]


def take_points(x: Inputs, at: Any) -> Inputs:
    """The points ``at``: a slice, positions in a list, or an index tensor on the CPU or the device of ``x``."""
    return {k: v[at] for k, v in x.items()} if isinstance(x, Mapping) else x[at]


def run_network(net: nn.Module, x: Inputs) -> Any:
    """What a network returns for these points; its logits, if that is an object that has some."""
    return unwrap_logits(net(**x) if isinstance(x, Mapping) else net(x))


def unwrap_logits(result: Any) -> Any:
    """The tensor ``logits`` of what a network returns, if it has one (a Hugging Face ModelOutput, a dict)."""
    if isinstance(result, Tensor):
        return result
    logits = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    return logits if isinstance(logits, Tensor) else result


# Padding


PADDED_FEWER = 4  # times as many points are in a batch without padding


def point_lengths(net: nn.Module, x: Inputs) -> Tensor | None:
    """(N,): how long each point is without its padding; None if the network does not say."""
    own = net.net if isinstance(net, BinaryOutputs) else net
    found = getattr(own, "padded_lengths", None)
    return found(x) if callable(found) else None


def cut_padding(net: nn.Module, x: Inputs) -> Inputs:
    """A batch cut to its longest point."""
    lengths_n = point_lengths(net, x)
    if lengths_n is None or not len(lengths_n):
        return x
    most = max(1, int(lengths_n.max()))
    cut = {k: t[:, :most] if t.dim() > 1 else t for k, t in input_parts(x).items()}
    return cut if isinstance(x, Mapping) else cut[""]


def longest_first(net: nn.Module, x: Inputs) -> Tensor | None:
    """The order of points in which batches have the least padding; None if they have none, or are in that order."""
    lengths_N = point_lengths(net, x)
    if lengths_N is None or bool((lengths_N[1:] <= lengths_N[:-1]).all()):
        return None
    return lengths_N.argsort(descending=True, stable=True)


def batches(net: nn.Module, x: Inputs, size: int) -> Iterator[tuple[slice | Tensor, Inputs]]:
    """All points, ``size`` at a time, longest first and cut: where they stand in ``x``, and the points.

    Padded points come in smaller batches, which have less padding.
    """
    order_N = longest_first(net, x)
    size = size if point_lengths(net, x) is None else max(1, size // PADDED_FEWER)
    for start in range(0, count_points(x), size):
        at = slice(start, start + size) if order_N is None else order_N[start : start + size]
        yield at, cut_padding(net, take_points(x, at))


def join_batches(parts: Sequence[tuple[slice | Tensor, Tensor]]) -> Tensor:
    """What ``batches`` was turned into, batch by batch, in the order of the points."""
    joined = torch.cat([rows for _, rows in parts])
    if parts and isinstance(parts[0][0], Tensor):
        joined = joined[torch.cat([at for at, _ in parts if isinstance(at, Tensor)]).argsort()]
    return joined
