"""Other people's data and tools, connected: ``ft.open`` reads any source; adapters for scikit-learn, skorch and others.

``foretaste.connect.scikit_activeml`` needs a package of its own and is imported by its name.
"""

from foretaste.connect.estimator import ForetasteClassifier as ForetasteClassifier
from foretaste.connect.open import HOW_TO_INSTALL as HOW_TO_INSTALL
from foretaste.connect.open import add_answers as add_answers
from foretaste.connect.open import default_backbone as default_backbone
from foretaste.connect.open import encode_with as encode_with
from foretaste.connect.open import has_backbone as has_backbone
from foretaste.connect.open import open as open
from foretaste.connect.open import warn_of_contradiction as warn_of_contradiction
from foretaste.connect.trainers import lightning_training as lightning_training
from foretaste.connect.trainers import skorch_training as skorch_training
from foretaste.connect.trainers import transformers_training as transformers_training
