"""What `plan` and `analyze` print."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from seesaw.results.words import duration
from seesaw.runner.display.streams import say
from seesaw.runner.display.terminal import Console, escape

if TYPE_CHECKING:
    from seesaw.experiments.summary import Summary
    from seesaw.runner.experiment import Experiment
    from seesaw.runner.plan import Plan, Timing

__all__ = ["show_plan", "show_summary"]


def show_plan(experiment: Experiment, plan: Plan, as_json: bool, timing: Timing | None = None) -> None:
    """Print cells, images, attributes, questions, what is stored, memory, GPU-hours and disk, by model and in all.

    With a `timing`, also how long that takes on its GPUs.
    """
    if as_json:
        figures = asdict(plan) | {k: plan.total(k) for k in ("cells", "images", "attributes", "questions", "disk_gb")}
        timed = {"time": asdict(timing)} if timing else {}
        say(json.dumps({"event": "plan", "name": experiment.name, **figures, **timed}))
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    subjects = len(experiment.dataset.subjects)
    console.print(
        f"[b]{escape(experiment.name)}[/b]: {subjects} subjects x {_prompts(experiment)} on {len(plan.models)} models; "
        f"run {escape(str(experiment.run))}, store {escape(experiment.store)}"
    )
    table = Table(box=None, pad_edge=False)
    for column in ("model", "cells", "images", "attributes", "questions", "held", "device hours", "disk GB"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for m in plan.models:
        stored = f"{m.images_held / m.batches:.0%}" if m.batches else "-"
        table.add_row(
            escape(m.name), f"{m.cells:,}", f"{m.images:,}", f"{m.attributes:,}", f"{m.questions:,}", stored,
            "?" if m.hours is None else f"{m.hours:.2f}", "?" if m.disk_gb is None else f"{m.disk_gb:.2f}",
        )  # fmt: skip
    table.add_section()
    total = plan.total
    table.add_row(
        "all", f"{total('cells'):,}", f"{total('images'):,}", f"{total('attributes'):,}", f"{total('questions'):,}", "",
        f"{total('hours'):.2f}", f"{total('disk_gb'):.2f}",
    )  # fmt: skip
    console.print(table)
    vlms = ", then ".join(escape(vlm.name) for vlm in experiment.vlms)
    console.print(f"VQA by {vlms}: {plan.vqa_hours:.2f} device hours")
    for name, gpus, cpus, memory, licence in plan.memory:
        replicas = experiment.cluster.replicas.get(name)
        many = f"{replicas} x" if replicas else "as many as pay x"
        console.print(
            f"  {escape(name)}: {many} ({gpus:g} GPU, {cpus:g} CPU, {memory:g} GB)"
            + (f"; {escape(licence)}" if licence else "")
        )
    console.print(
        "hours and sizes are estimates from the models' YAML; ? where it gives none (seconds_per_image, image_kb)"
    )
    for stray in plan.strays:
        console.print(f"in the store: {escape(stray)}")
    if timing:
        _show_timing(console, timing)


def _show_timing(console: Console, timing: Timing) -> None:
    """Hours to the last answer, what the GPUs do in them, what each model takes, and what one more GPU brings."""
    gpus = f"{timing.gpus} GPU{'s'[: timing.gpus > 1]} of {timing.gpu_gb:g} GB and " if timing.gpus else ""
    where = f"{gpus}{timing.cpus:g} CPUs"
    console.print(
        f"\n[b]On {where}[/b] what is left takes {duration(3600 * timing.hours)}, and no less than "
        f"{duration(3600 * timing.bound_hours)} whoever does what"
    )
    table = Table(box=None, pad_edge=False)
    for column in ("", "GPU hours", "loads", "s a batch", "s a load", "seconds are from"):
        table.add_column(column, justify="left" if column in ("", "seconds are from") else "right", no_wrap=True)
    for cost in timing.costs:
        table.add_row(
            escape(cost.name), f"{cost.gpu_hours:,.2f}", f"{cost.loads:,}", f"{cost.seconds:,.2f}",
            f"{cost.load_seconds:.3g}", cost.source,
        )  # fmt: skip
    table.add_row("loading", f"{timing.loading_gpu_hours:,.2f}")
    console.print(table)
    busy = timing.utilisation
    if busy:
        each = f" ({', '.join(f'{share:.0%}' for share in busy)})" if 1 < len(busy) <= 16 else ""
        console.print(f"GPUs at work: {sum(busy) / len(busy):.0%}, {min(busy):.0%} to {max(busy):.0%}{each}")
    if timing.one_more_hours is not None:
        saved = timing.hours - timing.one_more_hours
        change = f"{duration(3600 * abs(saved))} {'less' if saved >= 0 else 'more'}"
        console.print(f"one GPU more: {duration(3600 * timing.one_more_hours)}, {change}")
    for why in timing.left_out:
        console.print(f"not in this time: {escape(why)}")


def _prompts(experiment: Experiment) -> str:
    """How many prompts a subject has, and how many images each of them."""
    images, counterfactuals = experiment.images, experiment.dataset.counterfactuals
    if images.initial == images.counterfactual:
        return f"{1 + counterfactuals} prompts x {images.initial} images"
    return f"({images.initial} images + {counterfactuals} counterfactuals x {images.counterfactual} images)"


def show_summary(summary: Summary, out: Path, as_json: bool) -> None:
    """Print what an analysis found, what it left out and what it could not define."""
    if as_json:
        say(json.dumps({"event": "analysis", "out": str(out), **asdict(summary)}, default=str))
        return
    for line in summary.lines():
        say(line)
    say(f"tables: {out}/distributions, matrices, uncertainty, bias and means, as .parquet and .csv")
