"""The store: whole or absent, whatever is killed, and no altered byte goes unseen."""

import contextlib
import hashlib
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seesaw.results.errors import EnvironmentFault, StoreError, StoreUnavailable
from seesaw.results.store.costs import MeasuredCosts, read_costs, write_costs
from seesaw.results.store.identity import batch_key, image_key
from seesaw.results.store.parquet import plain_table
from seesaw.results.store.shards import check_vlm, serialise
from seesaw.results.store.store import ANSWER_SHARD, IMAGE_SHARD, Store, shard_folder

IDENTITY = "0123456789abcdef" * 2
FOLDER = shard_folder("images", "a model", IDENTITY)


def prompt(number: int) -> str:
    return f"A photo of nurse {number}"


def shard(number: int) -> str:
    return f"{FOLDER}/{batch_key(IDENTITY, prompt(number), '', range(8))}.parquet"


def images(number: int, size: int = 200) -> pa.Table:
    noise = random.Random(number)
    rows = [
        {
            "image_key": image_key(IDENTITY, prompt(number), "", i),
            "image": {"bytes": noise.randbytes(size), "path": f"{i}.png"},
            "model": "a model",
            "prompt": prompt(number),
            "adapter": "",
            "seed": i,
        }
        for i in range(8)
    ]
    return pa.Table.from_pylist(rows, schema=IMAGE_SHARD)


def test_a_committed_shard_is_read_back(tmp_path):
    store = Store(tmp_path)
    assert store.commit(shard(1), images(1))
    assert store.read(shard(1)).to_pylist() == images(1).to_pylist()
    assert store.names(FOLDER) == {shard(1)}


def test_the_first_commit_stays_and_the_second_returns_false(tmp_path):
    store = Store(tmp_path)
    assert store.commit(shard(1), images(1))
    assert not store.commit(shard(1), images(2))
    assert store.read(shard(1)).to_pylist() == images(1).to_pylist()


def test_the_same_rows_give_the_same_bytes(tmp_path):
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    for store in (one, two):
        store.commit(shard(1), images(1))
    assert (tmp_path / "one" / shard(1)).read_bytes() == (tmp_path / "two" / shard(1)).read_bytes()


def test_every_flipped_byte_is_noticed(tmp_path):
    store = Store(tmp_path)
    store.commit(shard(1), images(1, size=20))
    path = tmp_path / shard(1)
    sound = path.read_bytes()
    for position in range(len(sound)):
        altered = bytearray(sound)
        altered[position] ^= 1 << position % 8
        path.write_bytes(altered)
        with pytest.raises(StoreError):
            store.read(shard(1))


def test_verify_names_what_is_damaged_temporary_and_foreign_and_passes_what_is_sound(tmp_path):
    store = Store(tmp_path)
    for number in range(4):
        store.commit(shard(number), images(number))
    folder = tmp_path / FOLDER
    flipped = bytearray((tmp_path / shard(0)).read_bytes())
    flipped[100] ^= 1
    (tmp_path / shard(0)).write_bytes(flipped)
    os.truncate(tmp_path / shard(1), 900)
    (folder / ".half.parquet.123.abcd1234.tmp").write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    verified = {name: problem.kind if problem else "sound" for name, problem in store.verify()}
    assert verified == {
        shard(0): "damaged",
        shard(1): "damaged",
        shard(2): "sound",
        shard(3): "sound",
        f"{FOLDER}/.half.parquet.123.abcd1234.tmp": "temporary",
        f"{FOLDER}/notes.txt": "foreign",
        "elsewhere": "foreign",
    }


def test_verify_finds_a_sound_shard_under_the_name_of_another(tmp_path):
    store = Store(tmp_path)
    for number in range(2):
        store.commit(shard(number), images(number))
    (tmp_path / shard(0)).write_bytes((tmp_path / shard(1)).read_bytes())
    verified = {name: problem for name, problem in store.verify() if problem}
    assert list(verified) == [shard(0)]
    assert "another batch" in verified[shard(0)].message


def test_a_shard_cut_short_is_not_listed_and_can_be_made_again(tmp_path):
    store = Store(tmp_path)
    store.commit(shard(1), images(1))
    os.truncate(tmp_path / shard(1), 500)
    assert store.names(FOLDER) == set()
    assert [p.kind for p in store.problems(FOLDER)] == ["damaged"]
    kept = store.quarantine(shard(1))
    assert (tmp_path / kept).stat().st_size == 500
    assert store.commit(shard(1), images(1))
    assert store.read(shard(1)).num_rows == 8


