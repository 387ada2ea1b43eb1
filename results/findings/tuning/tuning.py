"""Does fine-tuning pay? BANKING77 with all-MiniLM-L6-v2: a frozen encoder with a head, its last block, LoRA adapters.

    python results/findings/tuning/tuning.py STAGE MODEL OUT [--data FILE] [--toy]

Stages: "search" chooses learning rate, steps, head and start on seeds 0 to 3, with random labels and texts that are in
no pool and no test; "loop" is active learning on seeds 120 to 125; "fidelity" compares look-ahead with really going on
training; "seconds" times one query and one training alone. Each reads what the one before it wrote to OUT and writes a
record there; a loop that is cut off goes on after its last cycle. Networks of all strategies and seeds are trained
together by torch.func.vmap; queries are the product's own ``ft.query``. ``run.sh`` runs them all.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call, vmap

import foretaste as ft
from foretaste.errors import errors_only
from foretaste.network import LoraLinear, make_head
from foretaste.network.sgd import one_cycle
from foretaste.study.fidelity import Retrainings, TangentKernel, agreement, ceiling, choose_jobs, evaluate

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLASSES, HEADS = 77, 12
MODELS = ("frozen", "last-block", "lora")
STRATEGIES = ("random", "margin", "uherding", "cover")
CHOSEN_SEEDS, SEEDS = (0, 1, 2, 3), (120, 121, 122, 123, 124, 125)
SEARCH_LABELS, FIRST, BATCH, CYCLES, POOL, VALIDATION = 231, 77, 77, 5, 3000, 1500
BUDGET = "20GB"
FIDELITY_SEEDS, FIDELITY_LABELS, CANDIDATES, WATCHED = (120, 121), 154, 40, 300
Stacked = dict[str, Tensor]  # parameters of R networks, (R, ...) each


# --- the network ---


class Block(nn.Module):
    """A layer of BERT: attention, then two linear layers, each with a residual and a norm after it."""

    def __init__(self, D: int, hidden: int, adapted: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        if adapted:
            self.query, self.value = LoraLinear(self.query), LoraLinear(self.value)
        self.out, self.norm1 = nn.Linear(D, D), nn.LayerNorm(D, eps=1e-12)
        self.up, self.down, self.norm2 = nn.Linear(D, hidden), nn.Linear(hidden, D), nn.LayerNorm(D, eps=1e-12)

    def forward(self, h_nTD: Tensor, mask_nT: Tensor) -> Tensor:
        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (HEADS, -1)).transpose(-2, -3)

        q, k, v = (heads(part(h_nTD)) for part in (self.query, self.key, self.value))
        logits = q @ k.mT / math.sqrt(q.shape[-1])
        logits = logits + (1 - mask_nT[:, None, None, :].to(logits.dtype)) * -30000.0
        mixed = (logits.softmax(-1) @ v).transpose(-2, -3).flatten(-2)
        h_nTD = self.norm1(h_nTD + self.out(mixed))
        return self.norm2(h_nTD + self.down(F.gelu(self.up(h_nTD))))


class TextClassifier(nn.Module):
    """Token ids, 0 for padding, to outputs: blocks, the mean over tokens at unit length, and a head."""

    def __init__(self, weights: dict[str, Tensor], head: nn.Module, adapted: bool = False) -> None:
        super().__init__()
        words, places = weights["embeddings.word_embeddings.weight"], weights["embeddings.position_embeddings.weight"]
        self.words = nn.Embedding.from_pretrained(words)
        self.places = nn.Embedding.from_pretrained(places + weights["embeddings.token_type_embeddings.weight"][0])
        D, hidden = words.shape[1], len(weights["encoder.layer.0.intermediate.dense.bias"])
        self.norm = nn.LayerNorm(D, eps=1e-12)
        _load(self.norm, weights, "embeddings.LayerNorm")
        depth = 1 + max(int(k.split(".")[2]) for k in weights if k.startswith("encoder.layer"))
        self.blocks = nn.ModuleList(Block(D, hidden, adapted) for _ in range(depth))
        for i, block in enumerate(self.blocks):
            for ours, theirs in BERT_NAMES.items():
                module = getattr(block, ours)
                _load(module.base if isinstance(module, LoraLinear) else module, weights, f"encoder.layer.{i}.{theirs}")
        self.head = head

    def forward(self, x: Tensor, mask_nT: Tensor | None = None) -> Tensor:
        """x: ids (n, T); or what ``prefix`` gives, with its mask."""
        if mask_nT is None:
            mask_nT, x, blocks = x != 0, self.embed(x), self.blocks
        else:
            blocks = self.blocks[-1:]
        for block in blocks:
            x = block(x, mask_nT)
        return self.head(mean_token(x, mask_nT))

    def embed(self, ids_nT: Tensor) -> Tensor:
        places = self.places(torch.arange(ids_nT.shape[-1], device=ids_nT.device).expand(ids_nT.shape))
        return self.norm(self.words(ids_nT) + places)

    def prefix(self, ids_nT: Tensor) -> Tensor:
        """The input of the last block."""
        h = self.embed(ids_nT)
        for block in self.blocks[:-1]:
            h = block(h, ids_nT != 0)
        return h


BERT_NAMES = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "out": "attention.output.dense", "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense", "down": "output.dense", "norm2": "output.LayerNorm",
}  # fmt: skip


def mean_token(h_nTD: Tensor, mask_nT: Tensor) -> Tensor:
    share_nT1 = mask_nT[..., None].to(h_nTD.dtype)
    return F.normalize((h_nTD * share_nT1).sum(-2) / share_nT1.sum(-2).clamp_min(1), dim=-1)


def _load(module: nn.Module, weights: dict[str, Tensor], name: str) -> None:
    module.load_state_dict({k: weights[f"{name}.{k}"] for k in ("weight", "bias")})


# --- the data, and what a frozen encoder makes of it ---


class Texts:
    def __init__(self, path: str, toy: bool) -> None:
        packed = load_file(path)
        self.toy = toy
        self.ids, self.y = packed.pop("ids").long().to(DEVICE), packed.pop("y").to(DEVICE)
        n = int(packed.pop("train"))
        self.weights = packed
        if toy:
            few = torch.cat([torch.arange(n)[::35], torch.arange(n, n + 40)])
            self.ids, self.y, n = self.ids[few, :6], self.y[few], len(few) - 40
            self.weights = {
                k: v for k, v in packed.items() if not k.startswith(tuple(f"encoder.layer.{i}" for i in range(2, 6)))
            }
        self.length = (self.ids != 0).sum(1).cpu()
        order = torch.randperm(n, generator=torch.Generator().manual_seed(77))
        held_out = 20 if toy else VALIDATION
        self.validation, self.train = order[:held_out], order[held_out:]
        self.test = torch.arange(n, len(self.ids))
        self.known = torch.arange(len(self.ids), device=DEVICE)  # texts that the encoder is run on

    def pool(self, seed: int) -> Tensor:
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(5000 + seed))
        return self.train[order[: 250 if self.toy else POOL]]

    @torch.no_grad()
    def _by_chunk(self, what: Any) -> Tensor:
        """For the known texts; 0 for the others."""
        rows = torch.cat([what(self.ids[part]) for part in self.known.split(1024)])
        return rows.new_zeros(len(self.ids), *rows.shape[1:]).index_copy_(0, self.known, rows)

    @cached_property
    def plain(self) -> TextClassifier:
        return TextClassifier(self.weights, nn.Identity()).to(DEVICE).eval()

    @cached_property
    def features(self) -> Tensor:
        """(N, 384) of the frozen encoder."""
        return self._by_chunk(self.plain)

    @cached_property
    def hidden(self) -> Tensor:
        """(N, T, 384): the input of the last block."""
        return self._by_chunk(self.plain.prefix)

    def inputs(self, model: str, at: Tensor, T: int) -> tuple[Tensor, ...]:
        """What a training of ``model`` reads of these texts, T tokens each."""
        if model == "frozen":
            return (self.features[at],)
        ids = self.ids[at, :T]
        return (ids,) if model == "lora" else (self.hidden[at, :T], ids != 0)

    def points(self, model: str, at: Tensor) -> Tensor:
        """What ``ft.query`` is given."""
        return (self.features if model == "frozen" else self.ids)[at.to(DEVICE)]


# --- training: R networks at once ---


@dataclass(frozen=True)
class How:
    """A training. start: the head's weights, "fresh", or those of a training of the head alone ("probed")."""

    loss: str = "ce"
    optimiser: str = "adamw"
    lr: float = 1e-4  # of the encoder, or of all with "sgd"
    head_lr: float = 1e-3
    steps: int = 600
    hidden: int | None = 512
    start: str = "probed"
    batch: int = 32
    weight_decay: float = 0.01
    clip: float = 1.0


