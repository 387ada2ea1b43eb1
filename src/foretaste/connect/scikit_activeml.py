"""scikit-activeml: our strategies as its query strategies, and its strategies as ours.

``LookAhead`` asks as users of scikit-activeml do: ``query(X, y, ...)`` on arrays, a missing label for a point without.
``register_strategy`` goes the other way: a strategy of scikit-activeml gets a name that ``ft.query`` and studies know.
Import it by its own name, for it needs the package scikit-activeml.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from skactiveml.base import SingleAnnotatorPoolQueryStrategy, SkactivemlClassifier
from skactiveml.utils import MISSING_LABEL, ExtLabelEncoder, is_labeled
from torch import Tensor, nn

from foretaste.acquire import find_strategy, register
from foretaste.errors import errors_only
from foretaste.lookahead import KernelSettings, linearize
from foretaste.losses import probabilities
from foretaste.network import fit, make_head
from foretaste.pick import Request, query


class LookAhead(SingleAnnotatorPoolQueryStrategy):
    """A strategy of foretaste, as a query strategy of scikit-activeml.

    Args:
        strategy: a name of ``ft.strategies()``; default "cover".
        classes: all labels that may occur, as many as the network has outputs. None (default): those in ``y``.
        net: a torch network in eval mode that is trained on the labelled points, its outputs in the sorted order of the
            classes. None (default): each query trains a head (``foretaste.network.make_head``) on X as features.
        loss: what the network is trained with, "l2" (default) or "ce".
        options: the strategy's own settings, as in ``ft.query``.
        missing_label: what stands in ``y`` for a missing label; default NaN.
        random_state: a seed, a ``RandomState`` or None.

    Example:
        >>> import numpy as np
        >>> from foretaste.connect.scikit_activeml import LookAhead
        >>> X = np.random.RandomState(0).randn(30, 2)
        >>> y = np.r_[0, 1, 0, 1, np.full(26, np.nan)]
        >>> len(LookAhead(random_state=0).query(X, y, batch_size=3))
        3
    """

    def __init__(
        self,
        strategy: str = "cover",
        classes: Any = None,
        net: nn.Module | None = None,
        loss: str = "l2",
        options: Mapping[str, Any] | None = None,
        missing_label: Any = MISSING_LABEL,
        random_state: Any = None,
    ) -> None:
        super().__init__(missing_label=missing_label, random_state=random_state)
        self.strategy, self.classes, self.net, self.loss, self.options = strategy, classes, net, loss, options

    def query(
        self,
        X: Any,
        y: Any,
        candidates: Any = None,
        batch_size: int = 1,
        return_utilities: bool = False,
    ) -> "NDArray[np.int64] | tuple[NDArray[np.int64], NDArray[np.float64]]":
        """The next points to label.

        Args:
            X: all points, with a label and without, (n, D) or as the network takes them.
            y: their labels, (n,), ``missing_label`` where there is none.
            candidates: None (default): the points without a label; or positions in X; or points that need not be in X.
            batch_size: how many to pick, default 1.
            return_utilities: whether to return utilities too, default False.

        Returns:
            Positions in X (in ``candidates``, if these are points), best first. Utilities are (batch_size, n), row i
            before the i-th pick, and NaN for what is no candidate then. A strategy that picks by itself has no scores
            for later picks: its utilities are 1 for the pick and 0 for the others.
        """
        X, y, candidates, batch_size, return_utilities = self._validate_data(
            X, y, candidates, batch_size, return_utilities, reset=True
        )
        x_U, mapping = self._transform_candidates(candidates, X, y)
        if not isinstance(self.strategy, str):
            raise TypeError(f"strategy is a {type(self.strategy).__name__}; expected a name of ft.strategies()")
        how, seed = find_strategy(self.strategy), int(self.random_state_.randint(2**31))
        labelled = is_labeled(y, self.missing_label_)
        encoder = ExtLabelEncoder(classes=self.classes, missing_label=self.missing_label_).fit(y)
        y_L = torch.as_tensor(encoder.transform(y)[labelled].astype(np.int64))
        net, C = self.net, max(2, len(encoder.classes_))
        if net is not None and not isinstance(net, nn.Module):
            raise TypeError(f"net is a {type(net).__name__}; expected a torch module, or None")
        like = torch.empty(0) if net is None else next(net.parameters(), torch.empty(0))
        x_L, rows_U = (torch.tensor(part).to(like) for part in (X[labelled], x_U))
        if net is None:
            net = self._train_head(torch.tensor(X).to(like), x_L, y_L, C, seed)
        L: tuple[Any, Any] = (x_L, y_L.to(like.device)) if len(y_L) else (None, None)
        with errors_only():
            q = query(
                net, L[0], L[1], rows_U, strategy=self.strategy, batch_size=batch_size, loss=self.loss, seed=seed,
                options=self.options, classes=range(len(encoder.classes_)) if len(encoder.classes_) > 1 else None,
            )  # fmt: skip
        picks = q.indices if mapping is None else mapping[q.indices]
        if not return_utilities:
            return picks
        utilities = np.full((len(picks), len(x_U if mapping is None else X)), np.nan)
        columns = np.arange(len(x_U)) if mapping is None else mapping
        scores = self._rows(how, net, L, rows_U, q, seed)
        for i, row_U in enumerate(scores):
            row_U[q.indices[:i]] = np.nan
            utilities[i, columns] = row_U
        return picks, utilities

    def _train_head(self, x: Tensor, x_L: Tensor, y_L: Tensor, C: int, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = make_head(x.flatten(1), C).eval()
        if len(y_L):
            with errors_only():
                fit(net, x_L, y_L, loss=self.loss, seed=seed)
        return net

    def _rows(
        self, how: Any, net: nn.Module, L: tuple[Any, Any], x_U: Tensor, q: Any, seed: int
    ) -> list[NDArray[np.float64]]:
        """The scores of all candidates before each pick."""
        if how.picks or "first" in q.info:
            return [np.isin(np.arange(len(x_U)), j).astype(float) for j in q.indices]
        first = q.scores.cpu().numpy()
        if how.select != "greedy" or len(q.indices) == 1:
            return [first.copy() for _ in q.indices]
        asked = KernelSettings(output="auto", loss=self.loss, seed=seed).for_strategy(how.kernel)
        with errors_only():
            state = linearize(
                net,
                L[0],
                L[1],
                x_U,
                output=asked.output,
                ridge=asked.ridge,
                watch_by=asked.watch_by,
                loss=self.loss,
                seed=seed,
            )
            rows = [first.copy()]
            for j in q.indices[:-1]:
                state = state.condition(int(j), None)
                rows.append(how.fn(state, **how.settings(self.options)).cpu().numpy())
        return rows


class NetworkClassifier(SkactivemlClassifier):
    """The network of a query as a classifier of scikit-activeml that is trained already. Rows are flattened inputs."""

    def __init__(self, request: Request | None = None, classes: Any = None) -> None:
        super().__init__(classes=classes)
        self.request = request

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "NetworkClassifier":
        """Nothing is trained: the network is."""
        self.classes_ = np.asarray(self.classes)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """(n, C), the network's probabilities."""
        assert self.request is not None
        like = self.request.x_U
        assert isinstance(like, Tensor)
        x = torch.as_tensor(np.asarray(X)).to(like).unflatten(1, like.shape[1:])
        with torch.no_grad():
            return probabilities(self.request.net(x).double(), self.request.loss).cpu().numpy()


