"""Networks in files: what is saved comes back, and what does not fit is told all at once."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from foretaste.network import MLP, build_network, load_network, make_network, save_network, saved_network


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("mlp", {"inputs": 12, "hidden": (5, 4), "classes": 3, "activation": "erf"}, (12,)),
        ("wrn1", {"channels": 3, "classes": 4, "widen": 1}, (3, 8, 8)),
        ("wrn2", {"channels": 1, "classes": 2, "widen": 1, "blocks": 2}, (1, 8, 8)),
        ("resnet18", {"channels": 1, "classes": 3, "width": 4}, (1, 8, 8)),
    ],
)
def test_a_saved_network_comes_back_without_a_name(tmp_path, name, options, shape):
    torch.manual_seed(0)
    net = build_network(name, **options)
    for m in net.modules():  # statistics are weights too
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_()
    path = save_network(
        net,
        tmp_path / "new" / "net.safetensors",
        classes=["a", "b"],
        normalise=((0.5,), (0.2,)),
        loss="ce",
        shape=shape,
    )
    about = saved_network(path)
    assert (about.network, about.classes, about.normalise, about.loss, about.shape) == (
        name, ("a", "b"), ([0.5], [0.2]), "ce", shape,
    )  # fmt: skip
    again = load_network(None, path)
    assert not again.training
    x = torch.randn(3, *shape)
    assert torch.equal(again(x), net.eval()(x))
    assert [p.name for p in path.parent.iterdir()] == ["net.safetensors"]


def test_weights_with_one_bit_changed_are_refused(tmp_path):
    path = save_network(MLP(4, (3,), 2), tmp_path / "net.safetensors", loss="ce")
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"net\.safetensors is damaged or was changed: its digest"):
        load_network(None, path)
    path.write_bytes(raw.replace(b'loss\\": \\"ce', b'loss\\": \\"l2'))
    assert path.read_bytes() != raw
    with pytest.raises(ValueError, match=r"net\.safetensors is damaged or was changed: its digest"):
        load_network(None, path)


def test_weights_of_others_need_a_name_and_bring_their_classes(tmp_path):
    net = build_network("wrn1", channels=1, classes=7, widen=1)
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="does not say whose weights"):
        load_network(None, tmp_path / "w.safetensors")
    again = load_network("wrn1", tmp_path / "w.safetensors", options={"widen": 1}, shape=(1, 8, 8))
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(again(x), net.eval()(x))
    torch.save(MLP(4, (3,), 6).state_dict(), tmp_path / "w.pt")  # tensors alone: read
    assert load_network("mlp", tmp_path / "w.pt", options={"hidden": [3]}, shape=(2, 2))(torch.rand(1, 4)).shape == (
        1,
        6,
    )


def test_every_tensor_that_does_not_fit_is_named(tmp_path):
    good = MLP(4, (3,), 2).state_dict()
    bad = {k: v.clone() for k, v in good.items() if k != "layers.0.bias"}
    bad |= {"layer.0.bias": good["layers.0.bias"].clone(), "stranger": torch.ones(1)}
    bad["layers.0.weight"] = torch.ones(3, 5)
    bad["layers.2.bias"] = torch.tensor([0.0, torch.nan])
    save_file(bad, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="does not fit mlp") as error:
        load_network("mlp", tmp_path / "w.safetensors", options={"hidden": [3]}, classes=2, shape=(4,))
    text = str(error.value)
    for part in (
        "missing 1: layers.0.bias (there is layer.0.bias)",
        "not of this network 2: layer.0.bias (there is layers.0.bias), stranger",
        "layers.0.weight (3, 5) for (3, 4)",
        "NaN or infinite values in 1: layers.2.bias",
    ):
        assert part in text, part
    save_file({f"module.{k}": v.clone() for k, v in good.items()}, tmp_path / "ddp.safetensors")
    with pytest.raises(ValueError, match=r"begin with 'module\.'"):
        load_network("mlp", tmp_path / "ddp.safetensors", options={"hidden": [3]}, classes=2, shape=(4,))


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('it ran')",))


def test_pickles_that_are_more_than_tensors_are_not_run(tmp_path):
    torch.save({"net": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match=r"pickle with more than tensors.*save_file"):
        load_network("mlp", tmp_path / "evil.pt", shape=(4,))
    torch.save({"epoch": 3, "state_dict": {}}, tmp_path / "checkpoint.pth")
    with pytest.raises(ValueError, match="holds epoch, state_dict; expected a state dict alone"):
        load_network("mlp", tmp_path / "checkpoint.pth", shape=(4,))


@pytest.mark.parametrize("content", [b"", b"rubbish that is long enough to have a header", b"\x08\0\0\0\0\0\0\0{}"])
def test_broken_files_are_named(tmp_path, content):
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"w\.safetensors is not a whole safetensors file"):
        load_network("mlp", tmp_path / "w.safetensors", shape=(4,))


def test_a_missing_file_and_spoilt_metadata(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_network("mlp", tmp_path / "none.safetensors", shape=(4,))
    save_file({"w": torch.ones(1)}, tmp_path / "m.safetensors", metadata={"foretaste": json.dumps({"network": "mlp"})})
    with pytest.raises(ValueError, match="metadata 'foretaste' cannot be read"):
        saved_network(tmp_path / "m.safetensors")


def with_metadata(path, **said):
    """A file of weights whose metadata somebody else wrote."""
    said = {"network": "mlp", "options": {}, "classes": None, "normalise": None, "loss": None, "shape": None} | said
    tensors = {k: v.clone() for k, v in MLP(4, (3,), 2).state_dict().items()}
    save_file(tensors, path, metadata={"foretaste": json.dumps(said)})
    return path


@pytest.mark.parametrize(("network", "options"), [("os:system", {"command": "touch ran"}), ("builtins:exec", {})])
def test_a_file_does_not_choose_what_is_run(tmp_path, monkeypatch, network, options):
    monkeypatch.chdir(tmp_path)
    path = with_metadata(tmp_path / "w.safetensors", network=network, options=options)
    with pytest.raises(ValueError, match="A file does not choose what is imported"):
        load_network(None, path, shape=(4,))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w.safetensors"]


@pytest.mark.parametrize(
    ("network", "options"),
    [
        ("mlp", {"inputs": 4, "hidden": [10**9, 10**9]}),
        ("mlp", {"inputs": 4, "hidden": [1] * 10**5}),
        ("wrn1", {"blocks": 10**9}),
        ("wrn1", {"widen": 10**6}),
        ("resnet18", {"width": -(10**12)}),
    ],
)
def test_sizes_in_metadata_are_bounded_before_anything_is_allocated(tmp_path, network, options):
    path = with_metadata(tmp_path / "w.safetensors", network=network, options=options)
    with pytest.raises(ValueError, match=r"w\.safetensors: its metadata has \w+=.* can be"):
        load_network(None, path, shape=(1, 2, 2))


@pytest.mark.parametrize("said", [{"network": 5}, {"loss": []}, {"shape": ["a"]}, {"options": 3}, {"classes": 7}])
def test_metadata_of_the_wrong_kind_is_refused_by_name(tmp_path, said):
    with pytest.raises(ValueError, match="metadata 'foretaste' cannot be read"):
        saved_network(with_metadata(tmp_path / "w.safetensors", **said))


def test_tied_and_half_weights(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3)
            self.b.weight = self.a.weight

    path = save_network(Tied(), tmp_path / "tied.safetensors")
    assert set(load_file(path)) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert saved_network(path).network is None
    half = MLP(4, (3,), 2).half()
    save_network(half, tmp_path / "half.safetensors")
    net = load_network(None, tmp_path / "half.safetensors")
    assert next(net.parameters()).dtype == torch.float32
    assert torch.equal(net.layers[0].weight, half.layers[0].weight.float())
    save_network(MLP(4, (3,), 2).double(), tmp_path / "double.safetensors")
    assert next(load_network(None, tmp_path / "double.safetensors").parameters()).dtype == torch.float64


OWN = """
import torch
def small(classes, inputs, width=3):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs, width), torch.nn.Linear(width, classes))
ready = torch.nn.Linear(2, 2)
number = 5
def wrong(): return 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_nets_of_a_test.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield "own_nets_of_a_test"
    sys.modules.pop("own_nets_of_a_test", None)


