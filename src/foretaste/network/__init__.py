"""f: networks of the paper (§4), and SGD on L2 or cross-entropy. Nothing here imports the rest of foretaste."""

from foretaste.network._build import NETWORKS as NETWORKS
from foretaste.network._build import Spec as Spec
from foretaste.network._build import build as build
from foretaste.network._feature_layers import feature_layers as feature_layers
from foretaste.network._fit import Fit as Fit
from foretaste.network._fit import fit as fit
from foretaste.network._import import make as make
from foretaste.network._ll4al import fit_ll4al as fit_ll4al
from foretaste.network._ll4al_alone import fit_ll4al_alone as fit_ll4al_alone
from foretaste.network._loss_prediction import LossPrediction as LossPrediction
from foretaste.network._loss_prediction import predict_losses as predict_losses
from foretaste.network._mlp import MLP as MLP
from foretaste.network._mlp import MLPSpec as MLPSpec
from foretaste.network._pixels import prepare as prepare
from foretaste.network._reset import reset as reset
from foretaste.network._resnet import ResNet as ResNet
from foretaste.network._resnet import ResNetSpec as ResNetSpec
from foretaste.network._resnet import resnet18 as resnet18
from foretaste.network._saved import Saved as Saved
from foretaste.network._saved import load as load
from foretaste.network._saved import save as save
from foretaste.network._saved import saved as saved
from foretaste.network._train import Diverged as Diverged
from foretaste.network._wideresnet import WideResNet as WideResNet
from foretaste.network._wideresnet import WideResNetSpec as WideResNetSpec
