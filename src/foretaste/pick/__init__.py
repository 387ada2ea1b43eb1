"""Which points to label next (Eq. 1): by score, at once or one by one, or by a strategy that picks for itself."""

from foretaste.acquire import cover_greedily as cover_greedily
from foretaste.lookahead import soft_labels
from foretaste.network import teach_soft_labels
from foretaste.pick.badge import badge as badge
from foretaste.pick.bait import bait as bait
from foretaste.pick.clusters import coreset as coreset
from foretaste.pick.clusters import kmeans as kmeans
from foretaste.pick.clusters import lcmd as lcmd
from foretaste.pick.clusters import typiclust as typiclust
from foretaste.pick.contested import alfamix as alfamix
from foretaste.pick.contested import clustermargin as clustermargin
from foretaste.pick.contested import dropquery as dropquery
from foretaste.pick.contested import falcun as falcun
from foretaste.pick.dcom import dcom as dcom
from foretaste.pick.determinant import dpp as dpp
from foretaste.pick.dropout import bald as bald
from foretaste.pick.dropout import batchbald as batchbald
from foretaste.pick.dropout import draw_networks as draw_networks
from foretaste.pick.herding import maxherding as maxherding
from foretaste.pick.herding import probcover as probcover
from foretaste.pick.herding import uherding as uherding
from foretaste.pick.infinite_width import gp as gp
from foretaste.pick.infinite_width import gp_predict as gp_predict
from foretaste.pick.infinite_width import infinite as infinite
from foretaste.pick.ll4al import ll4al as ll4al
from foretaste.pick.naive import eer_retrain as eer_retrain
from foretaste.pick.naive import egl as egl
from foretaste.pick.naive import naive as naive
from foretaste.pick.naive import onestep as onestep
from foretaste.pick.parbals import parbals as parbals
from foretaste.pick.phases import ProgressCounter as ProgressCounter
from foretaste.pick.query import check_query as check_query
from foretaste.pick.query import query as query
from foretaste.pick.request import Query as Query
from foretaste.pick.request import Request as Request
from foretaste.pick.select import Batch as Batch
from foretaste.pick.select import Oracle as Oracle
from foretaste.pick.select import Picked as Picked
from foretaste.pick.select import pick as pick
from foretaste.pick.select import random as random
from foretaste.pick.stop import Budget as Budget
from foretaste.pick.stop import ErrorLeft as ErrorLeft
from foretaste.pick.stop import Round as Round
from foretaste.pick.stop import SmallChange as SmallChange
from foretaste.pick.stop import StablePredictions as StablePredictions
from foretaste.pick.stop import StopRule as StopRule
from foretaste.pick.stop import StopVerdict as StopVerdict
from foretaste.pick.stop import look as look
from foretaste.pick.streamed import SKETCH_SIDE as SKETCH_SIDE

teach_soft_labels(soft_labels)  # for ft.fit(..., pool=): network/ does not import lookahead/