HEAD_ALONE = {512: How(lr=2e-3, steps=400, start="fresh"), None: How(lr=1e-2, steps=400, start="fresh")}


def build(texts: Texts, model: str, how: How) -> tuple[nn.Module, list[str]]:
    """The network, whose trained parameters alone require grad, and their names."""
    torch.manual_seed(0)
    # Three numbers of the encoder hardly vary, by 5e-9 or less. A head would scale them up, and tuning would
    # then move them: the outputs of a network whose last block was trained were lost so.
    features = texts.features[texts.known]
    deviation_D = features.std(0)
    head = make_head(features * (deviation_D > 1e-3 * deviation_D.median()), CLASSES, hidden=how.hidden)
    net = head if model == "frozen" else TextClassifier(texts.weights, head, model == "lora")
    net = net.to(DEVICE).eval()
    last = f"blocks.{len(net.blocks) - 1}." if isinstance(net, TextClassifier) else ""
    wanted = {"frozen": ("",), "last-block": (last, "head."), "lora": ("head.",)}[model]
    for name, p in net.named_parameters():
        p.requires_grad_(name.startswith(wanted) or "lora_" in name)
    return net, [name for name, p in net.named_parameters() if p.requires_grad]


def first_weights(
    texts: Texts, model: str, hows: Sequence[How], seeds: Sequence[int], at_RN: Tensor
) -> tuple[nn.Module, Stacked]:
    """R networks before their training: the encoder's weights, and heads and adapters drawn by seed."""
    net, names = build(texts, model, hows[0])
    ours = [
        m
        for name, m in net.named_modules()
        if isinstance(m, nn.Linear) and (model == "frozen" or name.startswith("head.") or name.endswith("lora_A"))
    ]
    drawn = []
    for seed in seeds:
        torch.manual_seed(1000 + seed)
        for m in ours:
            m.reset_parameters()
        drawn.append({k: p.detach().clone() for k, p in net.named_parameters() if k in names})
    start = {k: torch.stack([one_net[k] for one_net in drawn]) for k in names}
    probed = torch.tensor([how.start == "probed" for how in hows], device=DEVICE)
    if probed.any():
        alone = replace(HEAD_ALONE[hows[0].hidden], **({"steps": 3} if texts.toy else {}))
        head, _ = build(texts, "frozen", hows[0])
        fresh = {k.removeprefix("head."): v for k, v in start.items() if k.startswith("head.")}
        for k, v in train(texts, "frozen", head, fresh, at_RN, [alone] * len(seeds), seeds).items():
            start[f"head.{k}"] = torch.where(probed.view(-1, *[1] * (v.dim() - 1)), v, start[f"head.{k}"])
    return net, start


