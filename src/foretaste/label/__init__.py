"""Live labelling: a ``Learner`` that every label changes at once, and a page in the browser for people.

learner.py has the learner's methods, session.py what it holds. pool.py reads the items, book.py keeps the labels,
model.py the linearised network that follows them. choose.py says which item next, training.py trains the network anew,
progress.py says when to and when to stop, explain.py what a label would change, saving.py writes it all to a folder.

start.py opens a folder for labelling. store.py keeps every answer and says which counts, log.py writes it to two files,
recovery.py reads them and mends one from the other. worker.py keeps the learner on its thread, desk.py says who gets
which item. server.py has the routes of the page in page/, guard.py who may call them. exchange.py takes labels in and
out, answers.py gives them to those who only read, label_studio.py speaks with Label Studio, studio_tasks.py keeps the
store in step with it.

Files are imported when one of their names is first asked for: the store needs no torch, and the server needs the
packages of the extra ``label``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretaste.label.answers import find_answers as find_answers
    from foretaste.label.desk import PREQUENTIAL as PREQUENTIAL
    from foretaste.label.desk import LabelDesk as LabelDesk
    from foretaste.label.desk import wilson as wilson
    from foretaste.label.exchange import LabelRow as LabelRow
    from foretaste.label.exchange import export_labels as export_labels
    from foretaste.label.exchange import import_labels as import_labels
    from foretaste.label.exchange import label_rows as label_rows
    from foretaste.label.exchange import read_labels as read_labels
    from foretaste.label.guard import Guard as Guard
    from foretaste.label.guard import is_loopback as is_loopback
    from foretaste.label.label_studio import WEBHOOK_BODIES as WEBHOOK_BODIES
    from foretaste.label.label_studio import LabelStudio as LabelStudio
    from foretaste.label.label_studio import LabelStudioLink as LabelStudioLink
    from foretaste.label.label_studio import add_ml_backend as add_ml_backend
    from foretaste.label.learner import Learner as Learner
    from foretaste.label.server import make_app as make_app
    from foretaste.label.server import open_port as open_port
    from foretaste.label.server import serve_app as serve_app
    from foretaste.label.start import close_desk as close_desk
    from foretaste.label.start import name_points as name_points
    from foretaste.label.start import open_desk as open_desk
    from foretaste.label.start import store_folder as store_folder
    from foretaste.label.store import CopyGroups as CopyGroups
    from foretaste.label.store import LabelEvent as LabelEvent
    from foretaste.label.store import LabelStore as LabelStore
    from foretaste.label.store import StoreConflict as StoreConflict
    from foretaste.label.store import StoreError as StoreError
    from foretaste.label.store import StoreFull as StoreFull
    from foretaste.label.worker import BuiltLearner as BuiltLearner
    from foretaste.label.worker import LearnerWorker as LearnerWorker

_PLACES = {
    "find_answers": "answers",
    "CopyGroups": "store",
    "LabelDesk": "desk",
    "PREQUENTIAL": "desk",
    "wilson": "desk",
    "LabelRow": "exchange",
    "export_labels": "exchange",
    "import_labels": "exchange",
    "label_rows": "exchange",
    "read_labels": "exchange",
    "Guard": "guard",
    "is_loopback": "guard",
    "LabelStudio": "label_studio",
    "LabelStudioLink": "label_studio",
    "WEBHOOK_BODIES": "label_studio",
    "add_ml_backend": "label_studio",
    "Learner": "learner",
    "make_app": "server",
    "open_port": "server",
    "serve_app": "server",
    "close_desk": "start",
    "name_points": "start",
    "open_desk": "start",
    "store_folder": "start",
    "LabelEvent": "store",
    "LabelStore": "store",
    "StoreConflict": "store",
    "StoreError": "store",
    "StoreFull": "store",
    "BuiltLearner": "worker",
    "LearnerWorker": "worker",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"foretaste.label.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'foretaste.label' has no attribute {name!r}")
