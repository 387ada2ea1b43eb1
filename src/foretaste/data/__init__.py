"""Images in, index sets out: L, U and test (§2 of the paper)."""

from foretaste.data._alter import fewer as fewer
from foretaste.data._alter import imbalanced as imbalanced
from foretaste.data._alter import noisy as noisy
from foretaste.data._cifar import cifar10 as cifar10
from foretaste.data._cifar import cifar100 as cifar100
from foretaste.data._digits import digits as digits
from foretaste.data._features import features as features
from foretaste.data._find import home as home
from foretaste.data._folder import folder as folder
from foretaste.data._get import get as get
from foretaste.data._huggingface import hugging_face as hugging_face
from foretaste.data._idx import fashion_mnist as fashion_mnist
from foretaste.data._idx import mnist as mnist
from foretaste.data._images import Images as Images
from foretaste.data._load import NAMES as NAMES
from foretaste.data._load import load as load
from foretaste.data._normalise import measured as measured
from foretaste.data._npz import npz as npz
from foretaste.data._smaller import smaller as smaller
from foretaste.data._split import Split as Split
from foretaste.data._split import draw as draw
from foretaste.data._svhn import svhn as svhn
from foretaste.data._torch import from_torch as from_torch
