"""Figures, tables and one HTML page, from records alone."""

from foretaste.report.charts import curves as curves
from foretaste.report.fidelity_page import Verdict as Verdict
from foretaste.report.fidelity_page import fidelity_page as fidelity_page
from foretaste.report.fidelity_page import fidelity_table as fidelity_table
from foretaste.report.fidelity_page import verdict as verdict
from foretaste.report.pages import page as page
from foretaste.report.pages import table as table
from foretaste.report.picks import Pick as Pick
from foretaste.report.picks import picks_page as picks_page
from foretaste.report.runs import Run as Run
from foretaste.report.runs import RunGroup as RunGroup
from foretaste.report.runs import compare as compare
from foretaste.report.runs import folder as folder
from foretaste.report.runs import groups as groups
from foretaste.report.runs import read_run as read_run
from foretaste.report.summary import ArmPlan as ArmPlan
from foretaste.report.summary import Interval as Interval
from foretaste.report.summary import Summary as Summary
from foretaste.report.summary import interval as interval
from foretaste.report.summary import summarize as summarize
from foretaste.report.summary import wins as wins
from foretaste.report.words import caveat as caveat
from foretaste.report.words import details as details
from foretaste.report.words import headline as headline
from foretaste.report.words import savings as savings
