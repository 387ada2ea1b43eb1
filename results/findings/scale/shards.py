"""Shards under fire: executors against the plain query, workers and queries killed at random, and what it all costs.

    python results/findings/scale/shards.py                  a pool of 100,000: bits, times, ten kills of each kind
    python results/findings/scale/shards.py --rows 1000000 --only overhead --kind ray     the overhead at a million

One line of JSON for each measurement, into shards.jsonl beside this file. Every process has one thread, plain too. Ray
has four CPUs declared (``ray.init(num_cpus=4)``), of which workers take one each. Its workers have the priority of this
process: by default they have the lowest but four (nice 15), and beside other work a shard took minutes.
"""

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).parents[3])]  # for the benchmarks

import foretaste as ft  # noqa: E402
from benchmarks.scale import BATCH, CLASSES, LABELLED, UNITS, WIDTH, write_features  # noqa: E402
from foretaste.executors import torch_threads, usable_cores  # noqa: E402
from foretaste.given import sliced_points  # noqa: E402
from foretaste.network import digest_of  # noqa: E402
from foretaste.pick.shards import ShardItems, Shards, ShardTask  # noqa: E402
from foretaste.study import Labels, Train, run, study  # noqa: E402

RECORDS = Path(__file__).with_suffix(".jsonl")
BETWEEN_KILLS = (5.0, 15.0)  # processor seconds of workers: on a machine that others use, they get little of it
LOOK = 0.2  # seconds


@cache
def trained(file: Path) -> tuple[nn.Module, np.ndarray, torch.Tensor]:
    """A head, and the labelled points it was trained on."""
    x, y = np.load(file, mmap_mode="r"), np.load(file.with_suffix(".y.npy"))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, UNITS), nn.ReLU(), nn.Linear(UNITS, CLASSES))
    x_L, y_L = np.array(x[:LABELLED]), torch.from_numpy(y[:LABELLED])
    ft.fit(net, x_L, y_L, seed=0)
    return net.eval(), x_L, y_L


def ask(file: Path, rows: int, executor: "ft.Executor | None") -> ft.Query:
    x_U = np.load(file, mmap_mode="r")[LABELLED : LABELLED + rows]
    return ft.query(*trained(file), x_U, batch_size=BATCH, method="streamed", executor=executor)


def answer(q: ft.Query) -> str:
    """A digest of every bit of an answer but its times."""
    kept = ("batch_value", "rows_read", "watched", "ridge", "scale", "residual_L")
    return digest_of([q.indices, q.scores, {k: q.info[k] for k in kept}])


def shard_bytes(folder: Path) -> str:
    return digest_of([p.read_bytes() for p in sorted(folder.glob("*-*/*.*"))])


def tell(**line: object) -> None:
    print(json.dumps(line), flush=True)
    with RECORDS.open("a") as file:
        file.write(json.dumps(line) + "\n")


def parents() -> dict[int, tuple[int, str]]:
    """pid -> parent's pid and name, of all processes."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[int(path.name)] = (
                int((path / "stat").read_text().rpartition(") ")[2].split()[1]),
                (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
            )
    return found


def my_workers(kind: str) -> list[int]:
    """Workers that this process has started, itself or through Ray."""
    known = parents()
    mine = []
    for pid, (_, words) in known.items():
        above = pid
        while above in known and above != os.getpid():
            above = known[above][0]
        worker = words.startswith("ray::_work_on_ray") if kind == "ray" else "spawn_main" in words
        if above == os.getpid() and pid != above and worker:
            mine.append(pid)
    return mine


def processor_seconds(pid: int) -> float | None:
    """What a process has used; None if it has ended."""
    with suppress(OSError):
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return None


class Killer(threading.Thread):
    """Kills one of the workers at random, after a random time that they have worked."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.kind, self.random, self.done, self.kills = kind, random.Random(seed), threading.Event(), 0

    def run(self) -> None:
        left, before = self.random.uniform(*BETWEEN_KILLS), dict[int, float]()
        while not self.done.wait(LOOK):
            now = {pid: seconds for pid in my_workers(self.kind) if (seconds := processor_seconds(pid)) is not None}
            left -= sum(seconds - before.get(pid, seconds) for pid, seconds in now.items())
            before = now
            if now and left <= 0:
                with suppress(ProcessLookupError):
                    os.kill(self.random.choice(sorted(now)), signal.SIGKILL)
                    self.kills += 1
                left = self.random.uniform(*BETWEEN_KILLS)


