"""Networks in files: weights in safetensors, with metadata that says which network they belong to."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from foretaste.errors import nearest_name
from foretaste.files import whole_file
from foretaste.network.models import NETWORKS, make_network
from foretaste.network.sgd import PixelNormalise

METADATA_KEY = "foretaste"  # in the file's metadata
DIGEST_KEY = "digest"
LISTED_KEYS = 12  # names of tensors in one message
LONGEST_METADATA = 10_000_000  # characters; the names of classes are the most of it
CONVERT_HINT = (
    "in Python: import torch, safetensors.torch; weights = torch.load(FILE, weights_only=False)  # runs what is in it; "
    'safetensors.torch.save_file(weights.state_dict(), "net.safetensors")'
)


@dataclass(frozen=True)
class SavedNetwork:
    """The metadata of a file of weights; all None for a file that foretaste did not write."""

    network: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    normalise: PixelNormalise | None = None
    loss: str | None = None
    shape: tuple[int, ...] | None = None  # of a point


def save_network(
    net: nn.Module,
    path: str | os.PathLike[str],
    *,
    network: str | None = None,
    options: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    normalise: PixelNormalise | None = None,
    loss: str | None = None,
    shape: Sequence[int] | None = None,
) -> Path:
    """Write a network's weights and what is needed to load them. An interrupted write leaves no file.

    Args:
        net: the network.
        path: of the file, .safetensors.
        network: its name, "package.module:function" for one of your own. Built-in networks know theirs.
        options: settings to build it with; built-in networks know theirs.
        classes: names of the classes, in the order of the outputs.
        normalise: (mean, std) that its inputs were normalised with.
        loss: the loss it was trained with.
        shape: of one point.

    Returns:
        The path.
    """
    name, own = _described(net)
    saved = SavedNetwork(
        network or name, own if options is None else dict(options), None if classes is None else tuple(classes),
        normalise, loss, None if shape is None else tuple(shape),
    )  # fmt: skip
    # Copies: tied weights share memory, which the format does not allow.
    tensors = {key: t.detach().cpu().contiguous().clone() for key, t in net.state_dict().items()}
    path = Path(path)
    write_tensors(path, tensors, {METADATA_KEY: json.dumps(asdict(saved))})
    return path


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write a safetensors file with its digest, whole or not at all."""
    about = {**about, DIGEST_KEY: tensors_digest(tensors, about)}
    with whole_file(path) as part:
        try:
            save_file(dict(tensors), part, metadata=about)
        except SafetensorError as error:
            code = re.search(r"\(os error (\d+)\)", str(error))
            if code is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None


