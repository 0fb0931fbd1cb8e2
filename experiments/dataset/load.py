"""Reads datasets from YAML. A dataset that contradicts itself is refused with file and line. The format::

    name: clinic                          # default: the file's name
    extends: occupation                   # optional: start from another dataset (a name, or a path beside this file)
    verbatim: true                        # use templates to the letter; false: compose every prompt from its words
    template: A photo of a {subject}      # the initial prompt
    person: Is there a person in the image (yes or no)?   # optional
    subjects: [nurse, doctor]
    axes:
      gender:
        attributes: [male, female]
        question: What is the gender (male, female) of the person?    # or {text: ..., choices: [male, female]}
        counterfactuals:                  # one for each attribute, keyed by the attribute it states
          male: {template: "A photo of a male {subject}", adjective: male}     # adjective: words before the subject
          female: {adjective: female}     # no template: the prompt is composed from the words, with the right a/an
      disability:                         # a composite axis: one yes/no question for each attribute but `none`
        attributes: [fit, blind]
        none: fit
        questions: {blind: Is this person blind (yes or no)?}
        counterfactuals:                  # phrase: words after it; composed: the phrase if several axes are stated
          fit: {phrase: who is fit}
          blind: {phrase: who is blind, composed: who cannot see}

How a dataset that `extends` another merges with it:

- A key replaces the same key of the other dataset (`name` is never inherited). Axes merge by name; within an axis,
  `questions` and `counterfactuals` merge by attribute.
- `subjects` replaces the list of subjects; `add_subjects` adds to it.
- `attributes` replaces the list of attributes. A removed attribute loses its question and its counterfactual. A new
  attribute needs a counterfactual, and the axis needs a new `question`.
- `question` turns a composite axis into a plain one; `questions` turns a plain axis into a composite one.
- A new `template` drops the inherited counterfactual templates: those prompts are composed from their words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from seesaw.experiments.dataset.extends import merged
from seesaw.experiments.dataset.model import Axis, Counterfactual, Dataset, Question
from seesaw.experiments.dataset.rules import build
from seesaw.experiments.dataset.yaml import entries, fail, read_tree, text, tree_of
from seesaw.results.errors import DatasetError, nearest

__all__ = ["DATASETS", "Axis", "Counterfactual", "Dataset", "Question", "load_dataset"]

DATASETS = Path(__file__).resolve().parents[2] / "configs" / "datasets"  #: the datasets that ship with Seesaw


def load_dataset(source: str | Path | Mapping[str, object], *, search: Sequence[Path] = ()) -> Dataset:
    """Read a dataset by name, by path or from an inline mapping.

    A name is looked up in the folders of `search`, then among the datasets that ship with Seesaw. A path is a Path, or
    a string that ends in .yaml or .yml; a relative path is tried as it is, then in the same folders. Raises
    DatasetError.

    Example::

        dataset = seesaw.load_dataset("occupation")
        nurses = seesaw.load_dataset({"extends": "occupation", "subjects": ["nurse", "midwife"]})
        dataset.subjects, [axis.name for axis in dataset.axes]
    """
    folders = [*search, DATASETS]
    if isinstance(source, Mapping):
        tree, name = tree_of(source), "inline"
        trail: tuple[Path, ...] = ()
    else:
        path = _find(source, folders)
        tree, name = read_tree(path), path.stem
        trail = (path.resolve(),)
    return build(_resolved(tree, folders, trail), name)


def _find(source: str | Path, folders: Sequence[Path]) -> Path:
    """The file that `source` names. Raises DatasetError, which suggests the nearest name, if there is none."""
    as_path = Path(source)
    if isinstance(source, Path) or as_path.suffix in {".yaml", ".yml"}:
        candidates = [as_path, *(folder / as_path for folder in folders)]
    else:
        candidates = [folder / f"{source}{suffix}" for folder in folders for suffix in (".yaml", ".yml")]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    names = {path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.y*ml")}
    if as_path.suffix:
        raise DatasetError(f"there is no dataset file {source}{nearest(as_path.stem, names)}")
    raise DatasetError(f"there is no dataset '{source}'{nearest(str(source), names)}")


def _resolved(tree: yaml.MappingNode, folders: Sequence[Path], trail: tuple[Path, ...]) -> yaml.MappingNode:
    """`tree` merged into the dataset that it extends, if any.

    `trail` lists the files that were read on the way to `tree`, so that a dataset that extends itself is refused.
    """
    fields = entries(tree, "the dataset")
    if "extends" not in fields:
        return tree
    node = fields["extends"][1]
    name = text(node, "`extends`")
    beside = [trail[-1].parent] if trail else []
    try:
        path = _find(name, [*beside, *folders])
    except DatasetError as error:
        fail(node, f"`extends`: {error}")
    if path.resolve() in trail:
        fail(node, f"`extends`: the dataset extends itself through {path}")
    return merged(_resolved(read_tree(path), folders, (*trail, path.resolve())), tree)
