"""LL4AL: the ranking loss against its loop, the training beside fit's, and the strategy."""

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import nn
from torch.testing import assert_close

from foretaste.losses import LOSSES
from foretaste.network import MLP, LossPrediction, WideResNet, fit, fit_ll4al, fit_ll4al_alone, predict_losses
from foretaste.network.loss_prediction import JointNetwork, RankedTargets, pool_features, ranking_loss
from foretaste.pick import query

LAYERS = ["layers.1", "layers.3"]
QUICK = {"layers": LAYERS, "steps": 40, "start": "cold"}


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mlp(C=3, seed=0):
    with torch.random.fork_rng():
        net = MLP(4, (16, 16), C).double()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(normal(*p.shape, seed=100 * seed + i) / 3)
    return net.eval()


X, Y, X_U = normal(21, 4, seed=1), torch.arange(21) % 3, normal(30, 4, seed=2)


def trained(**settings):
    net = mlp()
    return net, *fit_ll4al(net, X, Y, **{**QUICK, **settings})


def noisy(n, seed):
    """Two classes: by the sign of x₁ where x₀ < 0, by a coin where x₀ > 0; losses are high on that half."""
    x = normal(n, 4, seed=seed)
    coin = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.5
    return x, torch.where(x[:, 0] < 0, x[:, 1] > 0, coin).long()


