"""A network, its labelled points and a pool that fit together: what ``query`` and ``fidelity`` begin with."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.cli._classes import all_digits, class_ids, classes_of, numbers, short, truth
from foretaste.cli._inputs import Points
from foretaste.data import Images, measured
from foretaste.data._listing import natural
from foretaste.network import Fit, Saved, fit, load, make, prepare, save, saved
from foretaste.network._reset import seeded

Normal = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Case:
    """Everything on one device, labels as class ids (numbers in regression)."""

    net: nn.Module
    name: str
    options: dict[str, Any]
    labelled: Points
    pool: Points
    x_L: Tensor
    y_L: Tensor
    x_U: Tensor
    y_U: Tensor | None  # true classes, where the pool has labels that are all known
    classes: tuple[str, ...]  # none in regression
    loss: str
    normalise: Normal | None
    fitted: Fit | None = None
    notes: tuple[str, ...] = ()

    def feed(self, x: Tensor) -> Tensor:
        """What the network takes."""
        return prepare(x, next(self.net.parameters()).dtype, self.normalise)


def case(
    labelled: Points,
    pool: Points,
    *,
    network: str | None,
    options: dict[str, Any],
    weights: Path | None,
    classes: str | None = None,
    loss: str | None = None,
    normalise: str | None = None,
    regression: bool = False,
    device: str = "auto",
    seed: int = 0,
) -> Case:
    """Put together, or raise with what does not fit; without weights the network is new, and ``trained`` is next."""
    about = saved(weights) if weights else Saved()
    if weights is None and network is None:
        raise ValueError("neither --network nor --weights was given; name a network (mlp, wrn1, ...) or give weights")
    _alike(labelled, pool)
    if labelled.labels is None:
        raise ValueError(f"{labelled.where} has no labels; expected y in an .npz, class folders, or a column label")
    where = _device(device)
    given = tuple(c.strip() for c in classes.split(",")) if classes else about.classes or labelled.classes
    shape = tuple(labelled.x.shape[1:])
    told = given or (() if regression else classes_of(labelled, None))
    outputs = 1 if regression else len(told)
    name = network or about.network or ""
    if weights is None:
        with seeded(seed, torch.device("cpu")):
            net = make(name, options=options, classes=outputs, shape=shape)
    else:
        net = load(network, weights, options=options, classes=None if given is None else outputs, shape=shape)
        if network is None or network == about.network:
            name, options = about.network or "", {**about.options, **options}
    net = net.to(where).eval()
    if normalise is None and weights is None and labelled.x.dim() == 2:
        normalise = "measured"  # columns of a table have units of their own, and SGD does not learn from those
    normal = _normalise(normalise, about.normalise, labelled, pool)
    C = _outputs(net, prepare(labelled.x[:2].to(where), next(net.parameters()).dtype, normal), shape, name)
    notes = [f"{p.where}: {note}" for p in (labelled, pool) for note in p.notes]
    if regression:
        if C != 1:
            raise ValueError(f"--regression and the network has {C} outputs; expected one")
        names: tuple[str, ...] = ()
        y_L, y_U = numbers(labelled), None
    else:
        names = given or classes_of(labelled, C)
        if C < 2:
            raise ValueError(
                f"the network has {C} output and {labelled.where} labels of {short(names)} alone; expected two classes "
                "or more (--classes names those without points yet), or numbers and --regression"
            )
        if len(names) != C:
            raise ValueError(
                f"the network has {C} outputs and there are {len(names)} classes ({short(names)}); give --classes, "
                "all of them in the order of the outputs, or another network"
            )
        if weights and not given and not all_digits(labelled.labels):
            notes.append(f"outputs are taken to be, in this order: {short(names)}; give --classes if they are not")
        y_L = class_ids(labelled, names)
        y_U, note = truth(pool, names)
        notes += [note] if note else []
    if labelled.own_ids and pool.own_ids and (both := set(labelled.ids) & set(pool.ids)):
        notes.append(f"{len(both)} ids of the pool are among the labelled ones too, such as {min(both, key=natural)}")
    return Case(
        net, name, options, labelled, pool, labelled.x.to(where), y_L.to(where), pool.x.to(where),
        None if y_U is None else y_U.to(where), names, loss or about.loss or "l2", normal, None, tuple(notes),
    )  # fmt: skip


def trained(c: Case, progress: Callable[[int, int], object] | None = None, **how: Any) -> Case:
    """The same, its network trained on the labelled points from its initial weights."""
    got = fit(c.net, c.x_L, c.y_L, loss=c.loss, normalise=c.normalise, progress=progress, **how)
    return replace(c, fitted=got)


def keep(c: Case, path: Path) -> Path:
    """Save the network with all that ``--weights`` alone needs to bring it back."""
    own = (c.name, c.options) if ":" in c.name else (None, None)
    return save(
        c.net, path, network=own[0], options=own[1], classes=c.classes or None, normalise=c.normalise, loss=c.loss,
        shape=tuple(c.x_L.shape[1:]),
    )  # fmt: skip


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device {name}; expected cpu, cuda, cuda:1, or auto") from None
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name} and there are {torch.cuda.device_count()} CUDA devices; use cpu or auto")
    return where


def _alike(labelled: Points, pool: Points) -> None:
    a, b = labelled, pool
    if a.features and b.features and a.features != b.features:
        missing, over = [f for f in a.features if f not in b.features], [f for f in b.features if f not in a.features]
        faults = [
            f"{what}: {', '.join(names[:10])}" for what, names in (("lacks", missing), ("has besides", over)) if names
        ]
        raise ValueError(
            f"columns of {b.where} are not those of {a.where}; it {'; '.join(faults) or 'has another order'}"
        )
    if a.x.shape[1:] != b.x.shape[1:] or a.x.dtype != b.x.dtype:
        kinds = [f"{p.where} are {tuple(p.x.shape[1:])} of {str(p.x.dtype).removeprefix('torch.')}" for p in (a, b)]
        raise ValueError(
            f"points of {kinds[0]}, those of {kinds[1]}; expected both alike (--size, --channels for pictures)"
        )


def _normalise(how: str | None, known: Any, labelled: Points, pool: Points) -> Normal | None:
    if how is None:
        return known and tuple(tuple(v) if isinstance(v, list | tuple) else (v,) for v in known)
    if how == "none":
        return None
    if how == "measured":
        x = torch.cat([labelled.x, pool.x])
        return measured(Images("", x, torch.zeros(len(x)), torch.arange(len(x)).numpy(), torch.arange(0).numpy(), ()))
    try:
        mean, std = (tuple(float(v) for v in part.split(",")) for part in how.split("/"))
    except ValueError:
        raise ValueError(f'--normalise {how!r}; expected "none", "measured" or mean/std such as "0.5/0.25"') from None
    n = labelled.x.shape[1]
    if {len(mean), len(std)} - {1, n} or not all(math.isfinite(v) for v in (*mean, *std)) or min(std) <= 0:
        raise ValueError(f"--normalise {how!r}; expected mean/std > 0, one number each or one for each of {n} channels")
    return mean, std


@torch.no_grad()
def _outputs(net: nn.Module, x: Tensor, shape: tuple[int, ...], name: str) -> int:
    try:
        f = net(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"network {name} does not take points of shape {shape} ({first}); give another file or network"
        ) from None
    if not isinstance(f, Tensor) or f.dim() != 2 or len(f) != len(x):
        got = tuple(f.shape) if isinstance(f, Tensor) else f"a {type(f).__name__}"
        raise ValueError(f"network {name} returns {got} for {len(x)} points; expected ({len(x)}, classes)")
    return int(f.shape[1])
