"""Every prompt that a config will send, how much of it each model reads, and what is refused before work starts.

A text encoder reads so many tokens of a prompt, and a pipeline drops the rest without an error. Two prompts that differ
in dropped words alone give the same images, and an IS of exactly 0. So prompts are counted with the models' own
tokenizers, and one that is too long is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from seesaw.actors.engines import PromptLength
from seesaw.experiments.dataset.model import Axis
from seesaw.experiments.prompts import compose, sweep_prompts
from seesaw.results.errors import ConfigError, SeesawError
from seesaw.results.secrets import first_line
from seesaw.runner.display.streams import say
from seesaw.runner.display.terminal import Console, escape
from seesaw.runner.experiment import Experiment

__all__ = [
    "Lengths",
    "foreign_syntax",
    "length_notes",
    "prompt_lengths",
    "prompt_notes",
    "show_prompts",
    "texts_sent",
]

#: by model, the length of each prompt, in their order; None where it cannot be told on this machine
Lengths = Mapping[str, Sequence[PromptLength] | None]
SHOWN = 3  #: prompts of a model that a message names
LONGEST = 200  #: letters of a prompt that a message has
_COLUMNS = ("subject", "axis", "attribute", "text")
#: what other tools read in a prompt, and a pipeline takes as words like any other
_FOREIGN = re.compile(
    r"<(?:lora|lyco|hypernet|embedding):[^>]*>"  # AUTOMATIC1111, ComfyUI
    r"|\([^()]*:\s*\d*\.?\d+\s*\)|\[[^\[\]]*:\s*\d*\.?\d+\s*\]"  # weights, and editing by steps
    r"|\(\([^()]+\)\)|\bembedding:\S+"
    r"|(?<!\w)--(?:ar|no|q|s|v|seed|style|stylize|chaos|niji)\b|\S::-?\d"  # Midjourney
    r"|\b[\w)]+(?:\+\+|--)(?!\w)"  # Compel
    r"|\{[^{}|]+\|[^{}]*\}|\b__\w+__\b"  # wildcards
)


def texts_sent(experiment: Experiment, stated: int) -> list[str]:
    """The texts of a command whose prompts state up to `stated` axes, each once.

    Of those that state two or more, which ones are sent is decided on the way. So there is one for each subject, the
    longest: if that can be read, the others can.
    """
    texts = [prompt.text for prompt in sweep_prompts(experiment.dataset)]
    if stated > 1:
        texts += [_longest(experiment, subject, stated) for subject in experiment.dataset.subjects]
    return list(dict.fromkeys(texts))


def _longest(experiment: Experiment, subject: str, stated: int) -> str:
    """The longest prompt, in letters, that states `stated` axes about a subject."""
    dataset = experiment.dataset
    longest: dict[str, str] = {}

    def added(axis: Axis) -> int:
        return len(compose(dataset, subject, {axis.name: longest[axis.name]}))

    composed = [axis for axis in dataset.axes if all(c.adjective or c.phrase for c in axis.counterfactuals)]
    for axis in composed:
        longest[axis.name] = max(axis.attributes, key=lambda a: len(compose(dataset, subject, {axis.name: a})))
    chosen = sorted(composed, key=added, reverse=True)[:stated]
    return compose(dataset, subject, {axis.name: longest[axis.name] for axis in chosen})


def prompt_lengths(experiment: Experiment, texts: Sequence[str]) -> dict[str, list[PromptLength] | None]:
    """How much each model reads of each text, by model; None where its tokenizer is not here, or it cuts no prompt.

    Raises ConfigError and EnvironmentFault as the engines do, with the name of the model.
    """
    lengths: dict[str, list[PromptLength] | None] = {}
    for model in experiment.models:
        count = getattr(model.engine.load(), "prompt_lengths", None)
        try:
            counted = count(model.spec.settings, texts) if count else None
        except ConfigError as error:
            raise ConfigError(f"{model.name}: {error}") from None
        except Exception as error:
            if not model.engine.is_users or isinstance(error, SeesawError):
                raise
            raise ConfigError(
                f"{model.name}: its engine cannot count tokens: {type(error).__name__}: {first_line(error)}"
            ) from error
        if counted is not None and len(counted) != len(texts):
            raise ConfigError(f"{model.name}: its engine's prompt_lengths gave {len(counted)} for {len(texts)} prompts")
        lengths[model.name] = counted
    return lengths


def prompt_notes(experiment: Experiment, stated: int) -> tuple[list[str], dict[str, list[str]]]:
    """What a user should know of the prompts of a command; and the texts to count elsewhere, by model.

    Those are the texts for models whose engine counts tokens, but whose tokenizer is not on this machine.

    Raises ConfigError if a prompt is too long for a model.
    """
    texts = texts_sent(experiment, stated)
    lengths = prompt_lengths(experiment, texts)
    counting = [model.name for model in experiment.models if hasattr(model.engine.load(), "prompt_lengths")]
    elsewhere = {name: texts for name in counting if lengths[name] is None}
    return [*foreign_syntax(texts), *length_notes(texts, lengths)], elsewhere


def length_notes(texts: Sequence[str], lengths: Lengths) -> list[str]:
    """What is cut on purpose, or by one of several text encoders. ConfigError if words would be lost."""
    notes, problems = [], []
    for model, counted in lengths.items():
        pairs = list(zip(texts, counted or (), strict=counted is not None))
        lost = [(text, length) for text, length in pairs if length.lost]
        if refused := [(text, length) for text, length in lost if not length.is_cut_on_purpose]:
            problems += _refusal(model, len(pairs), refused)
        elif lost:
            text, length = lost[0]
            notes.append(
                f"{model}: {len(lost)} of {len(pairs)} prompts are cut to {length.limit} tokens, as its settings say; "
                f"of '{_brief(text)}' it does not read '{_brief(length.lost)}'"
            )
        if partly := [length for _, length in pairs if length.cut_by]:
            encoders = ", ".join(dict.fromkeys(name for length in partly for name in length.cut_by))
            notes.append(
                f"{model}: {len(partly)} of {len(pairs)} prompts are longer than {encoders} reads; no word is lost, as "
                "another of its text encoders reads them whole"
            )
    if problems:
        raise ConfigError("\n  ".join(["prompts are too long, and words of them would be lost:", *problems]))
    return notes


def _refusal(model: str, prompts: int, refused: Sequence[tuple[str, PromptLength]]) -> list[str]:
    limit = refused[0][1].limit
    lines = [f"{model} reads {limit} tokens, and {len(refused)} of {prompts} prompts have more:"]
    for text, length in refused[:SHOWN]:
        lines.append(f"  '{_brief(text)}' has {length.used}; lost would be '{_brief(length.lost)}'")
    if len(refused) > SHOWN:
        lines.append(f"  and {len(refused) - SHOWN} more, which `seesaw prompts` lists")
    return [
        *lines,
        "  shorten them, choose a model that reads more, or let them be cut (`truncate: true` among its settings)",
    ]


def _brief(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def foreign_syntax(texts: Iterable[str]) -> list[str]:
    """One note if prompts hold what other tools take as commands; nothing here does."""
    found = list(dict.fromkeys(match[0] for text in texts for match in _FOREIGN.finditer(text)))
    if not found:
        return []
    shown = ", ".join(f"'{each}'" for each in found[:SHOWN]) + (" and others" if len(found) > SHOWN else "")
    return [f"prompts are sent to the models as they are, and syntax of other tools is taken as words: {shown}"]


def show_prompts(experiment: Experiment, as_json: bool, file: Path | None) -> list[str]:
    """Print the prompts of a sweep, or write them as CSV to `file`; returns notes. Needs no Ray, and no weights.

    Raises ConfigError, once all is listed, if a prompt is too long.
    """
    prompts = sweep_prompts(experiment.dataset)
    texts = [prompt.text for prompt in prompts]
    lengths = prompt_lengths(experiment, texts)
    rows = [
        (
            prompt.subject,
            prompt.source_axis,
            prompt.source_value,
            prompt.text,
            {m: c[i] for m, c in lengths.items() if c},
        )
        for i, prompt in enumerate(prompts)
    ]
    if as_json:
        for *columns, by_model in rows:
            tokens = {model: {"used": n.used, "limit": n.limit, "lost": n.lost} for model, n in by_model.items()}
            say(json.dumps({"event": "prompt", **dict(zip(_COLUMNS, columns, strict=True)), "tokens": tokens}))
    elif file is not None:
        cells = [[*columns, *_cells(lengths, by_model)] for *columns, by_model in rows]
        import pyarrow as pa  # not needed by what plans

        from seesaw.results.tables.write import write_csv

        by_column = [pa.array(column, pa.string()) for column in zip(*cells, strict=True)]
        write_csv(file, pa.table(by_column, names=[*_COLUMNS, *lengths]))
    else:
        _print(rows, lengths)
    return [*foreign_syntax(texts), *length_notes(texts, lengths)]


def _cells(lengths: Lengths, by_model: Mapping[str, PromptLength]) -> list[str]:
    """`12/77` for each model; blank where its tokenizer is not here, or it cuts no prompt."""
    cells = []
    for model in lengths:
        n = by_model.get(model)
        cells.append("" if n is None else f"{n.used}/{n.limit}" if n.limit else str(n.used))
    return cells


def _print(rows: Sequence[tuple[Any, ...]], lengths: Lengths) -> None:
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for model in lengths:
        table.add_column(escape(model), justify="right", no_wrap=True)
    for *columns, by_model in rows:
        table.add_row(*map(escape, columns), *_cells(lengths, by_model))
    Console(width=160).print(table)