@pytest.mark.parametrize("place", ["damaged", "damaged/images"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, place):
    store = Store(tmp_path)
    store.commit(shard(1), images(1))
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    with pytest.raises(EnvironmentFault, match=f"{place}' is no folder"):
        store.quarantine(shard(1))
    assert store.read(shard(1)).num_rows == 8


def test_a_copy_of_a_folder_that_sorts_first_does_not_take_its_place(tmp_path):
    store = Store(tmp_path)
    for number in range(4):
        store.commit(shard(number), images(number))
    copy = shard_folder("images", "aaa a model", IDENTITY)
    shutil.copytree(tmp_path / FOLDER, tmp_path / copy)
    (tmp_path / copy / shard(3).rpartition("/")[2]).unlink()
    assert store.folder("images", "a model", IDENTITY) == FOLDER
    assert [(problem.name, problem.kind) for problem in store.problems(FOLDER)] == [(copy, "foreign")]
    assert {name for name, problem in store.verify() if problem} == {FOLDER, copy}
    for name in ("renamed", "b"):  # neither folder has this name: the one with more shards
        assert store.folder("images", name, IDENTITY) == FOLDER


@pytest.mark.parametrize("place", [f"images/{'x' * 61}-{IDENTITY}", f"images/.x-{IDENTITY}", f"images/a b-{IDENTITY}"])
def test_a_folder_that_no_model_could_have_is_no_models(tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    assert Store(tmp_path).folder("images", "a model", IDENTITY) == FOLDER


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _vast(path: Path) -> None:
    with path.open("wb") as file:
        file.seek(3 << 30)
        file.write(b"PAR1")


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(f"/proc/self/fd/{folder}/{path.name}")  # the whole path may be too long for a socket
    os.close(folder)


@pytest.mark.parametrize("make", [_fifo, _endless, _vast, _socket, Path.mkdir])
def test_what_is_no_file_or_too_large_for_a_shard_is_neither_waited_for_nor_read(tmp_path, make):
    store = Store(tmp_path)
    store.commit(shard(1), images(1))
    (tmp_path / shard(1)).unlink()
    make(tmp_path / shard(1))
    with _memory(1 << 30), pytest.raises(StoreError, match=re.escape(shard(1))):
        store.read(shard(1))
    with _memory(1 << 30):
        ((name, problem),) = store.verify()
    assert (name, problem.kind) == (shard(1), "damaged")
    assert store.quarantine(shard(1)).startswith("damaged/")
    assert store.commit(shard(1), images(1))


def _garbage(path: Path) -> None:
    path.write_bytes(b"PAR1 something PAR1")


def _other_batch(path: Path) -> None:
    path.write_bytes(serialise(images(2), shard(2)))


def _leads_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [_fifo, _endless, _vast, _socket, Path.mkdir, _garbage, _other_batch, _leads_nowhere])
def test_what_takes_a_shards_name_while_a_run_is_live_is_moved_aside_by_the_commit(tmp_path, make):
    store = Store(tmp_path)
    store.commit(shard(2), images(2))
    make(tmp_path / shard(1))
    assert store.commit_or_keep(shard(1), images(1)).to_pylist() == images(1).to_pylist()
    assert store.read(shard(1)).to_pylist() == images(1).to_pylist()
    (moved,) = os.listdir(tmp_path / "damaged" / FOLDER)
    assert moved.startswith(f"{Path(shard(1)).name}.")


def test_a_sound_shard_is_kept_by_a_second_commit(tmp_path):
    store = Store(tmp_path)
    store.commit(shard(1), images(1))
    other_pixels = images(1).set_column(1, "image", images(2)["image"])
    assert store.commit_or_keep(shard(1), other_pixels).to_pylist() == images(1).to_pylist()
    assert not store.quarantined()


def test_shards_that_are_gone_and_things_that_were_moved_aside_are_told(tmp_path):
    store = Store(tmp_path)
    for number in (1, 2):
        store.commit(shard(number), images(number))
    (tmp_path / shard(1)).unlink()
    assert store.gone(FOLDER, {shard(1), shard(2), "images/other/x.parquet"}) == {shard(1)}
    assert store.quarantined() == set()
    moved = store.quarantine(shard(2))
    assert store.quarantined() == {moved}


@contextlib.contextmanager
def _memory(more: int):
    """At most `more` bytes of address space beyond what the process has."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_costs_in_a_fifo_are_not_waited_for(tmp_path):
    store = Store(tmp_path)
    write_costs(store, {FOLDER: MeasuredCosts(1, 1.0, 1.0)})
    path = tmp_path / f"costs/{FOLDER.rpartition('/')[2]}.json"
    path.unlink()
    os.mkfifo(path)
    assert read_costs(store, FOLDER) is None


def _signed(table: pa.Table, **options: object) -> bytes:
    """The bytes of a shard with any columns, and a valid SHA-256."""
    sink = pa.BufferOutputStream()
    options = {"use_dictionary": False, **options}
    with pq.ParquetWriter(sink, table.schema, compression="zstd", **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"seesaw.sha256": "0" * 64})
    content = sink.getvalue().to_pybytes()
    return content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode())


@pytest.mark.parametrize("change", ["further column", "other type", "vast column"])
def test_a_shard_is_read_only_if_its_columns_are_those_of_its_schema(tmp_path, change):
    store = Store(tmp_path)
    store.commit(shard(1), images(1))
    table = images(1)
    if change == "further column":
        table = table.append_column("more", pa.array(["x"] * 8))
    elif change == "other type":
        table = table.set_column(5, "seed", table["seed"].cast(pa.int32()))
    else:
        table = table.set_column(3, "prompt", pa.array(["a" * (140 << 20)] * 8))
    content = _signed(table)
    assert len(content) < 1 << 20
    del table
    (tmp_path / shard(1)).write_bytes(content)
    with _memory(1 << 30), pytest.raises(StoreError, match="cannot be read"):
        store.read(shard(1))


def test_a_shard_whose_dictionary_holds_one_vast_word_does_not_fill_the_memory(tmp_path):
    """By its footer the column is as large as one word; each of its rows is that word."""
    store = Store(tmp_path)
    store.commit(shard(1), images(1))
    size, repeats = 50 << 20, 60  # three GB
    word = pa.DictionaryArray.from_arrays(pa.array([0] * repeats, pa.int32()), pa.array(["a" * size]))
    rows = pa.concat_tables([images(1).slice(0, 1)] * repeats).set_column(3, "prompt", word)
    content = _signed(rows, use_dictionary=["prompt"], dictionary_pagesize_limit=1 << 30, store_schema=False)
    assert len(content) < 1 << 21
    del rows, word
    (tmp_path / shard(1)).write_bytes(content)
    with _memory((1 << 30) + 6 * size), pytest.raises(StoreError, match="cannot be read"):
        store.read(shard(1))


def test_a_sound_shard_of_which_the_dictionaries_could_be_too_large_is_read(tmp_path):
    store = Store(tmp_path)
    store.commit(shard(1), images(1))
    content = (tmp_path / shard(1)).read_bytes()
    table = plain_table(content, largest=len(content))  # row by row
    assert table.equals(store.read(shard(1)))
    assert table.schema.metadata == store.read(shard(1)).schema.metadata


VLM = shard_folder("answers", "a vlm", "a" * 32)
ANSWERS = f"{VLM}/{'b' * 32}-{'c' * 32}.parquet"


def answers(vlm: str) -> pa.Table:
    row = {"image_key": "k", "question": "q", "choices": ["yes"], "answer": "yes", "probabilities": [1.0], "mass": 1.0}
    return pa.Table.from_pylist([{**row, "vlm": vlm}], schema=ANSWER_SHARD)


@pytest.mark.parametrize(
    "other",
    [
        f"{shard_folder('answers', 'another', 'd' * 32)}/{'b' * 32}-{'c' * 32}.parquet",
        f"{VLM}/{'d' * 32}-{'c' * 32}.parquet",
        f"{VLM}/{'b' * 32}-{'d' * 32}.parquet",
    ],
    ids=["vlm", "batch", "questionnaire"],
)
def test_answers_of_another_vlm_batch_or_questionnaire_are_refused(tmp_path, other):
    store = Store(tmp_path)
    for name in (ANSWERS, other):
        store.commit(name, answers("a vlm"))
    assert all(problem is None for _, problem in store.verify())
    shutil.copyfile(tmp_path / other, tmp_path / ANSWERS)
    with pytest.raises(StoreError, match="of another VLM, batch or questionnaire"):
        store.read(ANSWERS)
    assert [(name, problem.kind) for name, problem in store.verify() if problem] == [(ANSWERS, "damaged")]


def test_older_answers_that_carry_no_identity_are_known_by_the_name_of_their_vlm(tmp_path):
    store = Store(tmp_path)
    store.commit(ANSWERS, answers("a vlm"))
    (tmp_path / ANSWERS).write_bytes(serialise(answers("a vlm")))
    check_vlm(ANSWERS, store.read(ANSWERS))
    assert [problem for _, problem in store.verify()] == [None]
    (tmp_path / ANSWERS).write_bytes(serialise(answers("other vlm")))
    with pytest.raises(StoreError, match="of the VLM 'other vlm'"):
        check_vlm(ANSWERS, store.read(ANSWERS), ["a vlm"])
    check_vlm(ANSWERS, store.read(ANSWERS), ["other vlm"])  # renamed since
    assert [problem.kind for _, problem in store.verify()] == ["unproven"]


def test_answers_of_a_vlm_that_was_renamed_are_still_its_own(tmp_path):
    store = Store(tmp_path)
    store.commit(ANSWERS, answers("renamed"))
    check_vlm(ANSWERS, store.read(ANSWERS), ["renamed again"])
    assert [problem for _, problem in store.verify()] == [None]


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", "...", "ÄÖ é", "x" * 300])
def test_a_name_from_data_never_becomes_a_path(name):
    folder = shard_folder("images", name, "f" * 32)
    kind, _, rest = folder.partition("/")
    assert kind == "images"
    assert "/" not in rest
    assert not rest.startswith(".")
    assert rest.endswith("-" + "f" * 32)
    assert len(rest) < 100


def _commit_forever(root: str, first: int) -> None:
    store = Store(root)
    for number in range(first, first + 10**6):
        store.commit(shard(number), images(number))


@pytest.mark.slow  # kills writers over and over
def test_a_writer_killed_at_any_moment_leaves_only_complete_shards(tmp_path):
    """SIGKILL, 12 times at random moments: every listed shard reads back as it was meant."""
    moments = random.Random(3)
    context = multiprocessing.get_context("spawn")
    for attempt in range(12):
        writer = context.Process(target=_commit_forever, args=(str(tmp_path), 1000 * attempt))
        writer.start()
        folder = tmp_path / FOLDER
        while not folder.is_dir() or not (tmp_path / shard(1000 * attempt)).exists():
            assert writer.is_alive()
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.05))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    store = Store(tmp_path)
    names = store.names(FOLDER)
    assert len(names) >= 12
    meant = {shard(1000 * attempt + i): 1000 * attempt + i for attempt in range(12) for i in range(1000)}
    for name in names:
        assert store.read(name).to_pylist() == images(meant[name]).to_pylist()


def test_a_store_that_cannot_be_written_or_opened_says_so_before_work_starts(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        Store(tmp_path / "file" / "store").probe()
    with pytest.raises(EnvironmentFault, match="cannot be opened"):
        Store("nosuchscheme://bucket/x")


def mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


@pytest.fixture
def small(tmp_path):
    """A filesystem of 1 MiB, mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "seesaw-tests", folder)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_waited_for_and_the_same_store_works_once_there_is_room(small):
    store = Store(small / "store")
    store.probe()
    store.commit(shard(1), images(1))
    with pytest.raises(StoreUnavailable, match="is full: No space left on device; make room and the run goes on"):
        store.commit(shard(2), images(2, size=200_000))
    assert store.problems(FOLDER) == []
    assert store.names(FOLDER) == {shard(1)}
    (small / "other").write_bytes(bytes(900_000))
    with pytest.raises(StoreUnavailable, match="is full"):
        store.commit(shard(3), images(3, size=20_000))
    filled = os.statvfs(small)
    (small / "rest").write_bytes(bytes(filled.f_bsize * filled.f_bavail))
    with pytest.raises(EnvironmentFault, match="cannot be written"):  # before work starts nothing is waited for
        store.probe()
    (small / "other").unlink()
    assert store.commit(shard(3), images(3, size=20_000))
    assert store.read(shard(3)).num_rows == 8


