"""Datasets: subjects, axes, attributes, questions and counterfactuals, read from YAML."""

from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.dataset.model import Axis, Counterfactual, Dataset, Question

__all__ = ["Axis", "Counterfactual", "Dataset", "Question", "load_dataset"]
