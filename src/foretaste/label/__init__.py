"""Live labelling: a ``Learner`` that every label changes at once, and a page in the browser for people.

learner.py has the learner's methods, session.py what it holds. pool.py reads the items, book.py keeps the labels,
live_model.py is the linearised network that follows them, pool_model.py the same with the pool in its kernel. choose.py
says which item next, training.py trains the network anew, progress.py says when to, when to stop and what a label would
change, saving.py writes it all to a folder.

start.py opens a folder for labelling, and gives its answers to those who only read. store.py keeps every answer and
says which counts (voices.py, where several people answered), log.py writes it to two files, recovery.py reads them and
mends one from the other. worker.py keeps the learner on its thread, desk.py says who gets which item, tally.py counts.
server.py has the routes of the page in page/, guard.py who may call them; grid.py, review.py, classes.py and
overview.py are its views. exchange.py takes labels in and out, formats.py has the files of other tools,
label_studio.py speaks with Label Studio, studio_tasks.py keeps the store in step with it.

Files are imported when one of their names is first asked for: the store needs no torch, and the server needs the
packages of the extra ``label``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretaste.label.desk import LabelDesk as LabelDesk
    from foretaste.label.exchange import ITEM_FIELDS as ITEM_FIELDS
    from foretaste.label.exchange import LabelRow as LabelRow
    from foretaste.label.exchange import export_labels as export_labels
    from foretaste.label.exchange import import_labels as import_labels
    from foretaste.label.exchange import label_rows as label_rows
    from foretaste.label.exchange import read_labels as read_labels
    from foretaste.label.guard import Guard as Guard
    from foretaste.label.guard import is_loopback as is_loopback
    from foretaste.label.guard import person_token as person_token
    from foretaste.label.label_studio import WEBHOOK_BODIES as WEBHOOK_BODIES
    from foretaste.label.label_studio import LabelStudio as LabelStudio
    from foretaste.label.label_studio import LabelStudioLink as LabelStudioLink
    from foretaste.label.label_studio import add_ml_backend as add_ml_backend
    from foretaste.label.learner import Learner as Learner
    from foretaste.label.server import make_app as make_app
    from foretaste.label.server import open_port as open_port
    from foretaste.label.server import serve_app as serve_app
    from foretaste.label.start import close_desk as close_desk
    from foretaste.label.start import find_answers as find_answers
    from foretaste.label.start import name_points as name_points
    from foretaste.label.start import open_desk as open_desk
    from foretaste.label.start import store_folder as store_folder
    from foretaste.label.store import CopyGroups as CopyGroups
    from foretaste.label.store import LabelEvent as LabelEvent
    from foretaste.label.store import LabelStore as LabelStore
    from foretaste.label.store import StoreConflict as StoreConflict
    from foretaste.label.store import StoreError as StoreError
    from foretaste.label.store import StoreFull as StoreFull
    from foretaste.label.tally import PREQUENTIAL as PREQUENTIAL
    from foretaste.label.voices import measure_agreement as measure_agreement
    from foretaste.label.voices import wilson as wilson
    from foretaste.label.worker import BuiltLearner as BuiltLearner
    from foretaste.label.worker import LearnerWorker as LearnerWorker
    from foretaste.label.worker import map_large_blocks as map_large_blocks

_NAMES = {
    "desk": ("LabelDesk",),
    "exchange": ("ITEM_FIELDS", "LabelRow", "export_labels", "import_labels", "label_rows", "read_labels"),
    "guard": ("Guard", "is_loopback", "person_token"),
    "label_studio": ("WEBHOOK_BODIES", "LabelStudio", "LabelStudioLink", "add_ml_backend"),
    "learner": ("Learner",),
    "server": ("make_app", "open_port", "serve_app"),
    "start": ("close_desk", "find_answers", "name_points", "open_desk", "store_folder"),
    "store": ("CopyGroups", "LabelEvent", "LabelStore", "StoreConflict", "StoreError", "StoreFull"),
    "tally": ("PREQUENTIAL",),
    "voices": ("measure_agreement", "wilson"),
    "worker": ("BuiltLearner", "LearnerWorker", "map_large_blocks"),
}
_PLACES = {name: place for place, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"foretaste.label.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'foretaste.label' has no attribute {name!r}")