def test_a_filesystem_that_became_read_only_is_waited_for(small):
    store = Store(small / "store")
    store.commit(shard(1), images(1))
    mount("-o", "remount,ro", small)
    with pytest.raises(StoreUnavailable, match="cannot be reached: Read-only file system"):
        store.commit(shard(2), images(2))
    with pytest.raises(StoreUnavailable, match="cannot be reached: Read-only file system"):
        store.quarantine(shard(1))
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        store.probe()
    assert store.read(shard(1)).num_rows == 8
    mount("-o", "remount,rw", small)
    assert store.commit(shard(2), images(2))


@pytest.mark.parametrize("inside", ["", "store"])
def test_an_unmounted_share_is_waited_for_and_never_written_to_beneath(small, tmp_path, inside):
    share = tmp_path / "share"
    share.mkdir()
    mount("--bind", small, share)
    (share / inside).mkdir(exist_ok=True)
    store = Store(share / inside)
    store.probe()
    store.commit(shard(1), images(1))
    subprocess.run(["umount", share], check=True)
    calls = [
        lambda: store.commit(shard(2), images(2)),
        lambda: store.read(shard(1)),
        lambda: store.quarantine(shard(1)),
        lambda: store.names(FOLDER),
        lambda: store.problems(FOLDER),
        lambda: store.folders(),
        lambda: list(store.verify()),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable, match="cannot be reached: its folder is not there any more"):
            call()
    with pytest.raises(EnvironmentFault):
        store.probe()
    assert list(share.iterdir()) == []
    mount("--bind", small, share)
    assert store.commit(shard(2), images(2))
    assert store.names(FOLDER) == {shard(1), shard(2)}
    subprocess.run(["umount", share], check=True)