def train(
    texts: Texts, model: str, net: nn.Module, start: Stacked, at_RN: Tensor, hows: Sequence[How], seeds: Sequence[int],
    extra_R: Tensor | None = None, y_extra_R: Tensor | None = None, precise: bool = False,
) -> Stacked:  # fmt: skip
    """Train R networks on texts at_RN; their settings may differ in learning rates. Losses are of R networks apart.

    extra_R: one text more for each, in every batch, with the weight of one text; −1 is none. AdamW warms up over a
    tenth of the steps and falls to 0 along a line; "sgd" is one-cycle.
    """
    (R, N), how = at_RN.shape, hows[0]
    params = {k: v.clone().requires_grad_() for k, v in start.items()}
    first, second = ([torch.zeros_like(p) for p in params.values()] for _ in range(2))
    own_R, head_R = (torch.tensor([getattr(h, name) for h in hows], device=DEVICE) for name in ("lr", "head_lr"))
    rates = [head_R if k.startswith("head.") and how.optimiser == "adamw" else own_R for k in params]
    rates = [rate.view(-1, *[1] * (p.dim() - 1)) for rate, p in zip(rates, params.values())]
    order_RSB = torch.stack([_batches(N, how.batch, how.steps, seed) for seed in seeds])
    at_SRn = at_RN.gather(1, order_RSB.flatten(1)).view_as(order_RSB).transpose(0, 1)
    y_SRn = texts.y.cpu()[at_SRn]
    share_Rn = torch.full((R, how.batch), 1 / how.batch)
    if extra_R is not None and y_extra_R is not None:
        one_more = torch.cat([share_Rn * N / (N + 1), torch.full((R, 1), 1 / (N + 1))], 1)
        share_Rn = torch.where(extra_R[:, None] < 0, F.pad(share_Rn, (0, 1)), one_more)
        at_SRn = torch.cat([at_SRn, extra_R.clamp_min(0).expand(how.steps, R)[..., None]], 2)
        y_SRn = torch.cat([y_SRn, y_extra_R.expand(how.steps, R)[..., None]], 2)
    longest_S = texts.length[at_SRn].amax((1, 2)).tolist()
    share_Rn, at_SRn, y_SRn = share_Rn.to(DEVICE), at_SRn.to(DEVICE), y_SRn.to(DEVICE)
    autocast = torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda" and not precise)
    outputs = vmap(lambda p, *x: functional_call(net, p, x))
    for step in range(how.steps):
        with autocast:
            f_RnC = outputs(params, *texts.inputs(model, at_SRn[step], longest_S[step])).float()
        if how.loss == "ce":
            loss_Rn = F.cross_entropy(f_RnC.flatten(0, 1), y_SRn[step].flatten(), reduction="none").view_as(share_Rn)
        else:
            loss_Rn = (f_RnC - F.one_hot(y_SRn[step], CLASSES)).square().mean(-1)
        grads = torch.autograd.grad((loss_Rn * share_Rn).sum(), list(params.values()))
        with torch.no_grad():
            if how.optimiser == "sgd":
                part, momentum = one_cycle(step, how.steps, 1.0)
                for p, v, g, rate in zip(params.values(), first, grads, rates):
                    p.sub_(v.mul_(momentum).add_(g) * rate, alpha=part)
                continue
            size_R = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0).sqrt()
            cut_R = (how.clip / size_R.clamp_min(1e-12)).clamp_max(1)
            part = min((step + 1) / max(1, 0.1 * how.steps), (how.steps - step) / (0.9 * how.steps))
            for p, m, v, g, rate in zip(params.values(), first, second, grads, rates):
                g = g * cut_R.view(-1, *[1] * (g.dim() - 1))
                m.lerp_(g, 0.1)
                v.lerp_(g.square(), 0.001)
                p.mul_(1 - part * how.weight_decay * rate)
                to = (v / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)
                p.sub_(m / to * rate, alpha=part / (1 - 0.9 ** (step + 1)))
    return {k: p.detach() for k, p in params.items()}


