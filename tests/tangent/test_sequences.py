"""Attention, recurrences and Bilinear: Θ by their rules against plain gradients, one point at a time."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import foretaste as ft
import oracles
from foretaste.tangent import freeze, plan
from foretaste.tangent.accumulate import GradientRows
from foretaste.tangent.stand_ins import TakenApart

T, D = 5, 8


class Attention(nn.Module):
    """One attention as a user calls it: ``call(attention, h, x)`` returns (N, T, D) or (T, N, D)."""

    def __init__(self, call: Callable[..., Any], **settings: Any) -> None:
        super().__init__()
        self.mix, self.attention = nn.Linear(D, D), nn.MultiheadAttention(D, 2, **settings)
        self.out, self.call = nn.Linear(D, 3), call
        for p in self.attention.parameters():
            nn.init.normal_(p, 0, 0.4)  # biases start at 0

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.mix(x))
        return self.out(self.call(self.attention, h, x))


def itself(**options: Any) -> Callable[..., Tensor]:
    return lambda m, h, x: m(h, h, h, **options)[0].mean(1)


def tokens_first(m: nn.Module, h: Tensor, x: Tensor) -> Tensor:
    h = h.transpose(0, 1)
    return m(h, h, h, need_weights=False)[0].mean(0)


def across(m: nn.Module, h: Tensor, x: Tensor) -> Tensor:
    return m(h[:, :2], x, x, need_weights=False)[0].mean(1)


def three_inputs(m: nn.Module, h: Tensor, x: Tensor) -> Tensor:
    return m(h[:, :3], x, torch.tanh(x))[0].mean(1)


def other_widths(m: nn.Module, h: Tensor, x: Tensor) -> Tensor:
    return m(h[:, :3], x[..., :5], x[..., 2:])[0].mean(1)


def padded(m: nn.Module, h: Tensor, x: Tensor) -> Tensor:
    padding = x[..., 0] > 0.5
    padding[:, 0] = False
    return m(h, h, h, key_padding_mask=padding, need_weights=False)[0].mean(1)


def masked(m: nn.Module, h: Tensor, x: Tensor) -> Tensor:
    padding = torch.where(x[..., 0] > 0.5, -1.5, 0.0).to(x.dtype)
    mask = torch.linspace(-1, 1, T * T, dtype=x.dtype).view(T, T)
    return m(h, h, h, key_padding_mask=padding, attn_mask=mask)[0].mean(1)


def mask_of_heads(m: nn.Module, h: Tensor, x: Tensor) -> Tensor:
    mask = (x[:, None, :, :1] * x[:, None, None, :, 1] > 0.8).expand(-1, 2, -1, -1) & ~torch.eye(T, dtype=torch.bool)
    return m(h, h, h, attn_mask=mask.flatten(0, 1), need_weights=False)[0].mean(1)


def weights_used(m: nn.Module, h: Tensor, x: Tensor) -> Tensor:
    out, weights_NTS = m(h, h, h)
    return (out * weights_NTS.square().sum(2, keepdim=True)).mean(1)


def weights_of_heads(m: nn.Module, h: Tensor, x: Tensor) -> Tensor:
    out, weights_NHTS = m(h, h, h, average_attn_weights=False)
    return (out * weights_NHTS[:, 1].square().sum(2, keepdim=True)).mean(1)


CAUSAL = torch.ones(T, T, dtype=torch.bool).triu(1)
FIRST = {"batch_first": True}
ATTENTION: dict[str, Callable[[], nn.Module]] = {
    "itself": lambda: Attention(itself(need_weights=False), **FIRST),
    "itself, with weights": lambda: Attention(itself(), **FIRST),
    "without bias": lambda: Attention(itself(), bias=False, **FIRST),
    "tokens first": lambda: Attention(tokens_first),
    "another memory": lambda: Attention(across, **FIRST),
    "three inputs": lambda: Attention(three_inputs, **FIRST),
    "other widths": lambda: Attention(other_widths, kdim=5, vdim=6, **FIRST),
    "other widths, no bias": lambda: Attention(other_widths, kdim=5, vdim=6, bias=False, **FIRST),
    "padding": lambda: Attention(padded, **FIRST),
    "masks that are added": lambda: Attention(masked, **FIRST),
    "a mask for each head": lambda: Attention(mask_of_heads, **FIRST),
    "causal": lambda: Attention(itself(attn_mask=CAUSAL, is_causal=True, need_weights=False), **FIRST),
    "causal, with weights": lambda: Attention(itself(attn_mask=CAUSAL, is_causal=True), **FIRST),
    "bias_k": lambda: Attention(padded, add_bias_kv=True, **FIRST),
    "bias_k and zeros": lambda: Attention(masked, add_bias_kv=True, add_zero_attn=True, **FIRST),
    "weights used": lambda: Attention(weights_used, **FIRST),
    "weights of heads": lambda: Attention(weights_of_heads, **FIRST),
}


class Encoded(nn.Module):
    def __init__(self, padding: bool, **settings: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 12, batch_first=True, **settings)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not settings.get("norm_first"))
        self.out, self.padding = nn.Linear(D, 3), padding

    def forward(self, x: Tensor) -> Tensor:
        lengths = 1 + (x[:, 0, 0].abs() * 3).long().clamp(max=T - 1)
        padding = torch.arange(T) >= lengths[:, None] if self.padding else None
        h = self.encoder(x, src_key_padding_mask=padding)
        return self.out(h[:, 0] + (h.mean(1) if padding is None else 0))


class Decoded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(D, D)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 2, 12), 2)
        self.out = nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(3, dtype=x.dtype)
        return self.out(self.decoder(x[:3], torch.tanh(self.mix(x)), tgt_mask=mask, tgt_is_causal=True).mean(0))


class DecodedLayer(nn.Module):
    """One layer of a decoder. ``padding``: of the memory, of the targets, or of both, other tokens for each point."""

    def __init__(self, padding: str = "", causal: bool = False, **settings: Any) -> None:
        super().__init__()
        self.mix, self.layer = nn.Linear(D, D), nn.TransformerDecoderLayer(D, 2, 12, **settings)
        self.out, self.padding, self.causal = nn.Linear(D, 3), padding, causal
        self.first = bool(settings.get("batch_first"))
        for name, p in self.layer.named_parameters():
            if "norm" not in name:
                nn.init.normal_(p, 0, 0.4)  # biases of attention start at 0

    def forward(self, x: Tensor) -> Tensor:
        targets, memory = x[:, :3], torch.tanh(self.mix(x))
        masks: dict[str, Any] = {}
        if "memory" in self.padding:
            masks["memory_key_padding_mask"] = (x[..., 0] > 0.5) & (torch.arange(T) > 0)
        if "target" in self.padding:
            masks["tgt_key_padding_mask"] = (x[:, :3, 1] > 0.5) & (torch.arange(3) > 0)
        if self.causal:
            masks |= {"tgt_mask": CAUSAL[:3, :3], "tgt_is_causal": True, "memory_mask": CAUSAL[:3] & CAUSAL[1:4]}
        if self.first:
            return self.out(self.layer(targets, memory, **masks).mean(1))
        return self.out(self.layer(targets.transpose(0, 1), memory.transpose(0, 1), **masks).mean(0))


class Products(nn.Module):
    """x1ᵀ W x2, at every token and once for each point."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.tokens, self.points = nn.Bilinear(3, 5, 4, bias=bias), nn.Bilinear(4, 8, 3, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.points(torch.tanh(self.tokens(x[..., :3], input2=x[..., 3:])).mean(1), x[:, 0])


