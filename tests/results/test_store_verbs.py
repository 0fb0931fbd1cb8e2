"""`seesaw store`: what belongs to whom, what goes and what stays, said first, and never beside a driver."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from seesaw.results.errors import EnvironmentFault, StoreError
from seesaw.results.store.identity import batch_key, image_key
from seesaw.results.store.lock import alone, at_work
from seesaw.results.store.store import ANSWER_SHARD, Store, shard_folder
from seesaw.runner.cli import main
from tests.results.test_store import images

A, B, VLM, OTHER = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)  # identities of two models and two VLMs


def shard_of(model: str, number: int) -> tuple[str, pa.Table]:
    """The name of a sound shard of images, and its content."""
    table = images(number)
    prompt = table["prompt"][0].as_py()
    keys = [image_key(model, prompt, "", seed) for seed in range(8)]
    table = table.set_column(0, "image_key", pa.array(keys))
    return (
        f"{shard_folder('images', 'model ' + model[0], model)}/{batch_key(model, prompt, '', range(8))}.parquet",
        table,
    )


def answers_of(vlm: str, image_shard: str, answer: str = "yes") -> tuple[str, pa.Table]:
    batch = image_shard.rpartition("/")[2].removesuffix(".parquet")
    row = {"image_key": "k", "question": "q", "choices": ["yes"], "probabilities": [1.0], "mass": 1.0}
    table = pa.Table.from_pylist([{**row, "answer": answer, "vlm": "vlm " + vlm[0]}] * 3, schema=ANSWER_SHARD)
    return f"{shard_folder('answers', 'vlm ' + vlm[0], vlm)}/{batch}-{'e' * 32}.parquet", table


def fill(root: Path, models: str = A + B, vlms: str = VLM, numbers: range = range(3)) -> Store:
    """A store with shards of some models, and answers of some VLMs about all of them."""
    store = Store(root)
    store.probe()
    for model in (models[i : i + 32] for i in range(0, len(models), 32)):
        for number in numbers:
            name, table = shard_of(model, number)
            store.commit(name, table)
            for vlm in (vlms[i : i + 32] for i in range(0, len(vlms), 32)):
                store.commit(*answers_of(vlm, name))
    return store


def run_with(folder: Path, *identities: str) -> Path:
    folder.mkdir(parents=True)
    models = {f"m{i}": identity for i, identity in enumerate(identities)}
    record = {"state": "done", "fingerprint": {"models": models, "seed": 0}}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def files(root: Path) -> dict[str, bytes]:
    """Every shard, by its name in the store."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.parquet")}


def of(shards: dict[str, bytes], identity: str) -> set[str]:
    return {name for name in shards if f"-{identity}/" in name}


def seesaw_store(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["store", *map(str, arguments)])


def events(result: Result) -> list[dict]:
    return [json.loads(line) for line in result.output.splitlines()]


def test_ls_says_what_is_there_of_whom_and_who_refers_to_it(tmp_path):
    fill(tmp_path / "store")
    run = run_with(tmp_path / "outputs/deep/er/a", A, VLM)
    os.utime(run / "run.json", (time.time() + 500, time.time() + 500))
    *folders, total = events(seesaw_store("ls", tmp_path / "store", "--runs", tmp_path / "outputs", "--json"))
    by_identity = {each["identity"]: each for each in folders}
    assert (by_identity[A]["name"], by_identity[A]["shards"], by_identity[A]["images"]) == ("model-a", 3, 24)
    assert (by_identity[VLM]["shards"], by_identity[VLM]["answers"]) == (6, 18)
    assert [by_identity[each]["runs"] for each in (A, B, VLM)] == [[str(run)], [], [str(run)]]
    assert by_identity[A]["last_used"] > by_identity[B]["last_used"]
    assert total["bytes"] == sum(map(len, files(tmp_path / "store").values()))
    shown = seesaw_store("ls", tmp_path / "store", "--runs", tmp_path / "outputs").output
    assert "model-a" in shown
    assert str(tmp_path / "outputs") in shown