def test_a_store_opened_while_its_share_is_not_mounted_writes_nothing_beneath(small, tmp_path):
    """A replica that starts in the meantime has never seen the store, and must not take the mount point for it."""
    share = tmp_path / "share"
    share.mkdir()
    mount("--bind", small, share)
    Store(share).probe()
    subprocess.run(["umount", share], check=True)
    late = Store(share, exists=True)
    with pytest.raises(StoreUnavailable, match="its folder is not there any more"):
        late.commit(shard(1), images(1))
    write_costs(late, {FOLDER: MeasuredCosts(3, 1.0, 2.0)})
    assert list(share.iterdir()) == []
    mount("--bind", small, share)
    assert late.commit(shard(1), images(1))
    subprocess.run(["umount", share], check=True)


@pytest.mark.parametrize(
    "content",
    ["", "[" * 100_000, '{"batches": 1e999, "seconds": 1, "load_seconds": 1}', '{"batches": 2, "seconds": NaN}', "[]"],
)
def test_a_costs_file_that_makes_no_sense_counts_as_none(tmp_path, content):
    store = Store(tmp_path / "store")
    write_costs(store, {FOLDER: MeasuredCosts(3, 1.5, 2.0)})
    assert read_costs(store, FOLDER) == MeasuredCosts(3, 1.5, 2.0)
    (file,) = (tmp_path / "store" / "costs").iterdir()
    file.write_text(content)
    assert read_costs(store, FOLDER) is None
    assert [problem for _, problem in store.verify() if problem] == []


@pytest.fixture
def nobody():
    """Not root, whom no mode of a file stops."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


@pytest.fixture
def closed(tmp_path):
    store = Store(tmp_path / "store")
    store.commit(shard(1), images(1))
    for folder in (tmp_path / "store" / FOLDER, tmp_path / "store"):
        folder.chmod(0o500)
    yield store
    for folder in (tmp_path / "store", tmp_path / "store" / FOLDER):
        folder.chmod(0o700)


def test_a_store_that_this_user_may_not_write_is_an_error_at_once(closed, nobody):
    for call in (closed.probe, lambda: closed.commit(shard(2), images(2)), lambda: closed.quarantine(shard(1))):
        with pytest.raises(EnvironmentFault, match=r"denies access: .*Permission denied.*this user must be allowed"):
            call()


def test_an_absent_shard_is_not_an_error_of_the_store(tmp_path):
    store = Store(tmp_path / "not yet")
    with pytest.raises(FileNotFoundError):
        store.read(shard(1))
    assert store.names(FOLDER) == set()
    store.probe()
    assert store.commit(shard(1), images(1))
