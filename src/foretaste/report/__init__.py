"""Figures, tables and one HTML page, from records alone."""

from foretaste.report._common import Plan as Plan
from foretaste.report._compare import compare as compare
from foretaste.report._compare import groups as groups
from foretaste.report._curves import curves as curves
from foretaste.report._folder import folder as folder
from foretaste.report._headline import caveat as caveat
from foretaste.report._headline import details as details
from foretaste.report._headline import headline as headline
from foretaste.report._headline import savings as savings
from foretaste.report._page import page as page
from foretaste.report._runs import Run as Run
from foretaste.report._runs import read as read
from foretaste.report._summary import Estimate as Estimate
from foretaste.report._summary import Summary as Summary
from foretaste.report._summary import interval as interval
from foretaste.report._summary import summarize as summarize
from foretaste.report._table import table as table
from foretaste.report._wins import wins as wins
