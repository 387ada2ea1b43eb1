"""Fine-tuning a classifier of DistilBERT's size: Θ of its last block, of LoRA adapters, and of all parameters.

``python -m benchmarks.tuning`` on a GPU; ``--small`` tries it on a CPU. Each line is one choice of parameters: seconds
of ft.ntk on all points and of torch.func's per-point gradients on some, in forward passes over as many points (the
pass that entropy needs), and the error of the centred kernel against float64 on a few. Weights are random: the cost
does not depend on them.

``--ranking`` asks instead whether coarse arithmetic keeps the order of candidates. The classifier is first trained on a
few texts of a made-up task. Each line is one choice of parameters, strategy and precision: Spearman's correlation of
the scores with those of the float64 network, and how many of the batch are the same points. "used" is the precision
that was taken: a CPU has float32 alone. Adapters are trained together with the head, or they learn nothing.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import foretaste as ft
from benchmarks.rivals import per_point_gradients
from foretaste.errors import errors_only
from foretaste.network import add_adapters
from foretaste.parameters import choose_names

CLASSES = 77  # intents
RANKED = ("cover", "gain", "mlmoc")
OWN_WORDS = 0.3  # share of a text's tokens that are words of its class


def classifier(small: bool, adapted: bool) -> nn.Module:
    """Six layers of 768, 66 million parameters; adapters at queries and values, where they are asked for."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    sizes: dict[str, Any] = (
        {"n_layers": 2, "dim": 64, "hidden_dim": 128, "n_heads": 4, "vocab_size": 500} if small else {}
    )
    torch.manual_seed(0)
    net: Any = DistilBertForSequenceClassification(DistilBertConfig(**{"num_labels": CLASSES} | sizes)).eval()
    if adapted:
        add_adapters(net)
    return net


class Logits(nn.Module):
    """Token ids to logits, for torch.func."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner: Any = inner

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(input_ids=ids).logits


def seconds(run: Callable[[], object], device: torch.device, turns: int) -> float:
    """The fastest of some turns, after one that is not counted."""
    times = []
    for _ in range(turns + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def centred(theta: Tensor) -> Tensor:
    """What a ranking sees: the huge common part of all rows is taken out."""
    return theta - theta.mean(0) - theta.mean(1, keepdim=True) + theta.mean()


def measure(params: str | None, given: argparse.Namespace, device: torch.device) -> None:
    net = Logits(classifier(given.small, params == "lora")).eval().to(device)
    words = net.inner.config.vocab_size
    ids = torch.randint(words, (given.points, given.tokens), device=device)

    def forward() -> None:
        with torch.no_grad():
            for some in ids.split(256):
                net(some)

    found: dict[str, object] = {"params": params or "all", "points": given.points, "tokens": given.tokens}
    found["forward_s"] = one = seconds(forward, device, 2)
    truth = centred(ft.ntk(net.double(), ids[:24], params=params))
    net.float()
    for precision in ("float32", "tf32", "half") if device.type == "cuda" else ("float32",):
        try:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            took = seconds(partial(ft.ntk, net, ids, params=params, precision=precision), device, given.turns)
            found[f"{precision}_forwards"] = took / one
            if device.type == "cuda":
                found[f"{precision}_peak_GB"] = torch.cuda.max_memory_allocated() / 1e9
            ours = centred(ft.ntk(net, ids[:24], params=params, precision=precision))
            found[f"{precision}_error"] = float((ours - truth).norm() / truth.norm())
        except (ValueError, RuntimeError) as error:
            found[precision] = str(error)[:200]
    if params is not None:
        trained = set(choose_names(net, params))
        for name, p in net.named_parameters():
            p.requires_grad_(name in trained)
    try:
        few = ids[: given.few]
        took = seconds(lambda: per_point_gradients(net, few, 16), device, 1)
        found["func_forwards"] = took / one * len(ids) / len(few)
    except (RuntimeError, ValueError) as error:
        found["func"] = str(error)[:200]
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}), flush=True)


def made_up_texts(count: int, tokens: int, words: int) -> tuple[Tensor, Tensor]:
    """Token ids and classes: each class has twelve words of its own, among others that say nothing."""
    g = torch.Generator().manual_seed(1)
    own = torch.randint(words, (CLASSES, 12), generator=g)
    y = torch.arange(count) % CLASSES
    ids = torch.randint(words, (count, tokens), generator=g)
    theirs = own[y[:, None], torch.randint(12, (count, tokens), generator=g)]
    return torch.where(torch.rand(count, tokens, generator=g) < OWN_WORDS, theirs, ids), y


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's."""
    ranks = torch.stack([t.argsort().argsort().double() for t in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def measure_ranking(params: str | None, given: argparse.Namespace, device: torch.device) -> None:
    net = Logits(classifier(given.small, params == "lora")).eval().to(device)
    texts = made_up_texts(given.labelled + given.pool, given.tokens, net.inner.config.vocab_size)
    ids, y = (t.to(device) for t in texts)
    x_L, y_L, x_U = ids[: given.labelled], y[: given.labelled], ids[given.labelled :]
    if params == "lora":
        params = "re:lora_|classifier"
    rate = 1e-3 if given.small or params == "re:lora_|classifier" else 1e-4
    fitted = ft.fit(
        net, x_L, y_L, loss="ce", steps=given.steps, params=params, optimiser="adamw", max_lr=rate, clip=1.0
    )
    for strategy in RANKED:
        ask = partial(ft.query, x_L=x_L, y_L=y_L, x_U=x_U, strategy=strategy, loss="ce", params=params)
        truth = ask(net.double())
        net.float()
        for precision in ("float32", "tf32", "half", "auto"):
            found: dict[str, object] = {"params": params or "all", "strategy": strategy, "precision": precision}
            found |= {"labelled": len(x_L), "pool": len(x_U), "accuracy_L": fitted.accuracy}
            try:
                q = ask(net, precision=precision)
            except ValueError as error:
                found["error"] = str(error)[:200]
            else:
                found["used"] = q.info.get("precision")
                assert q.scores is not None
                assert truth.scores is not None
                found["spearman"] = round(rank_correlation(q.scores, truth.scores), 5)
                found["same_of_20"] = len({*q.indices.tolist()} & {*truth.indices.tolist()})
            print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.tuning")
    parser.add_argument("--points", type=int, default=4500)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--few", type=int, default=128, help="points for torch.func")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--params", nargs="+", default=["last-block", "lora", "all"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--ranking", action="store_true", help="the order of candidates in each precision")
    parser.add_argument("--labelled", type=int, default=154, help="for --ranking; also --pool and --steps")
    parser.add_argument("--pool", type=int, default=600)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for params in given.params:
        with errors_only():
            run = measure_ranking if given.ranking else measure
            run(None if params == "all" else params, given, device)


if __name__ == "__main__":
    main()
