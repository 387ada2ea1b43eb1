"""``foretaste label intents.csv`` with a simulated person: BANKING77, 77 intents, 300 answers, beside random items.

    python results/findings/text/label_intents.py FOLDER [--answers 300] [--texts 10003] [--seeds 0]

FOLDER holds banking77_train.csv.gz and banking77_test.csv.gz (text, category). The training texts, or random ones of
them, are on the desk, without labels; the answers are the true ones, given when the encoder is through. "active" is the
desk as ``foretaste label`` opens it: one item in six is random and measures accuracy. "random" is the same learner,
taught as many random items. Accuracy is of the learner's predictions on the 3,080 test texts. Records are added to
records.jsonl.
"""

import argparse
import csv
import gzip
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import foretaste as ft
from foretaste.connect import default_backbone, encode_with
from foretaste.label import close_desk, open_desk

HERE = Path(__file__).parent
EVERY = 50


def read(path: Path) -> tuple[list[str], list[str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["category"] for row in rows]


def encoded(texts: list[str], train: list[str], backbone: str) -> torch.Tensor:
    """Test texts as the desk encodes its own; TF-IDF is of both together."""
    if backbone == "none":
        return ft.open([*train, *texts], label=False, encoder="tfidf").x[len(train) :]
    return encode_with(ft.open(texts, label=False, encoder="tfidf"), backbone).x


def active(
    train: tuple[list[str], list[str]], test: tuple[list[str], list[str]], args: argparse.Namespace, seed: int
) -> dict:
    truth, classes = dict(zip(*train)), sorted({*train[1]})
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "intents.csv"
        with source.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text",), *((text,) for text in train[0])])
        begin = time.perf_counter()
        desk = open_desk(source, classes=classes, text="text", backbone=args.backbone, seed=seed)
        items = desk.next("tab", "simulated", 1)
        row = {"arm": "active", "seed": seed, "texts": len(train[0]), "first_question_s": time.perf_counter() - begin}
        while desk.worker.describe()["phase"] in ("waiting", "features"):
            time.sleep(0.2)
        row |= {"features_s": time.perf_counter() - begin, "features": desk.worker.describe()["words"]}
        x_test, accuracy, waits = encoded(test[0], train[0], args.backbone), dict[int, float](), []
        for n in range(1, args.answers + 1):
            start = time.perf_counter()
            item = items[0]
            desk.answer("tab", "simulated", item, "label", truth[desk.data.items[desk.number[item]]], patience=600)
            items = desk.next("tab", "simulated", 1)
            waits.append(time.perf_counter() - start)
            learner = desk.worker._learner
            while learner.training:
                time.sleep(0.05)
            if n % EVERY == 0 and learner.ready:
                accuracy[n] = score(learner, x_test, test[1], classes)
                print(n, accuracy[n], flush=True)
        close_desk(desk)
    return row | {"accuracy": accuracy, "median_answer_s": float(np.median(waits))}


def random(
    train: tuple[list[str], list[str]], test: tuple[list[str], list[str]], args: argparse.Namespace, seed: int
) -> dict:
    classes = sorted({*train[1]})
    points = ft.open(train[0], label=False, encoder="tfidf")
    x = points.x if args.backbone == "none" else encode_with(points, args.backbone).x
    x_test, accuracy = encoded(test[0], train[0], args.backbone), dict[int, float]()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).tolist()
    learner = ft.Learner(pool=x, classes=classes, seed=seed, graph="auto")
    for n in range(EVERY, args.answers + 1, EVERY):
        at = order[n - EVERY : n]
        learner.teach(at, [train[1][i] for i in at])
        if learner.ready:
            learner.retrain(wait=True)
        accuracy[n] = score(learner, x_test, test[1], classes)
        print(n, accuracy[n], flush=True)
    return {"arm": "random", "seed": seed, "texts": len(x), "accuracy": accuracy}


def score(learner: ft.Learner, x_test: torch.Tensor, truth: list[str], classes: list[str]) -> float:
    found = learner.predict(x_test)
    names = [c if isinstance(c, str) else classes[int(c)] for c in found]
    return round(100 * float(np.mean([a == b for a, b in zip(names, truth)])), 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--answers", type=int, default=300)
    parser.add_argument("--backbone", default=default_backbone("text") or "none")
    parser.add_argument("--texts", type=int, default=10_003)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--arms", default="active,random")
    args = parser.parse_args()
    train, test = read(args.folder / "banking77_train.csv.gz"), read(args.folder / "banking77_test.csv.gz")
    some = np.random.default_rng(0).permutation(len(train[0]))[: args.texts]
    train = tuple([part[i] for i in some] for part in train)
    for seed in map(int, args.seeds.split(",")):
        for arm in args.arms.split(","):
            record = {"backbone": args.backbone} | {"active": active, "random": random}[arm](train, test, args, seed)
            with (HERE / "records.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(record, flush=True)
