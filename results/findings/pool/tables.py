"""Packs four tables into $FORETASTE_DATA/weight: cancer and wine of scikit-learn, penguins, and Pima (diabetes).

    python results/findings/pool/tables.py PENGUINS.csv PIMA_TRAIN.csv PIMA_TEST.csv

PENGUINS.csv is that of palmerpenguins 0.1.6, the others are Pima.tr and Pima.te of pydataset 0.2.0.
"""

import csv
import os
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine

OUT = Path(os.environ["FORETASTE_DATA"]) / "weight"


def save(name: str, x: np.ndarray, y: np.ndarray, test: int) -> None:
    """Columns are standardised; the order is drawn once, and its first rows are the test set."""
    z = (x - x.mean(0)) / x.std(0) / np.sqrt(x.shape[1])
    order = np.random.default_rng(12345).permutation(len(z))
    z, y = z[order].astype("f2"), y[order].astype("i2")
    np.savez_compressed(OUT / f"{name}.npz", x=z[test:], y=y[test:], xt=z[:test], yt=y[:test])
    print(name, z.shape, np.bincount(y))


def rows(path: str) -> list[dict[str, str]]:
    """The rows of a CSV file that have no missing cell."""
    with open(path, encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if not {"", "NA"} & set(row.values())]


def main(penguins: str, *pima: str) -> None:
    """Write the three tables that results/findings/weight/prep.py does not."""
    found = load_wine()
    save("wine", found.data, found.target, 60)
    table = rows(penguins)
    numbers = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
    x = np.array([[float(row[key]) for key in numbers] + [float(row["sex"] == "male")] for row in table])
    kinds = sorted({row["species"] for row in table})
    save("penguins", x, np.array([kinds.index(row["species"]) for row in table]), 110)
    table = [row for path in pima for row in rows(path)]
    numbers = ("npreg", "glu", "bp", "skin", "bmi", "ped", "age")
    save(
        "pima",
        np.array([[float(row[key]) for key in numbers] for row in table]),
        np.array([row["type"] == "Yes" for row in table]),
        180,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
