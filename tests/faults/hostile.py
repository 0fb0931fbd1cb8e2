"""Data as an attacker would make them: a run directory and a dataset in which every name is a word of choice."""

import io
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from click.testing import CliRunner
from PIL import Image

from seesaw.results.store.identity import batch_key, digest, image_key, image_seed
from seesaw.results.store.store import IMAGE_SHARD, Store, shard_folder
from seesaw.results.tables.schemas import FAILURES
from seesaw.results.tables.write import table_of
from seesaw.runner.cli import main

SCRIPT = "<script>alert(1)</script>"
HEADER = ["model", "subject", "source_axis", "source_value", "image", "axis", "answer"]


def axis_of(word: str, name: str) -> str:
    return f"{word} {name}".replace("+", "").strip()  # a + in it would be refused, and so would the space


def value_of(word: str, name: str) -> str:
    return f"{word} {name}".strip()


def hostile_dataset(word: str) -> dict[str, object]:
    axes = {
        axis_of(word, axis): {
            "attributes": [value_of(word, "a"), value_of(word, "b")],
            "question": f"Which {axis}?",
            "counterfactuals": {value_of(word, value): {"adjective": axis + value} for value in "ab"},
        }
        for axis in "xy"
    }
    return {"name": f"n {word}".strip(), "template": "A {subject}", "subjects": [word.strip()], "axes": axes}


def hostile_answers(word: str) -> pd.DataFrame:
    """32 images of the initial prompt and of every counterfactual; x tips y."""
    rows = []
    for source, value in [("", ""), *((source, value) for source in "xy" for value in "ab")]:
        states = (axis_of(word, source), value_of(word, value)) if source else ("", "")
        for image, axis in ((image, axis) for image in range(32) for axis in "xy"):
            answer = "a" if image % 2 or (source and axis == "y") else "b"
            rows.append((word, word.strip(), *states, image, axis_of(word, axis), value_of(word, answer)))
    return pd.DataFrame(rows, columns=HEADER)


def hostile_run(root: Path, word: str, images: tuple[bytes, ...] = ()) -> Path:
    """A run directory in which every name is `word`, as somebody may hand it on, and a store with `images`."""
    run, identity = root / "run", digest("model", {})
    run.mkdir(parents=True)
    (root / "hostile.yaml").write_text(yaml.safe_dump(hostile_dataset(word)))
    frame, prompt = hostile_answers(word), f"A {word}"
    keys = {seed: image_key(identity, prompt, "", image_seed(0, seed)) for seed in range(8)}
    frame = frame.assign(
        probability=1.0, prompt=prompt, seed=frame["image"], image_key=frame["image"].map(keys), vlm=word
    )
    frame.to_parquet(run / "answers.parquet", index=False)
    done = CliRunner().invoke(
        main, ["analyze", str(run / "answers.parquet"), "--out", str(run), f"dataset={root / 'hostile.yaml'}"]
    )
    assert done.exit_code == 0, done.output
    failure = dict.fromkeys(FAILURES.names, word) | {"attempts": 1}
    pq.write_table(table_of(pd.DataFrame([failure]), FAILURES), run / "failures.parquet")
    finger = {"models": {word: identity}, "seed": 0, "vqa": {word: word}, "store": str(root / "store")}
    record = {
        "state": word,
        "command": word,
        "id": word,
        "fingerprint": finger,
        "versions": {word: word},
        "began": word,
    }
    (run / "run.json").write_text(json.dumps(record))
    config = {"name": "n", "models": [{"name": "m [red]x", "engine": "simulated"}], "vqa": "simulated", "images": 8}
    text = yaml.safe_dump({**config, "dataset": hostile_dataset(word), "store": str(root / "store")})
    (run / "config.yaml").write_text(text)
    if images:
        seeds = [image_seed(0, seed) for seed in range(8)]
        encoded_images = [{"bytes": images[i % len(images)], "path": None} for i in range(8)]
        columns = {
            "image_key": list(keys.values()),
            "image": encoded_images,
            "model": [word] * 8,
            "prompt": [prompt] * 8,
        }
        columns |= {"adapter": [""] * 8, "seed": seeds, "withheld": [""] * 8}
        name = f"{shard_folder('images', word, identity)}/{batch_key(identity, prompt, '', seeds)}.parquet"
        Store(root / "store").commit(name, pa.table(columns, schema=IMAGE_SHARD))
    return run


def encoded(form: str, side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.radial_gradient("L").resize((side, side)).convert("RGB").save(file, form)
    return file.getvalue()
