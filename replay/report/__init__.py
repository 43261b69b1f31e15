"""What came of a replay, for people: a table on a terminal, rows for programs, an HTML file."""

from replay.report.page import write_report
from replay.report.table import print_table, summary

__all__ = ["print_table", "summary", "write_report"]
