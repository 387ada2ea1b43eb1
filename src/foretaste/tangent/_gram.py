"""Θ between named sets of points (Eq. 4 without the expectation): one engine run for all the blocks that are needed."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from foretaste.tangent._functional import functional_rows
from foretaste.tangent._inputs import Inputs, check
from foretaste.tangent._subject import Output, Params, exact, probe, subject, untouched

Block = tuple[str, str]


def gram(
    net: nn.Module,
    sets: Mapping[str, Inputs],
    blocks: Sequence[Block],
    diagonals: Sequence[str] = (),
    *,
    output: Output = "sum",
    params: Params = None,
    budget: int | str | None = None,
) -> tuple[dict[Block, Tensor], dict[str, Tensor]]:
    """Θ for each block (a, b), float64 (N_a·B, N_b·B), and for each diagonal, (N_a, B, B). B is 1, or C for "full"."""
    subj = subject(net, output=output, params=params)
    for name, x in sets.items():
        check(x, name, subj.device)
        probe(subj, x, name)
    with untouched(subj.device):
        rows = {
            name: torch.cat([exact(r) for r in functional_rows(subj, x, list(subj.params)).values()], 2)
            for name, x in sets.items()
        }
    theta = {(a, b): rows[a].flatten(0, 1) @ rows[b].flatten(0, 1).T for a, b in blocks}
    return theta, {a: rows[a] @ rows[a].mT for a in diagonals}
