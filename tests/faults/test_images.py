"""What goes wrong while images are made: each fault on the real trained pipeline, in one sweep through Ray and vLLM.

The faults are put into the pipeline itself (its UNet, its VAE), by prompt; the same sweep without them is what the
other images must equal.
"""

import io

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.conftest import Command

pytestmark = pytest.mark.slow  # loads the embedded models and vLLM, and runs sweeps

ENGINE = '''
import os
import signal
from pathlib import Path

import torch

from seesaw.actors.diffusers_engine import DiffusersEngine
from seesaw.results.store.identity import image_seed


class Faulty(DiffusersEngine):
    """With FAULTS set: out of memory above two images a call for `male`, NaN in images 1 and 9 for `female`, images 2
    and 10 flagged for `young`, an error for `old`, and for `middle-aged` the process is killed in mid-batch, once."""

    def __init__(self, settings):
        super().__init__(settings)
        if os.environ.get("FAULTS"):
            self.prompt, self.steps = "", 0
            self._pipeline.unet.register_forward_pre_hook(self.denoise)
            self.decode = self._pipeline.vae.decode
            self._pipeline.vae.decode = self.decoded
            self._checker = lambda _: [" young " in self.prompt and seed in self.seeds(2, 10) for seed in self.part]

    def seeds(self, *images):
        return {image_seed(0, image) for image in images}

    def generate(self, prompt, seeds, adapter=""):
        self.prompt, self.steps = prompt, 0
        if os.environ.get("FAULTS") and " old " in prompt:
            raise RuntimeError("this prompt cannot be drawn")
        return super().generate(prompt, seeds, adapter)

    def _call(self, prompt, seeds):
        self.part = seeds
        return super()._call(prompt, seeds)

    def denoise(self, module, inputs):
        self.steps += 1
        images = len(inputs[0])
        if " male " in self.prompt and images > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        killed = Path(os.environ["FAULTS"]) / "killed"
        if " middle-aged " in self.prompt and self.steps == 4 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def decoded(self, latents, *args, **kwargs):
        if " female " in self.prompt:
            latents = latents.clone()
            latents[[seed in self.seeds(1, 9) for seed in self.part]] = float("nan")
        return self.decode(latents, *args, **kwargs)
'''
CONFIG = """
models:
  - name: trained
    engine: faulty:Faulty
    settings: {{repo: pictogram, size: 64, steps: 6, guidance: 1.0}}
subjects: [nurse]
axes: [gender, age]
images: 16
store: store-{name}
run: run-{name}
cluster: {{attempts: 2}}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a run without faults, `clean`, and of one with all of them, `faulty`; and how they ended."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "faulty.py").write_text(ENGINE)
    ended = {}
    for name, env in (("clean", {}), ("faulty", {"FAULTS": str(folder)})):
        (folder / f"{name}.yaml").write_text(CONFIG.format(name=name))
        ended[name] = Command("sweep", f"{name}.yaml", cwd=folder, env=env).finish()
    return folder, ended


def images(folder, name: str) -> pd.DataFrame:
    """Every image of a store: key, prompt, why it was withheld, and its pixels."""
    frame = pq.read_table(folder / f"store-{name}" / "images").to_pandas()
    pixels = [np.asarray(Image.open(io.BytesIO(image["bytes"])), np.int16) for image in frame["image"]]
    return frame.assign(pixels=pixels).set_index("image_key")


def test_every_fault_ends_as_it_should_and_the_other_images_are_right(runs):
    folder, ended = runs
    assert ended["clean"].code == 0, ended["clean"].err
    assert ended["faulty"].code == 1, ended["faulty"].err
    assert (folder / "killed").exists()

    right, found = images(folder, "clean"), images(folder, "faulty")
    old = right.prompt.str.contains(" old ")
    assert set(found.index) == set(right.index[~old])  # the process that was killed lost nothing, nor did its batch
    for key, image in found.iterrows():
        difference = np.abs(image.pixels - right.pixels[key]).max()
        if image.withheld != "blank":
            assert difference <= 2, (image.prompt, difference)  # fewer images a call: the noise of batching
    withheld = found[found.withheld != ""].groupby(["prompt", "withheld"]).size()
    assert withheld.to_dict() == {("A photo of a female nurse", "blank"): 2, ("A photo of a young nurse", "flagged"): 2}


def test_tables_say_what_happened_and_count_only_what_was_asked(runs):
    folder, ended = runs
    run = folder / "run-faulty"
    failures = pd.read_parquet(run / "failures.parquet")
    assert sorted(zip(failures.cell, failures.error, failures.attempts, strict=True)) == [
        ("trained / nurse / age=old / images 0-7", "RuntimeError", 2),
        ("trained / nurse / age=old / images 8-15", "RuntimeError", 2),
        ("trained / nurse / gender=female", "blank", 2),
    ]
    assert failures.message.str.contains("this prompt cannot be drawn").sum() == 2
    withheld = pd.read_csv(run / "withheld.csv").set_index("source_value")
    assert withheld.loc["female", ["images", "flagged", "blank"]].tolist() == [16, 0, 2]
    assert withheld.loc["young", ["images", "flagged", "blank"]].tolist() == [16, 2, 0]
    assert withheld.loc["young", "flagged_share"] == 2 / 16

    answers, right = pd.read_parquet(run / "answers.parquet"), pd.read_parquet(folder / "run-clean/answers.parquet")
    rows = ["source_value", "image", "axis", "answer"]
    lost = {("female", 1), ("female", 9), ("young", 2), ("young", 10)}
    kept = [
        value != "old" and (value, image) not in lost
        for value, image in zip(right.source_value, right.image, strict=True)
    ]
    pd.testing.assert_frame_equal(answers[rows], right[kept][rows].reset_index(drop=True))
    matrices = pd.read_parquet(run / "matrices.parquet").set_index("source_axis")
    assert matrices["is"]["age"].isna().all()
    assert matrices["is"]["gender"].notna().all()
    page = (run / "report/index.html").read_text()
    assert "2 flagged or refused as unsafe, 2 blank" in page

    log = "".join(path.read_text() for path in (run / "logs").glob("trained-*.log"))
    assert "out of memory at 8 images a call; from now on 4" in log
    assert "out of memory at 4 images a call; from now on 2" in log
    assert "2 images in 1 cells were flagged as unsafe, or refused" in ended["faulty"].err
