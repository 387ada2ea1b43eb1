"""A tuned text encoder that is split: what is frozen is computed once, and the rest answers as the whole does."""

import copy
import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import foretaste as ft
from foretaste.network import Backbone, TunedTail, TunedText, fit_tuned, split_tuned, tune_text
from foretaste.network import tuned as tuned_module
from foretaste.tangent import outputs
from tuned_cases import backbone, token_ids, tuned

SPLITS = [("last-block", "bert"), ("last-block", "distilbert"), ("head", "bert"), (r"re:layer\.[12]\.", "bert")]


def error(got: Tensor, want: Tensor) -> float:
    return float((got - want).detach().norm() / want.detach().norm())


@pytest.mark.parametrize(("tune", "kind"), SPLITS)
def test_a_split_network_answers_as_the_whole_does(tune: str, kind: str) -> None:
    net, ids, y = tuned(tune, n=30, kind=kind)
    fit_tuned(net, ids[:8], y[:8], steps=5)
    tail, x = split_tuned(net, ids)
    assert isinstance(tail, TunedTail)
    assert x.shape == ((30, 16) if tune == "head" else (30, 12, 17))
    assert error(outputs(tail, x), outputs(net, ids)) <= 1e-6
    assert error(ft.ntk(tail, x), ft.ntk(net, ids)) <= 1e-5
    # Herding measures how near two points are in the inputs where these are vectors.
    for strategy in ("cover", "variance", *(["uherding"] if x.dim() > 2 else [])):
        how = {"strategy": strategy, "batch_size": 4, "loss": "ce"}
        got, want = (ft.query(one, at[:8], y[:8], at[8:], **how) for one, at in ((tail, x), (net, ids)))
        assert list(got.indices) == list(want.indices)
        if want.scores is not None:
            assert error(torch.as_tensor(got.scores), torch.as_tensor(want.scores)) <= 1e-3


def test_kernels_agree_to_the_digits_of_float64() -> None:
    net, ids, _ = tuned(n=20)
    net = net.double()
    tail, x = split_tuned(net, ids)
    for output in ("sum", "full"):
        assert error(ft.ntk(tail, x, output=output), ft.ntk(net, ids, output=output)) <= 1e-10


@pytest.mark.parametrize("tune", ["last-block", "head"])
def test_a_training_ends_at_the_weights_of_the_whole_network(tune: str) -> None:
    """Without dropout: frozen blocks have none when they are computed once."""
    net, ids, y = tuned(tune)
    for m in net.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    net, whole = net.double(), copy.deepcopy(net.double())
    tail, x = split_tuned(net, ids)
    fit_tuned(tail, x[:8], y[:8], steps=6)
    fit_tuned(whole, ids[:8], y[:8], steps=6)
    assert error(outputs(tail, x), outputs(net, ids)) <= 1e-12
    assert not net.training
    assert not tail.training
    for (name, a), b in zip(net.named_parameters(), whole.parameters()):
        if not name.endswith("key.bias"):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9, msg=name)


def test_frozen_blocks_see_each_text_once() -> None:
    """And four of them once more, to see that the rest is the same network."""
    made, ids, texts = backbone(), token_ids(20), list[int]()
    first = made.module.model.encoder.layer[0]
    first.register_forward_pre_hook(lambda m, args: texts.append(len(args[0])))  # copies of the network have it too
    net, y = tune_text(made, ids, 3), ids[:, 0] % 3
    texts.clear()
    tail, x = split_tuned(net, ids)
    fit_tuned(tail, x[:6], y[:6], steps=5)
    ft.query(tail, x[:6], y[:6], x[6:], batch_size=2, loss="ce")
    assert sum(texts) == 4 + 4 + 20


class Odd(nn.Module):
    """An encoder with blocks and an embedding, whose forward has no ``inputs_embeds``."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(20, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.embeddings(input_ids)
        for block in self.blocks:
            h = block(h)
        return (h * attention_mask[..., None]).sum(1)


@pytest.mark.parametrize("tune", ["lora", "re:embeddings", "re:word_embeddings|layer.2"])
def test_what_has_no_frozen_beginning_stays_whole(tune: str) -> None:
    net, ids, y = tuned(tune)
    assert split_tuned(net, ids) == (net, ids)
    fit_tuned(net, ids[:8], y[:8], steps=2)


def test_an_encoder_of_another_kind_stays_whole(caplog: pytest.LogCaptureFixture) -> None:
    ids = token_ids(9)
    net = tune_text(Backbone("odd", Odd().eval(), list, "", "text"), ids, 2)
    with caplog.at_level(logging.INFO, "foretaste"):
        assert split_tuned(net, ids) == (net, ids)
    assert "the frozen blocks of Odd run in each pass: " in caplog.text


def test_a_rest_that_is_not_the_same_network_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    class Again(nn.Module):
        """Looks at the token ids once more at the end."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = backbone().module

        def forward(self, **batch: Tensor) -> Tensor:
            return self.inner(**batch) + ("input_ids" in batch)

    ids = token_ids(9)
    net = tune_text(Backbone("again", Again().eval(), list, "", "text"), ids, 2)
    with caplog.at_level(logging.INFO, "foretaste"):
        assert split_tuned(net, ids) == (net, ids)
    assert "the rest alone errs by" in caplog.text


def test_large_states_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, ids, y = tuned(n=80)
    want = split_tuned(net, ids)[1]
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(tuned_module, "LARGE_STATES", 0)
    kept = split_tuned(net, ids, cache=tmp_path)[1]
    mask = want[..., -1:]
    torch.testing.assert_close(kept[..., -1:], mask)
    torch.testing.assert_close(kept * mask, want * mask)
    assert len(list(tmp_path.glob("*.npy"))) == 1

    def never(*args: object) -> Tensor:
        raise AssertionError("computed again")

    fit_tuned(net, ids[:8], y[:8], steps=3)  # the tuned block is not in the digest
    with monkeypatch.context() as patched:
        states = tuned_module._entering
        patched.setattr(tuned_module, "_entering", lambda *args: states(*args) if len(args[1]) <= 4 else never())
        again = split_tuned(net, ids, cache=tmp_path)[1]
    assert torch.equal(again, kept)
    with torch.no_grad():
        next(net.encoder.parameters()).add_(0.1)
    other = split_tuned(net, ids, cache=tmp_path)[1]
    assert not torch.equal(other, kept)
    assert len(list(tmp_path.glob("*.npy"))) == 2
    assert split_tuned(net, ids, cache=False)[0] is net
    assert len(list(tmp_path.glob("*.npy"))) == 2


def test_a_learner_of_a_split_network(tmp_path: Path) -> None:
    net, ids, y = tuned(n=30)
    for m in net.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    net = net.double()
    tail, x = split_tuned(copy.deepcopy(net), ids)
    asked = []
    for one, pool in ((tail, x), (net, ids)):
        learner = ft.Learner(one, pool, classes=3, loss="ce", fit_options={"steps": 4})
        learner.teach(list(range(8)), y[:8].tolist())
        learner.retrain(wait=True)
        asked.append((learner.query(4), learner.predict_proba()))
    assert asked[0][0] == asked[1][0]
    assert error(asked[0][1], asked[1][1]) <= 1e-6
    assert isinstance(learner.net, TunedText)
