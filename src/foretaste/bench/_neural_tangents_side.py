"""neural-tangents' side of ``_neural_tangents``: run by the python of an environment that has it.

python _neural_tangents_side.py FOLDER THREADS WAY ...: reads FOLDER/case.npz (weights and points), compiles and runs
every way once, writes their kernels to FOLDER/kernels.npz, says what it is on one line of JSON, and then answers each
name it reads from stdin with one run's seconds, by the clock and of processors: two processes can take turns.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {"trace": (-1,), "full": ()}
BLOCKS = (0, 50, 20, 10)  # points at a time by nt.batch where all at once (0) is too much for the machine


def main(folder: Path, threads: int, ways: list[str]) -> None:
    # XLA has no setting for its number of threads that holds: it takes the processors it may run on.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import neural_tangents as nt

    with np.load(folder / "case.npz") as case:
        params = {k: jax.numpy.asarray(case[k]) for k in case.files}
    x1, x2 = params.pop("x1"), params.pop("x2", None)  # None: x1 again
    f = network(jax, int(params.pop("stride")), bool(params.pop("flat")))
    runs: dict[str, Callable[[], Any]] = {}
    kernels: dict[str, Any] = {}
    blocks: dict[str, int] = {}
    for way in ways:
        for kind, axes in KINDS.items():
            how = {"trace_axes": axes, "vmap_axes": 0, "implementation": getattr(nt.NtkImplementation, way)}
            kernel = nt.empirical_ntk_fn(f, **how)
            for block in BLOCKS:
                run = jax.jit(kernel) if block == 0 else nt.batch(kernel, batch_size=block, device_count=0)
                name = f"{way} {kind}"
                runs[name] = partial(run, x1, x2, params)
                try:
                    kernels[name], blocks[name] = np.asarray(runs[name]()), block
                    break
                except jax.errors.JaxRuntimeError as e:
                    if "memory" not in str(e) or block == BLOCKS[-1]:
                        raise
    np.savez(folder / "kernels.npz", **kernels)
    about = {"neural-tangents": nt.__version__, "jax": jax.__version__, "blocks": blocks}
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        run = runs[line.strip()]
        print(*timed(lambda run=run: run().block_until_ready()), flush=True)  # type: ignore[misc]


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock and of all processors: the latter tell more on a machine that others use."""
    start = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def network(jax: Any, stride: int, flat: bool) -> Callable[[dict[str, Any], Any], Any]:
    """``_neural_tangents.SmallCNN``: weights (kh, kw, in, out), points (N, h, w, c), as XLA likes them on a CPU."""

    def f(params: dict[str, Any], x: Any) -> Any:
        dims, one = ("NHWC", "HWIO", "NHWC"), ((1, 1), (1, 1))
        for k in range(3):
            weight, bias = params[f"convs.{k}.weight"], params[f"convs.{k}.bias"]
            x = jax.lax.conv_general_dilated(x, weight, (stride, stride), one, dimension_numbers=dims)
            x = jax.nn.relu(x + bias)
        x = x.reshape(x.shape[0], -1) if flat else x.mean((1, 2))
        return x @ params["head.weight"] + params["head.bias"]

    return f


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
