"""Shards: a pass over a pool cut into ranges, each result a file with a digest, and a manifest. A run resumes from it.

PASS-DIGEST/manifest.json        what the pass computes, and the digest of each shard that is there
PASS-DIGEST/00007.safetensors    what became of the points of shard 7

The cuts depend on the pool alone, so the files have the same bytes for any number of workers. This process alone writes
them. A shard that is gone or damaged is told, and computed again; after a kill, so is what was in progress.
"""

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from foretaste.acquire import ChunkScore, FittingScore, StreamedCover
from foretaste.errors import check_regular, counted
from foretaste.executors import Executor, Runner, Work, torch_threads
from foretaste.files import lock_folder, write_whole
from foretaste.given import SlicedPoints, sliced_tensors
from foretaste.network import digest_bytes, digest_of, weights_digest
from foretaste.pick.select import find_copies
from foretaste.tangent import FrozenNetwork, Inputs, count_points, isolated, take_points

log = logging.getLogger("foretaste")

SHARD_FORMAT = 1  # enters every digest
SAMPLED_POINTS = 64  # by which a pool that is not in memory is known again
TRIED_POINTS, TRIED_AT_ONCE = 32, 8  # on which a network is known again by what it does

Noted = Callable[[slice, Tensor], object]  # a range that is done, and which of its points are copies
Done = Callable[[int, Mapping[str, Tensor], bool], object]  # a shard's number, its result, and whether it was on disk