def executor(kind: str, workers: int, folder: Path | None = None) -> ft.Executor:
    return ft.Executor(kind, workers, threads=1, folder=folder)


def measure_times(
    file: Path, rows: int, configurations: list[tuple[str, int]], repeats: int, what: str = "times"
) -> dict[str, list[ft.Query]]:
    """Each way in turn, and all again: other work on the machine then slows all of them alike."""
    want, answers = None, dict[str, list[ft.Query]]()
    for repeat in range(repeats):
        for kind, workers in [("plain", 1), *configurations]:
            with tempfile.TemporaryDirectory() as kept:
                how = None if kind == "plain" else executor(kind, workers, Path(kept))
                cpu = time.process_time()
                q = ask(file, rows, how)
                cpu = time.process_time() - cpu
                want = answer(q) if want is None else want
                answers.setdefault(kind, []).append(q)
                tell(
                    what=what, rows=rows, kind=kind, workers=workers, repeat=repeat, same=answer(q) == want,
                    files=shard_bytes(Path(kept)) if how else None, shards=q.info.get("shards"),
                    cpu_here=round(cpu, 2), **{k: round(v, 2) for k, v in q.seconds.items() if v},
                )  # fmt: skip
    return answers


def measure_overhead(file: Path, rows: int, kind: str, repeats: int) -> None:
    """Plain on all cores against as many workers of one thread, in turns. What workers do not do has all cores in both.

    Other numbers of threads may change the last bits, so the batches are compared, not the bits. Ray's own start is not
    in it, the start of its workers is.
    """
    cores = usable_cores()
    with torch_threads(cores):
        found = measure_times(file, rows, [(kind, cores)], repeats, "overhead, one query")
    seconds = {way: [round(q.seconds["total"], 1) for q in of] for way, of in found.items()}
    ratios = [ours / plain for ours, plain in zip(seconds[kind], seconds["plain"])]
    picks = [q.indices.tolist() for of in found.values() for q in of]
    tell(
        what="overhead", rows=rows, kind=kind, workers=cores, seconds=seconds, ratio=round(float(np.median(ratios)), 3),
        same_batch=all(of == picks[0] for of in picks), load=[round(n, 1) for n in os.getloadavg()],
    )  # fmt: skip


