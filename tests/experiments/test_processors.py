"""Figures and decisions do not depend on the processor: the science in child processes that use other instructions.

OpenBLAS and numpy choose their kernels by processor, and with them the last bits of some sums. Each child is told to be
another processor; all must print the same tables and decisions to the last bit.
"""

import os
import subprocess
import sys

import pytest

SCIENCE = """
import asyncio, hashlib
import numpy as np, pandas as pd
from seesaw.actors.pictogram.world import WORLDS
from seesaw.experiments.analysis import analyze
from seesaw.experiments.biasconnect import biasconnect
from seesaw.experiments.dataset.load import load_dataset
from seesaw.experiments.exact import ExactLab
from seesaw.experiments.intermit import Problem, mitigate
from seesaw.experiments.mitigators import PM
from seesaw.experiments.prompt_sets import PromptSetObserver
from seesaw.experiments.prompts import prompts_of
from seesaw.experiments.settings import make_settings
from seesaw.experiments.shrinkage import shrunken
from seesaw.experiments.studies import negatives, single_mitigations, validation

dataset = load_dataset("occupation").select(subjects=["nurse", "chef"])
lab = ExactLab(dataset, {name: WORLDS[name].shares for name in ("alder", "elm")})
settings = make_settings(dataset, metric={"age": "ordinal"}, targets={"gender": [0.3, 0.7]}, intervention="target")

rng, rows = np.random.default_rng(1), []
for prompt in (prompt for subject in dataset.subjects for prompt in prompts_of(dataset, subject)):
    exact = WORLDS["elm"].shares(prompt.text)
    for axis in dataset.axes:
        drawn = rng.choice(len(axis.attributes), 48, p=exact[axis.name] / exact[axis.name].sum())
        rows += [("elm", prompt.subject, prompt.source_axis, prompt.source_value, str(i), axis.name, axis.attributes[a])
                 for i, a in enumerate(drawn)]
names = ["model", "subject", "source_axis", "source_value", "image", "axis", "answer"]
analysis = analyze(pd.DataFrame(rows, columns=names), settings)

async def trajectories():
    observer = PromptSetObserver(lab, PM(settings, 48))
    priority = {"gender": 0.4, "age": 0.35, "emotion": 0.25}
    problems = [Problem(m, s, priority) for m in ("alder", "elm") for s in dataset.subjects]
    states = [await mitigate(observer, problem) for problem in problems]
    return states, await single_mitigations(observer, ["alder", "elm"])

states, effects = asyncio.run(trajectories())
results = {
    "distributions": analysis.distributions.to_csv(), "matrices": analysis.matrices.to_csv(),
    "uncertainty": analysis.uncertainty.to_csv(), "means": analysis.means.to_csv(), "bias": analysis.bias.to_csv(),
    "shrunken": repr(shrunken(*(analysis.uncertainty[name].to_numpy() for name in ("is_matched", "se"))).tolist()),
    "mitigations": repr(states), "effects": effects.entries.to_csv(),
    "validation": validation(effects).to_csv(), "negatives": negatives(effects).to_csv(),
    "exact": repr(asyncio.run(biasconnect(lab, "alder", "nurse", settings)).sensitivity.tolist()),
}
for name, text in results.items():
    print(name, hashlib.sha256(text.encode()).hexdigest())
"""

#: the processors that children imitate: OpenBLAS' kernels, numpy's instruction sets, the C library's exp, log and pow
PROCESSORS = [
    {"OPENBLAS_CORETYPE": "Haswell"},
    {"OPENBLAS_CORETYPE": "SkylakeX"},
    {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"},
    {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F"},
]


def started(processor: dict[str, str]) -> subprocess.Popen:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **processor}
    command = [sys.executable, "-W", "ignore", "-c", SCIENCE]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def usual() -> str:
    return result(started({}))


def result(child: subprocess.Popen) -> str:
    printed, error = child.communicate(timeout=300)
    assert child.returncode == 0, error
    return printed


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: " ".join(processor.values()))
def test_tables_and_decisions_are_bit_identical_on_every_processor(processor, usual):
    assert len(usual.splitlines()) == 11
    assert result(started(processor)) == usual
