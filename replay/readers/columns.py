"""CSV columns found by name, in any order and among others."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import suppress

from replay.readers.lines import Lines, shown


def header_cells(line: str) -> list[str]:
    """The names of a header, in lower case."""
    return [cell.strip().lower() for cell in _cells(line)]


def _cells(line: str) -> list[str]:
    """The cells of a line; those in quotes may hold commas."""
    if '"' in line:
        with suppress(csv.Error):  # what is no CSV seldom has the right number of cells
            return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]
    return line.split(",")


def rows_below(header: Sequence[str], lines: Lines) -> Iterator[list[str]]:
    """The cells of each row, without the quotes that some programs put around them.

    Raises:
        TraceError: A row has more or fewer cells than the header.
    """
    for line in lines:
        cells = _cells(line)
        if len(cells) != len(header):
            found = f"{len(cells)} columns in {shown(line)}"
            raise lines.error(found, f"{len(header)} columns, as in the header")
        yield cells


def rows(lines: Lines, wanted: Sequence[str]) -> Iterator[list[str]]:
    """The wanted cells of each row, in the wanted order.

    Raises:
        TraceError: The header lacks a column or has it twice, or a row has more or fewer cells than
            the header.
    """
    header = header_cells(next(lines, ""))
    missing = [name for name in wanted if name.lower() not in header]
    if missing:
        found = f"no column {', '.join(missing)} in {shown(','.join(header))}"
        raise lines.error(found, f"a header with {','.join(wanted)}")
    if twice := [name for name in wanted if header.count(name.lower()) > 1]:
        raise lines.error(f"two columns {twice[0]} in {shown(','.join(header))}", "one")
    places = [header.index(name.lower()) for name in wanted]
    for cells in rows_below(header, lines):
        yield [cells[place] for place in places]
