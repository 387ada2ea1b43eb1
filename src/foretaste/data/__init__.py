"""Data in, index sets out: L, U and test (§2 of the paper).

``read_points`` reads any source into ``Points``, some of them without a label. ``load`` reads a labelled data set, by
name or path, and splits it into pool and test: ``Images``.
"""

from foretaste.data.catalogue import CATALOGUE as CATALOGUE
from foretaste.data.catalogue import NAMES as NAMES
from foretaste.data.catalogue import find_named as find_named
from foretaste.data.catalogue import home as home
from foretaste.data.class_names import class_ids as class_ids
from foretaste.data.class_names import class_labels as class_labels
from foretaste.data.class_names import class_names as class_names
from foretaste.data.class_names import count_names as count_names
from foretaste.data.class_names import join_faults as join_faults
from foretaste.data.class_names import natural_key as natural_key
from foretaste.data.clips import CLIPS_NEED as CLIPS_NEED
from foretaste.data.clips import ClipItems as ClipItems
from foretaste.data.dataset import Images as Images
from foretaste.data.dataset import Split as Split
from foretaste.data.dataset import draw as draw
from foretaste.data.dataset import fewer as fewer
from foretaste.data.dataset import imbalanced as imbalanced
from foretaste.data.dataset import measured as measured
from foretaste.data.dataset import noisy as noisy
from foretaste.data.dataset import smaller as smaller
from foretaste.data.fetch import get as get
from foretaste.data.items import PictureItems as PictureItems
from foretaste.data.items import StoredItems as StoredItems
from foretaste.data.items import pixels as pixels
from foretaste.data.load import Answers as Answers
from foretaste.data.load import load as load
from foretaste.data.named import breast_cancer as breast_cancer
from foretaste.data.named import digits as digits
from foretaste.data.named import docstrings as docstrings
from foretaste.data.named import wine as wine
from foretaste.data.points import Points as Points
from foretaste.data.points import content_names as content_names
from foretaste.data.points import join_sources as join_sources
from foretaste.data.points import note_test_side as note_test_side
from foretaste.data.points import without_repeats as without_repeats
from foretaste.data.sources import hugging_face as hugging_face
from foretaste.data.sources import read_points as read_points
from foretaste.data.tables import ID_COLUMNS as ID_COLUMNS
from foretaste.data.tables import how_to_utf8 as how_to_utf8
from foretaste.data.text import TEXT_ENCODERS as TEXT_ENCODERS
from foretaste.data.text import encode_text as encode_text
from foretaste.data.text import pad_tokens as pad_tokens
from foretaste.data.torch_datasets import from_torch as from_torch
