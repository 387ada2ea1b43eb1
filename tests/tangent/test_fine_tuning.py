"""Parts of a network: presets of ``params=``, frozen prefixes, and classifiers of transformers as they are."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretaste as ft
import oracles
from foretaste.lookahead import binary_params
from foretaste.parameters import choose_names
from foretaste.tangent import freeze
from foretaste.tangent.survey import survey_network
from networks import forbid_gradients


class Adapted(nn.Module):
    """A frozen Linear layer with an adapter of rank 2, with the names that peft gives."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.base(x) + self.lora_B(self.lora_A(x)))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(6, 4), nn.ModuleList(Adapted() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def blocks() -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return Blocks().double().eval(), torch.randn(8, 6, dtype=torch.float64)


LAST = ["blocks.2.base.weight", "blocks.2.base.bias", "blocks.2.lora_A.weight", "blocks.2.lora_B.weight"]
AFTER = ["norm.weight", "norm.bias", "head.weight", "head.bias"]
LORA = [f"blocks.{i}.lora_{k}.weight" for i in range(3) for k in "AB"]


@pytest.mark.parametrize(
    ("preset", "names"),
    [
        ("head", ["head.weight", "head.bias"]),
        ("last-block", LAST + AFTER),
        ("lora", LORA),
        (r"re:^blocks\.0\.lora|norm", [*LORA[:2], "norm.weight", "norm.bias"]),
    ],
)
def test_a_preset_is_its_names_everywhere(preset: str, names: list[str]) -> None:
    net, x = blocks()
    assert choose_names(net, preset) == names
    assert torch.equal(ft.ntk(net, x, params=preset), ft.ntk(net, x, params=names))
    y = torch.arange(4) % 3
    asked = [ft.query(net, x[:4], y, x[4:], params=p, batch_size=2, strategy="variance") for p in (preset, names)]
    assert torch.equal(*(torch.as_tensor(q.scores) for q in asked))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    ft.fit(net, x[:4], y, params=preset, steps=2, start="warm", max_lr=0.01)
    assert {k for k, v in net.state_dict().items() if not torch.equal(v, before[k])} == set(names)


def test_a_head_of_two_layers_is_no_list_of_blocks() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 3)
    two = [nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)]
    for net, block in (
        (nn.Sequential(encoder, nn.Flatten(), nn.Sequential(*two)), "0.layers.2."),
        (nn.Sequential(encoder, nn.Flatten(), *two), "0.layers.2."),
        (nn.ModuleDict({"encoder": encoder, "head": nn.Sequential(*two)}), "encoder.layers.2."),
    ):
        every = [name for name, _ in net.named_parameters()]
        first = next(i for i, name in enumerate(every) if name.startswith(block))
        assert choose_names(net, "last-block") == every[first:]
    flat = nn.Sequential(nn.Conv1d(2, 4, 1), nn.Conv1d(4, 4, 1), nn.Flatten(), nn.Sequential(*two))
    assert choose_names(flat, "last-block")[0] == "1.weight"  # single layers, where there is nothing else


def test_blocks_of_ordinary_networks() -> None:
    mlp = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    assert choose_names(mlp, "last-block") == choose_names(mlp, "head") == ["2.weight", "2.bias"]
    assert choose_names(ft.network.resnet18(), "last-block")[0].startswith("stages")
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    encoder = nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(8, 3))
    assert {name.split(".")[0] for name in choose_names(encoder, "last-block")} == {"1", "3"}