def _batches(n: int, size: int, steps: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed + 999)
    return torch.cat([torch.randperm(n, generator=g) for _ in range(math.ceil(steps * size / n))])[: steps * size].view(
        steps, size
    )


def one(params: Stacked, r: int) -> Stacked:
    return {k: v[r] for k, v in params.items()}


@torch.no_grad()
def predict(texts: Texts, model: str, net: nn.Module, params: Stacked, at: Tensor) -> Tensor:
    """(R, N, C) outputs in float32."""
    R = len(next(iter(params.values())))
    parts = [texts.inputs(model, some.to(DEVICE), int(texts.length[some].max())) for some in at.split(1024)]
    return torch.stack([torch.cat([functional_call(net, one(params, r), x) for x in parts]) for r in range(R)])


def accuracy(texts: Texts, model: str, net: nn.Module, params: Stacked, at: Tensor) -> list[float]:
    right_RN = predict(texts, model, net, params, at).argmax(2) == texts.y[at.to(DEVICE)]
    return [round(100 * hit, 3) for hit in right_RN.double().mean(1).tolist()]


def train_from_pretrained(
    texts: Texts, model: str, hows: Sequence[How], seeds: Sequence[int], at_RN: Tensor
) -> tuple[nn.Module, Stacked]:
    net, start = first_weights(texts, model, hows, seeds, at_RN)
    return net, train(texts, model, net, start, at_RN, hows, seeds)


