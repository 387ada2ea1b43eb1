"""Which points to label next (Eq. 1): by score, at once or one by one, or by a strategy that picks for itself."""

from foretaste.query._badge import badge as badge
from foretaste.query._gp import gp_predict as gp_predict
from foretaste.query._infinite import gp as gp
from foretaste.query._infinite import infinite as infinite
from foretaste.query._ll4al import ll4al as ll4al
from foretaste.query._naive import eer_retrain as eer_retrain
from foretaste.query._naive import naive as naive
from foretaste.query._onestep import onestep as onestep
from foretaste.query._query import query as query
from foretaste.query._random import random as random
from foretaste.query._request import Request as Request
from foretaste.query._result import Query as Query
