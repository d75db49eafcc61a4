"""The status table for a terminal; the only module that loads rich."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outlast_supervisor.views import HEADINGS, Row

# where there is no room for all: rather a column less than cells that are folded
_FIRST_TO_GO = ("RATE", "LOSS", "SAVED", "LEFT")
_STYLES = {"good": "green", "busy": "", "bad": "bold red"}


def show(rows: Sequence[Row], *, detailed: bool, clear: bool) -> None:
    """Draw the rows, with their notes and, where asked for, their details below."""
    console = Console(no_color=bool(os.environ.get("NO_COLOR")) or None, highlight=False)
    if clear:
        console.clear()
    console.print(_table(rows, console.width))
    for item in rows:
        named = len(rows) > 1
        for note in item.notes:
            text = f"{item.cells[1]}: {note}" if named else note
            console.print(Padding(Text(f"! {text}", style="yellow"), (0, 0, 0, 1)))
        if detailed:
            _details(console, item)


def _table(rows: Sequence[Row], width: int) -> Table:
    used = [i for i in range(len(HEADINGS)) if any(item.cells[i] for item in rows)]
    wide = {i: max(len(line[i]) for line in (HEADINGS, *(item.cells for item in rows))) + 2 for i in used}
    for heading in _FIRST_TO_GO:
        at = HEADINGS.index(heading)
        if sum(wide[i] for i in used) > width and at in used:
            used.remove(at)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i in used:
        table.add_column(HEADINGS[i], header_style="bold", overflow="fold")
    for item in rows:
        style = _STYLES[item.level]
        table.add_row(*(Text(item.cells[i] or "-", style=style if i == 2 else "") for i in used))
    return table


def _details(console: Console, item: Row) -> None:
    grid = Table.grid(padding=(0, 2, 0, 1))
    for name, text in item.details:
        grid.add_row(Text(name, style="dim"), Text(text))
    console.print(grid)
