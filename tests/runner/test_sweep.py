"""A sweep as a user sees it, through real Ray actors: tables, resume, merging, failures, exit codes."""

import json
import os
import shutil
import signal

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.slow  # every test starts Ray, and some several times

CONFIG = """
name: small
models:
  - {name: one, engine: simulated, settings: {bytes: 64}, cpus: 0.2}
  - {name: two, engine: pictogram-draw, settings: {world: cedar}, cpus: 0.2}
vqa: {name: vlm, engine: simulated, cpus: 0.2}
subjects: [nurse, chef]
axes: [gender, age, disability]
images: 10
store: store
run: run
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "small.yaml").write_text(CONFIG)
    return "small.yaml"


def tables(run) -> dict[str, bytes]:
    names = ("answers", "distributions", "matrices", "failures")
    return {name: (run / f"{name}.parquet").read_bytes() for name in names}


def test_a_sweep_writes_the_contract_s_files_resumes_as_a_no_op_and_grows(config, tmp_path, seesaw):
    first = seesaw("sweep", config)
    assert first.code == 0, first.err
    run = tmp_path / "run"
    answers = pd.read_parquet(run / "answers.parquet")
    assert list(answers.columns) == [
        "model", "subject", "source_axis", "source_value", "image", "axis", "answer", "probability", "prompt", "seed",
        "image_key", "vlm",
    ]  # fmt: skip
    assert list(pd.read_parquet(run / "matrices.parquet").columns) == [
        "model", "subject", "source_axis", "target_axis", "is", "w_init", "w_after", "n_init", "n_after",
    ]  # fmt: skip
    assert list(pd.read_parquet(run / "distributions.parquet").columns) == [
        "model", "subject", "source_axis", "source_value", "axis", "attribute", "count", "share", "n",
    ]  # fmt: skip
    cells = answers[answers.axis == "person"].groupby(["model", "subject", "source_axis", "source_value"]).size()
    assert (cells == 10).all()
    assert len(cells) == 2 * 2 * (1 + 2 + 3 + 4)
    no_person = answers[(answers.axis == "person") & (answers.answer == "no")].image_key
    assert len(no_person)
    assert answers[answers.image_key.isin(no_person)].axis.unique().tolist() == ["person"]
    assert (run / "report" / "index.html").stat().st_size > 1000
    record = json.loads((run / "run.json").read_text())
    assert record["state"] == "done"
    assert record["counts"]["images_made"] == 40 * 16  # whole batches

    before = tables(run)
    again = seesaw("sweep", config)
    assert again.code == 0
    assert "nothing to do" in again.err
    assert tables(run) == before

    # the run's own config.yaml is a config, and analyze reads the run's answers to the same matrices
    assert "nothing to do" in seesaw("sweep", "run/config.yaml").err
    analyzed = seesaw("analyze", "run/answers.parquet", "--out", "out", "axes=[gender,age,disability]")
    assert analyzed.code == 0, analyzed.err
    assert pd.read_parquet(tmp_path / "out/matrices.parquet").equals(pd.read_parquet(run / "matrices.parquet"))

    # more images of one more subject: only what is new is made, and what was there stays as it was
    grown = seesaw("sweep", config, "images=20", "subjects=[nurse,chef,farmer]")
    assert grown.code == 0, grown.err
    counts = json.loads((run / "run.json").read_text())["counts"]
    assert counts["images_made"] == 40 * 8 + 20 * 24
    more = pd.read_parquet(run / "answers.parquet")
    kept = more[(more.image < 10) & more.subject.isin(["nurse", "chef"])].reset_index(drop=True)
    assert kept.equals(answers)

    # the same as a run that was never smaller
    fresh = seesaw("sweep", config, "images=20", "subjects=[nurse,chef,farmer]", "store=other", "run=other-run")
    assert fresh.code == 0, fresh.err
    assert tables(tmp_path / "other-run") == tables(run)

    for change, field in (("images=10", "images"), ("seed=4", "seed"), ("metric=ordinal", "metric.age")):
        refused = seesaw("sweep", config, "images=20", "subjects=[nurse,chef,farmer]", change)
        assert refused.code == 2
        assert field in refused.err
        assert "Traceback" not in refused.err
    gone = seesaw("sweep", config, "images=20", "subjects=[nurse,chef]")
    assert gone.code == 2
    assert "without farmer" in gone.err
    assert tables(run) == tables(tmp_path / "other-run")

    status = seesaw("status", "run", "--json")
    assert json.loads(status.out)["state"] == "done"
    assert seesaw("verify", "store").code == 0

    # a shard that was altered is found, set aside, and made again with the same result
    shard = next((tmp_path / "store" / "answers").glob("*/*.parquet"))
    flipped = bytearray(shard.read_bytes())
    flipped[len(flipped) // 2] ^= 8
    shard.write_bytes(flipped)
    for cut in list((tmp_path / "store" / "answers").glob("*/*.parquet"))[5:8]:
        os.truncate(cut, 40)
    (shard.parent / ".stale.parquet.1.tmp").write_bytes(b"x")
    (shard.parent / "foreign.txt").write_text("x")
    checked = seesaw("verify", "store")
    assert checked.code == 1
    assert f"damaged: answers/{shard.parent.name}/{shard.name}" in checked.out
    assert "temporary: " in checked.out
    assert "foreign: " in checked.out
    shutil.rmtree(run)
    mended = seesaw("sweep", config, "images=20", "subjects=[nurse,chef,farmer]")
    assert mended.code == 0, mended.err
    assert "altered" in mended.err
    assert "cut short" in mended.err
    assert "foreign" in mended.err
    assert tables(run) == tables(tmp_path / "other-run")


def test_images_and_tables_open_in_pandas_duckdb_and_datasets(config, tmp_path, seesaw):
    import datasets

    command = seesaw(
        "sweep", config, "models=[{name: two, engine: pictogram-draw, settings: {world: cedar}}]", "images=8"
    )
    assert command.code == 0, command.err
    shards = str(tmp_path / "store/images/*/*.parquet")
    loaded = datasets.load_dataset("parquet", data_files=shards, split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.num_rows == 20 * 8
    assert loaded[0]["image"].size == (64, 64)
    assert duckdb.sql(f"select count(distinct image_key) from '{shards}'").fetchall() == [(160,)]
    run = tmp_path / "run"
    counted = duckdb.sql(f"select count(*) from '{run}/answers.parquet' where axis = 'gender'").fetchall()
    frame = pd.read_parquet(run / "answers.parquet")
    assert counted == [((frame.axis == "gender").sum(),)]
    assert pd.read_parquet(run / "matrices.parquet")["is"].notna().all()


def test_what_fails_is_set_aside_and_the_rest_is_done(config, tmp_path, seesaw):
    """An engine that errs on some prompts and dies on others: exit code 1, failures listed, no matrix from a part."""
    model = "{name: one, engine: simulated, settings: {fails: old nurse, dies: female chef}, cpus: 0.2}"
    command = seesaw("sweep", config, f"models=[{model}]", "images=8", "cluster.attempts=2")
    assert command.code == 1, command.err
    assert "Traceback" not in command.err
    run = tmp_path / "run"
    failures = pd.read_parquet(run / "failures.parquet").sort_values("cell", ignore_index=True)
    assert list(failures.columns) == ["cell", "stage", "error", "attempts", "message", "command"]
    assert failures.cell.tolist() == [
        "one / chef / gender=female / images 0-7",
        "one / nurse / age=old / images 0-7",
    ]
    assert failures.error.tolist() == ["died", "RuntimeError"]
    assert failures.attempts.tolist() == [2, 2]
    matrices = pd.read_parquet(run / "matrices.parquet").set_index(["subject", "source_axis"])["is"]
    assert matrices.loc["nurse", "age"].isna().all()
    assert matrices.loc["chef", "gender"].isna().all()
    assert matrices.drop([("nurse", "age"), ("chef", "gender")]).notna().all()
    answers = pd.read_parquet(run / "answers.parquet")
    assert not ((answers.subject == "nurse") & (answers.source_value == "old")).any()
    # the same command tries what failed again, and nothing else
    again = seesaw("sweep", config, f"models=[{model}]", "images=8", "cluster.attempts=2")
    assert again.code == 1
    assert json.loads((run / "run.json").read_text())["counts"]["images_made"] == 0


def test_a_model_that_always_dies_fails_its_own_cells_and_the_others_go_on(config, tmp_path, seesaw):
    dying = "{name: dying, engine: simulated, settings: {dies: A}, cpus: 0.2}"
    living = "{name: living, engine: simulated, cpus: 0.2}"
    command = seesaw("sweep", config, f"models=[{dying},{living}]", "cluster.attempts=2", timeout=120)
    assert command.code == 1, command.err
    assert "Traceback" not in command.err
    matrices = pd.read_parquet(tmp_path / "run/matrices.parquet").set_index("model")
    assert matrices.loc["living", "is"].notna().all()
    assert matrices.loc["dying", "is"].isna().all()  # undefined, and there: what failed does not just vanish
    assert len(matrices.loc["dying"]) == len(matrices.loc["living"]) == 2 * 9
    failures = pd.read_parquet(tmp_path / "run/failures.parquet")
    assert failures.cell.str.startswith("dying / ").all()
    assert len(failures) == 2 * 10 * 2
    assert failures.message.str.contains("replicas in a row died without finishing a batch").any()


def test_an_extension_that_fails_leaves_the_way_back_open(config, tmp_path, seesaw):
    one = "models=[{name: one, engine: simulated, cpus: 0.2}]"
    assert seesaw("sweep", config, one).code == 0
    before = tables(tmp_path / "run")
    failed = seesaw("sweep", config, one, "images=40", "cluster.replicas.one=1000")
    assert failed.code == 4
    back = seesaw("sweep", config, one)
    assert back.code == 0, back.err
    assert tables(tmp_path / "run") == before


def test_a_damaged_image_shard_is_made_again_when_it_is_needed(config, tmp_path, seesaw):
    one = "models=[{name: two, engine: pictogram-draw, settings: {world: cedar}, cpus: 0.2}]"
    assert seesaw("sweep", config, one).code == 0
    before = tables(tmp_path / "run")
    shards = sorted((tmp_path / "store/images").glob("*/*.parquet"))
    sound = [shard.read_bytes() for shard in shards]
    flipped = bytearray(sound[0])
    flipped[60] ^= 1
    shards[0].write_bytes(flipped)
    shards[1].write_bytes(sound[2])  # a sound shard under another's name
    shutil.rmtree(tmp_path / "store/answers")
    shutil.rmtree(tmp_path / "run")
    again = seesaw("sweep", config, one)
    assert again.code == 0, again.err
    assert again.err.count("made again") == 2
    assert [shard.read_bytes() for shard in shards] == sound
    assert tables(tmp_path / "run") == before


def test_another_cluster_on_this_machine_is_not_joined_unasked(config, tmp_path, seesaw):
    """Ray remembers where a cluster was last started, and would join it, alive or not; RAY_ADDRESS says the same."""
    one = "models=[{name: one, engine: simulated, cpus: 0.2}]"
    command = seesaw("sweep", config, one, "images=8", env={"RAY_ADDRESS": "127.0.0.1:9"})
    assert command.code == 0, command.err


def test_more_than_the_machine_has_is_said_before_work_starts(config, tmp_path, seesaw):
    command = seesaw("sweep", config, "cluster.replicas.one=1000", "vqa.gpus=2", "cluster.gpus=0")
    assert command.code == 4
    assert "needs 2 GPUs" in command.err
    command = seesaw("sweep", config, "cluster.replicas.one=1000")
    assert command.code == 4
    assert "CPUs" in command.err
    assert not list((tmp_path / "store").glob("[!.]*"))  # nothing but its mark
    assert not (tmp_path / "run/run.json").exists()  # what never began binds no directory


def test_interrupted_it_finishes_what_is_in_flight_and_resumes(config, tmp_path, start, seesaw):
    slow = "models=[{name: one, engine: simulated, settings: {seconds: 0.02}, cpus: 0.2}]"
    few = "images=16", "cluster.replicas.one=1"  # a process of one's own for each replica takes a second of CPU time
    command = start("sweep", config, slow, *few, "--json")
    for event in command.events():
        if event["event"] == "answers":
            break
    refused = seesaw("sweep", config, slow, *few)
    assert refused.code == 2
    assert "another seesaw is at work" in refused.err
    os.kill(command.process.pid, signal.SIGINT)
    rest = list(command.events())
    command.finish()
    assert command.code == 3, command.err
    assert rest[-1]["state"] == "interrupted"
    shards = {p.name[:32] for p in (tmp_path / "store" / "images").glob("*/*.parquet")}
    assert json.loads(seesaw("status", "run", "--json").out)["state"] == "interrupted"
    done = seesaw("sweep", config, slow, *few)
    assert done.code == 0, done.err
    counts = json.loads((tmp_path / "run/run.json").read_text())["counts"]
    assert counts["images_made"] == 8 * (40 - len(shards))
    assert pq.read_table(tmp_path / "run/answers.parquet").num_rows > 0


def test_a_run_is_followed_from_another_terminal_until_it_ends(config, tmp_path, start, seesaw):
    slow = CONFIG.replace("engine: simulated, cpus", "engine: simulated, settings: {seconds: 0.01}, cpus")
    (tmp_path / "slow.yaml").write_text(slow)
    command = start("sweep", "slow.yaml", "cluster.replicas={one: 1, two: 1}", "--json")
    next(event for event in command.events() if event["event"] == "answers")
    followed = seesaw("status", "run", "--follow")
    assert followed.code == 0, followed.err
    lines = followed.out.splitlines()
    assert lines[0].endswith("sweep: a driver is at work")
    figures = [line for line in lines if "images/s" in line and line[2] == ":"]
    assert len(figures) >= 2
    assert len(set(figures)) == len(figures)
    assert "complete" in followed.out
    command.process.stdout.close()
    command.process.stderr.close()
    assert command.process.wait(timeout=100) == 0
