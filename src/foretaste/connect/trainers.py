"""Training by skorch, Lightning or transformers, for ``ft.Learner(train=...)``: a network keeps the training it has.

Each function returns ``train(net, x, y)``, which trains ``net`` in place. The libraries are imported when it is called.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

TrainInPlace = Callable[[nn.Module, Any, Tensor], None]


def skorch_training(net: Any) -> TrainInPlace:
    """Train as a net of skorch does: its criterion, optimiser, epochs and callbacks.

    Args:
        net: a skorch ``NeuralNet``, trained or not. It is cloned for each training and stays as it is.

    Returns:
        ``train(module, x, y)``.

    Example:
        >>> import skorch, torch
        >>> from foretaste.connect import skorch_training
        >>> module = torch.nn.Linear(2, 2)
        >>> net = skorch.NeuralNetClassifier(
        ...     module, criterion=torch.nn.CrossEntropyLoss, max_epochs=2, verbose=0, train_split=None)
        >>> skorch_training(net)(module, torch.eye(2), torch.tensor([0, 1]))
    """
    from sklearn.base import clone

    def train(module: nn.Module, x: Any, y: Tensor) -> None:
        own = clone(net).initialize()
        own.module_.load_state_dict(module.state_dict())
        own.partial_fit(x, y)
        module.load_state_dict(own.module_.state_dict())
        module.eval()

    return train


def lightning_training(make_trainer: Callable[[], Any], batch_size: int = 32) -> TrainInPlace:
    """Train a LightningModule by a Trainer of Lightning; its ``training_step`` gets (x, y).

    Args:
        make_trainer: makes a new ``lightning.Trainer`` for each training, for a trainer ends once.
        batch_size: points in a step; default 32.

    Returns:
        ``train(module, x, y)``. The order of points is drawn from torch's random state.

    Example:
        >>> from foretaste.connect import lightning_training
        >>> train = lightning_training(lambda: lightning.Trainer(max_epochs=20, logger=False), batch_size=16)
    """
    from torch.utils.data import DataLoader, TensorDataset

    def train(module: nn.Module, x: Any, y: Tensor) -> None:
        rows: Any = TensorDataset(x, y) if isinstance(x, Tensor) else _Rows(x, y)
        module.train()
        make_trainer().fit(module, DataLoader(rows, batch_size=batch_size, shuffle=True))
        module.eval()

    return train


def transformers_training(arguments: Any, **settings: Any) -> TrainInPlace:
    """Train a model of transformers by its ``Trainer``: points are dicts of tensors, such as input_ids.

    Args:
        arguments: ``transformers.TrainingArguments``.
        settings: other arguments of ``transformers.Trainer``, such as callbacks.

    Returns:
        ``train(model, x, y)``.

    Example:
        >>> from foretaste.connect import transformers_training
        >>> arguments = transformers.TrainingArguments("out", num_train_epochs=3)  # doctest: +SKIP
        >>> train = transformers_training(arguments)  # doctest: +SKIP
    """

    def train(model: nn.Module, x: Any, y: Tensor) -> None:
        from transformers import Trainer

        rows = [{**{key: value[i] for key, value in x.items()}, "labels": y[i]} for i in range(len(y))]
        model.train()
        Trainer(model=model, args=arguments, train_dataset=rows, **settings).train()
        model.eval()

    return train


class _Rows(torch.utils.data.Dataset[Any]):
    """Points that are a dict of tensors, with their labels, one by one."""

    def __init__(self, x: dict[str, Tensor], y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[dict[str, Tensor], Tensor]:
        return {key: value[i] for key, value in self.x.items()}, self.y[i]
