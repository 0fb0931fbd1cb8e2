"""Whether Seesaw's figures are right: its own analysis of answers that are drawn from worlds known exactly.

    python -m benchmarks.validity [--quick] [--images 16 48 200 192/48] [--repeats 1]

Five worlds x 26 subjects x 64 entries of four kinds: embedded, fair, null (no couplings) and null-fair; 16, 48 and 200
images a prompt, and 192 of an initial prompt with 48 of each counterfactual; images of one number are independent, or
share half of the variance of what decides their attributes. Tables: errors and coverage by the size of the effect and
by the bias of the axis; means over subjects; false calls where nothing interacts; power; the strongest entries. The
aims stand beside the figures.

`--quick`: one world of each kind, and two numbers of images.
"""

from __future__ import annotations

import argparse
import itertools
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.validity.figures import by_bias, by_size, false_calls, mean_errors, power, strongest
from benchmarks.validity.worlds import KINDS, NULL, draw_answers, exact_values, worlds_of
from seesaw.actors.pictogram.world import World
from seesaw.experiments.analysis import analyze
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.images import Images, images_of
from seesaw.experiments.settings import make_settings
from seesaw.runner.config import CONFIGS

__all__ = ["DEFAULT", "NUMBERS", "measure"]

#: images of a prompt, by name
NUMBERS = {"16": images_of(16), "48": images_of(48), "200": images_of(200), "192/48": Images(192, 48)}
DEFAULT = "192/48"
RHOS = (0.0, 0.5)
_KEY = ["model", "subject", "source_axis", "target_axis"]


@dataclass(frozen=True)
class Measured:
    """Entries of matrices and of their means over subjects, each with its exact value, and how they were drawn."""

    entries: pd.DataFrame
    means: pd.DataFrame


def measure(world: World, numbers: Sequence[str], rhos: Sequence[float], repeats: int) -> Measured:
    """The analysis of answers drawn from `world`, for every number of images, correlation and repeat."""
    dataset = load_dataset(CONFIGS / "datasets" / "occupation.yaml")
    settings = make_settings(dataset)
    exact, entries, means = exact_values(world, settings), [], []
    exact_means = exact.groupby(["model", "source_axis", "target_axis"], as_index=False)["exact"].mean()
    for number, rho, repeat in itertools.product(numbers, rhos, range(repeats)):
        name = f"{world}, {number}, {rho}, {repeat}"
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        analysis = analyze(draw_answers(world, dataset, NUMBERS[number], rho, rng), settings)
        how = {"number": number, "rho": rho, "repeat": repeat}
        entries.append(analysis.uncertainty.merge(exact, on=_KEY, validate="1:1").assign(**how))
        means.append(analysis.means.merge(exact_means).assign(**how))
    return Measured(pd.concat(entries, ignore_index=True), pd.concat(means, ignore_index=True))


def report(entries: pd.DataFrame, kind: str, number: str, rho: float) -> None:
    """Print the tables of one kind of worlds, one number of images and one correlation."""
    between = _between(entries)
    print(f"\n## {kind} worlds, {number} images, correlation by seed {rho:g}: {len(entries):,} entries")
    for what, table in (("by exact IS", by_size(between)), ("by exact w", by_bias(between))):
        print(f"\nBetween two axes, {what} (aims: covered 0.93 to 0.99; error at most 0.01 where axes are fair)")
        print(table.to_string(float_format="%.3f"))
    print("\nOn the axis itself (a success is understated)")
    print(by_size(entries[entries["source_axis"] == entries["target_axis"]]).to_string(float_format="%.3f"))
    if kind not in NULL:
        print("\nPower between two axes")
        print(power(between).to_string(float_format="%.3f"))


def summary(groups: dict[tuple[str, str, float], Measured]) -> None:
    """Print one line for each kind, number of images and correlation."""
    means, calls, lists = {}, {}, {}
    for key, measured in groups.items():
        means[key] = mean_errors(_between(measured.means))
        if key[0] in NULL:
            calls[key] = false_calls(_between(measured.entries))
        else:
            lists[key] = strongest(_between(measured.entries))
    for title, rows in (
        ("Means over subjects (aim: covered 0.93 to 0.97)", means),
        ("False calls where nothing interacts (aim: at most 0.06 of matrices)", calls),
        ("The strongest entries, 6 of each sign and model (winner's curse)", lists),
    ):
        table = pd.DataFrame.from_dict({", ".join(map(str, key)): row for key, row in rows.items()}, orient="index")
        print(f"\n## {title}\n\n{table.to_string(float_format='%.3f')}")


def _between(entries: pd.DataFrame) -> pd.DataFrame:
    return entries[entries["source_axis"] != entries["target_axis"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one world of each kind, two numbers of images")
    parser.add_argument("--images", nargs="+", choices=NUMBERS, default=list(NUMBERS), help="of a prompt")
    parser.add_argument("--repeats", type=int, default=1, help="draws of every world")
    args = parser.parse_args()
    numbers = ["48", DEFAULT] if args.quick else args.images
    began, groups = time.monotonic(), {}
    worlds = [(kind, world) for kind in KINDS for world in worlds_of(kind)[: 1 if args.quick else None]]
    with ProcessPoolExecutor() as pool:
        futures = [(kind, pool.submit(measure, world, numbers, RHOS, args.repeats)) for kind, world in worlds]
        measured = [(kind, future.result()) for kind, future in futures]
    entries = pd.concat([each.entries.assign(kind=kind) for kind, each in measured], ignore_index=True)
    means = pd.concat([each.means.assign(kind=kind) for kind, each in measured], ignore_index=True)
    for kind, rho, number in itertools.product(KINDS, RHOS, numbers):
        chosen = [
            frame[(frame["kind"] == kind) & (frame["rho"] == rho) & (frame["number"] == number)]
            for frame in (entries, means)
        ]
        groups[kind, number, rho] = Measured(*chosen)
        report(chosen[0], kind, number, rho)
    summary(groups)
    print(f"\n{len(entries):,} entries in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
