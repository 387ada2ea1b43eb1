"""Retraining for real: on L with one label more, and on L alone, from the same weights and by the same seeds."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.network import fit

Job = tuple[int, int, str]  # candidate, label, whose label it is
Progress = Callable[[int, int], object]


@dataclass(frozen=True, eq=False)
class Real:
    """Outputs on the watched points after each job, after none (L alone), and how far L alone moved them."""

    jobs: list[Job]  # candidate, label, whose label it is
    f_SJWC: Tensor
    f_S1WC: Tensor
    drift_SWC: Tensor

    @property
    def change_SJWC(self) -> Tensor:
        return self.f_SJWC - self.f_S1WC


def choose(f_cC: Tensor, y_c: Tensor | None) -> list[Job]:
    """Each candidate with its likeliest label, and with its true one where that is another, else the runner-up."""
    jobs = []
    for j, order_C in enumerate(f_cC.argsort(1, descending=True).tolist()):
        jobs.append((j, order_C[0], "likeliest"))
        true = None if y_c is None else int(y_c[j])
        jobs.append((j, order_C[1], "runner-up") if true in (None, order_C[0]) else (j, int(true or 0), "true"))
    return jobs


def retrain(
    net: nn.Module, x_L: Tensor, y_L: Tensor, x_c: Tensor, feed_W: Tensor, jobs: list[Job],
    names: list[Any], how: Mapping[str, Any], repeats: int, seed: int, progress: Progress | None,
) -> tuple[Real, list[dict[str, Any]]]:  # fmt: skip
    """For real, from the trained weights: on L alone and on L with one label more, each ``repeats`` times."""
    total, records, before_WC = repeats * (len(jobs) + 1), [], outputs_of(net, feed_W)
    after: list[list[Tensor]] = []
    for repeat in range(repeats):
        after.append([])
        for job in (None, *jobs):
            x, y = x_L, y_L
            if job is not None:
                j, label, _ = job
                x, y = torch.cat([x_L, x_c[j : j + 1]]), torch.cat([y_L, y_L.new_tensor([label])])
            trained = copy.deepcopy(net)
            got = fit(trained, x, y, **{"start": "warm", **how}, seed=seed + 1 + repeat)
            f_WC = outputs_of(trained, feed_W)
            after[-1].append(f_WC)
            records.append({
                "kind": "retraining", "repeat": repeat, "candidate": None if job is None else names[job[0]],
                "label": None if job is None else job[1], "whose": None if job is None else job[2],
                "residual": got.residual, "interpolates": got.interpolates, "seconds": got.seconds,
                "moved": float((f_WC - before_WC).norm()),
            })  # fmt: skip
            if progress is not None:
                progress(len(records), total)
    f_SJWC = torch.stack([torch.stack(one) for one in after])
    return Real(jobs, f_SJWC[:, 1:], f_SJWC[:, :1], f_SJWC[:, 0] - before_WC), records


@torch.no_grad()
def outputs_of(net: nn.Module, x: Tensor) -> Tensor:
    """(N, C) in float64, in eval mode, which is left as it was."""
    was = [(m, m.training) for m in net.modules()]
    net.eval()
    try:
        return torch.cat([net(part) for part in x.split(512)]).double()
    finally:
        for m, training in was:
            m.training = training
