"""Which parameters of a network are meant: ``params="head"``, "last-block", "lora", a pattern, names or a function."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from foretaste.errors import check_known, did_you_mean

PRESETS = ("head", "last-block", "lora", "re:PATTERN")


def choose_names(net: nn.Module, params: Any) -> list[str]:
    """The names of the parameters that ``params`` selects, in the network's order; of a list, in its own.

    params: a preset, names, or a function of a name. "head" is the last module with parameters; "last-block" the last
    entry of the last list of blocks (of single layers only where there is no other list) and all that is registered
    after it; "lora" the names with "lora_"; "re:PATTERN" the names in which a regular expression is found.
    """
    every = [name for name, p in net.named_parameters() if p.numel()]
    some = f"the {len(every)} parameters: {', '.join(every[:8])}{', ...' if len(every) > 8 else ''}"
    if isinstance(params, str):
        chosen = _preset_names(net, every, params, some)
    elif callable(params):
        chosen = [name for name in every if _is_wanted(params, name)]
    else:
        kind = type(params).__name__
        listed = isinstance(params, Iterable) and not isinstance(params, Tensor)
        chosen = list(params) if listed else []
        if not listed or not all(isinstance(name, str) for name in chosen):
            raise TypeError(
                f"params is a {kind}; expected a sequence of parameter names, or a callable, or {', '.join(PRESETS)}"
            )
        for name in chosen:
            check_known("parameter", name, every)
    if not chosen:
        raise ValueError(f"params= selects none of {some}")
    return chosen


def _preset_names(net: nn.Module, every: list[str], preset: str, some: str) -> list[str]:
    if preset.startswith("re:"):
        try:
            pattern = re.compile(preset[3:])
        except re.error as e:
            raise ValueError(f"params={preset!r} is no regular expression: {e}") from None
        return [name for name in every if pattern.search(name)]
    if preset == "lora":
        return [name for name in every if "lora_" in name]
    if preset == "head":
        owner = every[-1].rpartition(".")[0] if every else ""
        return [name for name in every if name.rpartition(".")[0] == owner]
    if preset == "last-block":
        first = last_block(net)
        if first is None:
            raise ValueError(
                f"params='last-block' finds no list of blocks in {type(net).__name__}: no nn.ModuleList or "
                f"nn.Sequential with two modules of one class; give names out of {some}"
            )
        inside = [name for name in every if name.startswith(first + ".")]
        return every[every.index(inside[0]) :]
    if preset in every:
        raise TypeError(f"params is a string; expected a sequence of names, [{preset!r}], or {', '.join(PRESETS)}")
    raise ValueError(f"unknown params {preset!r}{did_you_mean(preset, PRESETS)}; or names out of {some}")


def last_block(net: nn.Module) -> str | None:
    """The name of the last entry with parameters of the last list of blocks that is in no other list's block.

    Blocks that have modules of their own count before single layers: a head of two Linear layers behind a transformer
    is no list of blocks.
    """
    lists: dict[str, str] = {}
    layered: list[str] = []
    for name, m in net.named_modules():
        if not isinstance(m, nn.ModuleList | nn.Sequential) or any(name.startswith(at + ".") for at in lists):
            continue
        prefix = name + "." if name else ""
        blocks = [(prefix + k, b) for k, b in m.named_children() if any(p.numel() for p in b.parameters())]
        repeated = {kind for kind, count in Counter(type(b) for _, b in blocks).items() if count > 1}
        if last := [(at, b) for at, b in blocks if type(b) in repeated]:
            at, block = last[-1]
            lists[name] = at
            layered += [at] if list(block.children()) else []
            if not name and layered:  # the network is a list of blocks
                break
    if layered or not lists:
        return layered[-1] if layered else None
    return lists.get("", [*lists.values()][-1])  # the network itself, if it is a list of layers


def _is_wanted(params: Callable[[str], bool], name: str) -> bool:
    try:
        return bool(params(name))
    except Exception as e:
        raise TypeError(
            f"params is a {type(params).__name__} that fails on the name {name!r} ({type(e).__name__}: {e}); "
            "expected a function of a parameter's name that returns True or False"
        ) from e