@pytest.mark.parametrize("n", [2, 7, 12])
def test_ranking_loss_is_its_loop(n):
    guess, loss = normal(n, seed=3), normal(n, seed=4).abs()
    loss[1] = loss[0]  # a tie has the sign −1
    pairs = []
    for k in range(n // 2):
        i, j = 2 * k, 2 * k + 1
        sign = 1 if loss[i] > loss[j] else -1
        pairs.append(max(0.0, float(-sign * (guess[i] - guess[j]) + 0.7)))
    assert_close(float(ranking_loss(guess, loss, 0.7)), sum(pairs) / len(pairs), rtol=1e-12, atol=0)


@pytest.mark.parametrize("C", [2, 10])
def test_reductions_differ_by_the_number_of_classes(C):
    f, t = normal(6, C, seed=5), normal(6, C, seed=6)
    assert_close(
        LOSSES["l2"].point_values(f, t, "sum"), C * LOSSES["l2"].point_values(f, t, "mean"), rtol=1e-14, atol=0
    )
    assert_close(float(LOSSES["l2"].point_values(f, t, "mean").mean()), float(F.mse_loss(f, t)))
    y = torch.arange(6) % C
    assert_close(LOSSES["ce"].point_values(f, y, "mean").mean(), F.cross_entropy(f, y))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_joint_loss_is_its_loop(reduction):
    out, t = normal(6, 4, seed=7), F.one_hot(torch.arange(6) % 3).double()
    goal = RankedTargets("l2", t, t, True, reduction, weight=0.3, margin=1.0)
    losses = [sum(float((out[i, c] - t[i, c]) ** 2) for c in range(3)) for i in range(6)]
    if reduction == "mean":
        losses = [loss / 3 for loss in losses]
    total = sum(losses) / 6
    for i, j in ((0, 1), (2, 3), (4, 5)):
        sign = 1 if losses[i] > losses[j] else -1
        total += 0.3 * 2 / 6 * max(0.0, 1.0 - sign * float(out[i, -1] - out[j, -1]))
    assert_close(float(goal.of(out, t)), total, rtol=1e-12, atol=0)


def test_the_ranking_loss_does_not_train_the_targets_it_ranks():
    """The gradient of the outputs is that of the L2 loss alone: l_i only tells the sign."""
    out = normal(6, 4, seed=8).requires_grad_()
    t = F.one_hot(torch.arange(6) % 3).double()
    RankedTargets("l2", t, t, True).of(out, t).backward()
    assert_close(out.grad[:, :-1], 2 * (out.detach()[:, :-1] - t) / 18)
    assert out.grad[:, -1].abs().sum() > 0


def test_the_modules_gradient_reaches_the_network_until_it_is_stopped():
    net, module = mlp(), LossPrediction(LAYERS, [16, 16]).double()
    joint = JointNetwork(net, module, stop=2)
    reached = []
    for _ in range(4):
        (g,) = torch.autograd.grad(joint(X)[:, -1].sum(), [net.layers[0].weight], allow_unused=True)
        reached.append(g is not None and bool(g.any()))
    assert reached == [True, True, False, False]
    assert not any(m._forward_hooks for m in net.modules())


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_without_the_ranking_loss_it_is_fit(loss):
    plain, beside = mlp(), mlp()
    settings = {"loss": loss, "steps": 60, "start": "cold", "max_lr": 0.1, "seed": 3, "batch_size": 8}
    a = fit(plain, X, Y, **settings)
    b, _ = fit_ll4al(beside, X, Y, layers=LAYERS, weight=0.0, **settings)
    for p, q in zip(plain.parameters(), beside.parameters()):
        assert_close(p, q, rtol=1e-8, atol=1e-10)
    assert (a.steps, a.accuracy) == (b.steps, b.accuracy)
    assert_close(a.residual, b.residual, rtol=1e-8, atol=0)


def test_class_sum_is_class_mean_at_c_times_the_learning_rate():
    """Without the ranking loss; with it the balance of the two shifts, which is what the setting is for."""
    a, *_ = trained(weight=0.0, reduction="sum", max_lr=0.02)
    b, *_ = trained(weight=0.0, reduction="mean", max_lr=0.06)
    for p, q in zip(a.parameters(), b.parameters()):
        assert_close(p, q, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("how", ["beside", "alone"])
def test_it_learns_to_rank_losses(how, loss):
    x, y = noisy(400, 1)
    net = MLP(4, (32, 32), 2).double()
    settings = {"layers": LAYERS, "loss": loss, "seed": 0}
    _, module = fit_ll4al(net, x, y, steps=400, start="cold", weight_decay=1e-3, **settings)
    if how == "alone":
        module = fit_ll4al_alone(net, x, y, **settings)
    x, y = noisy(400, 2)
    with torch.no_grad():
        f = net(x)
    true = F.cross_entropy(f, y, reduction="none") if loss == "ce" else (f - F.one_hot(y, 2)).square().mean(1)
    assert spearmanr(predict_losses(net, module, x), true).statistic > 0.4


def test_seed():
    state = torch.get_rng_state()
    (net, a, m), (again, b, n), (other, *_) = trained(seed=5), trained(seed=5), trained(seed=6)
    assert torch.equal(torch.get_rng_state(), state)
    assert (a.residual, a.loss) == (b.residual, b.loss)
    assert torch.equal(predict_losses(net, m, X_U), predict_losses(again, n, X_U))
    assert not torch.equal(net.layers[0].weight, other.layers[0].weight)
    assert not net.training
    assert not m.training
    alone = [fit_ll4al_alone(net, X, Y, layers=LAYERS, steps=20, seed=s) for s in (1, 1, 2)]
    one, same, another = (predict_losses(net, module, X_U) for module in alone)
    assert torch.equal(one, same)
    assert not torch.equal(one, another)
    assert torch.equal(torch.get_rng_state(), state)


def test_convolutions_with_batchnorm():
    net = WideResNet(widen=1, classes=3)
    x = torch.rand(10, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    result, module = fit_ll4al(
        net, x, torch.arange(10) % 3, layers=["stem", "stages.0", "tail"], steps=6, augment="flip"
    )
    assert result.steps == 6
    assert [read.in_features for read in module.read] == [16, 32, 32]
    by_hand = net.stem(x).mean((2, 3)), net.stages(net.stem(x)).mean((2, 3)), net.tail(net.stages(net.stem(x)))
    want = module([*by_hand[:2], by_hand[2].mean((2, 3))])
    assert_close(predict_losses(net, module, x), want.double().detach())


@pytest.mark.parametrize(
    ("module", "shape", "axis", "want"),
    [
        (nn.ReLU(), (5, 3), None, ()),
        (nn.Conv1d(1, 1, 1), (5, 3, 4), None, (2,)),
        (nn.LayerNorm(4), (5, 3, 4), None, (1,)),
        (nn.ReLU(), (5, 3, 4), -1, (1,)),
        (nn.ReLU(), (5, 3, 4, 2), None, (2, 3)),
        (nn.Linear(1, 1), (5, 3, 4, 2), None, (1, 2)),
    ],
)
def test_features_are_means_over_space_or_sequence(module, shape, axis, want):
    out = normal(*shape)
    assert_close(pool_features("h", module, out, axis), out.mean(want) if want else out)


def test_an_activation_in_place_does_not_change_the_feature():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)).double().eval()
    _, module = fit_ll4al(net, X, Y, layers=["0"], steps=2)
    assert_close(predict_losses(net, module, X_U), module([net[0](X_U)]).detach())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": ["layers.1", "layer.3"]}, "unknown feature layer 'layer.3'; did you mean 'layers.3'"),
        ({"layers": "layers.1"}, "layers is 'layers.1'; expected names of submodules"),
        ({"layers": []}, r"layers is \[\]; expected names"),
        ({"layers": ["layers.1", "layers.1"]}, "names one twice"),
        ({"layers": ["layers.1", "never"]}, "feature layer 'never' is never called"),
        ({"layers": ["layers.1", "twice"]}, "feature layer 'twice' is called more than once"),
        ({"loss": "ce", "reduction": "sum"}, 'reduction="sum" is of the L2 loss'),
        ({"reduction": "men"}, "unknown reduction 'men'; did you mean 'mean'"),
        ({"stop": 1.5}, "stop is 1.5; expected"),
        ({"weight": -1.0}, "weight is -1.0"),
        ({"max_lr": 0.0}, "max_lr is 0.0; expected a number above 0"),
        ({"batch_size": 1}, "learns from pairs"),
    ],
)
def test_errors_leave_the_network_as_it_was(settings, message):
    class Odd(MLP):
        def __init__(self):
            super().__init__(4, (16, 16), 3)
            self.never, self.twice = nn.Linear(2, 2), nn.Identity()

        def forward(self, x):
            return self.layers(self.twice(self.twice(x)))

    net = Odd().double()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        fit_ll4al(net, X, Y, **{**QUICK, "start": "warm", **settings})
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert net.training
    assert not any(m._forward_hooks for m in net.modules())


