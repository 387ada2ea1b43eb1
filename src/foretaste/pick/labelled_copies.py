"""Candidates that equal a labelled point in every number: a batch avoids them while other points are left."""

from collections.abc import Mapping

import torch
from torch import Tensor

from foretaste.tangent import Inputs

HASHED_COLUMNS = 64  # numbers of a point that are hashed first
HASH_CHUNK = 2**22  # numbers hashed at a time


def labelled_copies(x_L: Inputs | None, x_U: Inputs) -> Tensor | None:
    """(U,) bool on the CPU: candidates that equal a labelled point in every number. None if none do, or all.

    Such a point is labelled already. Costs a hash of 64 numbers of each point, and of all numbers where those agree.
    """
    parts = [] if x_L is None else _matching_parts(x_L, x_U)
    if not parts:
        return None
    parts_L, parts_U = [a for a, _ in parts], [b for _, b in parts]
    near_U = torch.isin(_hash_points(parts_U, HASHED_COLUMNS), _hash_points(parts_L, HASHED_COLUMNS)).nonzero()[:, 0]
    if not len(near_U):
        return None
    copies_U = torch.zeros(len(parts_U[0]), dtype=torch.bool)
    alike = torch.isin(_hash_points([x[near_U] for x in parts_U]), _hash_points(parts_L))
    copies_U[near_U[alike].cpu()] = True
    return copies_U if copies_U.any() and not copies_U.all() else None


def _matching_parts(x_L: Inputs, x_U: Inputs) -> list[tuple[Tensor, Tensor]]:
    """The tensors of both, in pairs; empty if points of L and U cannot be equal. Other checks report wrong inputs."""
    if isinstance(x_L, Tensor) and isinstance(x_U, Tensor):
        parts = [(x_L, x_U)]
    elif isinstance(x_L, Mapping) and isinstance(x_U, Mapping) and x_L.keys() == x_U.keys():
        parts = [(x_L[k], x_U[k]) for k in sorted(x_U)]
    else:
        return []
    for a, b in parts:
        if not (a.dim() and b.dim() and len(a)) or (a.shape[1:], a.dtype, a.device) != (b.shape[1:], b.dtype, b.device):
            return []
    return parts


def _hash_points(parts: list[Tensor], most: int | None = None) -> Tensor:
    """(N,) int64: a hash of each point, of at most ``most`` numbers of each part."""
    hash_N = torch.zeros(len(parts[0]), dtype=torch.int64, device=parts[0].device)
    g = torch.Generator().manual_seed(0)
    for x in parts:
        x_ND = x.detach().flatten(1) if x.dim() > 1 else x.detach()[:, None]
        columns = torch.randperm(x_ND.shape[1], generator=g)[:most].sort().values.to(x.device)
        odd = (2 * torch.randint(2**62, (len(columns),), generator=g) + 1).to(x.device)
        step = max(1, HASH_CHUNK // max(1, len(columns)))
        for start in range(0, len(x_ND), step):
            x_nD = x_ND[start : start + step][:, columns]
            # + 0.0 makes −0.0 the same as 0.0, as they are to the network.
            bits_nD = (x_nD.double() + 0.0).view(torch.int64) if x.is_floating_point() else x_nD.long()
            hash_N[start : start + step] += ((bits_nD ^ (bits_nD >> 29)) * odd).sum(1)
    return hash_N