def read_tensors(path: Path, *, sealed: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file. Raises a ValueError if it was changed after it was written.

    sealed: a file without a digest, of an earlier version or of another program, was changed too.
    """
    with _opened(path) as file:
        about = dict(file.metadata() or {})
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
    digest = about.pop(DIGEST_KEY, None)
    if (digest is not None or sealed) and digest != tensors_digest(tensors, about):
        raise ValueError(f"{path} is damaged or was changed: its digest is not that of its contents; put a copy there")
    return tensors, about


def tensors_digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """16 hexadecimal digits that differ where names, shapes, numbers or metadata do."""
    found = sha256(json.dumps(sorted(about.items())).encode())
    for key, t in sorted(tensors.items()):
        found.update(f"{key} {t.dtype} {tuple(t.shape)};".encode())
        found.update(t.contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


def saved_network(path: str | os.PathLike[str]) -> SavedNetwork:
    """Read the metadata of a file of weights."""
    if not _is_safetensors(Path(path)):
        return SavedNetwork()
    with _opened(Path(path)) as file:
        text = (file.metadata() or {}).get(METADATA_KEY)
    if text is None:
        return SavedNetwork()
    try:
        if len(text) > LONGEST_METADATA:
            raise ValueError(f"it has {len(text)} characters; expected at most {LONGEST_METADATA}")
        found = json.loads(text)
        classes, shape, network, loss = (found[key] for key in ("classes", "shape", "network", "loss"))
        if not all(isinstance(word, str | None) for word in (network, loss)):
            raise TypeError("network and loss are words")
        return SavedNetwork(
            network, dict(found["options"]), None if classes is None else tuple(map(str, classes)),
            found["normalise"] and tuple(found["normalise"]), loss,
            None if shape is None else tuple(int(n) for n in shape),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path}: its metadata {METADATA_KEY!r} cannot be read ({error!r}); give --network, or save it again"
        ) from None


def load_network(
    name: str | None,
    weights: str | os.PathLike[str],
    *,
    options: Mapping[str, Any] | None = None,
    classes: int | None = None,
    shape: Sequence[int] | None = None,
) -> nn.Module:
    """Make a network with the weights in a file, in eval mode.

    Args:
        name: of the network, as in ``make_network``; None takes the name in the file's metadata.
        weights: the file: .safetensors, or a .pt that holds tensors alone.
        options: settings of the network.
        classes: outputs; None is what a built-in network's weights are for.
        shape: of one point.

    Returns:
        The network. Half-precision weights become float32.

    Raises:
        ValueError: a tensor is missing, left over, of another shape, or not finite; all are named. Or the file's
            metadata names a network that is not built in: a file never chooses which code is run.
    """
    path = Path(weights)
    about = saved_network(path)
    if name is None and about.network is None:
        raise ValueError(
            f"{path} does not say whose weights it has; name the network: wrn1, or package.module:function"
        )
    if name is None and about.network not in NETWORKS:
        raise ValueError(
            f"{path} says that its weights are of {about.network!r}, which is not built in. A file does not choose "
            "what is imported: name the network yourself, --network on the command line, if you trust it"
        )
    tensors = _tensors(path)
    if name is None or name == about.network:
        _check_sizes(path, about.options, tensors)
        name, options = about.network, {**about.options, **(options or {})}
    assert name is not None
    if name in NETWORKS:
        classes = _classes_in(tensors) if classes is None else classes
        try:
            with torch.device("meta"):  # shapes only: nothing is allocated before they are known to fit
                outline = make_network(name, options=options, classes=classes, shape=shape)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {name} cannot be made for these weights: {error}") from None
        _check_weights(path, outline.state_dict(), tensors, name)
    net = make_network(name, options=options, classes=classes, shape=shape)
    if any(t.dtype == torch.float64 for t in tensors.values()):
        net = net.double()
    _check_weights(path, net.state_dict(), tensors, name)
    net.load_state_dict(tensors)
    return net.eval()


def _check_sizes(path: Path, options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise if the metadata asks for a network that is larger than the weights beside it."""
    values = sum(t.numel() for t in tensors.values())
    for key, value in options.items():
        numbers = value if isinstance(value, list) else [value]
        most = len(tensors) if key in ("blocks", "layers") else values
        if len(numbers) > len(tensors) or any(isinstance(n, int) and abs(n) > most for n in numbers):
            raise ValueError(
                f"{path}: its metadata has {key}={str(value)[:80]}, more than its {len(tensors)} tensors of "
                f"{values} values can be; name the network and its options yourself"
            )


def _classes_in(tensors: Mapping[str, Tensor]) -> int | None:
    """How many outputs the last layer of a built-in network has."""
    last = max((int(found[1]) for key in tensors if (found := re.match(r"layers\.(\d+)\.", key))), default=0)
    for key in ("head.bias", f"layers.{last}.bias"):
        if key in tensors and tensors[key].dim() == 1:
            return len(tensors[key])
    return None


def _described(net: nn.Module) -> tuple[str | None, dict[str, Any]]:
    """The name and options with which ``build_network`` makes such a network."""
    spec = getattr(net, "spec", None)
    for name, (kind, fixed) in NETWORKS.items():
        if isinstance(spec, kind) and all(getattr(spec, key) == value for key, value in fixed.items()):  # type: ignore[arg-type]
            return name, {key: value for key, value in asdict(spec).items() if key not in fixed}  # type: ignore[arg-type]
    return None, {}


def _is_safetensors(path: Path) -> bool:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected a file of weights, .safetensors")
    return path.suffix.lower() not in (".pt", ".pth", ".bin", ".ckpt", ".pkl")


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None


def _tensors(path: Path) -> dict[str, Tensor]:
    if _is_safetensors(path):
        return read_tensors(path)[0]
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)  # tensors alone: a pickle can run anything
    except Exception as error:  # a damaged pickle can raise anything
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{path} is a pickle with more than tensors in it, or broken ({first}); if you trust it, {CONVERT_HINT}"
        ) from None
    if not isinstance(found, Mapping) or not all(isinstance(t, Tensor) for t in found.values()):
        held = ", ".join(map(str, list(found)[:8])) if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise ValueError(f"{path} holds {held}; expected a state dict alone, net.state_dict(), of names and tensors")
    return dict(found)


def _check_weights(path: Path, wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], name: str) -> None:
    """Raise with every tensor that is missing, left over, misshaped or not finite."""
    missing, over = [key for key in wanted if key not in given], [key for key in given if key not in wanted]
    faults = [
        f"all names begin with {prefix!r}, of a wrapped network; save the state dict of the one inside"
        for prefix in ("module.", "_orig_mod.")
        if over and all(key.startswith(prefix) for key in given)
    ]

    def hinted(keys: Sequence[str], others: Sequence[str]) -> list[str]:
        return [f"{key} (there is {near})" if (near := nearest_name(key, others)) else key for key in keys]

    shared = [k for k in wanted if k in given and wanted[k].shape != given[k].shape]
    found = {
        "missing": hinted(missing, over),
        "not of this network": hinted(over, missing),
        "of another shape": [f"{k} {tuple(given[k].shape)} for {tuple(wanted[k].shape)}" for k in shared],
        "NaN or infinite values in": [
            k for k, t in given.items() if t.is_floating_point() and not torch.isfinite(t).all()
        ],
    }
    for what, keys in found.items():
        more = f" and {len(keys) - LISTED_KEYS} more" if len(keys) > LISTED_KEYS else ""
        faults += [f"{what} {len(keys)}: {', '.join(keys[:LISTED_KEYS])}{more}"] if keys else []
    if faults:
        raise ValueError(f"{path} does not fit {name}: {'; '.join(faults)}")
