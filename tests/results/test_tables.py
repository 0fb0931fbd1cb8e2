"""Tables keep their columns and are written reproducibly; anyone's answers are read, or refused with a clear reason."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seesaw.results.errors import AnswersError
from seesaw.results.store import parquet
from seesaw.results.tables.read_answers import read_answers
from seesaw.results.tables.schemas import ANSWERS, DISTRIBUTIONS, FAILURES, MATRICES
from seesaw.results.tables.write import about_of, table_of, write_csv, write_table

SEVEN = ["model", "subject", "source_axis", "source_value", "image", "axis", "answer"]
HEADER = ",".join(SEVEN) + "\n"
ROWS = "m,nurse,,,0,gender,male\nm,nurse,gender,NA,01,gender,None\n"


def test_columns_are_those_of_the_contract() -> None:
    assert ANSWERS.names == [*SEVEN, "probability", "prompt", "seed", "image_key", "vlm"]
    assert DISTRIBUTIONS.names == [
        "model", "subject", "source_axis", "source_value", "axis", "attribute", "count", "share", "n",
    ]  # fmt: skip
    assert MATRICES.names == [
        "model", "subject", "source_axis", "target_axis", "is", "w_init", "w_after", "n_init", "n_after",
    ]  # fmt: skip
    assert FAILURES.names == ["cell", "stage", "error", "attempts", "message", "command"]


def _table() -> pa.Table:
    frame = pd.DataFrame(
        {"model": ["m"], "subject": ["a, b"], "source_axis": ["x"], "target_axis": ["y"], "is": [np.nan]}
        | {"w_init": [np.nan], "w_after": [0.1], "n_init": [0], "n_after": [96]}
    )
    return table_of(frame, MATRICES, {"metric": {"y": "nominal"}})


def test_the_same_rows_give_the_same_bytes_and_keep_their_about(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_table(tmp_path / f"{name}.parquet", _table())
        write_csv(tmp_path / f"{name}.csv", _table())
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert about_of(tmp_path / "a.parquet") == {"metric": {"y": "nominal"}}
    assert pq.read_schema(tmp_path / "a.parquet").remove_metadata() == MATRICES
    assert np.isnan(pq.read_table(tmp_path / "a.parquet")["is"][0].as_py())
    assert (tmp_path / "a.csv").read_text() == ",".join(MATRICES.names) + '\nm,"a, b",x,y,,,0.1,0,96\n'


@pytest.mark.parametrize("rows", [0, 3, 5])
def test_a_streamed_csv_equals_the_one_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    table = pa.concat_tables([_table()] * 5)[:rows]
    write_csv(tmp_path / "whole.csv", table)
    monkeypatch.setattr("seesaw.results.tables.write.ROW_GROUP", 2)
    write_csv(tmp_path / "streamed.csv", table)
    assert (tmp_path / "streamed.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert len(pd.read_csv(tmp_path / "streamed.csv")) == rows


def test_a_table_without_about_has_an_empty_one(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", FAILURES.empty_table())
    assert about_of(tmp_path / "a.parquet") == {}


def test_csv_gzip_and_parquet_read_the_same_whatever_their_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + ROWS)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((HEADER + ROWS).encode(), mtime=0))
    (tmp_path / "c.txt").write_bytes(b"\xef\xbb\xbf" + (HEADER + ROWS).replace("\n", "\r\n").encode())
    by_csv = read_answers(tmp_path / "a.csv")
    columns = {name: by_csv[name].tolist() for name in SEVEN} | {"extra": [1, 2]}
    pq.write_table(pa.table(columns), tmp_path / "d.pq")
    pq.write_table(pa.table(columns), tmp_path / "e.csv")
    for name in ("b.csv.gz", "c.txt", "d.pq", "e.csv"):
        pd.testing.assert_frame_equal(read_answers(tmp_path / name), by_csv)
    assert list(by_csv.columns) == SEVEN


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(("line", "delimiter"), [("sep=,", ","), ("sep=;", ";"), ('"sep=;"\r', ";"), ("SEP=\t", "\t")])
def test_excels_line_about_the_separator_is_honoured(tmp_path: Path, line: str, delimiter: str, pack, mark) -> None:
    (tmp_path / "a.csv").write_text(HEADER + ROWS)
    text = f"{line}\n" + (HEADER + ROWS).replace(",", delimiter)
    (tmp_path / "b.csv").write_bytes(pack(mark + text.encode()))
    pd.testing.assert_frame_equal(read_answers(tmp_path / "b.csv"), read_answers(tmp_path / "a.csv"))


def test_rows_of_nothing_but_separators_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + ROWS)
    commas = ",,,,,,\n"
    head, tail = ROWS.splitlines(keepends=True)
    (tmp_path / "b.csv").write_text(HEADER + commas + head + commas * 3 + tail + commas)
    pd.testing.assert_frame_equal(read_answers(tmp_path / "b.csv"), read_answers(tmp_path / "a.csv"))
    (tmp_path / "b.csv").write_text(HEADER + commas)
    with pytest.raises(AnswersError, match="has columns but no rows"):
        read_answers(tmp_path / "b.csv")


def test_words_that_look_like_missing_values_or_numbers_stay_words(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + ROWS + "m,007,gender,nan,2,gender,null\n")
    frame = read_answers(tmp_path / "a.csv")
    assert frame["source_axis"].tolist() == ["", "gender", "gender"]
    assert frame["source_value"].tolist() == ["", "NA", "nan"]
    assert frame["answer"].tolist() == ["male", "None", "null"]
    assert frame["image"].tolist() == ["0", "01", "2"]
    assert frame["subject"].tolist() == ["nurse", "nurse", "007"]


def test_null_source_columns_mean_the_initial_prompt(tmp_path: Path) -> None:
    columns = {
        "model": ["m"],
        "subject": [7],
        "source_axis": pa.nulls(1),
        "source_value": pa.array([None], pa.string()),
    }
    pq.write_table(pa.table(columns | {"image": [3], "axis": ["gender"], "answer": ["male"]}), tmp_path / "a.parquet")
    assert read_answers(tmp_path / "a.parquet").iloc[0].tolist() == ["m", "7", "", "", "3", "gender", "male"]


def test_probability_and_prompt_are_kept_and_columns_may_come_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        'prompt,answer,axis,image,source_value,source_axis,subject,model,probability,x\n"two\nlines",male,gender,0,,,n,m,0.5,\n'
        ",male,gender,1,,,n,m,,\n"
    )
    frame = read_answers(tmp_path / "a.csv")
    assert list(frame.columns) == [*SEVEN, "probability", "prompt"]
    assert frame["prompt"].tolist() == ["two\nlines", ""]
    np.testing.assert_array_equal(frame["probability"], [0.5, np.nan])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", ": is empty"),
        ("a.csv", HEADER.encode(), ": has columns but no rows"),
        ("a.csv", b"\x00\x01\x02binary", ": is neither a Parquet file nor CSV text"),
        ("a.parquet", HEADER.encode(), ": is neither a Parquet file nor CSV text"),
        ("a.parquet", b"PAR1 cut short", ": cannot be read as a table"),
        ("a.csv.gz", gzip.compress((HEADER + ROWS * 99).encode(), mtime=0)[:40], ": cannot be read as a table"),
        ("a.csv", (HEADER + "m,nurse\n").encode(), ": cannot be read as a table: CSV parse error"),
        (
            "a.csv",
            (HEADER + ROWS + "m,nurse,,,0,gender,caf\xe9\n").encode("latin-1"),
            ": cannot be read as a table: line 4 is not UTF-8; save it as CSV UTF-8",
        ),
        (
            "a.csv",
            (HEADER[:-1] + ",\xe9t\xe9\nm,n,,,0,gender,male,1\n").encode("latin-1"),
            "line 1 is not UTF-8; save it as CSV UTF-8",
        ),
        (
            "a.csv.gz",
            gzip.compress((HEADER + "m,nurse,,,0,gender,caf\xe9\n").encode("latin-1"), mtime=0),
            "line 2 is not UTF-8; save it as CSV UTF-8",
        ),
        ("a.csv", (HEADER + ROWS).encode("utf-16"), ": is text in UTF-16"),
        ("a.csv", (HEADER + ROWS).encode("utf-16-le"), "; save it as CSV UTF-8"),
        ("a.txt", (HEADER + ROWS).encode("utf-16-be"), ": is text in UTF-16"),
        ("a.csv.gz", gzip.compress((HEADER + ROWS).encode("utf-16"), mtime=0), ": is text in UTF-16"),
        ("a.jsonl", b'{"model": "m"}\n{"model": "m"}\n', ": is JSON; make it a CSV or Parquet table"),
        ("a.csv", b'\xef\xbb\xbf\n [{"model": "m"}]', ": is JSON"),
        ("a.json.gz", gzip.compress(b'{"model": "m"}\n', mtime=0), ": is JSON"),
        ("a.tsv", (HEADER + ROWS).replace(",", "\t").encode(), "its columns are separated by tabs"),
        ("a.csv", (HEADER + ROWS + ",,,0,,,\n").encode(), ", row 3: 'model' is empty"),
        (
            "a.csv",
            HEADER.replace("answer", "anwser").encode() + ROWS.encode(),
            "no column 'answer'; did you mean 'anwser'?",
        ),
        (
            "a.csv",
            (HEADER + ROWS).replace(",", ";").encode(),
            ": has no column 'model'; its columns are separated by ';' and not by commas",
        ),
        ("a.csv", (HEADER[:-1] + ",axis\nm,n,,,0,gender,male,gender\n").encode(), ": has two columns called 'axis'"),
        ("a.csv", (HEADER + ROWS + "m,nurse,,,0,gender,\n").encode(), ", row 3: 'answer' is empty"),
        ("a.csv", (HEADER + ROWS + ",nurse,,,0,gender,male\n").encode(), ", row 3: 'model' is empty"),
        (
            "a.csv",
            (HEADER[:-1] + ",probability\nm,n,,,0,gender,male,high\n").encode(),
            ": column 'probability' holds values that are not double",
        ),
    ],
)
def test_a_file_that_is_not_an_answers_table_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(AnswersError) as refused:
        read_answers(path)
    assert str(refused.value).startswith(str(path))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_null_answers_in_parquet_are_refused_with_their_row(tmp_path: Path) -> None:
    columns = {name: ["x", "x"] for name in SEVEN} | {"answer": ["male", None]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(AnswersError, match="row 2: 'answer' is empty"):
        read_answers(tmp_path / "a.parquet")


def test_columns_that_are_not_text_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({name: [["x"]] for name in SEVEN}), tmp_path / "a.parquet")
    with pytest.raises(AnswersError, match="column 'model' holds values that are not string"):
        read_answers(tmp_path / "a.parquet")


def test_a_missing_file_names_the_nearest_and_a_run_directory_its_table(tmp_path: Path) -> None:
    (tmp_path / "answers.parquet").write_bytes(b"x")
    with pytest.raises(AnswersError, match=r"there is no such file; did you mean 'answers\.parquet'"):
        read_answers(tmp_path / "answer.parquet")
    with pytest.raises(AnswersError, match=r"there is no such file$"):
        read_answers(tmp_path / "nowhere" / "answer.parquet")
    with pytest.raises(AnswersError, match=r"is a directory; did you mean .*answers\.parquet\?"):
        read_answers(tmp_path)


def test_columns_that_are_not_of_an_answers_table_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "answers.parquet"
    columns = {**{name: ["m"] * 10 for name in SEVEN}, "more": ["a" * (100 << 20)] * 10}
    pq.write_table(pa.table(columns), path, compression="zstd", use_dictionary=False)
    del columns
    code = (
        "import re, sys; from seesaw.results.tables.read_answers import read_answers; "
        "frame = read_answers(sys.argv[1]); "
        "print(*frame.columns, re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    read = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True).stdout.split()
    assert read[:-1] == SEVEN
    assert int(read[-1]) < 700_000  # kB; all columns are 1 GB


def test_columns_larger_than_memory_by_the_footer_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "answers.parquet"
    pq.write_table(pa.table({name: ["m" * 5000] for name in SEVEN}), path, use_dictionary=False)
    read_answers(path)
    monkeypatch.setattr(parquet, "LARGEST_TABLE", 30_000)
    with pytest.raises(AnswersError, match="bytes of data"):
        read_answers(path)


@pytest.mark.parametrize("name", ["answers.parquet", "answers.csv"])
def test_a_fifo_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(AnswersError, match="regular file"):
        read_answers(tmp_path / name)
    with pytest.raises(pa.ArrowInvalid, match="regular file"):
        parquet.plain_table(tmp_path / name)
