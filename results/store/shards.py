"""What a shard is: a Parquet file that carries its own SHA-256.

The footer holds the 64 hex digits of the hash, which was taken with zeros in their place. So every flipped byte is
noticed, in data and in metadata. The same rows give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seesaw.results.errors import StoreError
from seesaw.results.secrets import first_line
from seesaw.results.store.identity import batch_key, image_key
from seesaw.results.store.parquet import plain_metadata, plain_table

__all__ = [
    "ANSWER_SHARD",
    "ENDING",
    "IMAGE_SHARD",
    "LARGEST_SHARD",
    "check_name",
    "check_vlm",
    "deserialise",
    "digest_in",
    "readable_name",
    "rows_in",
    "serialise",
]

LARGEST_SHARD = 1 << 30  #: bytes, of the file and of its data uncompressed: eight images of 128 MB each
IMAGE_SHARD = pa.schema(
    [
        ("image_key", pa.string()),
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("model", pa.string()),
        ("prompt", pa.string()),
        ("adapter", pa.string()),
        ("seed", pa.int64()),
        ("withheld", pa.string()),  # "" for an image that is asked about, else why it is not; it may be null then
    ]
)
ANSWER_SHARD = pa.schema(
    [
        ("image_key", pa.string()),
        ("question", pa.string()),
        ("choices", pa.list_(pa.string())),
        ("answer", pa.string()),
        ("probabilities", pa.list_(pa.float64())),
        ("mass", pa.float64()),
        ("vlm", pa.string()),
    ]
)
_FEATURES = {
    **{
        name: {"dtype": str(IMAGE_SHARD.field(name).type), "_type": "Value"}
        for name in IMAGE_SHARD.names
        if name != "image"
    },
    "image": {"_type": "Image"},
}
_HUGGING_FACE = {"huggingface": json.dumps({"info": {"features": {n: _FEATURES[n] for n in IMAGE_SHARD.names}}})}
_DIGEST = "seesaw.sha256"
_ANSWERS = "seesaw.answers"
_ZEROS = b"0" * 64
ENDING = 1 << 16  #: bytes at the end of a shard that hold its footer


def serialise(table: pa.Table, name: str = "") -> bytes:
    """The bytes of a shard, which is to be called `name`. StoreError if they are more than a shard may have.

    A shard of answers carries the identities of its VLM, batch and questionnaire, which its columns do not tell.
    """
    schema = table.schema.with_metadata(_HUGGING_FACE) if table.schema.names == IMAGE_SHARD.names else table.schema
    sink = pa.BufferOutputStream()
    # PNGs do not compress further; with page checksums other readers notice a flipped byte too
    codec: Any = {name: "NONE" if name.startswith("image.") else "ZSTD" for name in _leaves(schema)}
    with pq.ParquetWriter(
        sink, schema, compression=codec, write_page_checksum=True, write_statistics=False, store_schema=True
    ) as writer:
        writer.write_table(table.cast(schema))
        if name.startswith("answers/"):
            writer.add_key_value_metadata({_ANSWERS: _answers_identity(name)})
        writer.add_key_value_metadata({_DIGEST: _ZEROS.decode()})
    content: bytes = sink.getvalue().to_pybytes()
    if table.nbytes > LARGEST_SHARD or len(content) > LARGEST_SHARD:  # nobody would read it
        raise StoreError(f"a batch of {table.nbytes:,} bytes is too large: a shard has {LARGEST_SHARD:,} at most")
    at = _digest_at(content)
    return content[:at] + hashlib.sha256(content).hexdigest().encode() + content[at + 64 :]


def _leaves(schema: pa.Schema) -> Iterator[str]:
    for field in schema:
        if pa.types.is_struct(field.type):
            yield from (f"{field.name}.{field.type.field(i).name}" for i in range(field.type.num_fields))
        elif pa.types.is_list(field.type):
            yield f"{field.name}.list.element"
        else:
            yield field.name


def _digest_at(content: bytes) -> int:
    """Offset of the 64 hex digits in the footer, -1 without them."""
    at = content.rfind(_DIGEST.encode())
    if at < 0:
        return -1
    digits = re.compile(rb"[0-9a-f]{64}").search(content, at + len(_DIGEST))
    return digits.start() if digits else -1


def digest_in(ending: bytes) -> str:
    """The SHA-256 that a shard carries, from its last bytes; "" if there is none."""
    at = _digest_at(ending)
    return ending[at : at + 64].decode() if at >= 0 else ""


def rows_in(ending: bytes) -> int:
    """Rows of a shard, by the footer in its last bytes. Raises pa.ArrowException or OSError if there is none."""
    return int(plain_metadata(ending).num_rows)


def deserialise(name: str, content: bytes) -> pa.Table:
    """The table of a shard. StoreError if a single byte differs from what `serialise` made."""
    at = _digest_at(content)
    if at < 0 or content[-4:] != b"PAR1":
        raise StoreError(f"shard '{name}' is cut short or was not written by Seesaw ({len(content)} bytes)")
    claimed = content[at : at + 64].decode()
    if hashlib.sha256(content[:at] + _ZEROS + content[at + 64 :]).hexdigest() != claimed:
        raise StoreError(f"shard '{name}' was altered after it was committed: its SHA-256 is not the one it carries")
    try:
        table = plain_table(content, largest=LARGEST_SHARD, allowed=_schema_of(name))
    except pa.ArrowException as error:
        raise StoreError(f"shard '{name}' cannot be read: {first_line(error)}") from error
    claimed_answers = (table.schema.metadata or {}).get(_ANSWERS.encode())
    if claimed_answers is not None and claimed_answers.decode(errors="replace") != _answers_identity(name):
        raise StoreError(f"shard '{name}' holds answers of another VLM, batch or questionnaire than its name says")
    return table


def _answers_identity(name: str) -> str:
    """`<VLM>/<batch>-<questionnaire>`, the identities in the name of a shard of answers."""
    _, folder, file = name.split("/")
    return f"{folder.rpartition('-')[2]}/{file.removesuffix('.parquet')}"


def check_vlm(name: str, table: pa.Table, names: Sequence[str] = ()) -> None:
    """StoreError if answers are of a VLM that is called neither as their folder nor one of `names`.

    Shards of 0.1.0 carry no identity: the name of the VLM is all that tells them apart. A shard that carries one has
    been checked by `deserialise`, and its VLM may have been renamed since.
    """
    if _ANSWERS.encode() in (table.schema.metadata or {}):
        return
    folder = name.split("/")[1].rpartition("-")[0]
    for vlm in pc.unique(table["vlm"]).to_pylist():
        if vlm not in names and readable_name(vlm) != folder:
            raise StoreError(f"shard '{name}' holds answers of the VLM '{vlm}', not of the one that its folder names")


def readable_name(name: str) -> str:
    """The name of a model or VLM, made safe for a path."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:60] or "model"


def _schema_of(name: str) -> pa.Schema:
    return ANSWER_SHARD if name.startswith("answers/") else IMAGE_SHARD


def check_name(name: str, table: pa.Table) -> None:
    """StoreError if a shard lies under the name of another batch or VLM.

    The name of a shard of images follows from model, prompt and seeds.
    """
    kind, folder, file = name.split("/")
    if kind != "images":
        check_vlm(name, table)
        return
    identity = folder.rpartition("-")[2]
    columns = [table.column(c).to_pylist() for c in ("prompt", "adapter", "seed", "image_key")]
    prompts, adapters, seeds, keys = columns
    sound = (
        len({*zip(prompts, adapters, strict=True)}) == 1
        and file == f"{batch_key(identity, prompts[0], adapters[0], seeds)}.parquet"
        and keys == [image_key(identity, prompts[0], adapters[0], seed) for seed in seeds]
    )
    if not sound:
        raise StoreError(f"shard '{name}' holds images of another batch than its name says")
