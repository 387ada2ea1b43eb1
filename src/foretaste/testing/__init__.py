"""Contract tests for authors of acquisition functions, strategies, networks and rules: what ``ft.query`` relies on.

from foretaste.testing import check_acquisition, check_network, check_rule, check_strategy

def test_mine():
    check_acquisition(mine)      # fn(state) -> (U,) scores
    check_strategy("mine")       # by its registered name, whether it scores or picks by itself
    check_network(net, x)        # its kernel is that of plain autograd, on all points
    check_rule(layer, x)         # the rule that ft.register_rule registered for it
"""

from foretaste.testing.contracts import check_acquisition as check_acquisition
from foretaste.testing.contracts import check_network as check_network
from foretaste.testing.contracts import check_rule as check_rule
from foretaste.testing.contracts import check_strategy as check_strategy
