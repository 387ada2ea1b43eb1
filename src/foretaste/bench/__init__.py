"""Ratios measured side by side in one run."""

from foretaste.bench._run import run as run
