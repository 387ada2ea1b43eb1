"""Pretrained text encoders that are tuned: token ids in, a head on top, and only some of the weights trained."""

import copy
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from foretaste.batches import batches, join_batches
from foretaste.errors import check_known
from foretaste.network.backbones import Backbone
from foretaste.network.feature_cache import CACHE_FORMAT, FeatureFile, digest_of, weights_digest
from foretaste.network.features import cache_folder
from foretaste.network.fit import Fit, fit, only_trained, training_length
from foretaste.network.models import make_head
from foretaste.network.sgd import seeded
from foretaste.parameters import choose_names, last_block

log = logging.getLogger("foretaste")

NO_TOKEN = -1
ENCODED_AT_ONCE = 64  # texts
LARGE_STATES = 1 << 30  # bytes of hidden states from which they are kept on disk
SPLIT_POINTS = 4  # texts on which a network that is split must agree with the whole
SAME_SPLIT = {torch.float32: 1e-4, torch.float64: 1e-10}  # of the largest output
Cache = str | os.PathLike[str] | bool | None
LORA_RANK, LORA_ALPHA = 8, 16
ADAPTED = ("query", "value", "q_lin", "v_lin", "q_proj", "v_proj")  # queries and values, as the libraries call them
TUNED_PARTS = ("head", "last-block", "lora")
TUNED_STEPS, TUNED_RATES = 300, {"lora": 3e-4}
TUNED_RATE = 1.5e-4  # of weights that are pretrained themselves


class TunedText(nn.Module):
    """A text encoder and a head: (n, T) token ids, −1 where a text has ended, to (n, C)."""

    def __init__(self, encoder: nn.Module, head: nn.Module, tune: str) -> None:
        super().__init__()
        self.encoder, self.head, self.tune = encoder, head, tune

    def encode(self, ids_nT: Any) -> Tensor:
        mask_nT = ids_nT != NO_TOKEN
        rows: Tensor = self.encoder(input_ids=ids_nT.clamp_min(0), attention_mask=mask_nT.long())
        return rows

    def forward(self, ids_nT: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.encode(ids_nT))
        return outputs

    def padded_lengths(self, ids_NT: Any) -> Tensor | None:
        """(N,) tokens of each text: batches are cut to their longest (``batches.py``)."""
        return (ids_NT != NO_TOKEN).sum(1)

    @torch.no_grad()
    def features(self, ids_NT: Tensor) -> Tensor:
        """(N, D) of the encoder as it is."""
        return join_batches([(at, self.encode(part)) for at, part in batches(self, ids_NT, ENCODED_AT_ONCE)])


class TunedTail(TunedText):
    """A ``TunedText`` from its first tuned block on: what enters that block to (n, C). Its tensors are the network's.

    Points are (N, T, D + 1): hidden states, and as the last column 1 for a token and 0 after the end of the text. Where
    the head alone is tuned they are its inputs, (N, D).
    """

    def encode(self, x: Any) -> Tensor:
        if x.dim() == 2:
            return x
        rows: Tensor = self.encoder(inputs_embeds=x[..., :-1].contiguous(), attention_mask=x[..., -1].long())
        return rows

    def padded_lengths(self, x: Any) -> Tensor | None:
        return None if x.dim() == 2 else x[..., -1].sum(1).long()


