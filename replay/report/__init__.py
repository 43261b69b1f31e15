"""The results of a replay: a table on a terminal, rows for programs, an HTML file, a chart."""

from replay.report.cases import Case, sweeps
from replay.report.chart import write_chart
from replay.report.page import write_report
from replay.report.table import print_table, summary

__all__ = ["Case", "print_table", "summary", "sweeps", "write_chart", "write_report"]