def test_networks_of_ones_own_from_the_working_folder(own, tmp_path):
    before = list(sys.path)
    net = make_network(f"{own}:small", options={"width": 4}, classes=6, shape=(1, 2, 2))
    assert [tuple(p.shape) for p in net.parameters()] == [(4, 4), (4,), (6, 4), (6,)]
    assert sys.path == before
    save_network(net, tmp_path / "n.safetensors", network=f"{own}:small", options={"width": 4})
    again = load_network(f"{own}:small", tmp_path / "n.safetensors", classes=6, shape=(1, 2, 2))
    assert torch.equal(again[1].weight, net[1].weight)
    ready = make_network(f"{own}:ready")
    assert ready is not sys.modules[own].ready
    assert torch.equal(ready.weight, sys.modules[own].ready.weight)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("none_such_module:f", {}, "cannot be imported"),
        ("{own}:smal", {}, "cannot be imported"),
        ("{own}.py:small", {}, "names a file"),
        ("{own}:number", {}, "is a int; expected a function or class"),
        ("{own}:wrong", {}, "made a int"),
        ("{own}:small", {"widht": 4}, "has no option widht; it takes classes, inputs, width"),
        ("{own}:ready", {"width": 4}, "takes no options"),
        ("wrn9", {}, "unknown network 'wrn9'; did you mean 'wrn"),
        ("wrn1", {"widden": 2}, "did you mean 'widen'"),
    ],
)
def test_names_that_make_no_network(own, name, options, says):
    with pytest.raises((ValueError, TypeError), match=says):
        make_network(name.format(own=own), options=options, classes=2, shape=(1, 2, 2))


def test_a_wide_resnet_wants_pictures():
    with pytest.raises(ValueError, match=r"wrn1 is for images .* use mlp"):
        make_network("wrn1", classes=2, shape=(64,))
