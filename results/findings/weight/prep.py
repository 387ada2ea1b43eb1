"""Packs the data of the lab into $FORETASTE_DATA/weight as float16: python results/findings/weight/prep.py

Needs in $FORETASTE_DATA: mnist and features/, as results/findings does, and text/ with banking77.npz,
banking77_train.csv.gz and banking77_test.csv.gz.
"""

import csv
import gzip
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import problems

DATA = Path(os.environ["FORETASTE_DATA"])


def save(name: str, x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> None:
    """Write one data set."""
    (DATA / "weight").mkdir(exist_ok=True)
    parts = {"x": x.astype("f2"), "y": y.astype("i2"), "xt": x_test.astype("f2"), "yt": y_test.astype("i2")}
    np.savez_compressed(DATA / "weight" / f"{name}.npz", **parts)
    print(name, x.shape, x_test.shape, int(y.max()) + 1, "classes", flush=True)


def features() -> None:
    """CIFAR10 and CIFAR100 through a backbone; divided by 36 when read."""
    for name in ("cifar10", "cifar100"):
        pool, test = (np.load(DATA / "features" / f"{name}_{part}.npz") for part in ("f16", "ft16"))
        have = {**pool, **test}
        save(name, have["f"], have["y"], have["ft"], have["yt"])


def banking() -> None:
    """Embeddings of 5,000 bank queries, scaled as make_head scales; the same texts as 100 components of TF-IDF."""
    stored = np.load(DATA / "text" / "banking77.npz", allow_pickle=True)
    keep = np.random.default_rng(7).permutation(len(stored["y_train"]))[:5000]
    x, x_test = stored["x_train"].astype("f4")[keep], stored["x_test"].astype("f4")
    mean, std = x.mean(0), x.std(0)
    std = np.where(std <= 1e-6 * abs(mean) + 1e-12, 1, std)
    x, x_test = ((rows - mean) / std / np.sqrt(rows.shape[1]) for rows in (x, x_test))
    save("banking", x, stored["y_train"][keep], x_test, stored["y_test"])

    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, labels = [], []
    for part in ("train", "test"):
        with gzip.open(DATA / "text" / f"banking77_{part}.csv.gz", "rt", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        names = sorted({row["category"] for row in rows})  # all 77 are in both parts
        texts.append([row["text"] for row in rows])
        labels.append(np.array([names.index(row["category"]) for row in rows]))
    vectors = TfidfVectorizer(min_df=3, sublinear_tf=True, stop_words="english")
    components = TruncatedSVD(100, random_state=0)
    z = components.fit_transform(vectors.fit_transform([texts[0][i] for i in keep]))
    z_test = components.transform(vectors.transform(texts[1]))
    mean = z.mean(0)
    size = np.sqrt(((z - mean) ** 2).sum(1).mean())
    save("bankingtfidf", (z - mean) / size, labels[0][keep], (z_test - mean) / size, labels[1])


def others() -> None:
    """As results/findings has them."""
    for name in ("digits", "cancer", "text", "mnist"):
        x, y, x_test, y_test, _ = problems.problem(name)
        save(name, x.numpy(), y.numpy(), x_test.numpy(), y_test.numpy())


if __name__ == "__main__":
    for name in sys.argv[1:] or ("features", "banking", "others"):
        {"features": features, "banking": banking, "others": others}[name]()
