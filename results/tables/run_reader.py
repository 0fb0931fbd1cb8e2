"""Reading a run directory: its tables, checked, for the report and for every other reader."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml

from seesaw.results.errors import RunDirectoryError
from seesaw.results.secrets import first_line
from seesaw.results.store.parquet import plain_batches, plain_metadata, plain_table
from seesaw.results.tables.mitigation import Case, Key
from seesaw.results.tables.mitigation_matrices import Matrix, read_matrices
from seesaw.results.tables.read_mitigation import read_mitigation
from seesaw.results.tables.schemas import (
    ANSWERS,
    BIAS,
    DISTRIBUTIONS,
    FAILURES,
    MATRICES,
    MEANS,
    TRUTH,
    UNCERTAINTY,
    WITHHELD,
)
from seesaw.results.tables.write import about_of

__all__ = ["FIRST", "MitigationTables", "Run", "SweepTables", "read_examples", "read_run", "read_run_json"]

FIRST = 8  #: images of a cell that may be shown as examples: its first batch
_CELL = ["model", "subject", "source_axis", "source_value"]
_EXAMPLE = [*_CELL, "image", "axis", "answer", "prompt", "image_key"]
_WORDS = [*_CELL, "axis", "answer", "prompt"]  # columns with few different words on many rows
_ENTRY = ["model", "subject", "source_axis", "target_axis"]
_INTERVAL = ("se", "low", "high")
_VERDICT = ("is_matched", "p", "q", "significant")
_OF_SWEEPS = ("answers", "distributions", "matrices", "uncertainty", "bias", "means")
_OF_MITIGATIONS = ("mitigation", "mitigation_matrices")


@dataclass(frozen=True)
class SweepTables:
    """What a sweep measured. Answers about single images are not in memory: there may be millions (`read_examples`)."""

    path: Path  #: of the run directory
    about: Mapping[str, Any]  #: metric, targets and intervention, as the tables themselves record them
    #: the columns of matrices.parquet, then is_matched, se, low, high, p, q, significant, and exact (NaN: not known)
    matrix: pd.DataFrame
    truths: Mapping[str, str]  #: by model, the world whose exact values these are
    distributions: pd.DataFrame
    cells: pd.DataFrame  #: model, subject, source_axis, source_value, asked, dropped: images made, and not counted
    withheld: pd.DataFrame  #: the columns of withheld.parquet
    answers: int  #: attributes that were read in all
    means: pd.DataFrame  #: the columns of means.parquet
    bias: pd.DataFrame  #: the columns of bias.parquet
    older: bool = False  #: an older version wrote the tables, without verdicts, means and bias


@dataclass(frozen=True)
class MitigationTables:
    """What mitigations did: every case, and for the steps that saw a matrix, that matrix."""

    about: Mapping[str, Any]  #: metric, targets and intervention, as the tables themselves record them
    cases: tuple[Case, ...]
    matrices: Mapping[Key, Mapping[int, Matrix]]


@dataclass(frozen=True)
class Run:
    """A run directory that has tables: of a sweep, of a mitigation, or of both."""

    path: Path
    run_json: Mapping[str, Any]
    config: Mapping[str, Any]  #: config.yaml
    failures: pd.DataFrame
    sweep: SweepTables | None
    mitigation: MitigationTables | None

    @property
    def models(self) -> Mapping[str, str]:
        """Identity of every model by its name."""
        models: Mapping[str, str] = self.run_json["fingerprint"]["models"]
        return models


def read_run(run: str | Path) -> Run:
    """Read the run directory `run`. It has a sweep, or a mitigation, if any table of one is there.

    Raises:
        RunDirectoryError: it is not a run directory, nothing has been measured in it yet, or a file cannot be read.

    Example::

        run = seesaw.read_run("outputs/demo")
        run.sweep.matrix.sort_values("is").head()
    """
    run = Path(run)
    run_json, config = _run_json(run), _config(run)
    has_mitigation = _holds(run, _OF_MITIGATIONS)
    return Run(
        path=run,
        run_json=run_json,
        config=config,
        sweep=_sweep(run) if _holds(run, _OF_SWEEPS) or not has_mitigation else None,
        mitigation=_mitigation(run) if has_mitigation else None,
        failures=_frame(run, "failures", FAILURES.names),
    )


def _holds(run: Path, names: Sequence[str]) -> bool:
    return any((run / f"{name}.parquet").is_file() for name in names)


def _mitigation(run: Path) -> MitigationTables:
    path = run / "mitigation.parquet"
    cases = read_mitigation(path)
    if not cases:
        raise RunDirectoryError(f"'{path}' holds no case; `seesaw mitigate {run / 'config.yaml'}` makes some")
    return MitigationTables(about_of(path), tuple(cases), read_matrices(run / "mitigation_matrices.parquet", cases))


def _sweep(run: Path) -> SweepTables:
    matrix = _frame(run, "matrices", MATRICES.names)
    older = _is_older(run)
    merged = matrix.merge(_spread(run), how="left", on=_ENTRY)
    if matrix.empty:
        raise RunDirectoryError(
            f"'{run}/matrices.parquet' holds no matrix: no intervention was observed; {_again(run)}"
        )
    if len(merged) != len(matrix):
        raise RunDirectoryError(f"'{run}/uncertainty.parquet' does not belong to the matrices beside it; {_again(run)}")
    merged, truths = _with_exact(run, merged)
    withheld = _withheld(run)
    cells, answers = _cells(run, withheld)
    return SweepTables(
        path=run,
        about=about_of(run / "matrices.parquet"),
        matrix=merged,
        truths=truths,
        distributions=_frame(run, "distributions", DISTRIBUTIONS.names),
        cells=cells,
        withheld=withheld,
        answers=answers,
        means=_words(MEANS.empty_table()) if older else _frame(run, "means", MEANS.names, MEANS),
        bias=_words(BIAS.empty_table()) if older else _frame(run, "bias", BIAS.names, BIAS),
        older=older,
    )


def _spread(run: Path) -> pd.DataFrame:
    """uncertainty.parquet without `is`, which matrices.parquet has."""
    if _is_older(run):
        spread = _frame(run, "uncertainty", [*_ENTRY, *_INTERVAL], UNCERTAINTY)
        return spread.assign(is_matched=np.nan, p=np.nan, q=np.nan, significant=False)
    return _frame(run, "uncertainty", [*_ENTRY, *_INTERVAL, *_VERDICT], UNCERTAINTY)


def _is_older(run: Path) -> bool:
    """Whether an older version wrote the tables."""
    with _readable(run, "uncertainty") as path:
        return not set(_VERDICT) <= set(plain_metadata(path).schema.names)


def read_examples(run: Path, wanted: Mapping[tuple[str, str], str]) -> Mapping[tuple[str, str], pd.DataFrame]:
    """The rows of answers.parquet about the first eight images of some prompts, by (model, subject).

    `wanted` gives the source axis of these prompts by (model, subject); the initial prompt is always included.
    Raises RunDirectoryError.
    """
    rows_of: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for rows in _answers(run, _EXAMPLE):
        first = rows[rows["image"] < FIRST]
        for (model, subject), examples in first.groupby(["model", "subject"], sort=False, observed=True):
            pair = str(model), str(subject)
            if pair in wanted:
                mine = examples[examples["source_axis"].isin(["", wanted[pair]])]
                rows_of.setdefault(pair, []).append(_plain(mine))
    return {pair: pd.concat(parts) for pair, parts in rows_of.items()}


#: the types of what is read of run.json
_RUN_JSON = {
    **dict.fromkeys(("command", "state", "id", "began", "ended"), str),
    "fingerprint": {
        **{name: {"*": str} for name in ("models", "vqa", "metric")},
        "subjects": [str],
        "images": (int, dict),
        "seed": int,
        "store": str,
        "dataset": {},
        "targets": {"*": [(int, float)]},
        "mitigation": {"cases": {"*": str}},
    },
    "finished": {"*": {}},
    "versions": {"*": str},
    "counts": {},
    "notes": [str],
}
_START_OVER = "; remove the run directory and sweep again: images and answers are in the store, so nothing is lost"


def read_run_json(path: Path, needed: Sequence[str] = ("state", "fingerprint")) -> dict[str, Any]:
    """run.json of a run directory, with the `needed` keys. RunDirectoryError if `path` is not a run directory."""
    try:
        run_json = json.loads((path / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunDirectoryError(f"'{path}' is no run directory: it holds no run.json") from None
    except RecursionError:
        raise RunDirectoryError(f"'{path}/run.json' cannot be read: it is nested too deeply{_START_OVER}") from None
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"'{path}/run.json' cannot be read: {error}{_START_OVER}") from None
    if not isinstance(run_json, dict) or not run_json.keys() >= set(needed):
        raise RunDirectoryError(f"'{path}/run.json' was not written by a run{_START_OVER}")
    for key in _wrong_types(run_json, _RUN_JSON):
        raise RunDirectoryError(
            f"'{path}/run.json' was not written by a run: its {key} is of another type{_START_OVER}"
        )
    return run_json


def _wrong_types(value: Any, expected: Any, key: str = "") -> Iterator[str]:
    """The keys in `value`, as a.b.c, that are not of the type that `expected` says; one that is absent is not wrong.

    `expected` is a type, a mapping by key ("*": all keys), or a list with the type of all items.
    """
    if isinstance(expected, dict):
        if not isinstance(value, dict):
            yield key
            return
        for name in value:
            if (inner := expected.get(name, expected.get("*"))) is not None:
                yield from _wrong_types(value[name], inner, f"{key}.{name}".strip("."))
    elif isinstance(expected, list):
        if not isinstance(value, list) or not all(isinstance(item, expected[0]) for item in value):
            yield key
    elif not isinstance(value, expected) or isinstance(value, bool):
        yield key


def _run_json(run: Path) -> Mapping[str, Any]:
    run_json = read_run_json(run, needed=("fingerprint",))
    fingerprint = run_json["fingerprint"]
    if (
        not isinstance(fingerprint, dict)
        or not isinstance(fingerprint.get("models"), dict)
        or "seed" not in fingerprint
    ):
        raise RunDirectoryError(
            f"'{run}/run.json' was not written by a run: it lacks the fingerprint, its models or its seed"
        )
    return run_json


def _config(run: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunDirectoryError(f"'{run}' holds no config.yaml; {_again(run)}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RunDirectoryError(f"'{run}/config.yaml' cannot be read: {first_line(error)}") from None
    if not isinstance(config, dict):
        raise RunDirectoryError(f"'{run}/config.yaml' is not a resolved config; {_again(run)}")
    return config


def _table(run: Path, name: str, columns: Sequence[str]) -> pa.Table:
    with _readable(run, name) as path:
        return plain_table(path, columns)


def _answers(run: Path, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
    """`columns` of answers.parquet, streaming. Words are categories; a missing word is an empty one."""
    words = [name for name in _WORDS if name in columns]
    word = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([(name, word if name in words else ANSWERS.field(name).type) for name in columns])
    with _readable(run, "answers") as path:
        for batch in plain_batches(path, columns, words):
            rows: pd.DataFrame = batch.cast(schema).to_pandas()
            for name in words:
                if rows[name].hasnans:
                    rows[name] = rows[name].astype("str").fillna("").astype("category")
            yield rows


@contextmanager
def _readable(run: Path, name: str) -> Iterator[Path]:
    """The path of the table `name`. Raises RunDirectoryError if the block finds that it is missing or unreadable."""
    path = run / f"{name}.parquet"
    try:
        yield path
    except FileNotFoundError:
        raise RunDirectoryError(
            f"'{run}' holds no {name}.parquet, so there is nothing to report yet; {_again(run)}"
        ) from None
    except (pa.ArrowException, OSError, KeyError) as error:
        raise RunDirectoryError(
            f"'{path}' cannot be read as the table that it should be: {first_line(error)}; "
            f"delete it, and {_again(run)}, which makes it again from the store"
        ) from None


def _again(run: Path) -> str:
    verb = "mitigate" if _holds(run, _OF_MITIGATIONS) and not _holds(run, _OF_SWEEPS) else "sweep"
    return f"bring `seesaw {verb} {run / 'config.yaml'}` to its end"


def _frame(run: Path, name: str, columns: Sequence[str], schema: pa.Schema | None = None) -> pd.DataFrame:
    table = _table(run, name, columns)
    if schema is not None and any(table.schema.field(c).type != schema.field(c).type for c in columns):
        raise RunDirectoryError(f"'{run}/{name}.parquet' has columns of other types than it should; {_again(run)}")
    return _words(table)


def _with_exact(run: Path, matrix: pd.DataFrame) -> tuple[pd.DataFrame, Mapping[str, str]]:
    """`matrix` with a column of exact IS, NaN where it is not known, and by model the world that gives it."""
    path = run / "truth.parquet"
    if not path.is_file():
        return matrix.assign(exact=np.nan), {}
    exact = _frame(run, "truth", TRUTH.names, TRUTH).rename(columns={"is": "exact"})
    merged = matrix.merge(exact, how="left", on=_ENTRY)
    if len(merged) != len(matrix):
        raise RunDirectoryError(f"'{path}' does not belong to the matrices beside it; delete it, and {_again(run)}")
    truths = about_of(path).get("truths")
    return merged, truths if isinstance(truths, dict) else {}


def _words(table: pa.Table) -> pd.DataFrame:
    """A table as a frame; a missing word becomes an empty one."""
    frame: pd.DataFrame = table.to_pandas()
    words = [field.name for field in table.schema if pa.types.is_string(field.type)]
    return frame.assign(**{name: frame[name].fillna("") for name in words})


def _withheld(run: Path) -> pd.DataFrame:
    """Images that were made and not asked, by cell. Older runs have no such table."""
    if not (run / "withheld.parquet").is_file():
        return _words(WITHHELD.empty_table())
    return _frame(run, "withheld", WITHHELD.names, WITHHELD)


def _cells(run: Path, withheld: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Images made and dropped, by cell, and how many attributes were read in all.

    Without a question about the person every image counts, unless it was withheld.
    """
    counts, answers = [], 0
    for rows in _answers(run, [*_CELL, "axis", "answer"]):
        asked = rows[rows["axis"] == "person"]
        counts.append(_counted(asked.assign(dropped=asked["answer"] == "no")))
        answers += len(rows) - len(asked)
    if not any(map(len, counts)):
        images = [_plain(rows.drop_duplicates()) for rows in _answers(run, [*_CELL, "image"])]
        counts = [_counted(pd.concat(images).drop_duplicates().assign(dropped=False))] if images else counts
    if len(withheld):
        more = withheld.set_index(_CELL)[["flagged", "blank"]].sum(axis=1)
        counts.append(pd.DataFrame({"asked": more, "dropped": more}).reset_index())
    none = pd.DataFrame(columns=[*_CELL, "asked", "dropped"])
    counted = pd.concat(counts or [none]).groupby(_CELL, sort=False)[["asked", "dropped"]].sum().reset_index()
    return counted.astype({"asked": int, "dropped": int}), answers


def _counted(images: pd.DataFrame) -> pd.DataFrame:
    """How many of `images` (a row an image) each cell has, and how many of them are `dropped`."""
    groups = images.groupby(_CELL, sort=False, observed=True)["dropped"]
    return _plain(groups.agg(asked="size", dropped="sum").reset_index())


def _plain(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with words as text instead of categories, so that frames can be concatenated."""
    return rows.astype({name: "str" for name in _WORDS if name in rows})
