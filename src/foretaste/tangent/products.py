"""a bᵀ of float32 matrices on a CPU: by oneDNN where MKL, torch's own choice, uses half of the processor.

MKL has no AVX-512 kernels for processors of AMD. oneDNN, which torch has for its convolutions, has them: two cores of
an EPYC multiply (64, 65536) by (65536, 200) in 5.6 ms, by MKL in 9.6, and with half the error. The choice depends on
the machine and on torch alone, never on a measurement: the same query must give the same bits again. The environment
variable FORETASTE_ONEDNN=0 leaves all products to torch.
"""

import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LEAST_WORK = 1 << 18  # multiplications: fewer are not worth the longer call


def product(a_nk: Tensor, b_mk: Tensor, out: Tensor | None = None) -> Tensor:
    """a bᵀ, (n, m). out: where it may go, if that saves memory; the result is what is returned."""
    if for_onednn(a_nk, b_mk):
        with suppress(RuntimeError):  # no memory for its code: torch may still have enough
            made: Tensor = onednn_ops()._linear_pointwise(a_nk, b_mk, None, "none", [], "")
            return made
    return torch.mm(a_nk, b_mk.T, out=out)


def add_product(c: Tensor, a_nk: Tensor, b_mk: Tensor, out: Tensor) -> Tensor:
    """c + a bᵀ, in ``out``. c: (n, m) or (m,)."""
    if not for_onednn(a_nk, b_mk):
        return torch.addmm(c, a_nk, b_mk.T, out=out)
    return torch.add(c, product(a_nk, b_mk), out=out)


def for_onednn(a_nk: Tensor, b_mk: Tensor) -> bool:
    if a_nk.dtype != torch.float32 or a_nk.device.type != "cpu" or not by_onednn():
        return False
    # A user may have turned it off, or asked it for less than float32.
    own: Any = torch.backends.mkldnn
    asked = own.enabled and own.matmul.fp32_precision in ("none", "ieee")
    return bool(asked) and a_nk.numel() * len(b_mk) >= LEAST_WORK


def onednn_ops() -> Any:
    return torch.ops.mkldnn


@cache
def by_onednn() -> bool:
    """Whether this machine gains, and whether this torch has oneDNN's product."""
    asked = os.environ.get("FORETASTE_ONEDNN")
    if asked == "0" or not (asked == "1" or slow_mkl()):
        return False
    with suppress(AttributeError, RuntimeError, TypeError):  # another torch may lack it, or call it otherwise
        a = torch.arange(12.0).view(3, 4)
        return torch.equal(onednn_ops()._linear_pointwise(a, a, None, "none", [], ""), a @ a.T)
    return False


def slow_mkl() -> bool:
    """Whether the processor has AVX-512 that MKL does not use."""
    if not torch.backends.mkl.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    with suppress(OSError):
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    return "AuthenticAMD" in platform.processor()
