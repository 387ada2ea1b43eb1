"""The loop of active learning (Alg. 1), its configuration and its records."""

from foretaste.study._about import about as about
from foretaste.study._config import DATA as DATA
from foretaste.study._config import Study as Study
from foretaste.study._config import parse as parse
from foretaste.study._run import run as run
from foretaste.study.loop import cycles as cycles
from foretaste.study.records import Record as Record
from foretaste.study.records import load as load
from foretaste.study.records import save as save
