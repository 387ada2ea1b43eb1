"""What ``foretaste query`` is told about the query, held against the case before anything is trained."""

from collections.abc import Mapping
from typing import Any

import torch

from foretaste.cli._case import Case
from foretaste.query._checks import check_request
from foretaste.query._request import Request


def check(c: Case, *, strategy: str, select: str, batch_size: int, options: Mapping[str, Any], **how: Any) -> None:
    """Raise with what ``ft.query`` would find wrong."""
    if select == "sequential":
        raise ValueError("--select sequential asks for a label after each pick, in Python; here use greedy or fantasy")
    outputs, output = len(c.classes) or 1, how["output"]
    if isinstance(output, int) and output >= outputs:
        raise ValueError(f"--output {output} and the network has {outputs} outputs; expected 0 to {outputs - 1}")
    request = Request(c.net, None, None, c.x_U, batch_size, torch.Generator(), loss=c.loss, **how)
    found, _, _ = check_request(request, strategy, select, None, c.pool.ids, options, None)
    if {"classes", "regression"} & {*found.needs}:
        found.check(outputs)