def register_strategy(name: str, make: Callable[..., Any], **query_options: Any) -> None:
    """Give a strategy of scikit-activeml a name that ``ft.query`` and studies know.

    It sees the inputs of L and U as rows. One that asks for a classifier gets the trained network.

    Args:
        name: the name; one that is registered already raises.
        make: ``make(random_state=seed)`` gives the strategy; for example the class itself.
        query_options: more arguments of its ``query``.

    Raises:
        TypeError: its ``query`` needs more than X, y, a classifier and what is given.

    Example:
        >>> from skactiveml.pool import TypiClust
        >>> from foretaste.connect.scikit_activeml import register_strategy
        >>> register_strategy("their_typiclust", TypiClust)
    """
    parameters = inspect.signature(make(random_state=0).query).parameters
    given = {"X", "y", "clf", "fit_clf", "candidates", "batch_size", "return_utilities", *query_options}
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in given]
    if missing:
        raise TypeError(f"the query of {name!r} needs {', '.join(missing)}; give them to register_strategy")

    def ask(request: Request) -> list[int]:
        """A strategy of scikit-activeml on the inputs."""
        if not isinstance(request.x_U, Tensor):
            raise ValueError(f"strategy {name!r} needs points that are one tensor; x_U is a dict")
        rows = [x.flatten(1).cpu().numpy() for x in (request.x_L, request.x_U) if isinstance(x, Tensor)]
        y = np.full(request.L + request.U, np.nan)
        if request.L:
            y[: request.L] = torch.as_tensor(request.y_L).cpu().numpy()
        more = dict(query_options)
        if "clf" in parameters and "clf" not in more:
            more["clf"] = NetworkClassifier(request, np.arange(request.C)).fit(rows[0], y)
        if "fit_clf" in parameters:
            more["fit_clf"] = False
        seed = int(torch.randint(2**31 - 1, (), generator=request.generator))
        picked = make(random_state=seed).query(X=np.concatenate(rows), y=y, batch_size=request.batch_size, **more)
        return (np.asarray(picked) - request.L).tolist()

    register(name, select="own")(ask)