def test_du_adds_up_to_all_bytes_and_counts_what_was_moved_aside(tmp_path):
    store = fill(tmp_path / "store")
    store.quarantine(shard_of(A, 0)[0])
    *folders, total = events(seesaw_store("du", tmp_path / "store", "--json"))
    assert {each["folder"].partition("/")[0] for each in folders} == {"images", "answers", "damaged"}
    assert total["bytes"] == sum(path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert seesaw_store("du", tmp_path / "nowhere").exit_code == 2


def test_gc_removes_what_no_run_refers_to_once_it_is_told_to_and_nothing_else(tmp_path):
    fill(tmp_path / "store", vlms=VLM + OTHER)
    run = run_with(tmp_path / "outputs/a", A, VLM)
    before = files(tmp_path / "store")
    told = seesaw_store("gc", tmp_path / "store", "--runs", tmp_path / "outputs")
    assert told.exit_code == 0, told.output
    assert str(run) in told.output
    assert "nothing is removed yet" in told.output
    assert files(tmp_path / "store") == before
    assert seesaw_store("gc", tmp_path / "store", "--runs", tmp_path / "outputs", "--yes").exit_code == 0
    answered = {answers_of(VLM, shard_of(A, number)[0])[0] for number in range(3)}
    assert files(tmp_path / "store").keys() == of(before, A) | answered
    assert "nothing to remove" in seesaw_store("gc", tmp_path / "store", "--runs", tmp_path / "outputs").output


def test_gc_sees_runs_behind_links_and_removes_nothing_where_it_cannot_know(tmp_path):
    fill(tmp_path / "store")
    run_with(tmp_path / "outputs/a", A, VLM)
    run_with(tmp_path / "elsewhere", B)
    (tmp_path / "outputs/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "outputs/round").symlink_to(tmp_path / "outputs")
    before = files(tmp_path / "store")

    def collected(runs: str) -> Result:
        return seesaw_store("gc", tmp_path / "store", "--runs", tmp_path / runs, "--yes")

    assert collected("outputs").exit_code == 0
    run_with(tmp_path / "others/x", "f" * 32)
    for runs, message in (("others", "refers to anything"), ("nowhere", "is no folder")):
        assert collected(runs).exit_code == 2
        assert message in collected(runs).output
    (tmp_path / "outputs/a/run.json").write_text("[")
    assert collected("outputs").exit_code == 2
    assert "nothing is removed" in collected("outputs").output
    assert files(tmp_path / "store") == before


def test_gc_takes_old_unfinished_writes_and_leaves_new_and_foreign_ones(tmp_path):
    fill(tmp_path / "store", models=A)
    run_with(tmp_path / "outputs/a", A, VLM)
    folder = next((tmp_path / "store/images").iterdir())
    for name in (".x.parquet.1.12345678.tmp", ".y.parquet.1.12345678.tmp", "notes.txt"):
        (folder / name).write_bytes(b"half")
    os.utime(folder / ".x.parquet.1.12345678.tmp", (0, 0))
    assert seesaw_store("gc", tmp_path / "store", "--runs", tmp_path / "outputs", "--yes").exit_code == 0
    assert {path.name for path in folder.iterdir() if path.suffix != ".parquet"} == {
        ".y.parquet.1.12345678.tmp",
        "notes.txt",
    }


def test_rm_takes_a_model_with_all_answers_about_it_or_one_folder(tmp_path):
    fill(tmp_path / "store", vlms=VLM + OTHER)
    run_with(tmp_path / "outputs/a", A, VLM)
    before = files(tmp_path / "store")
    told = seesaw_store("rm", tmp_path / "store", "model-a", "--runs", tmp_path / "outputs")
    assert str(tmp_path / "outputs/a") in told.output
    assert files(tmp_path / "store") == before
    assert seesaw_store("rm", tmp_path / "store", "aaaaaaa", "--yes").exit_code == 0
    gone = before.keys() - files(tmp_path / "store").keys()
    about = {answers_of(vlm, shard_of(A, number)[0])[0] for number in range(3) for vlm in (VLM, OTHER)}
    assert gone == of(before, A) | about
    folder = shard_folder("images", "model b", B)
    assert seesaw_store("rm", tmp_path / "store", folder, "--yes").exit_code == 0
    left = files(tmp_path / "store")
    assert not of(left, B)
    assert len(of(left, VLM)) == 3
    wrong = seesaw_store("rm", tmp_path / "store", "vlm-x")
    assert wrong.exit_code == 2
    assert "did you mean 'vlm-" in wrong.output


def test_rm_of_a_name_that_several_have_asks_which(tmp_path):
    fill(tmp_path / "store", models=A)
    shutil.copytree(
        tmp_path / "store" / shard_folder("images", "model a", A),
        tmp_path / "store" / shard_folder("images", "model a", B),
    )
    ambiguous = seesaw_store("rm", tmp_path / "store", "model-a", "--yes")
    assert ambiguous.exit_code == 2
    assert "say which" in ambiguous.output


def test_a_folder_that_is_a_link_is_not_emptied(tmp_path):
    fill(tmp_path / "store")
    folder = tmp_path / "store" / shard_folder("images", "model b", B)
    folder.rename(tmp_path / "mine")
    folder.symlink_to(tmp_path / "mine")
    run_with(tmp_path / "outputs/a", A, VLM)
    assert seesaw_store("gc", tmp_path / "store", "--runs", tmp_path / "outputs", "--yes").exit_code == 0
    assert len(list((tmp_path / "mine").iterdir())) == 3


def test_nothing_is_removed_or_moved_while_a_driver_is_at_work_and_a_killed_driver_leaves_no_lock(tmp_path):
    store = fill(tmp_path / "store")
    fill(tmp_path / "more", models=A)
    run_with(tmp_path / "outputs/a", A, VLM)
    program = (
        "import sys, time\nfrom seesaw.results.store.lock import at_work\n"
        "from seesaw.results.store.store import Store\n"
        "with at_work(Store(sys.argv[1])):\n    print('there', flush=True)\n    time.sleep(600)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", program, tmp_path / "store"], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout.readline() == "there\n"
        commands = [
            ("gc", tmp_path / "store", "--runs", tmp_path / "outputs", "--yes"),
            ("rm", tmp_path / "store", "model-a", "--yes"),
            ("mv", tmp_path / "store", tmp_path / "elsewhere", "--yes"),
            ("mv", tmp_path / "more", tmp_path / "store", "--yes"),
        ]
        for command in commands:
            refused = seesaw_store(*command)
            assert refused.exit_code == 4, refused.output
            assert "at work on the store" in refused.output
        with at_work(store):  # drivers share a store
            pass
        assert seesaw_store("merge", tmp_path / "more", tmp_path / "store", "--yes").exit_code == 0
    finally:
        driver.kill()
        driver.communicate()
    assert len(files(tmp_path / "store")) == 12
    with alone(store), pytest.raises(EnvironmentFault, match="being cleaned or moved"), at_work(store):
        pass
    assert seesaw_store(*commands[0]).exit_code == 0


def test_merge_copies_what_lacks_and_nothing_twice(tmp_path):
    fill(tmp_path / "one", models=A, numbers=range(4))
    fill(tmp_path / "two", models=A + B, numbers=range(2))
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    told = seesaw_store("merge", tmp_path / "one", tmp_path / "two")
    assert "would copy 4 shards" in told.output
    assert "4 are there already" in told.output
    assert files(tmp_path / "two") == two
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "two").rglob("*.parquet")}
    done = events(seesaw_store("merge", tmp_path / "one", tmp_path / "two", "--yes", "--json"))[-1]
    assert (done["shards"], done["same"], done["left"]) == (4, 4, 0)
    assert files(tmp_path / "two") == one | two
    assert files(tmp_path / "one") == one
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert all(problem is None for _, problem in Store(tmp_path / "two").verify())
    again = events(seesaw_store("merge", tmp_path / "one", tmp_path / "two", "--yes", "--json"))[-1]
    assert (again["shards"], again["same"]) == (0, 8)


