"""The tables of docs/fine-tuning.md and of the README here, from the records: results/findings/tuning/table.py"""

import itertools
import json
import math
import statistics
from pathlib import Path

RECORDS = Path(__file__).parent / "records"
ARMS = {"random": "Random", "margin": "margin", "uherding": "uherding", "cover": "cover"}
STUDENT_5 = 2.571  # 95 %, six seeds


def record(name: str) -> dict:
    return json.loads((RECORDS / f"{name}.json").read_text())


def mean(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f}"


def difference(a: list[float], b: list[float]) -> str:
    """a − b by seed, with the 95 % interval of its mean; bold where 0 is outside."""
    by_seed = [x - y for x, y in zip(a, b, strict=True)]
    d, within = statistics.mean(by_seed), STUDENT_5 * statistics.stdev(by_seed) / math.sqrt(len(by_seed))
    words = f"{d:+.1f} ± {within:.1f}"
    return f"**{words}**" if abs(d) > within else words


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def accuracy_table() -> str:
    frozen, lora = record("loop-frozen"), record("loop-lora")
    assert frozen["labels"] == lora["labels"]
    cycles = range(len(frozen["labels"]))
    lines = [row("labels", *map(str, frozen["labels"])), "|---" * (len(cycles) + 1) + "|"]
    for arm, name in ARMS.items():
        lines.append(row(f"frozen, {name}", *(mean(frozen["accuracy"][c][arm]) for c in cycles)))
    for arm, name in ARMS.items():
        changes = (difference(lora["accuracy"][c][arm], frozen["accuracy"][c][arm]) for c in cycles)
        lines.append(row(f"LoRA, {name}, less frozen", *changes))
    last = (difference(lora["accuracy"][c]["cover of frozen"], frozen["accuracy"][c]["cover"]) for c in cycles)
    lines.append(row("LoRA on what the frozen one asked by cover, less frozen", *last))
    return "\n".join(lines)


def block_table() -> str:
    """The last block against a frozen encoder with the same head, one that leaves dead columns alone."""
    frozen, block = record("mended/loop-frozen"), record("mended/loop-last-block")
    labels = block["labels"]
    assert labels == frozen["labels"][: len(labels)]
    lines = [row("labels", *map(str, labels)), "|---" * (len(labels) + 1) + "|"]
    lines.append(row("frozen, cover", *(mean(frozen["accuracy"][c]["cover"]) for c in range(len(labels)))))
    for arm, name in (*ARMS.items(), ("cover of frozen", "on what the frozen one asked by cover")):
        own = [(block["accuracy"][c][arm], frozen["accuracy"][c][arm.split()[0]]) for c in range(len(labels))]
        lines.append(row(f"last block, {name}, less frozen", *(difference(a, b) for a, b in own)))
    return "\n".join(lines)


def fidelity_table() -> str:
    lines = [row("tuned", "trained on by", "rank", "probabilities", "logits"), "|---|---|---|---|---|"]
    names = {"frozen": "head on a frozen encoder", "lora": "LoRA and head", "mended/last-block": "last block and head"}
    block = "mended/last-block"
    for model, way in (("frozen", "sgd"), ("lora", "sgd"), ("lora", "adamw"), (block, "sgd"), (block, "adamw")):
        folder, _, kind = model.rpartition("/")
        records = record(f"{folder}/fidelity-{kind}" if folder else f"fidelity-{kind}")["records"]
        own = [r for r in records if r["way"] == way and r["output"] == "signs"]
        cells = (f"{statistics.mean(r[key] for r in own):.2f}" for key in ("rank", "probabilities", "correlation"))
        lines.append(row(names[model], {"sgd": "SGD", "adamw": "AdamW"}[way], *cells))
    return "\n".join(lines)


def ranking_table() -> str:
    found = [json.loads(line) for line in (RECORDS / "ranking.jsonl").read_text().splitlines()]
    lines = [row("parameters", "precision", "cover", "gain", "mlmoc"), "|---|---|---|---|---|"]
    names = {"last-block": "last block and head", "re:lora_|classifier": "LoRA and head", "all": "all"}
    for params, precision in itertools.product(names, ("float32", "tf32", "half")):
        own = {
            r["strategy"]: r for r in found if (r["params"], r["used"], r["precision"]) == (params, *[precision] * 2)
        }
        cells = (f"{own[name]['spearman']:.4f}, {own[name]['same_of_20']}" for name in ("cover", "gain", "mlmoc"))
        lines.append(row(names[params], precision, *cells))
    return "\n".join(lines)


def tables() -> list[str]:
    return [accuracy_table(), block_table(), fidelity_table(), ranking_table()]


if __name__ == "__main__":
    print("\n\n".join(tables()))
