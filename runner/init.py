"""`seesaw init`: a commented config to start from."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from seesaw.results.errors import ConfigError, InputError
from seesaw.runner.config import ModelConfig, VLMConfig, load_named

__all__ = ["read_subjects", "write_starter"]

_STARTER = """\
# A config of Seesaw. `seesaw plan {file}` says what it would do; `seesaw sweep {file}` does it.
# Every key can be overridden on the command line: `seesaw sweep {file} images=8`.
name: {name}

# What is asked of a model: `occupation` is the paper's dataset (26 occupations, 8 axes). `seesaw datasets` lists all.
dataset: {dataset}
subjects: {subjects}
axes: all                    # or some of them: [gender, age, ethnicity]

# `seesaw models` lists what is shipped; a YAML file beside this one is a model too.
models: [{model}]
# The vision-language model that says what images show: `seesaw vlms`.
vqa: {vqa}

# Images of the initial prompt, which all others are compared with, and of each of its counterfactuals. A number is for
# both (the paper's is 48). Fewer are faster, and less certain.
images: {{initial: 192, counterfactual: 48}}
# targets:                   # the ideal distribution of an axis, where it is not uniform
#   gender: {{male: 0.4, female: 0.6}}

# Where things go. The store is shared between runs: what it holds is not made again.
store: outputs/store
run: outputs/{name}

# `seesaw mitigate {file}` reads these too:
# priorities: {{gender: 0.5, age: 0.5}}    # which axes matter, and how much; they sum to 1
# epsilon: 0.35                          # stop when the weighted bias is at most this
# strategy: [greedy, own]                # InterMit, and a naive order to compare it with
"""
_INLINE = """
  extends: occupation        # the paper's axes and questions, about other subjects
  subjects: [{subjects}]"""


def write_starter(path: Path, model: str, vqa: str, subjects: Sequence[str]) -> None:
    """Write a commented config at `path`, about `subjects` (none: those of the demo) on `model`.

    Raises:
        InputError: there is a file at `path` already.
        ConfigError: the name cannot be used, or there is no such model or VLM.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"'{path}' has no suffix .yaml; give a name like audit.yaml")
    if path.exists():
        raise InputError(f"'{path}' is there already; give another name")
    load_named(ModelConfig, "models", model, [path.parent, Path.cwd()])
    load_named(VLMConfig, "vlms", vqa, [path.parent, Path.cwd()])
    quoted = ", ".join(f'"{subject}"' for subject in subjects)
    text = _STARTER.format(
        file=path.name,
        name=path.stem,
        model=model,
        vqa=vqa,
        dataset=_INLINE.format(subjects=quoted) if subjects else "occupation",
        subjects="all" if subjects else "[musician, nurse]       # or all",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def read_subjects(path: Path) -> list[str]:
    """The subjects of a file: one a line, or the first column of a CSV. Raises InputError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row[0].strip() for row in csv.reader(file) if row and row[0].strip()]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is no list of subjects: {error}") from None
    subjects = rows[1:] if rows and rows[0].lower() in ("subject", "occupation") else rows
    if not subjects:
        raise InputError(f"{path} names no subject; write one a line")
    return list(dict.fromkeys(subjects))
