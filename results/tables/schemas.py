"""The columns of the tables in a run directory. Their names and order are a contract with users (docs/reference.md)."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

__all__ = [
    "ACCURACY",
    "AGREEMENT",
    "ANSWERS",
    "BIAS",
    "CONFUSION",
    "CORRECTED",
    "CORRECTED_BIAS",
    "DISAGREEMENTS",
    "DISTRIBUTIONS",
    "EFFECTS",
    "FAILURES",
    "FLIPS",
    "HUI_WALTER",
    "LABELS",
    "MATRICES",
    "MEANS",
    "MISREADING",
    "MITIGATION_MATRICES",
    "NEGATIVES",
    "TARGETS",
    "TRUTH",
    "UNCERTAINTY",
    "VALIDATION",
    "WITHHELD",
    "mitigation_schema",
]

Column = tuple[str, pa.DataType]


def _texts(*names: str) -> list[Column]:
    return [(name, pa.string()) for name in names]


def _numbers(*names: str) -> list[Column]:
    return [(name, pa.float64()) for name in names]


def _counts(*names: str) -> list[Column]:
    return [(name, pa.int64()) for name in names]


_CELL = _texts("model", "subject", "source_axis", "source_value")
_ENTRY = _texts("model", "subject", "source_axis", "target_axis")

#: answers.parquet, a row an answer. "" as `source_axis` is the initial prompt.
ANSWERS = pa.schema(
    [
        *_CELL,
        *_counts("image"),
        *_texts("axis", "answer"),
        *_numbers("probability"),
        *_texts("prompt"),
        *_counts("seed"),
        *_texts("image_key", "vlm"),
    ]
)
#: distributions.parquet, a row an attribute of a cell. "*" as `source_value` is the pooled intervention.
DISTRIBUTIONS = pa.schema([*_CELL, *_texts("axis", "attribute"), *_counts("count"), *_numbers("share"), *_counts("n")])
#: matrices.parquet (plug-in) and uncertainty.parquet (the estimate that is shown, and the verdict), a row an entry.
MATRICES = pa.schema([*_ENTRY, *_numbers("is", "w_init", "w_after"), *_counts("n_init", "n_after")])
UNCERTAINTY = pa.schema(
    [*_ENTRY, *_numbers("is", "is_matched", "se", "low", "high", "p", "q"), ("significant", pa.bool_())]
)
#: bias.parquet, w-bar of every axis at the initial prompt.
BIAS = pa.schema([*_texts("model", "subject", "axis"), *_numbers("w", "se", "low", "high"), *_counts("n")])
#: means.parquet, means of IS over the `subjects` of a model; `unit` is what is drawn again: images, or subjects too.
MEANS = pa.schema(
    [
        *_texts("model", "unit", "source_axis", "target_axis"),
        *_counts("subjects"),
        *_numbers("is", "is_matched", "se", "low", "high", "p", "q"),
        ("significant", pa.bool_()),
    ]
)
#: truth.parquet, the exact IS of models whose world is known.
TRUTH = pa.schema([*_ENTRY, *_numbers("is")])
#: withheld.parquet, a row a cell: images that were not asked, since they are flagged as unsafe (or refused), or blank.
WITHHELD = pa.schema([*_CELL, *_counts("images", "flagged", "blank"), *_numbers("flagged_share")])
#: failures.parquet, a row a batch that failed for good.
FAILURES = pa.schema([*_texts("cell", "stage", "error"), *_counts("attempts"), *_texts("message", "command")])

#: effects.parquet of the studies of single mitigations, and what `validation` and `negatives` make of it.
EFFECTS = pa.schema([*_ENTRY, *_numbers("before", "after", "shared", "se", "p", "q"), ("significant", pa.bool_())])
VALIDATION = pa.schema(
    [
        *_texts("model", "subject"),
        *_counts("pairs"),
        *_numbers("correlation", "others", "null", "null_others"),
        *_numbers("shared", "shared_others", "shared_null", "shared_null_others"),
    ]
)
NEGATIVES = pa.schema(
    [
        *_texts("model"),
        *_counts("pairs", "negative", "significant"),
        *_numbers("share", "null", "share_significant"),
    ]
)
#: target.parquet and flips.parquet of the study of targets: D* as measured, and what it does to a sweep's IS.
TARGETS = pa.schema([*_texts("subject", "axis", "attribute"), *_numbers("share", "n")])
FLIPS = pa.schema(
    [
        *_ENTRY,
        *_numbers("is_before", "se_before", "is_after", "se_after", "w_init_before", "w_init_after"),
        ("flipped", pa.bool_()),
    ]
)

#: labels.parquet: what people say that images show. `imported` numbers the imports; the last of a labeller counts.
LABELS = pa.schema([*_texts("image_key", "axis", "label", "labeller"), *_counts("imported"), *_CELL, *_counts("image")])
#: tables/corrected*.parquet, figures corrected for what the VLM misreads; tables/misreading.parquet, a row an axis.
CORRECTED = pa.schema([*_ENTRY, *_numbers("is", "is_matched", "se", "low", "high"), *_texts("method")])
CORRECTED_BIAS = pa.schema(
    [*_texts("model", "subject", "axis"), *_numbers("w", "se", "low", "high"), *_texts("method")]
)
MISREADING = pa.schema([*_texts("axis"), *_counts("labelled"), *_numbers("accuracy", "p"), *_texts("method")])
#: tables/accuracy.parquet, a row a group of labelled images; tables/confusion.parquet, a row an entry of a matrix.
ACCURACY = pa.schema(
    [*_texts("vlm", "axis", "group_axis", "group"), *_counts("labelled", "right"), *_numbers("accuracy", "low", "high")]
)
CONFUSION = pa.schema([*_texts("vlm", "axis", "truth", "read"), *_counts("count"), *_numbers("share")])

#: Of two VLMs (second_answers.parquet has the columns of answers.parquet): tables/agreement.parquet, a row an axis, and
#: "person"; tables/hui_walter.parquet, a row a VLM and attribute ("": all); tables/disagreements.parquet.
AGREEMENT = pa.schema(
    [*_texts("first", "second", "axis"), *_counts("images"), *_numbers("agree", "kappa", "low", "high")]
)
HUI_WALTER = pa.schema([*_texts("vlm", "axis", "attribute"), *_numbers("accuracy"), ("converged", pa.bool_())])
DISAGREEMENTS = pa.schema(
    [*_texts("axis"), *_CELL, *_counts("image"), *_texts("image_key", "prompt", "first", "second")]
)

#: mitigation_matrices.parquet, a row an entry of the matrix that a step saw; `step` counts the mitigations before it.
#: A candidate whose images show nobody has no rows. Neither has a strategy that looks at no counterfactuals.
MITIGATION_MATRICES = pa.schema(
    [
        *_texts("model", "subject", "case", "strategy"),
        *_counts("step"),
        *_texts("source_axis", "target_axis"),
        *_numbers("is", "w_init", "w_after"),
    ]
)


def mitigation_schema(axes: Iterable[str]) -> pa.Schema:
    """The columns of mitigation.parquet for a dataset of `axes`: a row a step, with `w_<axis>` for each axis.

    Numbers may be NaN, and `images` null, where they are not known. No other column has gaps.
    """
    return pa.schema(
        [
            *_texts("model", "subject", "case", "strategy"),
            *_counts("step"),
            *_texts("axis"),
            *_numbers("tau", "tau_se", "gamma", *(f"w_{axis}" for axis in axes)),
            ("prompts", pa.list_(pa.string())),
            *_counts("images"),
            *_texts("outcome"),
            ("alerts", pa.list_(pa.string())),
            *_texts("chosen"),
            *_numbers("epsilon"),
            *_texts("judged"),
            *_numbers("p_reached"),
        ]
    )
