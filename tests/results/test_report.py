"""A run directory becomes one page that needs nothing else, says what the tables say, and survives what is missing."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from actors.engines import TTI_ENGINES, engine_class
from actors.pictogram.codes import read_prompt
from experiments.analysis import analyze, answer_rows
from experiments.dataset import Dataset
from experiments.lab import Answers, Observations
from experiments.prompts import Prompt, prompts_of
from experiments.questionnaire import observations_of
from results.errors import RunDirectoryError
from results.heatmap import heatmap, signed
from results.report import write_report
from results.store import IMAGES, Store
from results.tables import FAILURES, table_of, write_table
from runner.experiment import Experiment, Served, load_experiment
from runner.plan import Batch, batches_of
from runner.rundir import RunDirectory

HOSTILE = '<script>alert("nurse & co")</script>'
SMALL = ["models=[pictogram-alder]", "subjects=[nurse]", "axes=[gender,clothing,environment]", "images=10", "seed=3"]
