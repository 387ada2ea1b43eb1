"""Ratios measured side by side in one run."""

from foretaste.bench._gpu import device_of as device_of
from foretaste.bench._gpu import run_queries as run_queries
from foretaste.bench._run import run as run