# --- stages ---


def grid(model: str) -> list[How]:
    if model == "frozen":
        plain = How(start="fresh", steps=1200)
        sgd = [replace(plain, optimiser="sgd", lr=lr, loss=loss) for loss, lr in
               [("ce", 0.1), ("ce", 0.3), ("ce", 1.0), ("l2", 2.0), ("l2", 5.0)]]  # fmt: skip
        adam = [replace(plain, lr=lr) for lr in (3e-4, 1e-3, 3e-3)]
        return sgd + adam
    rates = (5e-5, 1.5e-4, 5e-4) if model == "last-block" else (3e-4, 1e-3, 3e-3)
    made = itertools.product((300, 800), (512, None), ("probed", "fresh"), rates)
    return [How(lr=lr, steps=steps, hidden=hidden, start=start) for steps, hidden, start, lr in made]


def search(texts: Texts, model: str, out: Path) -> None:
    """Every setting of the grid, by accuracy on texts of neither pool nor test."""
    seeds, found = CHOSEN_SEEDS, []
    at_SN = torch.stack([texts.pool(seed)[:SEARCH_LABELS] for seed in seeds])
    alike: dict[Any, list[How]] = {}  # what can be trained together
    for how in grid(model):
        alike.setdefault((how.steps, how.hidden, how.loss, how.optimiser), []).append(how)
    for group in list(alike.values())[: 2 if texts.toy else None]:
        group = [replace(how, steps=3) for how in group[:2]] if texts.toy else group
        began, S = time.perf_counter(), len(seeds)
        hows = [how for how in group for _ in seeds]
        net, params = train_from_pretrained(texts, model, hows, list(seeds) * len(group), at_SN.repeat(len(group), 1))
        hits = accuracy(texts, model, net, params, texts.validation)
        for i, how in enumerate(group):
            mine = hits[i * S : (i + 1) * S]
            found.append({"how": asdict(how), "accuracy": mine, "mean": sum(mine) / S})
            told = {k: getattr(how, k) for k in ("loss", "optimiser", "lr", "steps", "hidden", "start")}
            print(model, told, round(found[-1]["mean"], 2), flush=True)
        print(f"{model}: {time.perf_counter() - began:.1f} s", flush=True)
    best = max(found, key=lambda f: f["mean"])
    write(
        out / f"search-{model}.json",
        {"model": model, "labels": SEARCH_LABELS, "seeds": seeds, "tried": found, "best": best["how"]},
    )


def chosen(model: str, out: Path) -> How:
    return How(**json.loads((out / f"search-{model}.json").read_text())["best"])


def ask(
    texts: Texts,
    model: str,
    net: nn.Module,
    names: list[str],
    how: How,
    strategy: str,
    L: Tensor,
    U: Tensor,
    n: int,
    seed: int,
) -> tuple[list[int], float]:
    """Positions in U by ``ft.query``, and its seconds. uherding measures distances between the encoder's outputs."""
    space = "inputs" if model == "frozen" else "last"
    layer = "head.1.layers.0" if model != "frozen" and how.hidden else None
    options = {"space": space} | ({"layer": layer} if layer else {})
    with errors_only():
        q = ft.query(
            net, texts.points(model, L), texts.y[L.to(DEVICE)], texts.points(model, U), strategy=strategy, batch_size=n,
            loss=how.loss, seed=seed, params=names, budget=BUDGET, options=options if strategy == "uherding" else None,
            **({"precision": "float32"} if strategy == "cover" else {}),
        )  # fmt: skip
    return q.indices.tolist(), q.seconds["total"]


