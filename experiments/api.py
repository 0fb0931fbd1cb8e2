"""The science for a notebook: plain arguments, data frames in and out, no event loop.

Each function is a thin layer over one that the runner uses: `experiments.analysis.analyze`,
`experiments.biasconnect.biasconnect` and `experiments.intermit.mitigate`. They are public as `seesaw.analyze`,
`seesaw.biasconnect` and `seesaw.mitigate`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pandas as pd

from seesaw.experiments import analysis, intermit
from seesaw.experiments import biasconnect as one_subject
from seesaw.experiments.analysis import Analysis
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.dataset.model import Dataset
from seesaw.experiments.images import GivenImages
from seesaw.experiments.intermit import EPSILON, MAX_STEPS, Problem
from seesaw.experiments.lab import Lab
from seesaw.experiments.mitigators import PM
from seesaw.experiments.priorities import check_epsilon, check_margin, check_max_steps, check_priority
from seesaw.experiments.prompt_sets import PromptSetObserver
from seesaw.experiments.settings import make_settings
from seesaw.experiments.strategies import strategies_of
from seesaw.results.errors import ConfigError, nearest
from seesaw.results.tables.mitigation import probability_reached
from seesaw.results.tables.read_answers import read_answers

__all__ = ["MitigatedSubject", "SubjectBias", "analyze", "biasconnect", "mitigate"]

Result = TypeVar("Result")


def analyze(
    answers: pd.DataFrame | str | Path,
    dataset: Dataset | str = "occupation",
    *,
    axes: list[str] | None = None,
    metric: str | Mapping[str, str] = "nominal",
    targets: Mapping[str, object] | None = None,
    intervention: str = "uniform",
) -> Analysis:
    """Distributions, IS matrices and their uncertainty from answers of any origin; no models needed.

    `answers` has a row for every image and axis, with the columns model, subject, source_axis and source_value (both
    empty for images of the initial prompt), image, axis and answer; it may be the path of a Parquet or CSV file.
    `axes` selects axes of the dataset (None: all); `metric`, `targets` and `intervention` are as in a config. The
    result has the data frames `distributions`, `matrices` and `uncertainty`, a `summary` of what is undefined and why,
    and `write(folder)`.

    Raises AnswersError, which names the row, if the table does not fit the dataset, and ConfigError or DatasetError for
    the other arguments.

    Example::

        answers = pd.read_csv("my_vqa.csv")
        result = seesaw.analyze(answers, "occupation", axes=["gender", "age"])
        result.matrices
        seesaw.draw_matrix(result.matrices, model="sd14", subject="nurse")
    """
    chosen = (load_dataset(dataset) if isinstance(dataset, str) else dataset).select(axes=axes)
    return analysis.analyze(read_answers(answers), make_settings(chosen, metric, targets, intervention))


@dataclass(frozen=True, eq=False)
class SubjectBias:
    """The result of BiasConnect for one subject on one model.

    `bias` is w-bar of every axis at the initial prompt, by axis. `matrix` is IS[x, y], the effect of intervening on the
    axis of the row on the axis of the column. Above 0, the column's axis comes closer to its target; below 0, it moves
    away from it.
    """

    model: str
    subject: str
    bias: pd.Series[float]
    matrix: pd.DataFrame


def biasconnect(
    lab: Lab,
    dataset: Dataset,
    model: str,
    subject: str,
    *,
    images: GivenImages = None,
    metric: str | Mapping[str, str] = "nominal",
    targets: Mapping[str, object] | None = None,
    intervention: str = "uniform",
) -> SubjectBias:
    """BiasConnect (paper, section 3): the biases of one subject on one model, and its IS matrix.

    `images` of each prompt, or `{"initial": 192, "counterfactual": 48}`, the default; 48 is the paper's.

    Raises ConfigError for an unknown subject, setting or model, and what the Lab raises.

    Example::

        dataset = seesaw.load_dataset("occupation")
        lab = seesaw.ExactLab(dataset, {name: world.shares for name, world in seesaw.WORLDS.items()})
        nurse = seesaw.biasconnect(lab, dataset, "alder", "nurse")
        nurse.bias.sort_values()
        seesaw.draw_matrix(nurse.matrix)
    """
    _check_subject(dataset, subject)
    settings = make_settings(dataset, metric, targets, intervention)
    estimate = _finished(one_subject.biasconnect(lab, model, subject, settings, images))
    return SubjectBias(
        model,
        subject,
        bias=pd.Series(estimate.w_init, index=list(estimate.targets), name="w"),
        matrix=_matrix(estimate.sensitivity.tolist(), estimate.sources, estimate.targets),
    )


@dataclass(frozen=True, eq=False)
class MitigatedSubject:
    """The trajectory of a mitigation of one subject on one model.

    `steps` has a row for the model before any mitigation, and one after every mitigation. Its columns: `axis` (the one
    mitigated last, "" in the first row), `tau`, `tau_se`, `predicted` (tau as predicted before the mitigation, NaN if
    the strategy predicts nothing), `judged` (whether tau and w are of `fresh` images, or of those `shared` with the
    decisions), `p_reached` (the probability that tau is at most epsilon) and `w_<axis>` for every axis. `outcome` is
    reached, no_gain, exhausted, max_steps or undefined, and `reason` says why it is undefined. `matrices` has an IS
    matrix for every step that looked at counterfactuals, with the candidate axes in rows; it is empty for a strategy
    that does not look at them.
    """

    model: str
    subject: str
    strategy: str
    outcome: str
    reason: str
    mitigated: tuple[str, ...]
    steps: pd.DataFrame
    matrices: tuple[pd.DataFrame, ...]
    alerts: tuple[str, ...]

    @property
    def tau(self) -> float:
        """tau after the last step; NaN if nothing could be measured."""
        return float(self.steps["tau"].iloc[-1]) if len(self.steps) else float("nan")


def mitigate(
    lab: Lab,
    dataset: Dataset,
    model: str,
    subject: str,
    priority: Mapping[str, float],
    *,
    strategy: str = "greedy",
    epsilon: float = EPSILON,
    max_steps: int | Literal["chosen"] | None = MAX_STEPS,
    fresh: bool = True,
    margin: float = 0.0,
    normalize: bool = False,
    images: GivenImages = None,
    metric: str | Mapping[str, str] = "nominal",
    targets: Mapping[str, object] | None = None,
    intervention: str = "target",
    seed: int = 0,
) -> MitigatedSubject:
    """InterMit (paper, algorithm 1) for one subject on one model, by prompt modification.

    `priority` weighs the chosen axes and sums to 1; `normalize` divides it by its sum. `strategy` is greedy
    (InterMit's), all, own or random (in an order drawn with `seed`). `max_steps` is the largest number of axes to
    mitigate; "chosen": as many as `priority` has; None: all of them. `fresh`: where the mitigation ends, the model is
    judged on images that no decision saw. `margin`: epsilon is reached at a tau of `epsilon - margin` or less. `images`
    is as in `biasconnect`.

    Raises ConfigError for an unknown name and a value out of range, and what the Lab raises.

    Example::

        nurse = seesaw.mitigate(lab, dataset, "alder", "nurse", {"gender": 0.5, "clothing": 0.5})
        nurse.outcome, nurse.mitigated
        nurse.steps
    """
    _check_subject(dataset, subject)
    problem = Problem(
        model, subject, check_priority(dataset, priority, normalize), check_epsilon(epsilon),
        check_max_steps(max_steps), fresh, check_margin(margin),
    )  # fmt: skip
    [chosen] = strategies_of(strategy, seed)
    observer = PromptSetObserver(lab, PM(make_settings(dataset, metric, targets, intervention), images))
    state = _finished(intermit.mitigate(observer, problem, chosen))
    names = [axis.name for axis in dataset.axes]
    rows: list[dict[str, Any]] = []
    before = None
    for step in state.steps:
        predicted = before.predicted if before and before.predicted is not None else float("nan")
        row = {"axis": before.axis if before else "", "tau": step.tau, "tau_se": step.tau_error, "predicted": predicted}
        row |= {"judged": step.judged, "p_reached": probability_reached(step.tau, step.tau_error, problem.epsilon)}
        rows.append(row | {f"w_{axis}": w for axis, w in step.w.items()})
        before = step
    return MitigatedSubject(
        model,
        subject,
        chosen.name,
        state.outcome,
        state.reason,
        state.mitigated,
        steps=pd.DataFrame(rows, columns=[*_STEP, *(f"w_{name}" for name in names)]),
        matrices=tuple(
            _matrix(list(step.sensitivity.values()), tuple(step.sensitivity), names)
            for step in state.steps
            if step.sensitivity
        ),
        alerts=tuple(str(alert) for step in state.steps for alert in step.alerts),
    )


_STEP = ("axis", "tau", "tau_se", "predicted", "judged", "p_reached")  #: columns of `steps`, before those of w


def _matrix(rows: list[Any], sources: tuple[str, ...], targets: list[str] | tuple[str, ...]) -> pd.DataFrame:
    index = pd.Index(sources, name="source_axis")
    return pd.DataFrame(rows, index=index, columns=pd.Index(list(targets), name="target_axis"), dtype=float)


def _check_subject(dataset: Dataset, subject: str) -> None:
    if subject not in dataset.subjects:
        raise ConfigError(f"dataset '{dataset.name}' has no subject '{subject}'{nearest(subject, dataset.subjects)}")


def _finished(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run `coroutine` to its end and return its result.

    A notebook runs an event loop already, in which no second one can run; there the coroutine runs in another thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, coroutine).result()