class Recurrent(nn.Module):
    """A recurrence and what a user does with it: the last output, the mean, the last state."""

    def __init__(self, kind: type[nn.RNNBase], read: str = "mean", start: bool = False, **settings: Any) -> None:
        super().__init__()
        self.rnn = kind(D, 6, **settings)
        wide = (settings.get("proj_size") or 6) * (2 if self.rnn.bidirectional else 1)
        self.out, self.read = nn.Linear(6 if read == "state" else wide, 3), read
        self.start = nn.Linear(D, 6) if start else None

    def forward(self, x: Tensor) -> Tensor:
        count, hx = self.rnn.num_layers * (2 if self.rnn.bidirectional else 1), None
        if self.start is not None:
            hx = torch.tanh(self.start(x[:, 0])).expand(count, -1, -1).contiguous()
            hx = (hx, hx.square()) if isinstance(self.rnn, nn.LSTM) else hx
        h, state = self.rnn(x if self.rnn.batch_first else x.transpose(0, 1), hx)
        if self.read == "state":
            return self.out(torch.cat([t.square() for t in state]).sum(0) if isinstance(state, tuple) else state.sum(0))
        h = h if self.rnn.batch_first else h.transpose(0, 1)
        return self.out(h[:, -1] if self.read == "last" else h.mean(1))