def no_work(at: slice, x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(at.stop - at.start)


def measure_empty_shards(file: Path, kinds: list[str], points: int = 8192) -> None:
    """What a shard costs besides its work: it travels, is written with its digest, and listed. And the start."""
    pool = sliced_points(np.load(file, mmap_mode="r")[:, :1], "x_U", None)
    cuts = [slice(at, min(at + points, len(pool))) for at in range(0, len(pool), points)]
    for kind in kinds:
        with tempfile.TemporaryDirectory() as kept, executor(kind, 1).started() as runner:
            times = [time.perf_counter()]
            task, items = ShardTask(pool, 4096, no_work, None), ShardItems(cuts, None)
            Shards(Path(kept), "", cuts).run(
                runner,
                task,
                items,
                lambda k, part, kept: times.append(time.perf_counter()),  # noqa: B023
            )
            first, *others = np.diff(times)
            tell(
                what="empty shards", kind=kind, shards=len(cuts), first_second=round(float(first), 2),
                milliseconds=round(1e3 * float(np.median(others)), 1),
            )  # fmt: skip


def kill_workers(file: Path, rows: int, kind: str, kills: int, want: str) -> None:
    made, runs, same, computed = 0, 0, 0, []
    while made < kills:
        killer = Killer(kind, seed=runs)
        killer.start()
        try:
            q = ask(file, rows, executor(kind, 2))
        finally:
            killer.done.set()
        made, runs, same = made + killer.kills, runs + 1, same + (answer(q) == want)
        computed.append(round(q.seconds["total"], 1))
        print(f"{made} of {kills} workers killed, {same} of {runs} answers as plain, {computed[-1]} s", flush=True)
    tell(what="workers killed", rows=rows, kind=kind, kills=made, queries=runs, same=same, seconds=computed)


def kill_queries(file: Path, rows: int, kind: str, kills: int, want: str) -> None:
    """The process that asks is killed, with all its workers, and asked again until it has an answer."""
    with tempfile.TemporaryDirectory() as kept:
        command = [sys.executable, __file__, "--file", str(file), "--rows", str(rows), "--kind", kind, "--kept", kept]
        g, made, counts = random.Random(1), 0, []
        while True:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
            with suppress(subprocess.TimeoutExpired):
                if made < kills:
                    child.wait(g.uniform(15, 35))
            if child.poll() is None and made < kills:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                made += 1
                counts.append(len(list(Path(kept).glob("*-*/*.safetensors"))))
                continue
            told = json.loads(child.communicate()[0].splitlines()[-1])
            break
        tell(
            what="queries killed", rows=rows, kind=kind, kills=made, shards_after_each=counts, at_last=told["shards"],
            same=told["answer"] == want, files=shard_bytes(Path(kept)),
        )  # fmt: skip


def kill_study(kind: str, kills: int) -> None:
    of = study(
        ["random", "margin", "cover"],
        seeds=(0, 1),
        labels=Labels(init=20, per_cycle=10, cycles=12),
        train=Train(steps=800),
    )
    timeless = lambda records: [{k: v for k, v in r.items() if k not in ("cost", "checksum")} for r in records]  # noqa: E731
    start = time.perf_counter()
    want = timeless(run(of))
    plain, made, same, times = time.perf_counter() - start, 0, 0, []
    while made < kills:
        with tempfile.TemporaryDirectory() as folder:
            killer = Killer(kind, seed=len(times))
            killer.start()
            start = time.perf_counter()
            try:
                same += timeless(run(of, folder, processes=2, executor=kind)) == want
            finally:
                killer.done.set()
            times.append(round(time.perf_counter() - start, 1))
            made += killer.kills
    tell(
        what="study, workers killed", kind=kind, kills=made, studies=len(times), same=same, records=len(want),
        seconds=times, plain_seconds=round(plain, 1),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--only", choices=("empty", "times", "overhead", "workers", "queries", "study"))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--kind", default="", choices=("", "serial", "processes", "ray"))
    parser.add_argument("--file", type=Path, help="ask about this file, once, and print the answer's digest")
    parser.add_argument("--kept", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)
    if args.file:
        q = ask(args.file, args.rows, executor(args.kind, 2, args.kept))
        print(json.dumps({"answer": answer(q), "shards": q.info["shards"]}))
        return
    kinds = [args.kind] if args.kind else ["processes", "ray"]
    if "ray" in kinds:
        import ray

        os.environ.setdefault("RAY_worker_niceness", "0")
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    wanted = lambda what: args.only == what or (args.only is None and what != "overhead")  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pool.npy"
        np.save(file.with_suffix(".y.npy"), write_features(file, LABELLED + args.rows))
        if wanted("empty"):
            measure_empty_shards(file, ["serial", *kinds])
        if wanted("times"):
            measure_times(
                file, args.rows, [("serial", 1), *((kind, n) for kind in kinds for n in args.workers)], args.repeats
            )
        if wanted("overhead"):
            for kind in kinds:
                measure_overhead(file, args.rows, kind, args.repeats)
        want = answer(ask(file, args.rows, None)) if wanted("workers") or wanted("queries") else ""
        for kind in kinds:
            if wanted("workers"):
                kill_workers(file, args.rows, kind, args.kills, want)
            if wanted("study"):
                kill_study(kind, args.kills)
        if wanted("queries"):
            kill_queries(file, args.rows, "processes", args.kills, want)


if __name__ == "__main__":
    main()
