"""Shares from the VLM's answers about all images and labels of some: prediction-powered inference, prompt by prompt.

Source: Angelopoulos et al., "Prediction-powered inference", Science 382 (2023). The share of an attribute is the share
that the VLM reads over all images, plus the mean over the labelled ones of (labelled so) - (read so). Nothing is
assumed about how the VLM misreads, so it may misread every prompt in another way; but every prompt needs labels of its
own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seesaw.experiments.misreading import shares_of_counts

__all__ = ["LEAST_LABELS", "prediction_powered_draws", "prediction_powered_shares"]

Floats = NDArray[np.float64]
LEAST_LABELS = 5  #: labelled images that a prompt needs; with fewer, how it is misread is not known


def prediction_powered_shares(read: ArrayLike, labelled: ArrayLike) -> Floats:
    """Corrected shares (m, k): read (m, k) shares of all images, labelled (m, k, k) images by truth and reading.

    They are clipped at 0 and renormalised. A prompt with fewer than `LEAST_LABELS` labelled images is NaN.
    """
    labelled = np.asarray(labelled, np.float64)
    n = labelled.sum((-2, -1))
    rectifier = (labelled.sum(-1) - labelled.sum(-2)) / np.maximum(n, 1)[..., None]
    shares = shares_of_counts(np.clip(np.asarray(read, np.float64) + rectifier, 0, None))
    return np.where((n >= LEAST_LABELS)[..., None], shares, np.nan)


def prediction_powered_draws(read: Floats, labelled: ArrayLike, pooled: ArrayLike, rng: np.random.Generator) -> Floats:
    """Draws (B, m, k) of these shares, from draws of the shares as read (B, m, k).

    How the labelled images of a prompt are misread is drawn from a Dirichlet posterior over its k x k pairs of truth
    and reading. Its prior is worth one image, spread as `pooled` (k, k), the labelled images of all prompts, are:
    without it, a prompt whose few labelled images are all read right would count as read without error.
    """
    labelled, pooled = np.asarray(labelled, np.float64), np.asarray(pooled, np.float64)
    draws, _, k = read.shape
    prior = (pooled.ravel() + 1 / k**2) / (pooled.sum() + 1)
    rectifier = np.empty(read.shape)
    for prompt, pairs in enumerate(labelled):
        drawn = rng.dirichlet(pairs.ravel() + prior, draws).reshape(draws, k, k)
        rectifier[:, prompt] = drawn.sum(-1) - drawn.sum(-2)
    shares = shares_of_counts(np.clip(read + rectifier, 0, None))
    return np.where((labelled.sum((-2, -1)) >= LEAST_LABELS)[:, None], shares, np.nan)
