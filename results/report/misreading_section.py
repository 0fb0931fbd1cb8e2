"""The report's section about the VLM's misreadings: its accuracy on labelled images, and figures corrected for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from seesaw.results.tables.misreading import MisreadingTables

__all__ = ["MisreadingSection", "misreading_section"]

_LISTED = 12  # corrected figures shown: those that the correction moves most
_ENTRY = ["model", "subject", "source_axis", "target_axis"]


@dataclass(frozen=True)
class MisreadingSection:
    """What misreading.html.j2 shows; rows are mappings of the columns that it names."""

    axes: list[dict[str, Any]]  #: accuracy and test of every labelled axis
    others: list[dict[str, Any]]  #: accuracy of other VLMs that saw the same images
    attributes: list[dict[str, Any]]  #: accuracy by the attribute that people see
    worse: list[dict[str, Any]]  #: groups for which an axis is read worse than over all, beyond chance
    entries: list[dict[str, Any]]  #: corrected IS beside plain
    compared: int  #: entries with both
    moved: int  #: of them, where the plain value lies outside of the corrected interval
    biases: list[dict[str, Any]]  #: corrected w beside plain
    missing: int  #: entries that need labels in more prompts
    notes: tuple[str, ...]


def misreading_section(tables: MisreadingTables, plain: pd.DataFrame) -> MisreadingSection:
    """The context of misreading.html.j2; `plain` has the sweep's own entries: is, is_matched, low, high, w_init."""
    accuracy = tables.accuracy
    first = accuracy["vlm"].iloc[0] if len(accuracy) else ""
    whole = accuracy[accuracy["group_axis"] == ""]
    own = accuracy[accuracy["group_axis"] == accuracy["axis"]]
    axes = whole[whole["vlm"] == first].merge(tables.misreading[["axis", "p", "method"]], on="axis", how="left")
    entries = tables.corrected.merge(plain, on=_ENTRY, suffixes=("", "_plain"))
    entries["read"] = entries["is_matched_plain"].fillna(entries["is_plain"])  # older runs have no matched estimate
    defined = entries[entries["is_matched"].notna() & entries["read"].notna()]
    off = defined.assign(by=(defined["is_matched"] - defined["read"]).abs())
    return MisreadingSection(
        axes=_records(axes),
        others=_records(whole[whole["vlm"] != first]),
        attributes=_records(own[own["labelled"] > 0]),
        worse=_records(_worse(accuracy)),
        entries=_records(_most(off[off["source_axis"] != off["target_axis"]])),
        compared=len(defined),
        moved=int(((defined["read"] < defined["low"]) | (defined["read"] > defined["high"])).sum()),
        biases=_records(_most(_biases(tables, plain))),
        missing=int((tables.corrected["method"] == "labels missing").sum()),
        notes=tables.notes,
    )


def _worse(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Groups whose interval of accuracy lies below the accuracy over all labelled images of the same axis."""
    whole = accuracy[accuracy["group_axis"] == ""][["vlm", "axis", "accuracy"]]
    groups = accuracy[(accuracy["group_axis"] != "") & (accuracy["labelled"] > 0)]
    both = groups.merge(whole, on=["vlm", "axis"], suffixes=("", "_of_all"))
    return both[both["high"] < both["accuracy_of_all"]]


def _biases(tables: MisreadingTables, plain: pd.DataFrame) -> pd.DataFrame:
    names = {"target_axis": "axis", "w_init": "w_plain"}
    observed = plain.rename(columns=names)[["model", "subject", "axis", "w_plain"]].drop_duplicates()
    both = tables.corrected_bias.merge(observed, on=["model", "subject", "axis"])
    both = both[both["w"].notna() & both["w_plain"].notna()]
    return both.assign(by=(both["w"] - both["w_plain"]).abs())


def _most(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values("by", ascending=False, kind="stable").head(_LISTED)


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]
