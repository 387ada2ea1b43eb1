"""A learner whose network is trained by skorch, Lightning or transformers, each by the real library."""

import copy

import pytest
import torch
from torch import nn

import foretaste as ft
from foretaste.connect import lightning_training, skorch_training, transformers_training


def two_clumps(n=40):
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 2
    return torch.randn(n, 4, generator=g) + 3 * y[:, None], y


def teach_all(learner, y, labels=12):
    """Teach a few labels, train, and return how many items are then predicted right."""
    before = copy.deepcopy(learner.net.state_dict())
    for i in range(labels):
        learner.teach(i, int(y[i]))
    learner.retrain(wait=True)
    after = learner.net.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)
    assert not learner.net.training
    return sum(int(a) == int(b) for a, b in zip(learner.predict(), y))


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).eval()


def test_skorch():
    skorch = pytest.importorskip("skorch")
    x, y = two_clumps()
    module = small_network()
    kept = copy.deepcopy(module.state_dict())
    net = skorch.NeuralNetClassifier(
        module, criterion=nn.CrossEntropyLoss, lr=0.1, max_epochs=40, verbose=0, train_split=None
    )
    learner = ft.Learner(module, x, loss="ce", train=skorch_training(net))
    assert teach_all(learner, y) > 36  # of 40; the clumps touch
    assert all(torch.equal(kept[key], module.state_dict()[key]) for key in kept)  # a copy was trained


def test_skorch_trains_as_its_own_fit_does():
    skorch = pytest.importorskip("skorch")
    x, y = two_clumps()
    net = skorch.NeuralNetClassifier(
        small_network(), criterion=nn.CrossEntropyLoss, lr=0.1, max_epochs=5, verbose=0, train_split=None,
        iterator_train__shuffle=False,
    )  # fmt: skip
    ours = small_network()
    skorch_training(net)(ours, x, y)
    net.fit(x, y)
    for mine, theirs in zip(ours.parameters(), net.module_.parameters()):
        assert torch.equal(mine, theirs)


@pytest.mark.filterwarnings("ignore")  # Lightning warns of what a small training lacks
def test_lightning():
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = small_network()

        def forward(self, x):
            return self.layers(x)

        def training_step(self, batch, _):
            x, y = batch
            return nn.functional.cross_entropy(self(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def make_trainer():
        return lightning.Trainer(
            max_epochs=20, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip

    x, y = two_clumps()
    learner = ft.Learner(Classifier().eval(), x, loss="ce", train=lightning_training(make_trainer, batch_size=4))
    assert teach_all(learner, y) > 36  # of 40; the clumps touch


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    config = transformers.DistilBertConfig(
        vocab_size=20, dim=16, hidden_dim=32, n_layers=1, n_heads=2, num_labels=2, pad_token_id=0
    )
    torch.manual_seed(0)
    model = transformers.DistilBertForSequenceClassification(config).eval()
    g = torch.Generator().manual_seed(0)
    y = torch.arange(24) % 2
    ids = torch.randint(1, 10, (24, 6), generator=g) + 10 * y[:, None]
    x = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    arguments = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=15, learning_rate=5e-3, report_to=[], save_strategy="no", disable_tqdm=True,
        use_cpu=True,
    )  # fmt: skip
    learner = ft.Learner(model, x, loss="ce", params="head", train=transformers_training(arguments))
    assert teach_all(learner, y) > 21  # of 24
