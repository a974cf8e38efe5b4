"""A table of text, shown as Markdown; the pages of `viewing` show it as HTML."""

from collections.abc import Sequence
from dataclasses import dataclass

from .text import for_markdown


@dataclass(frozen=True)
class Table:
    """Cells as text, and the notes to read with them."""

    title: str
    header: Sequence[str]  # one heading per column; the first column names the rows
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    is_text: bool = False  # prose rather than numbers, and so aligned to the left

    def markdown(self) -> str:
        """Return table and notes as Markdown that a terminal shows as columns too; markup in cells
        is escaped."""
        lines = [[for_markdown(cell) for cell in line] for line in (self.header, *self.rows)]
        # a rule is at least `-:`
        widths = [max(2, *map(len, column)) for column in zip(*lines, strict=True)]
        end, justify = ("-", str.ljust) if self.is_text else (":", str.rjust)
        rule = ["-" * widths[0], *("-" * (width - 1) + end for width in widths[1:])]
        shown = []
        for name, *cells in (lines[0], rule, *lines[1:]):
            aligned = [justify(cell, width) for cell, width in zip(cells, widths[1:], strict=True)]
            shown.append(f"| {' | '.join([name.ljust(widths[0]), *aligned])} |\n")
        notes = "".join(f"- {for_markdown(note)}\n" for note in self.notes)
        return "".join(shown) + (f"\n{notes}" if notes else "")