def loop(texts: Texts, model: str, out: Path) -> None:
    """Active learning. A tuned model has an arm more: it learns what ``cover`` asked for with the frozen one."""
    path, how = out / f"loop-{model}.json", chosen(model, out)
    seeds = SEEDS[:2] if texts.toy else SEEDS
    batch, cycles = (10, 1) if texts.toy else (BATCH, CYCLES)
    given = json.loads((out / "loop-frozen.json").read_text()) if model != "frozen" else None
    arms = STRATEGIES if given is None else (*STRATEGIES, "cover of frozen")
    pools = [texts.pool(seed) for seed in seeds]
    if path.exists():
        done = json.loads(path.read_text())
    else:
        done = {"model": model, "how": asdict(how), "seeds": seeds, "arms": arms, "accuracy": [], "labels": [],
                "picked": {arm: [list(range(FIRST)) for _ in seeds] for arm in arms}}  # fmt: skip
    while len(done["labels"]) <= cycles:
        cycle, began, picked = len(done["labels"]), time.perf_counter(), done["picked"]
        if given is not None:
            count = FIRST + cycle * batch
            picked["cover of frozen"] = [one_seed[:count] for one_seed in given["picked"]["cover"]]
        used = arms if cycle else arms[:1]
        rows = [(arm, s) for arm in used for s in range(len(seeds))]
        at_RN = torch.stack([pools[s][torch.tensor(picked[arm][s])] for arm, s in rows])
        net, params = train_from_pretrained(texts, model, [how] * len(rows), [seeds[s] for _, s in rows], at_RN)
        hits = accuracy(texts, model, net, params, texts.test)
        S = len(seeds)
        by_arm = {arm: hits[i * S : (i + 1) * S] for i, arm in enumerate(used)}
        done["accuracy"].append({arm: by_arm.get(arm, hits[:S]) for arm in arms})
        done["labels"].append(at_RN.shape[1])
        trained = time.perf_counter() - began
        names = [k for k, p in net.named_parameters() if p.requires_grad]
        for i, arm in enumerate(arms if cycle < cycles else ()):
            if arm == "cover of frozen":
                continue
            for s, seed in enumerate(seeds):
                mine = picked[arm][s]
                rest = torch.tensor(sorted(set(range(len(pools[s]))) - set(mine)))
                if arm == "random":
                    g = torch.Generator().manual_seed(seed + 31 * cycle)
                    new = torch.randperm(len(rest), generator=g)[:batch].tolist()
                else:
                    net.load_state_dict(one(params, (i if cycle else 0) * S + s), strict=False)
                    L = pools[s][torch.tensor(mine)]
                    new, _ = ask(texts, model, net, names, how, arm, L, pools[s][rest], batch, seed)
                picked[arm][s] = mine + rest[torch.tensor(new)].tolist()
        write(path, done)
        took = time.perf_counter() - began
        words = ", ".join(f"{arm} {sum(v) / S:.1f}" for arm, v in done["accuracy"][-1].items())
        print(
            f"{model} {done['labels'][-1]} labels: {words}; training {trained:.1f} s, queries {took - trained:.1f} s",
            flush=True,
        )


