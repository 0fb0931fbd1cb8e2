"""The settings of an analysis: the metric and the target of every axis, and how interventions are mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.dataset.model import Axis, Dataset
from seesaw.experiments.sensitivity import METRICS, Metric, check_target, uniform, w_bar
from seesaw.results.errors import ConfigError, nearest

__all__ = ["AnalysisSettings", "Intervention", "make_settings"]

Intervention = Literal["uniform", "target"]
_MOST = 1e9  # larger numbers are refused before they are converted to float64, in which they may not fit
_INTERVENTIONS: tuple[Intervention, ...] = get_args(Intervention)


@dataclass(frozen=True)
class AnalysisSettings:
    """The arithmetic of one analysis: for every axis its metric and its target, (k,) shares in attribute order.

    `intervention` says how much each counterfactual of an axis weighs in their mixture: all the same (`uniform`, as in
    the paper), or the share that the axis' target gives to its attribute (`target`).
    """

    dataset: Dataset
    metric: Mapping[str, Metric]
    targets: Mapping[str, NDArray[np.float64]]
    intervention: Intervention = "uniform"

    def weights(self, axis: Axis) -> NDArray[np.float64]:
        """The weight of each counterfactual of `axis` in the intervention on it, (k,)."""
        return self.targets[axis.name] if self.intervention == "target" else uniform(len(axis.attributes))

    def w_bar(self, axis: str, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Normalised distance of shares (..., k) of `axis` from its target, in its metric -> (...)."""
        return w_bar(shares, self.targets[axis], self.metric[axis])

    def about(self) -> dict[str, object]:
        """The settings as plain data, for the metadata of tables that are computed with them."""
        return {
            "dataset": self.dataset.name,
            "metric": dict(self.metric),
            "targets": {
                axis.name: dict(zip(axis.attributes, self.targets[axis.name].tolist(), strict=True))
                for axis in self.dataset.axes
            },
            "intervention": self.intervention,
        }


def make_settings(
    dataset: Dataset,
    metric: str | Mapping[str, str] = "nominal",
    targets: str | Mapping[str, object] | None = None,
    intervention: str = "uniform",
) -> AnalysisSettings:
    """Settings from a user's values. Raises ConfigError for invalid ones.

    `metric` is a metric for all axes, or metrics by axis ("nominal" for axes that are left out). `targets` is "uniform"
    (or None) for all axes, or has for each axis "uniform", a list of shares in attribute order, or shares by attribute;
    axes that are left out are uniform.
    """
    names = [axis.name for axis in dataset.axes]
    metric_of = dict.fromkeys(names, metric) if isinstance(metric, str) else metric
    target_of = {} if targets is None or targets == "uniform" else targets
    if isinstance(target_of, str):
        raise ConfigError(f"targets is '{target_of}'; it must be 'uniform', or a mapping of axes to shares")
    for key, by_axis in (("metric", metric_of), ("targets", target_of)):
        if not isinstance(by_axis, Mapping):
            raise ConfigError(f"{key} is {by_axis!r}; it must be one word for all axes, or a mapping of axes")
        for name in by_axis:
            if name not in names:
                raise ConfigError(f"{key}: dataset '{dataset.name}' has no axis '{name}'{nearest(str(name), names)}")
    return AnalysisSettings(
        dataset,
        metric={name: _metric(name, metric_of.get(name, "nominal")) for name in names},
        targets={axis.name: _target(axis, target_of.get(axis.name, "uniform")) for axis in dataset.axes},
        intervention=_intervention(intervention),
    )


def _metric(axis: str, value: object) -> Metric:
    for metric in METRICS:
        if value == metric:
            return metric
    raise ConfigError(f"metric of axis '{axis}' cannot be '{value}'{nearest(str(value), METRICS)}")


def _intervention(value: object) -> Intervention:
    for intervention in _INTERVENTIONS:
        if value == intervention:
            return intervention
    raise ConfigError(f"intervention cannot be '{value}'{nearest(str(value), _INTERVENTIONS)}")


def _target(axis: Axis, value: object) -> NDArray[np.float64]:
    if isinstance(value, str):
        if value != "uniform":
            raise ConfigError(f"the target of axis '{axis.name}' is '{value}'; it must be 'uniform', or shares")
        return uniform(len(axis.attributes))
    if isinstance(value, Mapping):
        if True in value or False in value:
            raise ConfigError(
                f"the target of axis '{axis.name}': YAML read yes or no as a truth value; put it in quotes"
            )
        value = {str(name): share for name, share in value.items()}  # YAML reads 20 as a number
        for name in value:
            if name not in axis.attributes:
                hint = nearest(str(name), axis.attributes)
                raise ConfigError(f"the target of axis '{axis.name}': the axis has no attribute '{name}'{hint}")
        for attribute in axis.attributes:
            if attribute not in value:
                raise ConfigError(f"the target of axis '{axis.name}' has no share for '{attribute}'; give it one, or 0")
        shares = [value[attribute] for attribute in axis.attributes]
    elif isinstance(value, Sequence | np.ndarray):
        shares = list(value)
    else:
        raise ConfigError(f"the target of axis '{axis.name}' is {value!r}; it must be 'uniform', or shares")
    for share in shares:
        is_number = isinstance(share, int | float | np.floating | np.integer) and not isinstance(share, bool)
        if not is_number or abs(share) > _MOST:
            raise ConfigError(
                f"the target of axis '{axis.name}' has {repr(share)[:20]} where a number between 0 and 1 belongs"
            )
    return check_target(shares, axis.attributes, axis.name)
