"""A(x′), higher = label sooner: scores of candidates (Eq. 2, 3, 13; docs/mathematics.md, Scores), and their names.

Each function takes a ``State``, made by ``ft.linearize``, and its own options. It returns (U,) float64 scores, −inf
where a candidate is taken. Scores of classes raise a ValueError for a network of one output, and name another.

    >>> import torch, foretaste as ft
    >>> x = torch.linspace(-1, 1, 12).view(6, 2)
    >>> state = ft.linearize(torch.nn.Linear(2, 3).eval(), x[:2], [0, 1], x[2:])
    >>> ft.acquire.mlmoc(state).shape, ft.acquire.gain(state, scale=0.5).shape
    (torch.Size([4]), torch.Size([4]))
"""

from foretaste.acquire.change import change as change
from foretaste.acquire.change import emoc as emoc
from foretaste.acquire.change import flips as flips
from foretaste.acquire.change import mlmoc as mlmoc
from foretaste.acquire.cover import SPREAD_POINTS as SPREAD_POINTS
from foretaste.acquire.cover import cover as cover
from foretaste.acquire.cover import covered_errors as covered_errors
from foretaste.acquire.coverage import Coverage as Coverage
from foretaste.acquire.coverage import KernelRows as KernelRows
from foretaste.acquire.coverage import LazyGains as LazyGains
from foretaste.acquire.coverage import cover_greedily as cover_greedily
from foretaste.acquire.gain import gain as gain
from foretaste.acquire.lazy_scores import LazyScores as LazyScores
from foretaste.acquire.lazy_scores import ScoreBound as ScoreBound
from foretaste.acquire.lazy_scores import lazy_scores as lazy_scores
from foretaste.acquire.predictions import chance_among_classes as chance_among_classes
from foretaste.acquire.predictions import chance_of_error as chance_of_error
from foretaste.acquire.predictions import finish_scores as finish_scores
from foretaste.acquire.predictions import labelled as labelled
from foretaste.acquire.predictions import pseudo_labels as pseudo_labels
from foretaste.acquire.predictions import row_products as row_products
from foretaste.acquire.registry import DEFAULT_STRATEGY as DEFAULT_STRATEGY
from foretaste.acquire.registry import SELECTS as SELECTS
from foretaste.acquire.registry import OwnTraining as OwnTraining
from foretaste.acquire.registry import Strategy as Strategy
from foretaste.acquire.registry import StudyHints as StudyHints
from foretaste.acquire.registry import find_strategy as find_strategy
from foretaste.acquire.registry import register as register
from foretaste.acquire.registry import strategies as strategies
from foretaste.acquire.sampled_cover import ChunkScore as ChunkScore
from foretaste.acquire.sampled_cover import FittingScore as FittingScore
from foretaste.acquire.sampled_cover import PointErrors as PointErrors
from foretaste.acquire.sampled_cover import Seen as Seen
from foretaste.acquire.sampled_cover import Shortlist as Shortlist
from foretaste.acquire.sampled_cover import StreamedCover as StreamedCover
from foretaste.acquire.sampled_cover import WatchedSample as WatchedSample
from foretaste.acquire.sampled_cover import best_cover as best_cover
from foretaste.acquire.sampled_cover import sample_watched as sample_watched
from foretaste.acquire.sampled_cover import stream_chunk as stream_chunk
from foretaste.acquire.uncertainty import eer as eer
from foretaste.acquire.uncertainty import entropy as entropy
from foretaste.acquire.uncertainty import least_confidence as least_confidence
from foretaste.acquire.uncertainty import margin as margin
from foretaste.acquire.variance import epig as epig
from foretaste.acquire.variance import variance as variance
from foretaste.errors import did_you_mean as did_you_mean
from foretaste.losses import probabilities as probabilities
