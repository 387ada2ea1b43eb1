"""Images in, index sets out: L, U and test (§2 of the paper)."""

from foretaste.data._digits import digits as digits
from foretaste.data._images import Images as Images
from foretaste.data._split import Split as Split
from foretaste.data._split import draw as draw
