"""The loop of active learning (Algorithm 1): its configuration, runs and records; look-ahead against retraining."""

from foretaste.study.config import Arm as Arm
from foretaste.study.config import Ask as Ask
from foretaste.study.config import Data as Data
from foretaste.study.config import Features as Features
from foretaste.study.config import Labels as Labels
from foretaste.study.config import Network as Network
from foretaste.study.config import Study as Study
from foretaste.study.config import Train as Train
from foretaste.study.config import Trial as Trial
from foretaste.study.estimate import Estimate as Estimate
from foretaste.study.estimate import estimate as estimate
from foretaste.study.estimate import smoke as smoke
from foretaste.study.fidelity import check_fidelity as check_fidelity
from foretaste.study.fidelity import fidelity as fidelity
from foretaste.study.folder import about as about
from foretaste.study.folder import check_data as check_data
from foretaste.study.folder import check_folder as check_folder
from foretaste.study.folder import describe as describe
from foretaste.study.loop import cycles as cycles
from foretaste.study.records import Record as Record
from foretaste.study.records import damaged_record as damaged_record
from foretaste.study.records import load_records as load_records
from foretaste.study.records import read_json_lines as read_json_lines
from foretaste.study.records import read_study_json as read_study_json
from foretaste.study.records import record_fault as record_fault
from foretaste.study.records import save_records as save_records
from foretaste.study.records import software_versions as software_versions
from foretaste.study.run import run as run
from foretaste.study.settings import SettingsError as SettingsError
from foretaste.study.study_data import prepared as prepared
from foretaste.study.toml import parse_value as parse_value
from foretaste.study.toml import read_study as read_study
from foretaste.study.toml import shipped as shipped
from foretaste.study.toml import study as study
from foretaste.study.toml import study_of as study_of

load, read, save = load_records, read_study, save_records  # of such names there are others in their files
