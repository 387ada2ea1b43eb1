"""``ForetasteClassifier``: scikit-learn's ``fit`` and ``predict`` for a network; modAL's ``query`` and ``teach``."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from foretaste.errors import errors_only
from foretaste.losses import probabilities
from foretaste.network import fit, make_head
from foretaste.pick import query


class ForetasteClassifier(ClassifierMixin, BaseEstimator):
    """A network on rows of numbers that says which rows to label next.

    ``fit``, ``predict``, ``predict_proba`` and ``score`` are those of scikit-learn; ``query`` and ``teach`` have the
    names and results of modAL. X is an array or data frame (n, D), y has n labels of any kind.

    Args:
        net: a torch module from rows to one output for each class. Each ``fit`` trains a copy of it. None (default): a
            head with one hidden layer, its inputs scaled inside (``foretaste.network.make_head``).
        strategy: of ``query``, a name of ``ft.strategies()``; default "cover".
        loss: "ce" (default) or "l2".
        hidden: width of the hidden layer where no network is given, default 512.
        steps: of training; None (default): as ``ft.fit`` chooses.
        options: the strategy's own settings.
        random_state: a seed, a ``RandomState`` or None.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from foretaste.connect import ForetasteClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> learner = ForetasteClassifier(random_state=0).fit(X[::15], y[::15])
        >>> at, rows = learner.query(X, 3)
        >>> learner = learner.teach(rows, y[at])
        >>> learner.score(X, y) > 0.9
        True
    """

    def __init__(
        self,
        net: nn.Module | None = None,
        strategy: str = "cover",
        loss: str = "ce",
        hidden: int = 512,
        steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.net, self.strategy, self.loss, self.hidden = net, strategy, loss, hidden
        self.steps, self.options, self.random_state = steps, options, random_state

    def fit(self, X: Any, y: Any) -> "ForetasteClassifier":
        """Train on rows X and labels y; what was learned before is forgotten."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        encoder = LabelEncoder().fit(y)
        self.classes_ = encoder.classes_
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}; a classifier needs two classes or more")
        self.X_, self.y_ = X, np.asarray(y)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        x_L, y_L = self._points(X), torch.as_tensor(encoder.transform(y))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net_ = (
                make_head(x_L, len(self.classes_), hidden=self.hidden) if self.net is None else deepcopy(self.net)
            )
        with errors_only():
            fit(self.net_, x_L, y_L, loss=self.loss, steps=self.steps, seed=seed)
        self.seed_ = seed
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """(n, C): probabilities of the classes, in the order of ``classes_``."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        with torch.no_grad():
            return probabilities(self.net_(self._points(X)).double(), self.loss).cpu().numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each row."""
        chances_nC = self.predict_proba(X)
        return self.classes_[chances_nC.argmax(1)]

    def query(self, X_pool: Any, n_instances: int = 1) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The rows of a pool to label next: their positions, best first, and the rows themselves."""
        check_is_fitted(self)
        rows = validate_data(self, X_pool, reset=False, dtype=np.float64)
        y_L = torch.as_tensor(np.searchsorted(self.classes_, self.y_))
        q = query(
            self.net_, self._points(self.X_), y_L, self._points(rows), strategy=self.strategy, batch_size=n_instances,
            loss=self.loss, seed=self.seed_, options=self.options,
        )  # fmt: skip
        return q.indices, np.asarray(X_pool)[q.indices]

    def teach(self, X: Any, y: Any) -> "ForetasteClassifier":
        """Train anew with more labelled rows."""
        check_is_fitted(self)
        rows, labels = validate_data(self, X, y, reset=False, dtype=np.float64)
        return self.fit(np.concatenate([self.X_, rows]), np.concatenate([self.y_, np.asarray(labels)]))

    def _points(self, X: NDArray[np.float64]) -> Tensor:
        like = torch.empty(0) if self.net is None else next(self.net.parameters(), torch.empty(0))
        return torch.tensor(X).to(like)  # a copy: arrays may be read-only
