"""A data set made harder on purpose: classes of unequal size, wrong labels, fewer points. Ids keep their meaning."""

from dataclasses import replace

import numpy as np
import torch

from foretaste.data._images import Images
from foretaste.data._share import sample, shares


def imbalanced(data: Images, ratio: float, seed: int = 0) -> Images:
    """The pool thinned so that class sizes fall geometrically, the rarest ``ratio`` of the most common.

    Which class is rare is the seed's choice. Sizes are as large as the classes allow: none can grow.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio is {ratio}; expected the rarest class's share of the commonest, above 0 and up to 1")
    generator, y_pool = np.random.default_rng([seed, 0]), labels(data, data.pool)
    counts_C = np.bincount(y_pool, minlength=len(data.classes))
    order = generator.permutation(np.flatnonzero(counts_C))  # the first stays common
    if len(order) < 2:
        raise ValueError(f"the pool has {len(order)} class; imbalance needs two or more")
    fall = ratio ** np.linspace(0, 1, len(order))
    sizes = np.rint((counts_C[order] / fall).min() * fall).astype(np.int64)
    if sizes[-1] == 0:
        rare = data.classes[order[-1]]
        raise ValueError(
            f"ratio {ratio} of {sizes[0]} points leaves none of {rare!r}; expected at least {1 / sizes[0]:.2g}"
        )
    take_C = np.zeros_like(counts_C)
    take_C[order] = sizes
    common, rare = data.classes[order[0]], data.classes[order[-1]]
    note = f"pool imbalanced: from {sizes[0]} of {common!r} to {sizes[-1]} of {rare!r} (ratio {ratio}, seed {seed})"
    return replace(data, pool=data.pool[sample(y_pool, take_C, generator)], notes=(*data.notes, note))


def noisy(data: Images, share: float, seed: int = 0) -> Images:
    """That share of the pool's labels, rounded to a whole number, replaced by another class, each as likely.

    Test labels stay as they are.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; expected the share of the pool's labels to change, from 0 to 1")
    classes, generator = len(data.classes), np.random.default_rng([seed, 1])
    if classes < 2:
        raise ValueError("a label of another class needs two classes or more; there is one")
    ids = generator.choice(data.pool, size=round(share * len(data.pool)), replace=False)
    wrong = (labels(data, ids) + generator.integers(1, classes, size=len(ids))) % classes
    y_N = data.y.clone()
    y_N[torch.from_numpy(ids).to(y_N.device)] = torch.from_numpy(wrong).to(y_N.device)
    note = f"labels changed: {len(ids)} of the pool's {len(data.pool)} have another class (share {share}, seed {seed})"
    return replace(data, y=y_N, notes=(*data.notes, note))


def fewer(data: Images, pool: int | None = None, test: int | None = None, seed: int = 0) -> Images:
    """Only so many points of the pool and of test, classes in proportion."""
    generator = np.random.default_rng([seed, 2])
    kept, notes = {}, []
    for name, n in (("pool", pool), ("test", test)):
        ids = getattr(data, name)
        if n is None:
            continue
        if not 1 <= n <= len(ids):
            raise ValueError(f"{name} is {n}; expected 1 to {len(ids)}, which is what there is")
        y_n = labels(data, ids)
        kept[name] = ids[sample(y_n, shares(np.bincount(y_n), n), generator)]
        notes.append(f"{name} cut to {n} of {len(ids)} points, classes in proportion (seed {seed})")
    return replace(
        data, pool=kept.get("pool", data.pool), test=kept.get("test", data.test), notes=(*data.notes, *notes)
    )


def labels(data: Images, ids: np.ndarray) -> np.ndarray:
    return data.y.cpu().numpy()[ids]