def test_merge_into_a_store_where_the_model_has_another_name_uses_its_folder(tmp_path):
    fill(tmp_path / "one", models=A)
    fill(tmp_path / "two", models=A, numbers=range(1))
    (tmp_path / "two" / shard_folder("images", "model a", A)).rename(
        tmp_path / "two" / shard_folder("images", "renamed", A)
    )
    assert seesaw_store("merge", tmp_path / "one", tmp_path / "two", "--yes").exit_code == 0
    assert {path.name for path in (tmp_path / "two/images").iterdir()} == {f"renamed-{A}"}
    assert len(list((tmp_path / "two/images").rglob("*.parquet"))) == 3


def test_merge_tells_conflicts_and_damage_and_overwrites_nothing(tmp_path):
    fill(tmp_path / "one", models=A, numbers=range(4))
    two = fill(tmp_path / "two", models=A, numbers=range(1))
    name = shard_of(A, 1)[0]
    conflicting, table = answers_of(VLM, name, "no")
    two.commit(conflicting, table)
    (tmp_path / "two" / shard_of(A, 2)[0]).mkdir()
    damaged = tmp_path / "one" / shard_of(A, 3)[0]
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    (tmp_path / "one/images/notes").mkdir()
    one, before = files(tmp_path / "one"), {name: (tmp_path / "two" / name).read_bytes() for name in (conflicting,)}
    merged = seesaw_store("merge", tmp_path / "one", tmp_path / "two", "--yes", "--json")
    assert merged.exit_code == 1
    kinds = sorted((each["kind"], each["name"]) for each in events(merged) if each["event"] == "problem")
    assert kinds == [
        ("conflict", conflicting),
        ("conflict", shard_of(A, 2)[0]),
        ("damaged", shard_of(A, 3)[0]),
        ("foreign", "images/notes"),
    ]
    assert files(tmp_path / "one") == one
    assert (tmp_path / "two" / conflicting).read_bytes() == before[conflicting]
    assert two.read(name).num_rows == 8
    with pytest.raises((StoreError, FileNotFoundError)):
        two.read(shard_of(A, 3)[0])