def test_divergence_restores_the_network():
    net = mlp()
    before = [p.clone() for p in net.parameters()]
    with pytest.raises(RuntimeError, match="training diverged"):
        fit_ll4al(net, X, Y, layers=LAYERS, steps=50, max_lr=1e9)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before))


def ask(net, x_U=X_U, **settings):
    return query(net, X, Y, x_U, strategy="ll4al", batch_size=6, **settings)


def test_query_takes_the_highest_predicted_losses():
    net, _, module = trained()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    q = ask(net, options={"module": module})
    assert torch.equal(q.scores, predict_losses(net, module, X_U))
    assert q.indices.tolist() == q.scores.argsort(descending=True)[:6].tolist()
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    assert order[ask(net, X_U[order], options={"module": module}).indices].tolist() == q.indices.tolist()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert not any(m._forward_hooks for m in net.modules())
    assert all(p.grad is None for p in net.parameters())


def test_query_trains_a_module_alone():
    net, *_ = trained()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    a, b, c = (ask(net, seed=s, options={"layers": LAYERS, "steps": 50}) for s in (0, 0, 1))
    own = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(0)))
    module = fit_ll4al_alone(net, X, Y, layers=LAYERS, steps=50, seed=own)
    assert torch.equal(a.scores, predict_losses(net, module, X_U))
    assert torch.equal(a.scores, b.scores)
    assert a.indices.tolist() == b.indices.tolist()
    assert not torch.equal(a.scores, c.scores)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.requires_grad for p in net.parameters())
    with pytest.raises(ValueError, match="x_L is empty"):
        query(net, None, None, X_U, strategy="ll4al", batch_size=2, options={"layers": LAYERS})


def test_regression():
    """A loss is all it needs."""
    net, y = mlp(C=1), X[:, 0].clone()
    _, module = fit_ll4al(net, X, y, **QUICK)
    for options in ({"module": module}, {"layers": LAYERS, "steps": 20}):
        q = query(net, X, y, X_U, strategy="ll4al", batch_size=6, options=options)
        assert q.indices.tolist() == q.scores.argsort(descending=True)[:6].tolist()


def test_ties_are_broken_by_seed():
    net, _, module = trained()
    x_U = X_U[:1].expand(12, -1).clone()
    picks = {tuple(sorted(ask(net, x_U, seed=s, options={"module": module}).indices.tolist())) for s in range(4)}
    assert len(picks) > 1


def test_query_errors(monkeypatch):
    net, _, module = trained()
    monkeypatch.setattr(type(net), "forward", lambda *a: pytest.fail("the network was run"))
    with pytest.raises(ValueError, match=r"'ll4al' needs the module trained beside the network.*fit_ll4al"):
        ask(net)
    with pytest.raises(ValueError, match="module is a Linear; expected the LossPrediction"):
        ask(net, options={"module": nn.Linear(2, 2)})
    with pytest.raises(ValueError, match="both given"):
        ask(net, options={"module": module, "layers": LAYERS})
    with pytest.raises(ValueError, match=r"unknown feature layer 'layers\.9'; did you mean 'layers\."):
        ask(net, options={"layers": ["layers.9"]})
    with pytest.raises(ValueError, match=r"module is on cpu in torch.float32, the network"):
        ask(net, options={"module": LossPrediction(LAYERS, [16, 16])})
    net.train()
    with pytest.raises(ValueError, match="train mode"):
        ask(net, options={"module": module})


def test_nan_and_another_network_raise():
    net, _, module = trained()
    with pytest.raises(ValueError, match=r"have widths \[8, 8\]; the module was trained on \[16, 16\]"):
        ask(MLP(4, (8, 8), 3).double().eval(), options={"module": module})
    with torch.no_grad():
        module.score.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite for 30 points, first at 0"):
        ask(net, options={"module": module})