@dataclass
class ShardedPasses:
    """The passes of one query over its pool, by an executor. They are in its folder, or not kept.

    frozen, x_L: the network, and the labelled points, whose copies are looked for.
    by_gradients: whether passes use the gradients of the network; else its outputs alone.
    noted: called with each range that is done.
    """

    executor: Executor
    runner: Runner
    pool: SlicedPoints
    frozen: FrozenNetwork
    x_L: Inputs | None
    by_gradients: bool
    noted: Noted
    counts: dict[str, int] = field(default_factory=lambda: {"computed": 0, "kept": 0})

    def __post_init__(self) -> None:
        if self.executor.kind != "serial" and (at := self.frozen.device.type) != "cpu":
            raise ValueError(
                f'executor {self.executor.kind!r} is for networks on the CPU, and net is on {at}; use "serial"'
            )

    def gains(self, cover: StreamedCover) -> Tensor:
        """(U,): what each candidate alone adds to F."""
        return self.scores("gains", cover.chunk_size, cover.chunk_gains, cover.made_by)

    def scores(
        self, name: str, step: int, score: ChunkScore, made_by: Sequence[object], noted: "Noted | None" = None
    ) -> Tensor:
        """(U, ...): ``score`` of every chunk of ``step`` points, on the CPU. made_by: what the scores depend on.

        noted: in the place of that of all passes.
        """
        points = -(-self.executor.shard_points // step) * step
        cuts = [slice(at, min(at + points, len(self.pool))) for at in range(0, len(self.pool), points)]

        def done(k: int, part: Mapping[str, Tensor], kept: bool) -> None:
            (noted or self.noted)(cuts[k], part["copies"])

        task = ShardTask(self.sent_pool, step, FittingScore(score), self.x_L)
        parts = self.run(name, [step, points, *made_by], cuts, task, ShardItems(cuts, self.pool_here), done)
        return torch.cat([part["scores"] for part in parts])

    def run(
        self,
        name: str,
        made_by: Sequence[object],
        cuts: Sequence[slice],
        task: Work,
        items: "NumberedItems",
        done: Done,
    ) -> list[dict[str, Tensor]]:
        """The results of all shards, in order. made_by: what they depend on besides the network and the points."""
        how, job, where = self.executor, "", None
        if how.folder is not None:
            about = [SHARD_FORMAT, version("foretaste"), torch.__version__, how.used_threads, name, *self.digests]
            job = digest_of([*about, *made_by])
            where = Path(how.folder).expanduser() / f"{name}-{job[:16]}"

        def count(k: int, part: Mapping[str, Tensor], kept: bool) -> None:
            self.counts["kept" if kept else "computed"] += 1
            done(k, part, kept)

        with tempfile.TemporaryDirectory() if where is None else nullcontext(where) as folder:
            return Shards(Path(folder), job, cuts).run(self.runner, task, items, count)

    @cached_property
    def digests(self) -> list[object]:
        tried = self.pool.take(spread_positions(len(self.pool), TRIED_POINTS))
        does = network_digest(self.frozen, tried, self.by_gradients)
        return [does, self.x_L, pool_digest(self.pool)]

    @property
    def sent_pool(self) -> SlicedPoints | None:
        """The pool, if workers read it themselves."""
        return None if self.pool.in_memory else self.pool

    @property
    def pool_here(self) -> SlicedPoints | None:
        """The pool, if its points travel with a shard."""
        return self.pool if self.pool.in_memory else None


@dataclass(frozen=True)
class Shards:
    """The shards of one pass in a folder. job: a digest of what they are made by and of."""

    folder: Path
    job: str
    cuts: Sequence[slice]

    def run(
        self,
        runner: Runner,
        task: Work,
        items: "NumberedItems",
        done: Done,
    ) -> list[dict[str, Tensor]]:
        """The results of all shards, in order. Those on disk are read, the others computed and written."""
        with lock_folder(self.folder):
            digests, parts = self.read_manifest(), dict[int, dict[str, Tensor]]()
            for k in list(digests):
                if (raw := self.read(k, digests[k])) is None:
                    del digests[k]
                else:
                    parts[k] = load(raw)
                    done(k, parts[k], True)
            missing = [k for k in range(len(self.cuts)) if k not in parts]
            if parts and missing:
                log.info("resuming: %d of %s are there (%s)", len(parts), counted(len(self.cuts), "shard"), self.folder)
            wanted = replace(items, of=missing)
            for i, (raw, digest) in runner(task, wanted, lambda place: None, str) if missing else ():
                k = missing[i]
                if digest_bytes(raw) != digest:
                    raise OSError(f"{self.path(k).name} was damaged on its way here; run the same query again")
                write_whole(self.path(k), raw)
                digests[k], parts[k] = digest, load(raw)
                self.write_manifest(digests)
                done(k, parts[k], False)
        return [parts[k] for k in range(len(self.cuts))]

    def path(self, k: int) -> Path:
        return self.folder / f"{k:05}.safetensors"

    def read(self, k: int, digest: str) -> bytes | None:
        """The bytes of a shard; None, and a warning, if they are not those that the manifest lists."""
        try:
            check_regular(self.path(k))
            raw = self.path(k).read_bytes()
        except FileNotFoundError:
            log.warning("%s is gone; it is computed again", self.path(k))
            return None
        if digest_bytes(raw) == digest:
            return raw
        log.warning("%s is damaged: its digest is not that of manifest.json; it is computed again", self.path(k))
        return None

    def write_manifest(self, digests: Mapping[int, str]) -> None:
        """Write the manifest: the same bytes, in whatever order shards have come."""
        cuts = [[cut.start, cut.stop] for cut in self.cuts]
        held = {"job": self.job, "cuts": cuts, "shards": {str(k): digests[k] for k in sorted(digests)}}
        write_whole(self.folder / "manifest.json", json.dumps(held, indent=1) + "\n")

    def read_manifest(self) -> dict[int, str]:
        """The digests of the shards that the manifest lists. None if it is of another job, or damaged."""
        path = self.folder / "manifest.json"
        try:
            check_regular(path)
            held = json.loads(path.read_bytes())
            digests = {int(k): str(digest) for k, digest in held["shards"].items()}
            if held["job"] == self.job and held["cuts"] == [[cut.start, cut.stop] for cut in self.cuts]:
                return {k: digests[k] for k in digests if 0 <= k < len(self.cuts)}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        log.warning("%s is damaged, or of other shards; all shards are computed again", path)
        return {}


def sealed(result: dict[str, Tensor]) -> tuple[bytes, str]:
    """The bytes of a result, and their digest."""
    raw = save(result)
    return raw, digest_bytes(raw)


@dataclass(frozen=True, eq=False)
class ShardTask:
    """What a worker does: a shard's points in, the bytes of its result and their digest out."""

    pool: SlicedPoints | None  # None: the points come with the shard
    step: int
    score: ChunkScore
    x_L: Inputs | None

    def __call__(self, place: None, item: "ShardItem") -> Iterator[tuple[bytes, str]]:
        cut, own = item.cut, item.x
        pool, first = (self.pool, 0) if own is None else (sliced_tensors(own, "x_U"), cut.start)
        assert pool is not None
        scores, copies = list[Tensor](), torch.zeros(cut.stop - cut.start, dtype=torch.bool)
        for at, x in pool.chunks(self.step, slice(cut.start - first, cut.stop - first)):
            at = slice(at.start + first, at.stop + first)
            scores.append(self.score(at, x).cpu())
            if (found := find_copies(self.x_L, x)) is not None:
                copies[at.start - cut.start : at.stop - cut.start] = found
        yield sealed({"scores": torch.cat(scores), "copies": copies})


@dataclass(frozen=True, eq=False)
class ShardItem:
    cut: slice
    x: Inputs | None

    def __str__(self) -> str:
        return f"the shard of points {self.cut.start} to {self.cut.stop - 1}"


@dataclass(frozen=True, eq=False)
class NumberedItems(Sequence[Any]):
    """The items ``of`` some numbers. What they have of the pool is taken when one begins."""

    of: Sequence[int] = field(default=(), kw_only=True)

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, i: Any) -> Any:
        return self.item(self.of[i])

    def item(self, k: int) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class ShardItems(NumberedItems):
    """Shards, each with its points if these are in memory."""

    cuts: Sequence[slice]
    pool: SlicedPoints | None

    def item(self, k: int) -> ShardItem:
        return ShardItem(self.cuts[k], None if self.pool is None else self.pool.take(self.cuts[k]))


