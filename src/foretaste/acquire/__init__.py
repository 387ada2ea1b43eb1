"""A(x′), higher = label sooner: ``fn(state) -> (U,)`` (Eq. 2, 3, 13; docs/mathematics.md, Scores), and their names."""

from foretaste.acquire.change import change as change
from foretaste.acquire.change import emoc as emoc
from foretaste.acquire.change import flips as flips
from foretaste.acquire.change import mlmoc as mlmoc
from foretaste.acquire.cover import cover as cover
from foretaste.acquire.coverage import Coverage as Coverage
from foretaste.acquire.coverage import added_coverage as added_coverage
from foretaste.acquire.epig import epig as epig
from foretaste.acquire.error import eer as eer
from foretaste.acquire.gain import gain as gain
from foretaste.acquire.predictions import chance_of_error as chance_of_error
from foretaste.acquire.predictions import finish_scores as finish_scores
from foretaste.acquire.predictions import labelled as labelled
from foretaste.acquire.predictions import pseudo_labels as pseudo_labels
from foretaste.acquire.registry import SELECTS as SELECTS
from foretaste.acquire.registry import OwnTraining as OwnTraining
from foretaste.acquire.registry import Strategy as Strategy
from foretaste.acquire.registry import find_strategy as find_strategy
from foretaste.acquire.registry import register as register
from foretaste.acquire.registry import strategies as strategies
from foretaste.acquire.uncertainty import entropy as entropy
from foretaste.acquire.uncertainty import least_confidence as least_confidence
from foretaste.acquire.uncertainty import margin as margin
from foretaste.acquire.variance import variance as variance
from foretaste.errors import did_you_mean as did_you_mean
from foretaste.losses import probabilities as probabilities