class Packed(nn.Module):
    """Sequences of several lengths, as ``pack_padded_sequence`` gives them."""

    def __init__(self, kind: type[nn.RNNBase], sort: bool = True, **settings: Any) -> None:
        super().__init__()
        self.rnn, self.sort = kind(D, 6, batch_first=True, **settings), sort
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        lengths = 1 + (x[:, 0, 0].abs() * 3).long().clamp(max=T - 1) if self.sort else torch.full((len(x),), 3)
        h, state = self.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=not self.sort))
        h = pad_packed_sequence(h, batch_first=True, total_length=T)[0].sum(1)
        last = sum(t.square().sum(0) for t in state) if isinstance(state, tuple) else state.square().sum(0)
        return self.out(h[:, :6] + h[:, -6:] + last)


KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "encoder": lambda: Encoded(False),
    "encoder with padding": lambda: Encoded(True),
    "encoder, norm first": lambda: Encoded(True, norm_first=True, activation="gelu"),
    "decoder": Decoded,
    "decoder layer": DecodedLayer,
    "decoder layer, points first": lambda: DecodedLayer(**FIRST),
    "decoder layer, norm first": lambda: DecodedLayer(norm_first=True, activation="gelu"),
    "decoder layer, padded memory": lambda: DecodedLayer("memory", **FIRST),
    "decoder layer, all masks": lambda: DecodedLayer("memory and target", causal=True),
    "decoder layer, everything": lambda: DecodedLayer("memory and target", True, norm_first=True, bias=False, **FIRST),
    "bilinear": Products,
    "bilinear without bias": lambda: Products(bias=False),
    "relu": lambda: Recurrent(nn.RNN, nonlinearity="relu"),
    **{
        f"{name}, {what}": (lambda kind=kind, make=make: make(kind))
        for name, kind in KINDS.items()
        for what, make in {
            "last output": lambda kind: Recurrent(kind, "last", batch_first=True),
            "two layers": lambda kind: Recurrent(kind, num_layers=2, dropout=0.3),
            "both ways": lambda kind: Recurrent(kind, num_layers=2, bidirectional=True, batch_first=True),
            "no bias, state": lambda kind: Recurrent(kind, "state", bias=False, bidirectional=True),
            "given start": lambda kind: Recurrent(kind, "state", start=True, num_layers=2),
            "packed": lambda kind: Packed(kind),
            "packed, both ways": lambda kind: Packed(kind, bidirectional=True, num_layers=2),
            "packed in order": lambda kind: Packed(kind, sort=False),
        }.items()
    },
}


