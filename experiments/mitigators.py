"""Mitigators: what turns a model, seen as a set of prompts, into one that is mitigated on one axis more.

InterMit asks two things of a mitigator: the model mitigated on one axis more, and the counterfactuals of the present
one. Both are prompt sets, so that others plug in: one that changes the model itself puts its adapter into the prompts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seesaw.experiments.prompts import Prompt, compose, counterfactual_prompts, initial_prompt
from seesaw.experiments.settings import AnalysisSettings

__all__ = ["PM", "Mitigator", "PromptSet"]


@dataclass(frozen=True, eq=False)
class PromptSet:
    """A model as a set of m prompts. Two of them are equal only if they are the same object.

    `weights` (m,) sum to 1 and say what each prompt's shares weigh in the distribution of the set; `images` (m,) how
    many images of each are looked at. `mitigated` names the axes that the set is mitigated on, in the dataset's order.
    """

    subject: str
    mitigated: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    weights: NDArray[np.float64]
    images: tuple[int, ...]


class Mitigator(Protocol):
    """A sequential mitigation method. `images` is N, what a model is judged by at least.

    What it returns depends on its arguments alone, and is the same object for the same set, subject and axis.
    """

    @property
    def settings(self) -> AnalysisSettings: ...
    @property
    def images(self) -> int: ...

    def initial(self, subject: str) -> PromptSet:
        """The model as it is."""
        ...

    def counterfactuals(self, current: PromptSet, axis: str) -> PromptSet:
        """The model `current` with every attribute of `axis` stated in turn, which simulates mitigating it."""
        ...

    def mitigate(self, current: PromptSet, axis: str) -> PromptSet:
        """The model `current` mitigated on `axis` too."""
        ...


class PM:
    """Prompt modification (the paper's appendix): the set is the product of the mitigated axes' counterfactuals.

    It depends on which axes were mitigated and not on their order, so that images are shared between orders: prompts
    are composed canonically, and stand in canonical order, the first axis of the dataset varying fastest. A prompt
    weighs the product of its attributes' weights (`AnalysisSettings.weights`: D* or equal); a prompt that weighs
    nothing is left out.

    Images. The paper makes an equal number of images for each prompt of a mitigated set, N or more in all, and N of
    every counterfactual. Here prompt j of a mitigated set has ceil(N x weight_j) of them. A counterfactual of the set
    is a prompt set too ("[male nurse working indoors, male nurse working outdoors]"): N images shared out over it in
    the same way, whatever the counterfactual weighs. At step 1 these are the sweep's images; a mitigated prompt's are
    always the first of those that it had as a counterfactual, and ceil rather than another rounding keeps that so.
    A text's number of images depends on the set that it extends, so orders and priorities share all but the excess.
    """

    def __init__(self, settings: AnalysisSettings, images: int) -> None:
        self.settings, self.images = settings, images
        self._made: dict[tuple[str, tuple[str, ...], str], PromptSet] = {}

    def initial(self, subject: str) -> PromptSet:
        """A single prompt that states nothing but the subject."""
        return self._once(
            (subject, (), ""),
            lambda: PromptSet(
                subject, (), (initial_prompt(self.settings.dataset, subject),), np.ones(1), (self.images,)
            ),
        )

    def counterfactuals(self, current: PromptSet, axis: str) -> PromptSet:
        """Every prompt of `current` with every attribute of `axis` added, the attribute varying slowest.

        Raises ValueError for an axis that the set is mitigated on: two phrases would contradict each other.
        """
        self._check(current, axis)
        return self._once(
            (current.subject, current.mitigated, axis), lambda: self._product(current, (*current.mitigated, axis), axis)
        )

    def mitigate(self, current: PromptSet, axis: str) -> PromptSet:
        """The product of the mitigated axes' counterfactuals and those of `axis`. Raises as `counterfactuals`."""
        self._check(current, axis)
        mitigated = self._ordered((*current.mitigated, axis))
        return self._once((current.subject, mitigated, ""), lambda: self._product(current, mitigated, ""))

    def _check(self, current: PromptSet, axis: str) -> None:
        if axis in current.mitigated:
            raise ValueError(f"'{current.subject}' is mitigated on '{axis}' already")

    def _ordered(self, axes: Sequence[str]) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.settings.dataset.axes if axis.name in axes)

    def _product(self, current: PromptSet, fastest_first: Sequence[str], source: str) -> PromptSet:
        """All combinations of the axes' attributes that weigh something; `source` is the axis intervened on, if any."""
        axes = [self.settings.dataset.axis(name) for name in reversed(fastest_first)]
        values = [
            [(axis.name, attribute, float(weight)) for attribute, weight in zip(axis.attributes, weights, strict=True)]
            for axis, weights in ((axis, self.settings.weights(axis)) for axis in axes)
        ]
        prompts, total, images = [], [], []
        for stated in itertools.product(*([value for value in axis if value[2] > 0] for axis in values)):
            prompts.append(self._prompt(current.subject, {name: attribute for name, attribute, _ in stated}))
            total.append(math.prod(weight for *_, weight in stated))
            mitigated = math.prod(weight for name, _, weight in stated if name != source)
            images.append(max(1, math.ceil(self.images * mitigated - 1e-9)))  # 48 x (1/3) is 16, not 17
        return PromptSet(
            current.subject,
            self._ordered([name for name in fastest_first if name != source]),
            tuple(prompts),
            np.array(total) / sum(total),
            tuple(images),
        )

    def _prompt(self, subject: str, stated: dict[str, str]) -> Prompt:
        """The prompt that states these attributes; its place names axes and attributes in the dataset's order."""
        dataset, axes = self.settings.dataset, self._ordered(tuple(stated))
        if len(axes) == 1:
            axis = dataset.axis(axes[0])
            return counterfactual_prompts(dataset, subject, axis)[axis.attributes.index(stated[axis.name])]
        return Prompt(compose(dataset, subject, stated), subject, "+".join(axes), "+".join(stated[a] for a in axes))

    def _once(self, key: tuple[str, tuple[str, ...], str], make: Callable[[], PromptSet]) -> PromptSet:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]
