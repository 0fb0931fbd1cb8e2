"""Classes that a config names: engines, mitigators and strategies, Seesaw's own or the user's.

A name is one that Seesaw knows (`diffusers`), or `module:Class`. Such a module is a file `module.py` beside the config
or in the working directory; where there is no such file, it is an installed module and is imported as usual.

The driver reads a user's file once. Its text travels to the actors with their arguments, so no other node needs the
file. Everywhere it is executed as a module with a private name, so a file called `random.py` or `results.py` takes the
place of no other module. What the file imports must be installed there. A file beside it can be imported too, since its
folder is put at the end of `sys.path` where it exists; on a node that does not see the folder, that import fails, and
the check before work starts says on which node.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.util
import inspect
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from seesaw.results.errors import ConfigError, nearest
from seesaw.results.secrets import first_line

__all__ = ["Plugin", "find_plugin"]

_LOADING = threading.RLock()  #: two models may have their engines in one file, and be checked at the same time


@dataclass(frozen=True)
class Plugin:
    """Where the class is that a config names. It holds all that is needed to load the class in another process."""

    what: str  #: engine, mitigator or strategy
    name: str  #: as the config has it
    module: str
    attribute: str
    path: str = ""  #: of a user's file, on the driver's machine; "" for an installed module
    content: bytes = b""  #: of a user's file

    @property
    def is_users(self) -> bool:
        """Whether the config names a class of the user's (`module:Class`)."""
        return ":" in self.name

    @property
    def copy(self) -> str:
        """Where a copy of the user's file lies beside a copy of the config: `module.py`."""
        return _file_of(self.module)

    @property
    def source(self) -> str:
        """The text of the user's file, with universal newlines and one at its end. Raises as the decoder does."""
        text = importlib.util.decode_source(self.content)
        return text if text.endswith("\n") else f"{text}\n"

    def load(self) -> type[Any]:
        """The class. Raises ConfigError where the module or the class is missing, or the user's code raises."""
        try:
            with _LOADING:
                module = self._execute() if self.path else importlib.import_module(self.module)
        except (Exception, SystemExit) as error:
            if not self.is_users:
                raise
            raise self._not_imported(error) from error
        loaded = getattr(module, self.attribute, None)
        if loaded is None:
            raise ConfigError(f"{self._label}: module '{self.module}' has no '{self.attribute}'")
        if not isinstance(loaded, type):
            raise ConfigError(f"{self._label}: '{self.module}:{self.attribute}' is not a class")
        return loaded

    def make(self, *arguments: Any) -> Any:
        """An instance of the class, made with `arguments`. Raises ConfigError as `load` does, or if that fails."""
        loaded = self.load()
        try:
            return loaded(*arguments)
        except ConfigError:
            raise
        except Exception as error:
            if not self.is_users:
                raise
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise ConfigError(f"{self._label} cannot be made: {reason}") from error

    def identity(self) -> dict[str, str]:
        """What identifies a user's class: the SHA-256 of the file that defines it. Nothing for one of Seesaw's own."""
        if not self.is_users:
            return {}
        loaded = self.load()
        own = loaded.__module__ == self._private_name  # else it is what the file imports from elsewhere
        source = self.source if own else inspect.getsource(inspect.getmodule(loaded) or loaded)
        return {"code": hashlib.sha256(source.encode()).hexdigest()}

    @property
    def _label(self) -> str:
        return f"{self.what} '{self.name}'"

    def _not_imported(self, error: BaseException) -> ConfigError:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and not self.path and missing.split(".")[0] == self.module.split(".")[0]:
            return ConfigError(
                f"{self._label}: no module '{missing}' can be imported: it is not installed, and there is no file "
                f"{self.copy} beside the config"
            )
        file = self.path or f"module '{self.module}'"
        return ConfigError(f"{self._label}: {file} cannot be imported: {type(error).__name__}: {first_line(error)}")

    @property
    def _private_name(self) -> str:
        return "seesaw_user_" + hashlib.sha256(self.path.encode() + b"\0" + self.content).hexdigest()[:16]

    def _execute(self) -> ModuleType:
        """The user's file as a module, executed once in a process."""
        if self._private_name in sys.modules:
            return sys.modules[self._private_name]
        folder = Path(self.path).parents[self.module.count(".")]
        if folder.is_dir() and str(folder) not in sys.path:
            sys.path.append(str(folder))  # at the end, where it comes after every module that is installed
        spec = importlib.util.spec_from_file_location(self._private_name, self.path, loader=_TextLoader(self))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[self._private_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[self._private_name]
            raise
        return module


class _TextLoader(importlib.abc.ExecutionLoader):
    """Executes a text as a module; tracebacks and `inspect` find its lines here where there is no such file."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def get_filename(self, fullname: str) -> str:
        return self._plugin.path

    def get_source(self, fullname: str) -> str:
        return self._plugin.source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._plugin.source, self._plugin.path)


def find_plugin(name: str, known: Mapping[str, str], what: str = "engine", search: Sequence[Path] = ()) -> Plugin:
    """The class behind a name: one of `known` (name to `module:Class`), or the user's, in a file or installed.

    `search` are the folders where a user's file may lie, the first one first. Raises ConfigError for a name that is
    unknown, and for a file that cannot be read. Executes nothing.
    """
    module, _, attribute = known.get(name, name).partition(":")
    if not module or not attribute:
        raise ConfigError(f"{what} '{name}' is unknown{nearest(name, known)}; or give 'module:Class'")
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"{what} '{name}': '{module}' is not the name of a module; expected 'module:Class'")
    files = [folder / _file_of(module) for folder in search]
    path = next((file.absolute() for file in files if file.is_file()), None)
    if name in known or path is None or module.split(".")[0] == "seesaw":
        return Plugin(what, name, module, attribute)
    try:
        return Plugin(what, name, module, attribute, str(path), path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{what} '{name}': {path} cannot be read: {error.strerror}") from error


def _file_of(module: str) -> str:
    return f"{module.replace('.', '/')}.py"
