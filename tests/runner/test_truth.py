"""Right: what a sweep measures on a pictogram world, through Ray and vLLM, is what that world's distribution says.

The plug-in w of a small sample is inflated, so measured IS values are not compared with the exact IS but with the
distribution of *measured* IS values under the exact world: whole images are drawn from the exact joint distribution of
every prompt (so that axes of one image depend on each other as they do), n a prompt, 2,000 times, and put through the
same arithmetic. Against that null every cell has a z-score, and every subject an omnibus statistic (the sum of its
squared z-scores over all 64 cells) with an exact Monte Carlo p-value, whatever the dependence between its cells.
"""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from seesaw.actors.pictogram.codes import AXES, SHAPE, read_prompt
from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.prompts import counterfactual_prompts, initial_prompt
from seesaw.experiments.sensitivity import intersectional_sensitivity, mixture, uniform, w_bar

pytestmark = pytest.mark.slow  # runs a sweep of the embedded models with vLLM

SUBJECTS = ("computer programmer", "librarian", "nurse", "engineer", "musician", "farmer")
IMAGES, DRAWS = 48, 2000
DATASET = load_dataset("occupation")


def null_matrices(world, subject: str, rng) -> np.ndarray:
    """(draws, 8, 8) IS matrices as a perfect reader would measure them in this world."""

    def shares(prompt) -> list[np.ndarray]:
        cumulative = np.cumsum(world.conditional(*read_prompt(prompt.text)).ravel())
        states = np.searchsorted(cumulative, rng.random((DRAWS, IMAGES)) * cumulative[-1], side="right")
        position = np.unravel_index(np.minimum(states, cumulative.size - 1), SHAPE)
        person = rng.random((DRAWS, IMAGES)) >= world.absent
        return [
            np.stack([((position[a] == v) & person).sum(1) for v in range(k)], 1) / person.sum(1, keepdims=True)
            for a, k in enumerate(SHAPE)
        ]

    def w(p: np.ndarray) -> np.ndarray:
        return w_bar(p, uniform(p.shape[-1]), "nominal")

    initial = [w(p) for p in shares(initial_prompt(DATASET, subject))]
    rows = []
    for axis in DATASET.axes:
        each = [shares(prompt) for prompt in counterfactual_prompts(DATASET, subject, axis)]
        after = [w(mixture(np.stack([one[a] for one in each], 1))) for a in range(len(SHAPE))]
        rows.append(np.stack([intersectional_sensitivity(i, j) for i, j in zip(initial, after, strict=True)], 1))
    return np.stack(rows, 1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> pd.DataFrame:
    from tests.conftest import Command

    folder = tmp_path_factory.mktemp("truth")
    (folder / "truth.yaml").write_text(
        f"models: [pictogram-alder]\nvqa: pictogram-vlm\nsubjects: {list(SUBJECTS)}\nimages: {IMAGES}\n"
    )
    command = Command("sweep", "truth.yaml", cwd=folder).finish(timeout=900)
    assert command.code == 0, command.err
    return pd.read_parquet(folder / "outputs/truth/matrices.parquet")


def test_every_is_value_is_within_sampling_error_of_the_exact_world(measured, capsys):
    rng = np.random.default_rng(20250517)
    names = list(AXES)
    p_values, all_z, worst = [], [], []
    for subject in SUBJECTS:
        cells = measured[measured.subject == subject].set_index(["source_axis", "target_axis"])["is"]
        observed = np.array([[cells[x, y] for y in names] for x in names])
        null = null_matrices(WORLDS["alder"], subject, rng)
        mean, deviation = null.mean(0), null.std(0)
        z, null_z = (observed - mean) / deviation, (null - mean) / deviation
        p_values.append((1 + ((null_z**2).sum((1, 2)) >= (z**2).sum()).sum()) / (1 + DRAWS))
        worst.append((1 + (np.abs(null_z).max((1, 2)) >= np.abs(z).max()).sum()) / (1 + DRAWS))
        all_z.append(z)
    z = np.array(all_z)
    with capsys.disabled():
        print(
            f"\nz-scores of {z.size} IS values: mean {z.mean():+.3f}, deviation {z.std():.3f}, "
            f"beyond 1.96: {(np.abs(z) > 1.96).mean():.1%}, largest {np.abs(z).max():.2f}; "
            f"omnibus p by subject {', '.join(f'{p:.3f}' for p in p_values)}"
        )
    assert z.shape == (6, 8, 8)
    assert np.isfinite(z).all()
    # subjects are drawn independently, so their p-values combine by Fisher's method
    assert scipy.stats.combine_pvalues(p_values).pvalue > 0.001
    assert scipy.stats.combine_pvalues(worst).pvalue > 0.001


def test_the_same_check_refuses_the_wrong_world(measured):
    """Power: against another world's distribution the omnibus test rejects at once."""
    rng = np.random.default_rng(1)
    names = list(AXES)
    cells = measured[measured.subject == "nurse"].set_index(["source_axis", "target_axis"])["is"]
    observed = np.array([[cells[x, y] for y in names] for x in names])
    null = null_matrices(WORLDS["birch"], "nurse", rng)
    z, null_z = (observed - null.mean(0)) / null.std(0), (null - null.mean(0)) / null.std(0)
    assert ((null_z**2).sum((1, 2)) >= (z**2).sum()).mean() < 0.001
