"""Small text encoders of transformers with random weights, and token ids of texts of several lengths."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretaste.network import Backbone, TunedText, tune_text

WORDS = ["good", "bad", "film", "very", "plot", "not", "the", "was"]
SIZES = {
    "bert": {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24},
    "distilbert": {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24},
}
KINDS = {"bert": ("BertModel", "BertConfig"), "distilbert": ("DistilBertModel", "DistilBertConfig")}


def encoder(kind: str = "bert", **sizes: int) -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    model, config = (getattr(transformers, name) for name in KINDS[kind])
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net: nn.Module = model(config(vocab_size=20, max_position_embeddings=32, **{**SIZES[kind], **sizes}))
        for p in net.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.3)
    return net.eval()


def backbone(kind: str = "bert", **sizes: int) -> Backbone:
    """The same as ``find_backbone`` gives it."""
    from foretaste.network.hubs import LastHidden

    module = LastHidden(encoder(kind, **sizes), "text").eval().requires_grad_(False)
    return Backbone(f"tiny {kind}", module, list, "", "text")


def token_ids(n: int, longest: int = 12, seed: int = 0) -> Tensor:
    """(n, longest): −1 after the end of a text. Most texts are short, and one in the middle is the longest."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, max(3, longest // 2), (n,), generator=g)
    lengths[n // 2] = longest
    ids = torch.randint(4, 20, (n, longest), generator=g)
    return ids.masked_fill(torch.arange(longest) >= lengths[:, None], -1)


def tuned(
    tune: str = "last-block", n: int = 20, kind: str = "bert", classes: int = 3, longest: int = 12
) -> tuple[TunedText, Tensor, Tensor]:
    """A network of ``tune_text``, token ids, and labels that the first tokens give."""
    ids = token_ids(n, longest)
    return tune_text(backbone(kind), ids, classes, tune=tune), ids, ids[:, 0] % classes


def save_encoder(place: Path) -> Path:
    """A folder of weights as ``hf download`` writes it, with a WordPiece tokenizer of a few words."""
    transformers: Any = pytest.importorskip("transformers")
    encoder(num_hidden_layers=2).save_pretrained(place)  # type: ignore[operator]
    (place / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]))
    transformers.BertTokenizer(vocab=str(place / "vocab.txt")).save_pretrained(place)
    return place
