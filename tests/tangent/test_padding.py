"""Padded points: passes take them longest first and cut each batch to its longest. Answers stay the caller's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretaste as ft
from foretaste.batches import batches, join_batches
from foretaste.network import fit_tuned
from foretaste.pick.badge import last_layer_inputs
from foretaste.tangent import GramJob, PeakMemory, freeze, gram, outputs, plan
from tuned_cases import token_ids, tuned

KINDS = ["bert", "distilbert"]


class Whole(nn.Module):
    """The same network without a word about its padding."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.training = net, net.training

    def forward(self, ids: Tensor) -> Tensor:
        return self.net(ids)


@contextmanager
def counted_tokens(net: Any) -> Iterator[list[tuple[int, int]]]:
    """(texts, tokens of each) of every pass of the encoder."""
    passes: list[tuple[int, int]] = []
    words = next(m for m in net.modules() if isinstance(m, nn.Embedding))
    handle = words.register_forward_pre_hook(lambda m, args: passes.append(tuple(args[0].shape)))
    try:
        yield passes
    finally:
        handle.remove()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretaste.tangent.planning.CHUNK_LEAST", 8)
    monkeypatch.setattr("foretaste.tangent.planning.CHUNK_BYTES", {"cpu": 1})


def close(got: Tensor, want: Tensor, error: float) -> bool:
    return float((got - want).detach().norm() / want.detach().norm()) <= error


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("output", ["sum", "full", "trace"])
def test_theta_is_in_the_order_of_the_caller(kind: str, output: str) -> None:
    net, ids, _ = tuned(n=30, kind=kind)
    net, other = net.double(), token_ids(11, seed=3)
    assert close(ft.ntk(net, ids, output=output), ft.ntk(Whole(net), ids, output=output), 1e-10)
    assert close(ft.ntk(net, other, ids, output=output), ft.ntk(Whole(net), other, ids, output=output), 1e-10)
    sets = {"L": ids[:4], "U": ids[4:], "none": ids[:0]}
    blocks, diagonals = [("L", "L"), ("U", "L"), ("none", "U")], ["U", "none"]
    got, want = (gram(GramJob(freeze(one, output=output), sets, blocks, diagonals)) for one in (net, Whole(net)))
    assert close(got.blocks["U", "L"], want.blocks["U", "L"], 1e-10)
    assert close(got.diagonals["U"], want.diagonals["U"], 1e-10)
    assert close(got.outputs["U"], want.outputs["U"], 1e-10)
    assert len(got.blocks["none", "U"]) == len(got.diagonals["none"]) == 0


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("tune", ["last-block", "lora", "head", r"re:layer\.0|query"])
@pytest.mark.parametrize("precision", ["float32", "half"])
def test_kernels_of_texts_are_within_rounding(tune: str, precision: str) -> None:
    net, ids, _ = tuned(tune, n=40)
    got, want = (ft.ntk(one, ids, precision=precision) for one in (net, Whole(net)))
    assert close(got, want, 1e-5 if precision == "float32" else 1e-3)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("strategy", ["cover", "variance", "mlmoc", "uherding", "badge", "margin"])
def test_a_query_answers_as_without_the_cut(strategy: str) -> None:
    net, ids, y = tuned(n=50)
    fit_tuned(net, ids[:12], y[:12], steps=5)
    names = [f"text {i}" for i in range(38)]
    asked = [
        ft.query(one, ids[:12], y[:12], ids[12:], strategy=strategy, batch_size=5, loss="ce", ids=names, seed=3)
        for one in (net, Whole(net))
    ]
    assert asked[0].ids == asked[1].ids
    if asked[1].scores is not None:
        got, want = (torch.as_tensor(q.scores) for q in asked)
        assert close(got, want, 1e-3)


class Texts(nn.Module):
    """Large layers, whose A and G are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.up, self.head = nn.Embedding(2000, 48, padding_idx=0), nn.Linear(48, 256), nn.Linear(256, 3)

    def padded_lengths(self, x: Tensor) -> Tensor:
        return (x != 0).sum(1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.words(x)).tanh() * (x != 0)[..., None]
        return self.head(h.sum(1))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("longest", [0, 30], ids=["the longest in the first set", "the longest in the second set"])
def test_large_layers_of_padded_points(longest: int) -> None:
    torch.manual_seed(0)
    net, lengths = Texts().double().eval(), torch.randint(1, 9, (40,))
    lengths[longest] = 12
    x = torch.randint(1, 2000, (40, 12)).masked_fill(torch.arange(12) >= lengths[:, None], 0)
    assert any(group.stashed or group.products for group in plan(net, x).groups)
    assert close(ft.ntk(net, x[:25], x[25:]), ft.ntk(Whole(net), x[:25], x[25:]), 1e-10)


def test_outputs_and_features_are_in_the_order_of_the_caller() -> None:
    net, ids, _ = tuned(n=30)
    assert close(outputs(net, ids, chunk_size=7), outputs(Whole(net), ids), 1e-6)
    assert close(net.features(ids), net.encode(ids), 1e-6)
    frozen, first = freeze(net), "encoder.model.encoder.layer.2.attention.self.query"  # whose inputs are sequences
    for layer in ("head.1.layers.2", first):
        want = last_layer_inputs(freeze(Whole(net)), ids, f"net.{layer}", chunk_size=8)[1]
        got = last_layer_inputs(frozen, ids, layer, chunk_size=8)[1]
        assert close(got, want, 1e-6)
    rows = [(at, part[:, 0]) for at, part in batches(net, ids, 4)]
    assert torch.equal(join_batches(rows), ids[:, 0])


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("run", "share"),
    [
        (lambda net, ids, y: ft.ntk(net, ids), 0.55),
        (lambda net, ids, y: outputs(net, ids, chunk_size=8), 0.55),
        (lambda net, ids, y: net.features(ids.repeat(4, 1)), 0.7),
        (lambda net, ids, y: ft.fit(net, ids, y, steps=60, batch_size=4, loss="ce", max_lr=1e-3), 0.7),
    ],
    ids=["kernel", "outputs", "features", "training"],
)
def test_padding_is_cut(run: Callable[..., object], share: float) -> None:
    """One text of 32 tokens among 64 of 2 to 15."""
    net, ids, y = tuned(n=64, longest=32)
    with counted_tokens(net) as cut:
        run(net, ids, y)
    whole = Whole(net)
    whole.features = lambda ids: net.encode(ids)  # type: ignore[assignment]
    with counted_tokens(whole) as padded:
        run(whole, ids, y)
    seen, most = (sum(n * tokens for n, tokens in passes) for passes in (cut, padded))
    assert seen < share * most
    assert max(tokens for _, tokens in cut) == ids.shape[1]


def test_a_plan_sees_the_longest_text_wherever_it_stands() -> None:
    net, ids, _ = tuned(n=64, longest=32)
    by_length = ids[(ids >= 0).sum(1).argsort()]
    mostly_long = torch.cat([by_length[:2], by_length[-1:].repeat(200, 1)])
    for x in (mostly_long, mostly_long.flip(0)):
        made = plan(net, x)
        with PeakMemory() as memory:
            ft.ntk(net, x)
        assert memory.peak <= made.nbytes