class LoraLinear(nn.Module):
    """Wx + b + (α / r) B A x; A and B are trained. The names are those of peft's adapters. B starts at 0."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Linear(base.in_features, LORA_RANK, bias=False)
        self.lora_B = nn.Linear(LORA_RANK, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.lora_B(self.lora_A(x))
        return self.base(x) + LORA_ALPHA / LORA_RANK * added


def add_adapters(net: nn.Module) -> None:
    """Put an adapter beside every linear layer that makes queries or values."""
    found = [(m, name) for m in net.modules() for name in ADAPTED if isinstance(getattr(m, name, None), nn.Linear)]
    if not found:
        raise ValueError(
            f"no layer of {type(net).__name__} is called {', '.join(ADAPTED)}: lora adapts queries and values"
        )
    for m, name in found:
        setattr(m, name, LoraLinear(getattr(m, name)))


def tuned_names(net: nn.Module, tune: str) -> list[str]:
    """The names of what is trained: of "lora" the adapters and the head, else as ``params=`` of ``ft.fit``."""
    chosen = {*choose_names(net, tune), *(choose_names(net, "head") if tune == "lora" else ())}
    return [name for name, _ in net.named_parameters() if name in chosen]


def text_ids(texts: Sequence[Any], *, backbone: Backbone) -> Tensor:
    """Token ids of texts, as the backbone's tokenizer makes them.

    Args:
        texts: strings.
        backbone: of ``find_backbone(name, kind="text")``, a model of transformers.

    Returns:
        (N, T) int64, −1 after the end of a text.

    Example:
        >>> batch = {"input_ids": torch.tensor([[5, 6], [7, 0]]), "attention_mask": torch.tensor([[1, 1], [1, 0]])}
        >>> mine = Backbone("mine", nn.Identity(), lambda texts: batch, "", "text")
        >>> text_ids(["good film", "bad"], backbone=mine).tolist()
        [[5, 6], [7, -1]]
    """
    batch = backbone.prepare(list(texts))
    if not isinstance(batch, dict) or not {"input_ids", "attention_mask"} <= batch.keys():
        raise ValueError(
            f"backbone {backbone.name!r} makes no token ids; only those of transformers (hf:NAME) are tuned"
        )
    ids: Tensor = batch["input_ids"]
    return ids.masked_fill(batch["attention_mask"] == 0, NO_TOKEN)


def check_tune(tune: str) -> None:
    """Raise unless ``tune`` names what may be trained."""
    if not tune.startswith("re:"):
        check_known("tune", tune, (*TUNED_PARTS, "re:PATTERN"))


def tune_text(
    backbone: Backbone, ids_NT: Tensor, classes: int, *, tune: str = "last-block", seed: int = 0
) -> TunedText:
    """A backbone for text with a new head, of which the chosen parameters require grad and no others.

    Args:
        backbone: of ``find_backbone(name, kind="text")``. It stays as it is.
        ids_NT: of ``text_ids``, labelled and not: the head scales its inputs by what the encoder makes of them.
        classes: outputs.
        tune: "head", "last-block" (of the encoder), "lora" (adapters of rank 8 at queries and values) or "re:PATTERN",
            beside the head.
        seed: of the new weights.

    Returns:
        The network, for ``fit_tuned``, ``ft.query`` and ``ft.Learner``.

    Example:
        >>> class Bag(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.words = nn.Embedding(9, 4)
        ...     def forward(self, input_ids, attention_mask):
        ...         return (self.words(input_ids) * attention_mask[..., None]).mean(1)
        >>> ids = torch.tensor([[5, 6], [7, -1]])
        >>> net = tune_text(Backbone("bag", Bag(), list, "", "text"), ids, 2, tune="re:words")
        >>> net(ids).shape
        torch.Size([2, 2])
    """
    check_tune(tune)
    if backbone.kind != "text":
        raise ValueError(f"backbone {backbone.name!r} is for {backbone.kind}; only text encoders are tuned here")
    encoder = copy.deepcopy(backbone.module)
    for m in encoder.modules():
        if getattr(m, "pooler", None) is not None and hasattr(m, "encoder"):
            m.register_module("pooler", None)  # texts are pooled by their mean, and nothing would train it
    with seeded(seed, torch.device("cpu")):
        if tune == "lora":
            add_adapters(encoder)
        chosen = [] if tune == "head" else choose_names(encoder, tune)
        for name, p in encoder.named_parameters():
            p.requires_grad_(name in chosen)
        net = TunedText(encoder.eval(), nn.Identity(), tune)
        net.head = make_head(net.features(ids_NT), classes, alike=True)
    return net.eval()


# What is frozen, computed once. The network is run up to its first tuned block, and what enters that is kept. The rest
# is the same network without the blocks before it. Its embedding returns what it is given: ``forward`` of transformers
# has ``inputs_embeds=`` for that.


class GivenStates(nn.Module):
    """Stands in the place of an embedding: returns the hidden states that it is given."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return next(t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.is_floating_point())


class ReachedBlockError(Exception):
    """The network has come to its first tuned block. Not a fault."""

    def __init__(self, states: Tensor) -> None:
        super().__init__("the first tuned block")
        self.states = states


class FirstBlock(nn.Module):
    """Stands in the place of the first tuned block: the network need not go on."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        raise ReachedBlockError(hidden_states)


def split_tuned(net: TunedText, ids_NT: Tensor, *, cache: Cache = None) -> tuple[TunedText, Tensor]:
    """The network from its first tuned block on, and what enters that block, computed once.

    The result takes the place of the network and the token ids, in ``ft.query``, ``ft.Learner`` and ``fit_tuned``; they
    agree to float32 rounding. It has the network's tensors: to train it trains the network, three times as fast, but
    without dropout in the frozen blocks (docs/fine-tuning.md).

    Args:
        net: of ``tune_text``. With "lora" each block has an adapter, so nothing is frozen before the first.
        ids_NT: token ids.
        cache: the folder of what is large (1 GiB), as for ``ft.features``; it is mapped from there, and a later call
            reads it. False: nothing is written, and what is large is not split.

    Returns:
        A ``TunedTail`` and its points; the network and the token ids themselves where nothing can be split off.

    Example:
        >>> encoder, w = nn.Embedding(9, 4), torch.eye(9)
        >>> encoder.forward = lambda input_ids, attention_mask: w[input_ids].mean(1)
        >>> ids = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
        >>> net = tune_text(Backbone("bag", encoder.eval(), list, "", "text"), ids, 2, tune="head")
        >>> tail, x = split_tuned(net, ids)
        >>> torch.equal(tail(x), net(ids))
        True
    """
    if isinstance(net, TunedTail):
        return net, ids_NT
    if not any(p.requires_grad for p in net.encoder.parameters()):
        return TunedTail(nn.Identity(), net.head, net.tune).eval(), net.features(ids_NT)
    try:
        front, tail = _cut_encoder(net)
        few = ids_NT[:SPLIT_POINTS]
        with torch.enable_grad():
            x = _entering(front, few, ids_NT.shape[1])
        if x.requires_grad:
            return net, ids_NT  # what is tuned comes before the block too
        want = net.encode(few).detach()
        gap = float((tail.encode(x).detach() - want).abs().max() / want.abs().max())
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        log.info("the frozen blocks of %s run in each pass: %s", type(net.encoder).__name__, error)
        return net, ids_NT
    if not gap <= SAME_SPLIT[want.dtype]:
        log.info("the frozen blocks of %s run in each pass: the rest alone errs by %g", type(net.encoder).__name__, gap)
        return net, ids_NT
    large = ids_NT.numel() * x.shape[2] * x.element_size() >= LARGE_STATES
    if large and cache is False:
        return net, ids_NT
    folder = cache_folder(cache) if large and x.dtype == torch.float32 else None
    return tail, _keep_states(front, ids_NT, x, folder)


def _cut_encoder(net: TunedText) -> tuple[nn.Module, TunedTail]:
    """The encoder that stops where its first tuned block begins, and the rest. Raises where there is no such block."""
    path, _, last = (last_block(net.encoder) or "").rpartition(".")
    names = [name for name, _ in net.encoder.get_submodule(path).named_children()] if last else []
    tuned = {name for name, p in net.encoder.named_parameters() if p.requires_grad}
    k = next((i for i, name in enumerate(names) if any(one.startswith(f"{path}.{name}.") for one in tuned)), 0)
    if not k:
        raise ValueError("its first block is tuned, or none is")
    shared = {id(t): t for t in (*net.encoder.parameters(), *net.encoder.buffers())}
    front, rest = (copy.deepcopy(net.encoder, dict(shared)) for _ in range(2))
    before, after = cast(list[nn.ModuleList], [m.get_submodule(path) for m in (front, rest)])
    before[k] = FirstBlock()
    del before[k + 1 :], after[:k]
    for m in rest.modules():
        if isinstance(getattr(m, "embeddings", None), nn.Module):
            m.embeddings = GivenStates()
    return front, TunedTail(rest, net.head, net.tune).eval()


def _entering(front: nn.Module, ids_nT: Tensor, T: int) -> Tensor:
    """(n, T, D + 1): what enters the first tuned block, and the mask."""
    mask_nt = ids_nT != NO_TOKEN
    try:
        front(input_ids=ids_nT.clamp_min(0), attention_mask=mask_nt.long())
    except ReachedBlockError as error:
        x = torch.cat([error.states, mask_nt[..., None].to(error.states)], 2)
        return nn.functional.pad(x, (0, 0, 0, T - x.shape[1]))
    raise ValueError("its first tuned block is not called")


@torch.no_grad()
def _keep_states(front: nn.Module, ids_NT: Tensor, few: Tensor, folder: Path | None) -> Tensor:
    """What enters the first tuned block for all texts: in memory, or mapped from a file."""
    (N, T), columns = ids_NT.shape, few.shape[2]
    lengths_N = (ids_NT != NO_TOKEN).sum(1)

    def states(at: Any) -> Tensor:
        return _entering(front, ids_NT[at, : max(1, int(lengths_N[at].max()))], T)

    if folder is None:
        x = few.new_zeros(N, T, columns)
        for at in lengths_N.argsort(descending=True, stable=True).split(ENCODED_AT_ONCE):
            x[at] = states(at)
        return x

    def rows(start: int) -> Iterator[Tensor]:
        for i in range(start, N, ENCODED_AT_ONCE):
            yield states(slice(i, i + ENCODED_AT_ONCE)).flatten(1).cpu()

    made_by = [CACHE_FORMAT, "states", weights_digest(front)]
    file = FeatureFile(folder, digest_of([*made_by, ids_NT]), {"states": [N, T, columns]}, N, digest_of(made_by))
    with file.locked():
        if (kept := file.read()) is None:
            file.path.unlink(missing_ok=True)
            file.write(rows, lambda done: None, None)
            kept = file.read()
    if kept is None:
        raise OSError(f"{file.path} was written and cannot be read back; is the disk damaged, or shared?")
    return kept.view(N, T, columns).to(ids_NT.device)


def fit_tuned(
    net: TunedText, x: Any, y: Any, *, loss: str = "ce", steps: int | None = None, max_lr: float | None = None,
    batch_size: int = 16, seed: int = 0, progress: Callable[[int, int], object] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Fit:  # fmt: skip
    """Train the head on what the encoder makes of x, then head and chosen parameters together by AdamW.

    A new head sends random gradients into a pretrained encoder: LoRA from there ended 3 points behind on BANKING77, and
    18 with a linear head (docs/fine-tuning.md).

    Args:
        net: of ``tune_text`` or ``split_tuned``, trained in place.
        x: (N, T) token ids of ``text_ids``, or what ``split_tuned`` makes of them.
        y: their labels, as in ``ft.fit``.
        loss: "ce" (default) or "l2".
        steps: of the second training; default 300. Of the first where the head alone is trained; default as ``ft.fit``.
        max_lr: of the same; default 1.5e-4, and 3e-4 for "lora".
        batch_size: texts in a step; default 16.
        seed: of the order of batches and of dropout.
        progress: called with (steps done, all steps) of both trainings.
        options: more options of ``ft.fit`` for the same training, which come before these. Without "optimiser" or with
            "adamw", weight decay is 0.01 and gradients are clipped at 1.

    Returns:
        The ``Fit`` of the second training; of the first where the head alone is trained.

    Example:
        >>> encoder, w = nn.Embedding(9, 4), torch.eye(9)
        >>> encoder.forward = lambda input_ids, attention_mask: w[input_ids].mean(1)
        >>> ids = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
        >>> net = tune_text(Backbone("bag", encoder.eval(), list, "", "text"), ids, 2, tune="head")
        >>> fit_tuned(net, ids, torch.tensor([0, 1, 0, 1])).accuracy
        1.0
    """
    given: dict[str, Any] = {"loss": loss, "batch_size": batch_size, "seed": seed}
    given |= {key: value for key, value in (("steps", steps), ("max_lr", max_lr)) if value is not None}
    given |= {"progress": progress, **(options or {})}
    progress = given.pop("progress", None)
    net.eval()
    with only_trained(net, given.pop("params", None)):
        in_head = {id(p) for p in net.head.parameters()}
        trained = [id(p) in in_head for p in net.parameters() if p.requires_grad]
        if all(trained):
            return fit(net.head, net.features(x), y, progress=progress, **given)
        how, first = tuned_options(net.tune, given), 0
        steps = training_length(net, len(x), how["batch_size"], how.get("steps"), how.get("epochs"))[1]
        if any(trained):
            same = {key: how[key] for key in ("loss", "batch_size", "seed", "classes") if key in how}
            first = training_length(net.head, len(x), how["batch_size"], None, None)[1]
            fit(net.head, net.features(x), y, progress=counted_on(progress, 0, first + steps), **same)
        return fit(net, x, y, progress=counted_on(progress, first, first + steps), **how)


def tuned_options(tune: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of ``ft.fit`` for weights that are pretrained. Those given come first."""
    if given.get("optimiser", "adamw") != "adamw":
        return dict(given)
    length = {} if "epochs" in given else {"steps": TUNED_STEPS}
    rate = TUNED_RATES.get(tune, TUNED_RATE)
    return {"optimiser": "adamw", "max_lr": rate, "weight_decay": 0.01, "clip": 1.0, **length, **given}


def counted_on(progress: Callable[[int, int], object] | None, done: int, total: int) -> Any:
    """What a training calls that begins after ``done`` steps of ``total``."""
    return None if progress is None else lambda more, _: progress(done + more, total)