def test_presets_of_a_network_with_one_output() -> None:
    """Two classes from one output: names have a prefix inside, patterns and presets do not."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).eval(), torch.randn(12, 4)

    def scores_of(params: Any) -> Tensor:
        y = torch.arange(6) % 2
        return torch.as_tensor(ft.query(net, x[:6], y, x[6:], params=params, strategy="variance", batch_size=1).scores)

    scores = [scores_of(params) for params in ("head", "re:^2", ["2.weight", "2.bias"])]
    assert torch.equal(scores[0], scores[1])
    assert torch.equal(scores[0], scores[2])
    wanted: Any = binary_params("re:^2")
    assert wanted("net.2.bias")
    assert not wanted("net.0.bias")


@pytest.mark.parametrize(
    ("params", "error", "says"),
    [
        ("haed", ValueError, r"unknown params 'haed'; did you mean 'head'\? .*out of the 18 parameters: stem.weight"),
        ("head.bias", TypeError, r"params is a string; expected a sequence of names, \['head.bias'\]"),
        ("re:(", ValueError, "no regular expression"),
        ("re:^nothing", ValueError, "selects none of the 18 parameters: stem.weight"),
    ],
)  # fmt: skip
def test_what_is_no_preset(params: str, error: type[Exception], says: str) -> None:
    net, x = blocks()
    with pytest.raises(error, match=says):
        ft.ntk(net, x, params=params)
    with pytest.raises(error, match=says):
        ft.fit(net, x, torch.arange(8) % 3, params=params, steps=1)


def test_presets_that_a_network_does_not_have() -> None:
    net, x = nn.Linear(4, 3).eval(), torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"finds no list of blocks in Linear.*out of the 2 parameters: weight"):
        ft.ntk(net, x, params="last-block")
    with pytest.raises(ValueError, match="selects none of the 2 parameters"):
        ft.ntk(net, x, params="lora")


def test_no_gradient_of_a_frozen_prefix_is_computed() -> None:
    net, x = blocks()
    forbid_gradients(net.stem.requires_grad_(False))
    for block in net.blocks[:2]:
        forbid_gradients(block.requires_grad_(False))
    want = ft.ntk(blocks()[0], x, params="last-block")
    assert torch.equal(ft.ntk(net, x, params="last-block"), want)


class Positions(nn.Module):
    """An embedding of positions, called once for all points: with a dimension for points, or without."""

    def __init__(self, batch: bool, breaks: bool = False) -> None:
        super().__init__()
        self.token, self.place, self.mix = nn.Embedding(9, 6), nn.Embedding(5, 6), nn.Linear(6, 6)
        self.out, self.batch, self.breaks = nn.Linear(6, 3), batch, breaks

    def forward(self, ids: Tensor) -> Tensor:
        place = self.mix(self.place(torch.arange(5)[None] if self.batch else torch.arange(5)))
        if self.breaks:
            place = place.reshape(5, 6)
        return self.out(torch.tanh(self.token(ids) + place).mean(1))


@pytest.mark.parametrize(("batch", "breaks"), [(True, False), (False, False), (True, True)])
def test_a_call_for_all_points(batch: bool, breaks: bool, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    net, ids = Positions(batch, breaks).double().eval(), torch.randint(0, 9, (6, 5))
    with caplog.at_level(logging.INFO, "foretaste"):
        got = ft.ntk(net, ids, output="full")
    want = oracles.ntk(net, ids, ids, "full").view(6, 3, 6, 3).permute(0, 2, 1, 3)
    assert float((got - want).norm() / want.norm()) <= 1e-10
    assert bool(caplog.records) == breaks  # without a copy for each point, torch.func


CONFIGS = {
    "bert": ("BertForSequenceClassification", "BertConfig", {"vocab_size": 20, "max_position_embeddings": 8}),
    "distilbert": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": 20, "max_position_embeddings": 8, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12},
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", {"image_size": 4, "patch_size": 2, "num_channels": 1}),
}
SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12, "num_labels": 3}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CONFIGS)
def test_classifiers_of_transformers_as_they_are(name: str, caplog: pytest.LogCaptureFixture) -> None:
    transformers = pytest.importorskip("transformers")
    model, config, settings = CONFIGS[name]
    own = {k: v for k, v in SMALL.items() if name != "distilbert" or k == "num_labels"}
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = getattr(transformers, model)(getattr(transformers, config)(**settings, **own)).double().eval()
        for p in net.parameters():
            nn.init.normal_(p, 0, 0.3)
        x: Any = torch.randn(6, 1, 4, 4, dtype=torch.float64)
        if name != "vit":
            mask = (torch.arange(6) < torch.tensor([6, 3, 4, 6, 2, 5])[:, None]).long()
            x = {"input_ids": torch.randint(1, 20, (6, 6)) * mask, "attention_mask": mask}
    unused = [k for k, p in net.named_parameters() if "pooler" in k and name == "vit"]
    with caplog.at_level(logging.INFO, "foretaste"):
        got = ft.ntk(net, {"pixel_values": x} if name == "vit" else x, params=lambda k: k not in unused)
        last = ft.ntk(net, {"pixel_values": x} if name == "vit" else x, params="last-block")
    assert not caplog.records, caplog.text
    rows: dict[str, list[Tensor]] = {k: [] for k, _ in net.named_parameters() if k not in unused}
    params = [p for k, p in net.named_parameters() if k in rows]
    for i in range(6):
        one = {"pixel_values": x[i : i + 1]} if name == "vit" else {k: v[i : i + 1] for k, v in x.items()}
        f = net(**one).logits.sum() / 3**0.5
        for k, g in zip(rows, torch.autograd.grad(f, params, materialize_grads=True)):
            rows[k].append(g.flatten())
    want = sum(torch.stack(r) @ torch.stack(r).T for r in rows.values())
    assert float((got - want).norm() / want.norm()) <= 1e-9
    chosen = choose_names(net, "last-block")
    assert all("layer.1." in k or "layers.1." in k or "class" in k or "pooler" in k or "layernorm" in k for k in chosen)
    part = sum(torch.stack(rows[k]) @ torch.stack(rows[k]).T for k in chosen if k in rows)
    assert float((last - part).norm() / part.norm()) <= 1e-9


@pytest.mark.parametrize(
    "more", [{}, {"use_rslora": True}, {"target_modules": ["query", "dense"], "bias": "lora_only"}]
)
def test_adapters_of_peft(more: dict[str, Any]) -> None:
    peft, transformers = (pytest.importorskip(name) for name in ("peft", "transformers"))
    small = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        sizes = {"vocab_size": 20, "max_position_embeddings": 8, "num_labels": 3, **small}
        bert = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
        how = peft.LoraConfig(task_type="SEQ_CLS", r=3, lora_alpha=6, lora_dropout=0.1, **more)
        net = peft.get_peft_model(bert, how).double().eval()
        for name, p in net.named_parameters():
            if "lora_B" in name:  # 0 at first, and then A has no gradient
                nn.init.normal_(p, 0, 0.3)
        ids = torch.randint(1, 20, (7, 5))
    mask = torch.ones_like(ids)
    mask[::2, 3:] = 0
    x = {"input_ids": ids, "attention_mask": mask}
    trained = {name for name, p in net.named_parameters() if p.requires_grad}
    adapters = choose_names(net, "lora")
    assert {*adapters} < trained
    survey = survey_network(freeze(net, params="lora"), x, 3)
    assert {layer.name for layer in survey.layers} == {*adapters}  # none goes through torch.func

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, **x: Tensor) -> Tensor:
            return self.net(**x).logits

    everything = oracles.ntk(Logits(), x, x)
    for name, p in net.named_parameters():
        p.requires_grad_(name in adapters)
    alone = oracles.ntk(Logits(), x, x)
    for name, p in net.named_parameters():
        p.requires_grad_(name in trained)
    assert torch.allclose(ft.ntk(net, x), everything, rtol=1e-9, atol=1e-12)
    assert torch.allclose(ft.ntk(net, x, params="lora"), alone, rtol=1e-9, atol=1e-12)
