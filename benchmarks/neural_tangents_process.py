"""The process that runs neural-tangents, for ``benchmarks.neural_tangents``. It needs an environment of its own.

``python neural_tangents_process.py FOLDER THREADS IMPLEMENTATION ...`` reads weights and points from FOLDER/case.npz.
It compiles and runs every implementation once, writes the kernels to FOLDER/kernels.npz, and prints its versions as one
line of JSON. Then it answers each name on stdin with the seconds of one run, by the clock and of all processors. So two
processes can take turns.
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

TRACE_AXES = {"trace": (-1,), "full": ()}
BATCHES = (0, 50, 20, 10)  # points per batch of nt.batch; 0: all at once. The next is tried if memory runs out.


def serve(folder: Path, threads: int, implementations: list[str]) -> None:
    """Compute every kernel once, then time the ones that stdin names."""
    # No setting of XLA limits its threads reliably. It uses the processors that the process may run on.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import neural_tangents as nt

    with np.load(folder / "case.npz") as case:
        params = {k: jax.numpy.asarray(case[k]) for k in case.files}
    x1, x2 = params.pop("x1"), params.pop("x2", None)  # None: x1 again
    f = jax_cnn(jax, int(params.pop("stride")), bool(params.pop("flat")))
    runs: dict[str, Callable[[], Any]] = {}
    kernels: dict[str, Any] = {}
    batches: dict[str, int] = {}
    for implementation in implementations:
        for kind, axes in TRACE_AXES.items():
            options = {"trace_axes": axes, "vmap_axes": 0}
            kernel = nt.empirical_ntk_fn(f, implementation=getattr(nt.NtkImplementation, implementation), **options)
            for batch in BATCHES:
                run = jax.jit(kernel) if batch == 0 else nt.batch(kernel, batch_size=batch, device_count=0)
                name = f"{implementation} {kind}"
                runs[name] = partial(run, x1, x2, params)
                try:
                    kernels[name], batches[name] = np.asarray(runs[name]()), batch
                    break
                except jax.errors.JaxRuntimeError as e:
                    if "memory" not in str(e) or batch == BATCHES[-1]:
                        raise
    np.savez(folder / "kernels.npz", **kernels)
    about = {"neural-tangents": nt.__version__, "jax": jax.__version__, "batches": batches}
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        run = runs[line.strip()]
        print(*clock_and_cpu_seconds(lambda run=run: run().block_until_ready()), flush=True)  # type: ignore[misc]


def clock_and_cpu_seconds(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock and of all processors. The latter vary less on a machine that others use."""
    start = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def jax_cnn(jax: Any, stride: int, flat: bool) -> Callable[[dict[str, Any], Any], Any]:
    """``SmallCNN`` in JAX: weights (kh, kw, in, out) and points (N, h, w, c), the order XLA prefers on a CPU."""

    def f(params: dict[str, Any], x: Any) -> Any:
        dims, padding = ("NHWC", "HWIO", "NHWC"), ((1, 1), (1, 1))
        for k in range(3):
            weight, bias = params[f"convs.{k}.weight"], params[f"convs.{k}.bias"]
            x = jax.lax.conv_general_dilated(x, weight, (stride, stride), padding, dimension_numbers=dims)
            x = jax.nn.relu(x + bias)
        x = x.reshape(x.shape[0], -1) if flat else x.mean((1, 2))
        return x @ params["head.weight"] + params["head.bias"]

    return f


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
