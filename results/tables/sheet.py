"""A table for readers, and its forms: CSV, Markdown, LaTeX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from seesaw.results.atomic_write import atomic_write
from seesaw.results.tables.write import csv_of

__all__ = ["Sheet", "latex", "markdown", "write_sheet"]


@dataclass(frozen=True)
class Sheet:
    """A table for readers: `data` are the rows with their numbers (the CSV), `shown` the same rows as text."""

    name: str  #: of its files, without the suffix
    caption: str
    data: pd.DataFrame
    shown: pd.DataFrame
    notes: tuple[str, ...]


def write_sheet(sheet: Sheet, folder: Path) -> None:
    """Write `<name>.csv`, `.md` and `.tex` into `folder`, each atomically. OSError if one cannot be written."""
    for suffix, text in (("csv", csv_of(sheet.data)), ("md", markdown(sheet)), ("tex", latex(sheet))):
        with atomic_write(folder / f"{sheet.name}.{suffix}") as file:
            file.write(text.encode())


_MARKDOWN = str.maketrans({**{sign: f"\\{sign}" for sign in "\\|*_[]`"}, "<": "&lt;", "&": "&amp;"})
_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': "''",
        "\N{PLUS-MINUS SIGN}": r"$\pm$",
    }
)


def _escaped(shown: pd.DataFrame, signs: dict[int, str]) -> pd.DataFrame:
    rows = [[" ".join(str(cell).split()).translate(signs) for cell in row] for row in shown.to_numpy()]
    return pd.DataFrame(rows, columns=[str(name).translate(signs) for name in shown.columns], dtype=str)


def markdown(sheet: Sheet) -> str:
    """The sheet as a GitHub Markdown table: the caption above it, the notes as a list below it."""
    cells = _escaped(sheet.shown, _MARKDOWN)
    rows = [list(cells.columns), ["---"] * len(cells.columns), *cells.to_numpy().tolist()]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    notes = "\n".join(f"- {note.translate(_MARKDOWN)}" for note in sheet.notes)
    return f"**{sheet.caption.translate(_MARKDOWN)}**\n\n{table}\n\n{notes}\n"


_WIDE = 25  # characters; a LaTeX column with longer cells breaks its lines


def latex(sheet: Sheet) -> str:
    """The sheet as a LaTeX table that needs only `\\usepackage{booktabs}`. The notes are part of the caption."""
    caption = ". ".join((sheet.caption, " ".join(sheet.notes))).translate(_LATEX)
    cells = _escaped(sheet.shown, _LATEX)
    wide = [sheet.shown[name].str.len().max() > _WIDE for name in sheet.shown]
    form = "".join(r"p{0.2\linewidth}" if broken else "l" for broken in wide)
    return cells.to_latex(index=False, caption=caption, label=f"tab:{sheet.name}", column_format=form)
