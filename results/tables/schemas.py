"""The columns of the tables in a run directory. Their names and order are the contract of DESIGN section 3."""

from __future__ import annotations

import pyarrow as pa

__all__ = [
    "ANSWERS",
    "DISTRIBUTIONS",
    "EFFECTS",
    "FAILURES",
    "FLIPS",
    "MATRICES",
    "NEGATIVES",
    "TARGETS",
    "TRUTH",
    "UNCERTAINTY",
    "VALIDATION",
    "WITHHELD",
]


def _schema(**columns: str) -> pa.Schema:
    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


ANSWERS = _schema(
    model="string", subject="string", source_axis="string", source_value="string", image="int64", axis="string",
    answer="string", probability="float64", prompt="string", seed="int64", image_key="string", vlm="string",
)  # fmt: skip
DISTRIBUTIONS = _schema(
    model="string", subject="string", source_axis="string", source_value="string", axis="string", attribute="string",
    count="int64", share="float64", n="int64",
)  # fmt: skip
MATRICES = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "subject", "source_axis", "target_axis")),
        *((name, pa.float64()) for name in ("is", "w_init", "w_after")),
        *((name, pa.int64()) for name in ("n_init", "n_after")),
    ]
)
UNCERTAINTY = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "subject", "source_axis", "target_axis")),
        *((name, pa.float64()) for name in ("is", "se", "low", "high")),
    ]
)
TRUTH = _schema(model="string", subject="string", source_axis="string", target_axis="string", **{"is": "float64"})
EFFECTS = _schema(
    model="string", subject="string", source_axis="string", target_axis="string", before="float64", after="float64",
    error="float64",
)  # fmt: skip
VALIDATION = _schema(model="string", subject="string", pairs="int64", correlation="float64", others="float64")
TARGETS = _schema(subject="string", axis="string", attribute="string", share="float64", n="float64")
FLIPS = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "subject", "source_axis", "target_axis")),
        *((f"{name}_{when}", pa.float64()) for when in ("before", "after") for name in ("is", "se")),
        *((name, pa.float64()) for name in ("w_init_before", "w_init_after")),
        ("flipped", pa.bool_()),
    ]
)
NEGATIVES = _schema(model="string", pairs="int64", negative="int64", share="float64", sure="float64")
WITHHELD = _schema(
    model="string", subject="string", source_axis="string", source_value="string", images="int64", flagged="int64",
    blank="int64", flagged_share="float64",
)  # fmt: skip
FAILURES = _schema(cell="string", stage="string", error="string", attempts="int64", message="string", command="string")
