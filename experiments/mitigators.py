"""Mitigators: a mitigator turns a model, represented by a set of prompts, into one that is mitigated on another axis.

InterMit needs two things from a mitigator: the model mitigated on one more axis, and the counterfactuals of the current
model. Both are prompt sets, so that other methods can be plugged in: a mitigator that changes the model itself puts its
adapter into the prompts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.images import GivenImages, Images, images_of
from seesaw.experiments.prompts import Prompt, compose, counterfactual_prompts, initial_prompt
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["PM", "Mitigator", "PromptSet"]


@dataclass(frozen=True, eq=False)
class PromptSet:
    """A model as a set of m prompts. Two prompt sets are equal only if they are the same object.

    `weights` (m,) sum to 1: each prompt's weight in the mixture that is the distribution of the set. `images` (m,) is
    how many images of each prompt are looked at. `mitigated` names the axes that the set is mitigated on, in the
    dataset's order.
    """

    subject: str
    mitigated: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    weights: NDArray[np.float64]
    images: tuple[int, ...]


class Mitigator(Protocol):
    """A way to mitigate one axis after the other.

    `settings` has the dataset, the targets and the weights of counterfactuals. `images` is what the mitigator was made
    with: a model has `images.initial` images or more, and each of its counterfactuals `images.counterfactual` or more
    (both are the paper's N). What `initial`, `counterfactuals` and `mitigate` return must depend on their arguments
    alone and be the same object for the same subject, set and axis, since each prompt set is observed once.
    """

    @property
    def settings(self) -> AnalysisSettings: ...
    @property
    def images(self) -> Images: ...

    def initial(self, subject: str) -> PromptSet:
        """The model before any mitigation."""
        ...

    def counterfactuals(self, current: PromptSet, axis: str) -> PromptSet:
        """The model `current` with every attribute of `axis` stated in turn, which simulates mitigating `axis`."""
        ...

    def mitigate(self, current: PromptSet, axis: str) -> PromptSet:
        """The model `current` mitigated on `axis` as well."""
        ...


class PM:
    """Prompt modification (docs/method.md; the paper's appendix on PM).

    The prompt set is the product of the mitigated axes' counterfactuals. It depends on which axes were mitigated and
    not on their order, so that images are shared between orders: every prompt is composed in one canonical way, and the
    prompts are in a canonical order in which the first axis of the dataset varies fastest. A prompt's weight is the
    product of its attributes' weights (`AnalysisSettings.weights`: D* or equal). A prompt with weight 0 is left out.

    Images. The paper makes an equal number of images for each prompt of a mitigated set, N or more in all, and N images
    of every counterfactual. Here prompt j of a mitigated set has ceil(N x weight_j) images, with N = `images.initial`,
    as the initial prompt has. A counterfactual of the set is itself a prompt set ("[male nurse working indoors, male
    nurse working outdoors]"); N = `images.counterfactual` images are shared out over it in the same way, whatever the
    weight of the counterfactual. At step 1 these are the images of the sweep. A mitigated prompt has the same first
    images as it had as a counterfactual; where both N are equal, these are all of its images, since numbers are rounded
    up. The number of images of a text depends on the set that it extends, so different orders and priorities share all
    images except the surplus of the larger number.
    """

    def __init__(self, settings: AnalysisSettings, images: GivenImages) -> None:
        self.settings, self.images = settings, images_of(images)
        self._sets: dict[tuple[str, tuple[str, ...], str], PromptSet] = {}

    def initial(self, subject: str) -> PromptSet:
        """A single prompt that states nothing but the subject."""
        return self._cached(
            (subject, (), ""),
            lambda: PromptSet(
                subject, (), (initial_prompt(self.settings.dataset, subject),), np.ones(1), (self.images.initial,)
            ),
        )

    def counterfactuals(self, current: PromptSet, axis: str) -> PromptSet:
        """Every prompt of `current` with every attribute of `axis` added, the attribute varying slowest.

        Raises ValueError for an axis that the set is mitigated on already: two phrases would contradict each other.
        """
        self._check_not_mitigated(current, axis)
        return self._cached(
            (current.subject, current.mitigated, axis), lambda: self._product(current, (*current.mitigated, axis), axis)
        )

    def mitigate(self, current: PromptSet, axis: str) -> PromptSet:
        """The product of the mitigated axes' counterfactuals and those of `axis`. Raises like `counterfactuals`."""
        self._check_not_mitigated(current, axis)
        mitigated = self._ordered((*current.mitigated, axis))
        return self._cached((current.subject, mitigated, ""), lambda: self._product(current, mitigated, ""))

    def _check_not_mitigated(self, current: PromptSet, axis: str) -> None:
        if axis in current.mitigated:
            raise ValueError(f"'{current.subject}' is mitigated on '{axis}' already")

    def _ordered(self, axes: Sequence[str]) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.settings.dataset.axes if axis.name in axes)

    def _product(self, current: PromptSet, fastest_first: Sequence[str], source: str) -> PromptSet:
        """All combinations of the axes' attributes with a weight above 0; `source` is the axis intervened on, or ""."""
        axes = [self.settings.dataset.axis(name) for name in reversed(fastest_first)]
        attributes = [
            [(axis.name, attribute, float(weight)) for attribute, weight in zip(axis.attributes, weights, strict=True)]
            for axis, weights in ((axis, self.settings.weights(axis)) for axis in axes)
        ]
        of_set = self.images.counterfactual if source else self.images.initial
        prompts, prompt_weights, images = [], [], []
        for stated in itertools.product(*([triple for triple in axis if triple[2] > 0] for axis in attributes)):
            prompts.append(self._prompt(current.subject, {name: attribute for name, attribute, _ in stated}))
            prompt_weights.append(math.prod(weight for *_, weight in stated))
            mitigated = math.prod(weight for name, _, weight in stated if name != source)
            images.append(max(1, math.ceil(of_set * mitigated - 1e-9)))  # 48 x (1/3) is 16, not 17
        return PromptSet(
            current.subject,
            self._ordered([name for name in fastest_first if name != source]),
            tuple(prompts),
            np.array(prompt_weights) / sum(prompt_weights),
            tuple(images),
        )

    def _prompt(self, subject: str, stated: dict[str, str]) -> Prompt:
        """The prompt that states these attributes; its source names axes and attributes in the dataset's order."""
        dataset, axes = self.settings.dataset, self._ordered(tuple(stated))
        if len(axes) == 1:
            axis = dataset.axis(axes[0])
            return counterfactual_prompts(dataset, subject, axis)[axis.attributes.index(stated[axis.name])]
        return Prompt(compose(dataset, subject, stated), subject, "+".join(axes), "+".join(stated[a] for a in axes))

    def _cached(self, key: tuple[str, tuple[str, ...], str], make: Callable[[], PromptSet]) -> PromptSet:
        if key not in self._sets:
            self._sets[key] = make()
        return self._sets[key]
