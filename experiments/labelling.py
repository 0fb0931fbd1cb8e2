"""Which images people should label, what they may answer, and what their labels say together."""

from __future__ import annotations

import hashlib

import pandas as pd

from seesaw.experiments.dataset.model import Axis, Dataset
from seesaw.results.errors import LabelsError, nearest

__all__ = ["UNCLEAR", "agreed_labels", "check_labels", "choices_of", "images_to_label", "labelled_readings"]

UNCLEAR = "unclear"  #: the choice of a labeller who cannot tell
_PROMPT = ["model", "source_axis", "source_value"]


def choices_of(axis: Axis) -> tuple[str, ...]:
    """What a labeller may answer about `axis`: its attributes, or that it cannot be told."""
    return (*axis.attributes, UNCLEAR)


def images_to_label(images: pd.DataFrame, n: int) -> list[str]:
    """The keys of `n` of the `images`, in the order of labelling.

    `images` has the columns image_key, model, subject, source_axis, source_value. Stratified: the first round takes one
    image of every model and statement (none, and each counterfactual), the next rounds take other subjects, then
    further images. So every prefix spreads over all of them as evenly as it can. Within a stratum the choice is random
    by a fixed seed, namely by hashes of keys and names: the same images at each call, and a longer plan begins with
    every shorter one. The labelled images of a prompt are a random sample of its images, which both corrections need;
    what a VLM read of them is not looked at.
    """
    frame = images.assign(order=[_random(key) for key in images["image_key"]]).sort_values("order", kind="stable")
    frame["image_round"] = frame.groupby([*_PROMPT, "subject"]).cumcount()
    frame["subject_order"] = [
        _random(*names) for names in frame[[*_PROMPT, "subject"]].itertuples(index=False, name=None)
    ]
    frame = frame.sort_values(["image_round", "subject_order"], kind="stable")
    frame["subject_round"] = frame.groupby([*_PROMPT, "image_round"]).cumcount()
    frame["prompt_order"] = [_random(*names) for names in frame[_PROMPT].itertuples(index=False, name=None)]
    chosen = frame.sort_values(["image_round", "subject_round", "prompt_order"], kind="stable")["image_key"].head(n)
    return [str(key) for key in chosen]


def _random(*names: object) -> str:
    return hashlib.sha256("\x1f".join(("seesaw/labels", *map(str, names))).encode()).hexdigest()


def check_labels(labels: pd.DataFrame, read: pd.DataFrame, dataset: Dataset, where: str) -> None:
    """Check `labels` (row, image_key, axis, label, labeller) of a file called `where`.

    `read` (image_key, axis) are the images that the VLM read, axis by axis. Raises LabelsError, which names the row.
    """
    names = [axis.name for axis in dataset.axes]
    known_images = set(read["image_key"])
    known = set(zip(read["image_key"], read["axis"], strict=True))
    first: dict[tuple[str, str, str], int] = {}
    columns = ["row", "image_key", "axis", "label", "labeller"]
    for row, key, axis, label, labeller in labels[columns].itertuples(index=False, name=None):
        problem = ""
        if axis not in names:
            problem = f"dataset '{dataset.name}' has no axis '{axis}'{nearest(axis, names)}"
        elif key not in known_images:
            problem = f"this run has no image '{key}'; keep the column image_key as `seesaw labels plan` wrote it"
        elif (key, axis) not in known:
            problem = f"the VLM was not asked for the {axis} of image '{key}'; leave its label empty"
        elif label not in choices_of(dataset.axis(axis)):
            problem = f"'{label}' is no choice of axis '{axis}'{nearest(label, choices_of(dataset.axis(axis)))}"
        elif (key, axis, labeller) in first:
            who = f"'{labeller}'" if labeller else "the same labeller"
            problem = f"{who} labels the {axis} of image '{key}' a second time, after row {first[key, axis, labeller]}"
        if problem:
            raise LabelsError(f"{where}, row {row}: {problem}")
        first[key, axis, labeller] = row


def agreed_labels(labels: pd.DataFrame) -> pd.DataFrame:
    """One label for each image and axis (image_key, axis, truth): the one that most labellers give.

    `labels` has all imports; of one labeller the last counts. Where labellers are divided evenly, or most cannot tell,
    the image has no label of that axis.
    """
    last = labels.sort_values("imported", kind="stable").drop_duplicates(["image_key", "axis", "labeller"], keep="last")
    votes = last.groupby(["image_key", "axis", "label"], sort=True).size().rename("votes").reset_index()
    most = votes.groupby(["image_key", "axis"])["votes"].transform("max")
    first = votes[votes["votes"] == most]
    agreed = first[~first.duplicated(["image_key", "axis"], keep=False) & (first["label"] != UNCLEAR)]
    return agreed.rename(columns={"label": "truth"})[["image_key", "axis", "truth"]].reset_index(drop=True)


def labelled_readings(labels: pd.DataFrame, read: pd.DataFrame) -> pd.DataFrame:
    """The labelled images with what the VLM read of them: the columns of `read`, and truth.

    `read` has a row for each image and axis: image_key, axis, read, and the columns that name its prompt.
    """
    return read.merge(agreed_labels(labels), on=["image_key", "axis"], how="inner")