def built(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return make().to(dtype).eval()


def points(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, T, D, generator=torch.Generator().manual_seed(1)).to(dtype)


def gap(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


CASES = [*(("attention, " + k, v) for k, v in ATTENTION.items()), *OTHERS.items()]


@pytest.mark.parametrize(("name", "make"), CASES, ids=[name for name, _ in CASES])
def test_rules_are_the_gradients_of_plain_autograd(
    name: str, make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    net, x = built(make), points(6)
    with caplog.at_level(logging.INFO, "foretaste"):
        got = ft.ntk(net, x[:4], x, output="full")
        one = ft.ntk(net, x, output="signs")
    assert not caplog.records, caplog.text  # every parameter has a rule that holds
    want = oracles.ntk(net, x, x, "full").view(6, 3, 6, 3).permute(0, 2, 1, 3)
    assert gap(got, want[:4]) <= 1e-10
    signs = torch.einsum("ijcd,c,d->ij", want, *2 * [ft.tangent.frozen.balanced_signs(3).double()])
    assert gap(one, signs) <= 1e-10
    single = ft.ntk(built(make, torch.float32), points(6, torch.float32))
    assert gap(single, want.sum((2, 3)) / 3) <= 1e-5


@pytest.mark.parametrize("name", ["three inputs", "bias_k"])
def test_chunks_and_budgets_change_nothing(name: str) -> None:
    net, x = built(ATTENTION[name]), points(40)
    ample = ft.ntk(net, x)
    with pytest.raises(ValueError, match="would do") as e:
        ft.ntk(net, x, budget=1000)
    least = str(e.value).split("budget='")[1].split("'")[0]
    assert gap(ft.ntk(net, x, budget=least), ample) <= 1e-12


@pytest.mark.parametrize("name", ["LSTM, packed, both ways", "GRU, both ways", "encoder with padding"])
def test_many_points_in_small_chunks(name: str) -> None:
    """Packed batches of several chunks have several longest sequences."""
    net, x = built(OTHERS[name]), points(40)
    want = oracles.ntk(net, x, x, "sum")
    assert gap(ft.ntk(net, x), want) <= 1e-10
    assert gap(ft.ntk(net, x, budget=ft.tangent.plan(net, x).nbytes // 2), want) <= 1e-10


def pruned() -> nn.Module:
    net = Attention(itself(), **FIRST)
    prune.random_unstructured(net.attention, "in_proj_weight", 0.3)
    return net


class OwnAttention(nn.MultiheadAttention):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        out, weights = super().forward(query, key, value, **options)
        return out * 2, weights


def own_attention() -> nn.Module:
    net = Attention(itself(), **FIRST)
    net.attention = OwnAttention(D, 2, **FIRST)
    return net


class Unbatched(nn.Module):
    """One point at a time, without a dimension for points."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(D, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.stack([self.rnn(one)[0][-1] for one in x]))


FALLBACKS = {
    "proj_size": lambda: Recurrent(nn.LSTM, proj_size=4),
    "pruned": pruned,
    "a class of one's own": own_attention,
    "unbatched": Unbatched,
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_what_has_no_rule_is_right_and_said(name: str, caplog: pytest.LogCaptureFixture) -> None:
    net, x = built(FALLBACKS[name]), points(4)
    with caplog.at_level(logging.INFO, "foretaste"):
        got = ft.ntk(net, x)
    assert "no rule for" in caplog.text
    assert gap(got, oracles.ntk(net, x, x, "sum")) <= 1e-10


def test_the_network_keeps_its_classes_and_modules() -> None:
    net = built(OTHERS["encoder"])
    before = [(name, type(m)) for name, m in net.named_modules()]
    frozen = freeze(net)
    assert [(name, type(m)) for name, m in net.named_modules()] == before
    assert [name for name, _ in frozen.net.named_modules()] == [name for name, _ in before]
    assert dict(frozen.net.named_parameters()).keys() == dict(net.named_parameters()).keys()
    assert any(isinstance(m, TakenApart) for m in frozen.net.modules())
    assert not any(isinstance(m, TakenApart) for m in net.modules())


def test_a_step_that_is_wrong_is_found_and_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What rules are compared with is the module's own forward, not ours."""
    from foretaste.tangent.recurrent import LSTMCell

    right = LSTMCell.back

    def wrong(self: LSTMCell, *args: Any) -> Any:
        g_z, g_r, first = right(self, *args)
        return g_z, 1.01 * g_r, first

    monkeypatch.setattr(LSTMCell, "back", wrong)
    net, x = built(OTHERS["LSTM, last output"]), points(6)
    with caplog.at_level(logging.INFO, "foretaste"):
        got = ft.ntk(net, x)
    assert "no rule for rnn.weight_hh_l0, rnn.bias_hh_l0" in caplog.text
    assert gap(got, oracles.ntk(net, x, x, "sum")) <= 1e-10


def test_rows_that_are_formed_where_they_stay_are_those_that_are_written() -> None:
    g = torch.Generator().manual_seed(0)
    j_Nw = torch.randn(23, 192, generator=g) + 5
    chunks = [slice(0, 9), slice(9, 23)]
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 1e-6)):
        rows_Nw = j_Nw.to(dtype)
        written, formed = (GradientRows(23, 1, 192, rows_Nw[:0], False, 0.0) for _ in range(2))
        for at in chunks:
            written.write(at, slice(0, 192), rows_Nw[at, None])
            formed.form(at, lambda part, out, rows_nw=rows_Nw[at]: out.add_(rows_nw[part]))
        assert torch.equal(written.data, formed.data)
        assert torch.equal(written.mu_Bw, formed.mu_Bw)
        gap = (written.shift_NBB - formed.shift_NBB).abs().max() / written.shift_NBB.abs().max()
        assert float(gap) < tolerance


@pytest.mark.parametrize("budget", [None, "3MB"])
def test_a_linear_layer_at_several_positions_is_formed_where_its_rows_stay(budget: str | None) -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 48, batch_first=True), 2)
    net = nn.Sequential(encoder, nn.Flatten(), nn.Linear(24 * 16, 3)).double().eval()
    x = torch.randn(60, 24, 16, dtype=torch.float64)
    groups = plan(net, x, budget=budget).groups
    in_place = {layer.name for g in groups for layer, _ in [*g.in_place, *((layer, 0) for layer in g.stashed)]}
    assert {f"0.layers.{k}.{name}.weight" for k in (0, 1) for name in ("linear1", "linear2")} <= in_place
    assert (len(groups) > 1) == (budget is not None)
    assert torch.allclose(ft.ntk(net, x, budget=budget), oracles.ntk(net, x, x), rtol=1e-9, atol=1e-9)


def test_rows_that_need_less_do_not_shrink_the_memory_that_later_rows_use() -> None:
    wide, narrow = (30, 1, 64), (30, 1, 48)
    first = GradientRows(*wide, torch.zeros(0), False, 0.0)
    second = GradientRows(*narrow, torch.zeros(0), False, 0.0, first)
    third = GradientRows(*wide, torch.zeros(0), False, 0.0, second)
    assert first.data.data_ptr() == second.data.data_ptr() == third.data.data_ptr()


def test_few_long_rows_are_multiplied_in_runs_of_columns_as_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretaste.tangent.accumulate.by_onednn", lambda: False)
    g = torch.Generator().manual_seed(0)
    j_Nw = torch.randn(70, 3 << 13, generator=g) + 1
    rows = GradientRows(70, 1, 3 << 13, j_Nw[:0], False, 0.0)
    rows.write(slice(0, 70), slice(0, 3 << 13), j_Nw[:, None])
    i, j = slice(40, 70), slice(0, 50)
    assert rows.count_runs(i, j) == 6
    assert rows.count_runs(slice(0, 20), j) == 0  # too few pairs
    exact = rows.data[0, i, 0].double() @ rows.data[0, j, 0].double().T
    got, plain = rows.times(0, i, j), rows.data[0, i, 0] @ rows.data[0, j, 0].T
    assert (got - exact).norm() <= (plain - exact).norm() <= 1e-6 * exact.norm()