def test_mv_renames_on_one_file_system(tmp_path):
    fill(tmp_path / "store")
    before = files(tmp_path / "store")
    inodes = {path.stat().st_ino for path in (tmp_path / "store").rglob("*.parquet")}
    assert "would move" in seesaw_store("mv", tmp_path / "store", tmp_path / "deep/er/store").output
    assert files(tmp_path / "store") == before
    assert seesaw_store("mv", tmp_path / "store", tmp_path / "deep/er/store", "--yes").exit_code == 0
    assert files(tmp_path / "deep/er/store") == before
    assert {path.stat().st_ino for path in (tmp_path / "deep/er/store").rglob("*.parquet")} == inodes
    assert not (tmp_path / "store").exists()
    for wrong in (tmp_path / "deep/er/store", tmp_path / "deep/er/store/inside"):
        assert seesaw_store("mv", tmp_path / "deep/er/store", wrong, "--yes").exit_code == 2


def test_mv_to_another_file_system_or_store_leaves_only_what_is_damaged(tmp_path):
    store = fill(tmp_path / "store", models=A)
    other = Path("/dev/shm") / f"seesaw-test-{os.getpid()}"
    before = files(tmp_path / "store")
    try:
        assert os.stat("/dev/shm").st_dev != os.stat(tmp_path).st_dev
        assert seesaw_store("mv", tmp_path / "store", other, "--yes").exit_code == 0
        assert files(other) == before
        assert not (tmp_path / "store").exists()
    finally:
        shutil.rmtree(other, ignore_errors=True)
    store = fill(tmp_path / "store", models=A)
    fill(tmp_path / "target", models=A, numbers=range(1))
    store.quarantine(shard_of(A, 0)[0])
    damaged = tmp_path / "store" / shard_of(A, 2)[0]
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"some PAR1")
    moved = seesaw_store("mv", tmp_path / "store", tmp_path / "target", "--yes")
    assert moved.exit_code == 1
    assert "damaged" in moved.output
    left = {str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store").rglob("*.parquet*")}
    assert shard_of(A, 2)[0] in left
    assert len(left) == 2  # and the one that was moved aside before
    assert files(tmp_path / "target").keys() == before.keys() - {shard_of(A, 2)[0]}


def test_mv_does_not_mix_a_store_with_other_files(tmp_path):
    fill(tmp_path / "store")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/one.png").write_bytes(b"mine")
    refused = seesaw_store("mv", tmp_path / "store", tmp_path / "photos", "--yes")
    assert refused.exit_code == 2
    assert "holds other files" in refused.output
