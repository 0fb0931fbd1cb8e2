"""What VLMs read of single images: rows of an answers table of a run, streaming, since there may be millions."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from seesaw.results.errors import RunDirectoryError
from seesaw.results.secrets import first_line
from seesaw.results.store.parquet import plain_batches
from seesaw.results.tables.schemas import ANSWERS

__all__ = ["READING", "read_readings"]

PERSON = "person"  #: the `axis` of a row that says whether the image shows a person
READING = ["model", "subject", "source_axis", "source_value", "image", "image_key", "prompt", "vlm", "axis", "read"]
_COLUMNS = [name if name != "read" else "answer" for name in READING]
_WORDS = ["model", "subject", "source_axis", "source_value", "prompt", "vlm", "axis", "answer"]


def read_readings(
    path: Path, axes: Collection[str] | None = None, image_keys: Collection[str] | None = None
) -> pd.DataFrame:
    """What a VLM read, a row for each image and axis, with the columns `READING`: the answers table at `path`.

    Only of `axes` and of the images `image_keys`, if given; never about the person. Raises RunDirectoryError.
    """
    keys = None if image_keys is None else pa.array(sorted(image_keys), pa.string())
    parts = []
    try:
        for batch in plain_batches(path, _COLUMNS, _WORDS):
            table = pa.table(batch)
            axis = table["axis"].cast(pa.string())
            wanted = pc.not_equal(axis, PERSON) if axes is None else pc.is_in(axis, pa.array(list(axes), pa.string()))
            if keys is not None:
                wanted = pc.and_(wanted, pc.is_in(table["image_key"], keys))
            parts.append(table.filter(wanted).cast(pa.schema([ANSWERS.field(name) for name in _COLUMNS])))
    except FileNotFoundError:
        raise RunDirectoryError(f"'{path.parent}' holds no {path.name}; sweep first") from None
    except (pa.ArrowException, OSError) as error:
        raise RunDirectoryError(f"'{path}' cannot be read as answers: {first_line(error)}") from None
    none = ANSWERS.empty_table().select(_COLUMNS)
    frame: pd.DataFrame = pa.concat_tables([none, *parts]).to_pandas().rename(columns={"answer": "read"})
    filled: pd.DataFrame = frame.fillna({"source_axis": "", "source_value": ""})
    return filled
