"""Networks that take a dict of tensors, or return an object with logits: ``ft.fit``, a query and a learner."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretaste as ft
import oracles
from foretaste.network import MLP, batch_indices, fit_ll4al
from foretaste.network.fit import draw_seeds

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12, "num_labels": 3}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # so that a literal loop draws the same
DISTIL = {
    "dim": 8,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 12,
    "num_labels": 3,
    "dropout": 0.0,
    "seq_classif_dropout": 0.0,
    "attention_dropout": 0.0,
}
WORDS = {"vocab_size": 20, "max_position_embeddings": 8}
PIXELS = {"image_size": 4, "patch_size": 2, "num_channels": 1}
CLASSIFIERS = {
    "bert": ("BertForSequenceClassification", "BertConfig", {**SMALL, **STILL, **WORDS}),
    "distilbert": ("DistilBertForSequenceClassification", "DistilBertConfig", {**DISTIL, **WORDS}),
    "vit": ("ViTForImageClassification", "ViTConfig", {**SMALL, **STILL, **PIXELS}),
}  # fmt: skip
N, LABELLED = 14, 6


def classifier(name: str, inputs: str = "dict") -> tuple[nn.Module, Any, Tensor]:
    """A classifier of transformers as its configuration makes it, in float64, N points and their classes."""
    transformers: Any = pytest.importorskip("transformers")
    model, config, settings = CLASSIFIERS[name]
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = getattr(transformers, model)(getattr(transformers, config)(**settings)).double().eval()
        for p in net.parameters():
            nn.init.normal_(p, 0, 0.3)
        pixels = torch.randn(N, 1, 4, 4, dtype=torch.float64)
        mask = (torch.arange(6) < torch.randint(2, 7, (N, 1))).long()
        ids = torch.randint(1, 20, (N, 6)) * mask
    x = {"pixel_values": pixels} if name == "vit" else {"input_ids": ids, "attention_mask": mask}
    return net, pixels if inputs == "tensor" else x, torch.arange(N) % 3


def take(x: Any, at: Any) -> Any:
    return oracles.at(x, at)


class Logits(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        return self.net(*args, **kwargs).logits


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "inputs"), [*((name, "dict") for name in CLASSIFIERS), ("vit", "tensor")])
def test_steps_are_those_of_a_literal_loop(name: str, inputs: str) -> None:
    ours, x, y = classifier(name, inputs)
    theirs = copy.deepcopy(ours)
    how = {"steps": 12, "batch_size": 4, "max_lr": 0.01, "weight_decay": 0.1, "optimiser": "adamw", "warm_up": 0.25}
    fitted = ft.fit(ours, x, y, loss="ce", clip=1.0, seed=5, **how)
    optimiser = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.1)
    theirs.train()
    for step, at_B in enumerate(batch_indices(N, 4, 12, torch.Generator().manual_seed(draw_seeds(5, 3)[1]))):
        optimiser.param_groups[0]["lr"] = 0.01 * ((step + 1) / 4 if step < 3 else (12 - step) / 9)
        optimiser.zero_grad()
        F.cross_entropy(call(theirs, take(x, at_B)), y[at_B]).backward()
        for p in theirs.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimiser.step()
    for (key, a), b in zip(ours.named_parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=key)
    said = call(ours, x).argmax(1)
    assert fitted.accuracy == float((said == y).double().mean())
    assert not ours.training


def call(net: nn.Module, x: Any) -> Tensor:
    return net(**x).logits if isinstance(x, dict) else net(x).logits


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "inputs"), [*((name, "dict") for name in CLASSIFIERS), ("vit", "tensor")])
def test_a_query_is_the_papers_equations(name: str, inputs: str) -> None:
    """MLMOC (Eq. 13) by Eq. 11 with a label more, solved anew for each candidate."""
    net, x, y = classifier(name, inputs)
    x_L, x_U, y_L = take(x, slice(LABELLED)), take(x, slice(LABELLED, N)), y[:LABELLED]
    ft.fit(net, x_L, y_L, steps=20, batch_size=3, max_lr=0.01, optimiser="adamw")
    q = ft.query(net, x_L, y_L, x_U, strategy="mlmoc", batch_size=2, ridge=1e-3, output="sum")
    f, plain = oracles.f(Logits(net), x), Logits(net)
    theta = oracles.ntk(plain, x, x)
    L, U, scores = list(range(LABELLED)), range(LABELLED, N), []
    for j in U:
        known = [*L, j]
        y_K = oracles.one_hot([*y_L.tolist(), int(f[j].argmax())], 3)
        after = oracles.kernel_regression(theta[U][:, known], theta[known][:, known], f[U], f[known], y_K, 1e-3)
        scores.append(float((after - f[U]).norm(dim=1).sum()))
    want = torch.tensor(scores, dtype=torch.float64)
    assert q.scores is not None
    torch.testing.assert_close(torch.as_tensor(q.scores), want, rtol=1e-6, atol=1e-8)
    assert q.indices[0] == int(want.argmax())


def test_a_learner_trains_on_a_pool_that_is_a_dict() -> None:
    net, x, y = classifier("bert")
    options = {"steps": 6, "optimiser": "adamw", "max_lr": 0.01}
    learner = ft.Learner(net, x, classes=3, loss="ce", params="last-block", fit_options=options, seed=4)
    learner.teach(list(range(6)), y[:6].tolist())
    learner.retrain(wait=True)
    ft.fit(net, take(x, list(range(6))), y[:6], loss="ce", params="last-block", seed=5, **options)
    now = learner.net.state_dict()
    assert all(torch.equal(value, now[key]) for key, value in net.state_dict().items())


def test_a_dict_for_a_small_mlp() -> None:
    """Its gradients are typed by hand."""

    class Named(MLP):
        def forward(self, features: Tensor) -> Tensor:
            return super().forward(features)

    x, y = torch.eye(6), torch.arange(6) % 3
    one, two = MLP(6, (5,), 3), Named(6, (5,), 3)
    two.load_state_dict(one.state_dict())
    ft.fit(one, x, y, steps=5)
    ft.fit(two, {"features": x}, y, steps=5)
    torch.testing.assert_close(one.state_dict(), two.state_dict())
    three = MLP(6, (5,), 3)
    ft.fit(three, {"x": x}, y, steps=5)
    assert not three.training


X, Y = torch.eye(4), torch.arange(4) % 3


@pytest.mark.parametrize(
    ("x", "more", "error", "says"),
    [
        ({"x": X, "mask": X[:3]}, {}, ValueError, r"tensors of x have \[3, 4\] points"),
        ({"x": X.double()}, {}, ValueError, r"x\['x'\] is of torch.float64 and the network of torch.float32"),
        ({"x": X * torch.nan}, {}, ValueError, r"x\['x'\] has 16 NaN"),
        ({"x": X}, {"augment": "flip"}, TypeError, "augment= needs one tensor of all points"),
        ({"x": X}, {"normalise": (0, 1)}, TypeError, "normalise= needs one tensor of all points"),
        ({"x": X}, {"pool": X}, TypeError, "pool= needs one tensor of all points"),
        ({"y": X}, {}, TypeError, "unexpected keyword argument 'y'"),
        ({}, {}, ValueError, "expected the same points in each"),
    ],
    ids=lambda v: "",
)
def test_dicts_that_do_not_fit(x: Any, more: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ft.fit(MLP(4, (5,), 3), x, Y, steps=2, **more)


def test_ll4al_takes_one_tensor() -> None:
    with pytest.raises(TypeError, match="x is a dict; LL4AL needs one tensor"):
        fit_ll4al(MLP(4, (5,), 3), {"x": X}, Y, layers=["layers.0"])  # type: ignore[arg-type]