def pool_digest(pool: SlicedPoints) -> str:
    """By which a pool is known again: every point if all are in memory, else a sample, and the time of the file."""
    if pool.in_memory:
        h = blake2b()
        for _, x in pool.chunks(1 << 16):
            h.update(digest_of([x]).encode())
        return h.hexdigest()
    stamp = None if pool.file is None else Path(pool.file).stat()
    told = [] if stamp is None else [stamp.st_size, stamp.st_mtime_ns]
    return digest_of([len(pool), *told, pool.take(spread_positions(len(pool), SAMPLED_POINTS))])


def spread_positions(n: int, most: int) -> np.ndarray:
    """Positions of at most so many of n points, evenly spread."""
    return np.unique(np.linspace(0, n - 1, most).astype(np.int64))


def network_digest(frozen: FrozenNetwork, x: Inputs, by_gradients: bool) -> str:
    """By which a network is known again: its weights, its outputs on some points, and a gradient of these.

    Equal weights are not enough: a class whose forward was changed prints and loads as before.
    """
    # Every bit counts: a rounded number is as good as a bit where it lies on the border of two, and of some thousands a
    # few do. So bits must be the same wherever shards are: on one thread, in batches of one size, and from memory that
    # torch has aligned (a mapped file is not, and MKL takes other kernels then).
    parts: list[object] = [weights_digest(frozen.net)]
    params = {name: p.detach().clone().requires_grad_(by_gradients) for name, p in frozen.params.items()}
    with isolated(frozen.device), torch.set_grad_enabled(by_gradients), torch_threads(1):
        for at in range(0, TRIED_POINTS, TRIED_AT_ONCE):
            x_n = take_points(x, slice(at, at + TRIED_AT_ONCE))
            if not count_points(x_n):
                break
            x_n = {key: t.clone() for key, t in x_n.items()} if isinstance(x_n, Mapping) else x_n.clone()
            f_nC = frozen.call(x_n, params)
            parts.append(f_nC)
            if f_nC.requires_grad:
                signs_nC = 2 * torch.randint(2, f_nC.shape, generator=torch.Generator().manual_seed(at)) - 1
                total = (f_nC * signs_nC.to(f_nC)).sum()
                parts.append(torch.autograd.grad(total, list(params.values()), allow_unused=True))
    return digest_of(parts)
