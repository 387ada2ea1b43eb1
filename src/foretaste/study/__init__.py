"""The loop of active learning (Alg. 1), its configuration and its records."""

from foretaste.study._about import about as about
from foretaste.study._config import Arm as Arm
from foretaste.study._config import Ask as Ask
from foretaste.study._config import Data as Data
from foretaste.study._config import Labels as Labels
from foretaste.study._config import Network as Network
from foretaste.study._config import Study as Study
from foretaste.study._config import Train as Train
from foretaste.study._config import Trial as Trial
from foretaste.study._config import study as study
from foretaste.study._estimate import Estimate as Estimate
from foretaste.study._estimate import estimate as estimate
from foretaste.study._fidelity import fidelity as fidelity
from foretaste.study._prepare import prepared as prepared
from foretaste.study._run import run as run
from foretaste.study._smoke import smoke as smoke
from foretaste.study._toml import read as read
from foretaste.study._toml import shipped as shipped
from foretaste.study._toml import study_of as study_of
from foretaste.study.loop import cycles as cycles
from foretaste.study.records import Record as Record
from foretaste.study.records import load as load
from foretaste.study.records import save as save
