"""Which points to label next (Eq. 1): by score, at once or one by one, or by a strategy that picks for itself."""

from foretaste.query.badge import badge as badge
from foretaste.query.clusters import coreset as coreset
from foretaste.query.clusters import kmeans as kmeans
from foretaste.query.clusters import lcmd as lcmd
from foretaste.query.clusters import typiclust as typiclust
from foretaste.query.coverage import cover_greedily as cover_greedily
from foretaste.query.coverage import maxherding as maxherding
from foretaste.query.coverage import probcover as probcover
from foretaste.query.coverage import uherding as uherding
from foretaste.query.infinite_width import gp as gp
from foretaste.query.infinite_width import gp_predict as gp_predict
from foretaste.query.infinite_width import infinite as infinite
from foretaste.query.ll4al import ll4al as ll4al
from foretaste.query.naive import eer_retrain as eer_retrain
from foretaste.query.naive import naive as naive
from foretaste.query.naive import onestep as onestep
from foretaste.query.query import check_request as check_request
from foretaste.query.query import query as query
from foretaste.query.request import Query as Query
from foretaste.query.request import Request as Request
from foretaste.query.select import ProgressCounter as ProgressCounter
from foretaste.query.select import pick_each as pick_each
from foretaste.query.select import random as random
