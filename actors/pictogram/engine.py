"""`pictogram-draw`: the exact TTI engine, which draws figures from the known distribution of its world."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from seesaw.actors.pictogram.codes import read_prompt
from seesaw.actors.pictogram.draw import RENDERER, draw
from seesaw.actors.pictogram.world import WORLDS, World
from seesaw.results.errors import ConfigError, nearest

__all__ = ["PictogramDraw"]


class PictogramDraw:
    """Settings: `world`, a name in `WORLDS`; or a new name with any of `bias`, `coupling`, `absent`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.world = _world(settings)

    @classmethod
    def identity(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        world = _world(settings)
        return {"renderer": RENDERER, "bias": world.bias, "coupling": world.coupling, "absent": world.absent}

    def generate(self, prompt: str, seeds: Sequence[int], adapter: str = "") -> list[bytes]:
        if adapter:
            raise ConfigError("pictogram-draw has no weights that an adapter could change")
        subject, _ = read_prompt(prompt)
        images = []
        for seed in seeds:
            file = io.BytesIO()
            draw(self.world.sample(prompt, seed), subject, seed).save(file, "PNG", compress_level=1)
            images.append(file.getvalue())
        return images


def _world(settings: Mapping[str, Any]) -> World:
    parameters = dict(settings)
    name = parameters.pop("world", None)
    for key in parameters:
        if key not in ("bias", "coupling", "absent"):
            raise ConfigError(
                f"pictogram-draw has no setting '{key}'{nearest(key, ('world', 'bias', 'coupling', 'absent'))}"
            )
    if name in WORLDS and not parameters:
        return WORLDS[name]
    if not isinstance(name, str) or not parameters:
        raise ConfigError(f"pictogram-draw: no world '{name}'{nearest(str(name), WORLDS)}")
    return World(name, **{key: float(value) for key, value in parameters.items()})
