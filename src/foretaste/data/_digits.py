"""Handwritten digits that come with scikit-learn: 1797 real images of 8×8 pixels, no download."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from foretaste.data._images import Images
from foretaste.data._split import ids_of

TEST = 600
STEP = 15  # stored as 0 to 16: times 15 they fill a byte


def digits() -> Images:
    """A network sees [0, 1]; always the same 1197 points to query from and 600 to measure on, classes in proportion."""
    bunch = load_digits()
    x = torch.as_tensor(bunch.images * STEP).to(torch.uint8)[:, None]
    pool, test = train_test_split(range(len(x)), test_size=TEST, stratify=bunch.target, random_state=0)
    return Images(
        name="digits",
        x=x,
        y=torch.as_tensor(bunch.target, dtype=torch.int64),
        pool=ids_of(pool),
        test=ids_of(test),
        classes=tuple(str(c) for c in bunch.target_names),
        normalise=((0.0,), (16 * STEP / 255,)),
    )