def fidelity(texts: Texts, model: str, out: Path) -> None:
    """Predicted changes of outputs, and those of really training on from the trained weights with one label more."""
    how, records = chosen(model, out), []
    for seed in FIDELITY_SEEDS[:1] if texts.toy else FIDELITY_SEEDS:
        pool, count, watched = texts.pool(seed), *((4, 20) if texts.toy else (CANDIDATES, WATCHED))
        L, c, W = pool[:FIDELITY_LABELS], pool[FIDELITY_LABELS:][:count], pool[FIDELITY_LABELS + count :][:watched]
        net, params = train_from_pretrained(texts, model, [how], [seed], L[None])
        net.load_state_dict(one(params, 0), strict=False)
        feed = {"L": texts.points(model, L), "U": texts.points(model, c), "W": texts.points(model, W)}
        f_cC, before_WC = evaluate(net, feed["U"]), evaluate(net, feed["W"])
        jobs = choose_jobs(f_cC, texts.y[c.to(DEVICE)])
        extra_R = torch.cat([torch.tensor([-1]), c[torch.tensor([job.candidate for job in jobs])]])
        y_R = torch.tensor([0] + [job.label for job in jobs])
        kernels = [
            TangentKernel(net, feed, texts.y[L.to(DEVICE)], how.loss, output, "float32", None)
            for output in ("signs", "sum")
        ]
        largest = float(torch.linalg.eigvalsh(kernels[0].gram.blocks["L", "L"])[-1])
        curvature = 2 / CLASSES if how.loss == "l2" else 1.0  # of the loss, at most
        steady = replace(how, optimiser="sgd", lr=0.5 * len(L) / (largest * curvature), steps=150)
        ways = {
            "adamw": replace(how, optimiser="adamw", steps=150) if how.optimiser == "adamw" else None,
            "sgd": steady,
        }
        for way, again in ways.items():
            if again is None:
                continue
            again = replace(again, steps=2) if texts.toy else again
            began, after, R = time.perf_counter(), [], len(extra_R)
            for repeat in range(2):
                stacked = {k: v.expand(R, *v.shape[1:]) for k, v in params.items()}
                trained = train(texts, model, net, stacked, L.expand(R, -1), [again] * R, [7 * seed + repeat] * R,
                                extra_R, y_R, precise=True)  # fmt: skip
                after.append(predict(texts, model, net, trained, W).double())
            f_SRWC = torch.stack(after)
            real = Retrainings(jobs, f_SRWC[:, 1:], f_SRWC[:, :1], f_SRWC[:, 0] - before_WC)
            limits = ceiling(real.change_SJWC)
            for kernel in kernels:
                state = kernel.state()
                got = agreement(kernel.predictions(state, jobs), state.mean, real, how.loss)
                about = {"seed": seed, "way": way, "lr": again.lr, "output": kernel.output, "jobs": len(jobs)}
                size = {"agreement": limits and limits[0], "change": float(real.change_SJWC.norm())}
                records.append(about | got | size)
                told = {k: round(v, 3) if isinstance(v, float) else v for k, v in records[-1].items()}
                print("fidelity", model, told, f"{time.perf_counter() - began:.1f} s", flush=True)
    write(
        out / f"fidelity-{model}.json",
        {"model": model, "labels": FIDELITY_LABELS, "candidates": count, "watched": watched, "records": records},
    )


def seconds(texts: Texts, model: str, out: Path) -> None:
    """One training and one query of each strategy, alone on the machine; the second of two turns."""
    how, seed = chosen(model, out), CHOSEN_SEEDS[0]
    how = replace(how, steps=3) if texts.toy else how
    pool = texts.pool(seed)
    L, U = pool[:SEARCH_LABELS], pool[SEARCH_LABELS:]
    found: dict[str, Any] = {"model": model, "labels": len(L), "pool": len(U), "steps": how.steps}
    for _ in range(2):
        sync()
        began = time.perf_counter()
        net, params = train_from_pretrained(texts, model, [how], [seed], L[None])
        sync()
        found["training"] = round(time.perf_counter() - began, 3)
    net.load_state_dict(one(params, 0), strict=False)
    names = [k for k, p in net.named_parameters() if p.requires_grad]
    for strategy in STRATEGIES:
        for _ in range(2):
            found[strategy] = round(
                ask(texts, model, net, names, how, strategy, L, U, 10 if texts.toy else BATCH, seed)[1], 4
            )
    found["device"] = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    print("seconds", found, flush=True)
    write(out / f"seconds-{model}.json", found)


def sync() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def write(path: Path, record: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record) + "\n")
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser("tuning.py")
    parser.add_argument("stage", choices=["search", "loop", "fidelity", "seconds"])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default=".carry/tuning/banking.safetensors")
    parser.add_argument("--toy", action="store_true", help="a few texts and steps, to see whether it works")
    given = parser.parse_args()
    if given.stage != "loop" and (given.out / f"{given.stage}-{given.model}.json").exists():
        return
    torch.set_float32_matmul_precision("high")
    given.out.mkdir(parents=True, exist_ok=True)
    texts = Texts(given.data, given.toy)
    {"search": search, "loop": loop, "fidelity": fidelity, "seconds": seconds}[given.stage](
        texts, given.model, given.out
    )


if __name__ == "__main__":
    main()
