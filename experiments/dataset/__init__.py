"""Datasets: subjects, axes, attributes, questions and counterfactuals, read from YAML."""
