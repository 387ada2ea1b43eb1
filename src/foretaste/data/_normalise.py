"""Mean and standard deviation of each channel."""

from dataclasses import replace

import torch

from foretaste.data._images import Images, Normalise

HOW = ("auto", "none", "measured")
CHUNK = 1 << 22  # numbers at once, in float64


def check_how(how: str) -> None:
    if how not in HOW:
        raise ValueError(f"normalise is {how!r}; expected one of {', '.join(HOW)}")


def normalised(data: Images, how: str, known: bool) -> Images:
    """``how``: "auto" is what the data set is known by, measured where nothing is ``known``; "none"; "measured"."""
    check_how(how)
    if how == "none":
        return replace(data, normalise=None)
    return data if how == "auto" and known else replace(data, normalise=measured(data))


def measured(data: Images) -> Normalise:
    """Of the pool's pixels in [0, 1], or of its features as they are; the test points have no say.

    In float64 and two passes, chunk by chunk. A channel that never varies has deviation 1: nothing to scale.
    """
    scale = 255.0 if data.x.dtype == torch.uint8 else 1.0
    x_NCm = data.x.reshape(*data.x.shape[:2], -1)
    chunks = torch.from_numpy(data.pool).to(x_NCm.device).split(max(1, CHUNK // max(1, x_NCm[0].numel())))

    def mean_of(power: int, centre_C: torch.Tensor) -> torch.Tensor:
        total_C = torch.zeros_like(centre_C)
        for ids in chunks:
            total_C += (x_NCm[ids].to(torch.float64) / scale - centre_C[:, None]).pow(power).sum((0, 2))
        return total_C / (len(data.pool) * x_NCm.shape[2])

    mean_C = mean_of(1, torch.zeros(x_NCm.shape[1], dtype=torch.float64, device=x_NCm.device))
    std_C = mean_of(2, mean_C).sqrt()
    std_C[std_C == 0] = 1
    return tuple(mean_C.tolist()), tuple(std_C.tolist())
