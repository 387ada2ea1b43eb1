"""Data sets that every installation has: scikit-learn's digits and two of its tables, and Python's own docstrings."""

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from foretaste.data.dataset import Images, ids_of, measured, stratified

# Packages and modules of the standard library with a hundred docstrings or so each.
DOCUMENTED = (
    "asyncio", "decimal", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml",
)  # fmt: skip
DIGITS_TEST = 600
DIGITS_STEP = 15  # scikit-learn stores 0 to 16: times 15 they fill a byte
SHORTEST_DOCSTRING = 40  # characters
DOCSTRING_WORDS = 2000  # columns
SHIPPED_TEST = 0.3  # share of each class to measure on


def digits() -> Images:
    """Handwritten digits of 8×8 pixels that come with scikit-learn: no download.

    Returns:
        1197 points to query from and 600 to measure on, always the same, classes in proportion. A network receives
        [0, 1].

    Example:
        >>> from foretaste.data import digits
        >>> digits().classes
        ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    x = torch.as_tensor(bunch.images * DIGITS_STEP).to(torch.uint8)[:, None]
    pool, test = train_test_split(range(len(x)), test_size=DIGITS_TEST, stratify=bunch.target, random_state=0)
    return Images(
        name="digits",
        x=x,
        y=torch.as_tensor(bunch.target, dtype=torch.int64),
        pool=ids_of(pool),
        test=ids_of(test),
        classes=tuple(str(c) for c in bunch.target_names),
        normalise=((0.0,), (16 * DIGITS_STEP / 255,)),
    )


def breast_cancer() -> Images:
    """A table of scikit-learn: 569 tumours, 30 measurements, benign or malignant. No download.

    A network receives each column standardised over the pool and divided by √30: a row has a length of about one.

    Example:
        >>> from foretaste.data import breast_cancer
        >>> data = breast_cancer()
        >>> data.x.shape, data.classes
        (torch.Size([569, 30]), ('malignant', 'benign'))
    """
    from sklearn.datasets import load_breast_cancer

    return _shipped_table("breast-cancer", load_breast_cancer())


def wine() -> Images:
    """A table of scikit-learn: 178 wines, 13 measurements, three growers. No download; scaled as ``breast_cancer``.

    Example:
        >>> from foretaste.data import wine
        >>> len(wine().pool), len(wine().test)
        (125, 53)
    """
    from sklearn.datasets import load_wine

    return _shipped_table("wine", load_wine())


def _shipped_table(name: str, bunch: object) -> Images:
    x_ND = torch.as_tensor(bunch.data, dtype=torch.float32)  # type: ignore[attr-defined]
    y_N = np.asarray(bunch.target, dtype=np.int64)  # type: ignore[attr-defined]
    pool, test = stratified(y_N, SHIPPED_TEST)
    names = tuple(map(str, bunch.target_names))  # type: ignore[attr-defined]
    data = Images(name, x_ND, torch.from_numpy(y_N), pool, test, names)
    mean, deviation = measured(data)
    return replace(data, normalise=(mean, tuple(d * x_ND.shape[1] ** 0.5 for d in deviation)))


def docstrings() -> Images:
    """A small corpus that every Python has: docstrings of ten packages of its standard library, told by their package.

    About 2,000 in Python 3.11. Another version of Python has other ones, so results compare within one version only.
    They become TF-IDF of their 2,000 most frequent words, counted and weighed on the pool alone; rows of length one.

    Example:
        >>> from foretaste.data import docstrings
        >>> data = docstrings()
        >>> len(data.classes), data.x.shape[1]
        (10, 2000)
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    root = Path(sysconfig.get_paths()["stdlib"])
    texts: dict[str, str] = {}
    for name in DOCUMENTED:
        for text in docstrings_in(root / ("_pydecimal.py" if name == "decimal" else name)):
            texts.setdefault(text, name)  # the same words twice would stand in pool and test
    if missing := [name for name in DOCUMENTED if name not in texts.values()]:
        raise FileNotFoundError(
            f"{root} has no source files of {', '.join(missing)}: this Python is stripped or packed. Use a Python from "
            "python.org or of your system"
        )
    y_N = np.array([DOCUMENTED.index(name) for name in texts.values()], dtype=np.int64)
    pool, test = stratified(y_N, SHIPPED_TEST)
    listed = list(texts)
    counts = TfidfVectorizer(max_features=DOCSTRING_WORDS, sublinear_tf=True, stop_words="english", dtype=np.float32)
    counts.fit([listed[i] for i in pool])
    x_ND = torch.from_numpy(np.asarray(counts.transform(listed).todense(), dtype=np.float32))
    note = f"docstrings: {len(listed)} of this Python's standard library; other versions of Python have other ones"
    return Images("docstrings", x_ND, torch.from_numpy(y_N), pool, test, DOCUMENTED, notes=(note,))


def docstrings_in(place: Path) -> Iterator[str]:
    """The docstrings of a file, or of all files of a package, in the order of their names. Nothing is imported."""
    for file in sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.is_file() else []:
        left: list[ast.AST] = [ast.parse(file.read_bytes())]
        while left:
            node = left.pop()
            left += [inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt | ast.ExceptHandler)]
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= SHORTEST_DOCSTRING:
                    yield text
