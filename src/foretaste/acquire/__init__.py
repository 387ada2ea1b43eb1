"""A(x′), higher = label sooner: ``fn(state) -> (U,)`` (Eq. 2, 3, 13; docs/mathematics.md, Scores), and their names."""

from foretaste.acquire._change import emoc as emoc
from foretaste.acquire._change import flips as flips
from foretaste.acquire._change import mlmoc as mlmoc
from foretaste.acquire._error import eer as eer
from foretaste.acquire._gain import gain as gain
from foretaste.acquire._opinion import finish as finish
from foretaste.acquire._opinion import labelled as labelled
from foretaste.acquire._opinion import pseudo_labels as pseudo_labels
from foretaste.acquire._probabilities import probabilities as probabilities
from foretaste.acquire._registry import SELECTS as SELECTS
from foretaste.acquire._registry import Strategy as Strategy
from foretaste.acquire._registry import find as find
from foretaste.acquire._registry import nearest as nearest
from foretaste.acquire._registry import register as register
from foretaste.acquire._registry import strategies as strategies
from foretaste.acquire._uncertainty import entropy as entropy
from foretaste.acquire._uncertainty import least_confidence as least_confidence
from foretaste.acquire._uncertainty import margin as margin
from foretaste.acquire._variance import change as change
from foretaste.acquire._variance import variance as variance
