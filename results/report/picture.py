"""An IS matrix as a picture for a notebook, a page or a file, from a data frame."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

from seesaw.results.errors import InputError, nearest
from seesaw.results.report.heatmap import heatmap

__all__ = ["Picture", "draw_matrix"]

_ENTRY = ("source_axis", "target_axis", "is")


@dataclass(frozen=True)
class Picture:
    """A picture as SVG text. A notebook shows it by itself; `save` writes it into a file."""

    svg: str = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the picture to `path`, a name that ends in .svg, and return the path.

        Raises InputError for another ending: this is the one kind of picture that there is.
        """
        path = Path(path)
        if path.suffix != ".svg":
            raise InputError(f"'{path}' is no name of an SVG file; end it in .svg")
        path.write_text(self.svg, encoding="utf-8")
        return path


def draw_matrix(
    matrix: pd.DataFrame,
    *,
    model: str | None = None,
    subject: str | None = None,
    limit: float = 1.0,
    label: str = "Intersectional sensitivity: what intervening on the row's axis does to the column's",
) -> Picture:
    """Draw a matrix of IS: orange where an axis is tipped away from its target, blue where it is brought nearer.

    `matrix` is either a matrix, with the intervened axis on rows, or a long table as matrices.parquet is, of which
    `model` and `subject` choose one. Of a table that has `is_matched` (uncertainty.parquet) that estimate is drawn, and
    entries are muted that are not `significant`; of one that has only `low` and `high`, those whose interval holds 0.
    Colours are full at +-`limit`; NaN is hatched. `label` is read out to those who do not see the picture.

    Raises InputError for a long table without these columns, or of more than one model or subject.

    Example::

        run = seesaw.read_run("outputs/demo")
        seesaw.draw_matrix(run.sweep.matrix, model="pictogram-sd", subject="nurse").save("nurse.svg")
    """
    sure = None
    if set(_ENTRY) <= set(matrix.columns):
        values, sure = _chosen(matrix, model, subject)
    elif model is not None or subject is not None:
        raise InputError(
            f"`model` and `subject` choose from a table with the columns {', '.join(_ENTRY)}, and this is a matrix"
        )
    else:
        values = matrix
    svg = heatmap(
        list(map(str, values.index)),
        list(map(str, values.columns)),
        values.to_numpy(np.float64),
        np.ones(values.shape, np.bool_) if sure is None else sure.to_numpy(np.bool_),
        limit=limit,
        label=label,
    )
    # a picture on its own needs its namespace, and a background for where the page is dark
    return Picture(svg.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" style="{escape(_STYLE)}" ', 1))


_STYLE = "background:#fff;color:#111;font-family:sans-serif"


def _chosen(table: pd.DataFrame, model: str | None, subject: str | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The IS of one model and subject as a matrix, and where it is sure; axes in the order of the rows."""
    for column, name in (("model", model), ("subject", subject)):
        if column not in table.columns:
            continue
        names = list(dict.fromkeys(table[column]))
        if name is None and len(names) > 1:
            raise InputError(f"the table has {len(names)} {column}s; choose one with {column}=...: {', '.join(names)}")
        if name is not None:
            if name not in names:
                raise InputError(f"the table has no {column} '{name}'{nearest(name, names)}")
            table = table[table[column] == name]
    sources, targets = table["source_axis"].unique(), table["target_axis"].unique()
    if table.duplicated(["source_axis", "target_axis"]).any():
        raise InputError("the table has several rows for one source_axis and target_axis; choose those of one matrix")
    shown = "is_matched" if "is_matched" in table.columns else "is"
    entries = table.assign(sure=_sure(table)).set_index(["source_axis", "target_axis"])
    square = pd.MultiIndex.from_product([sources, targets])
    values, sure = (
        pd.DataFrame(entries[column].reindex(square).to_numpy().reshape(len(sources), -1), sources, targets)
        for column in (shown, "sure")
    )
    return values, sure.fillna(False).astype(bool)


def _sure(table: pd.DataFrame) -> pd.Series[bool]:
    """Which entries are significant, or have an interval that does not hold 0; all of a table that says neither."""
    if "significant" in table.columns:
        return table["significant"].fillna(False).astype(bool)
    if not {"low", "high"} <= set(table.columns):
        return pd.Series(True, index=table.index)
    return (table["low"] > 0) | (table["high"] < 0)
