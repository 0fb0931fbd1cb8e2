"""What a shard is: a Parquet file that carries its own SHA-256.

The footer holds the 64 hex digits of the hash, which was taken with zeros in their place. So every flipped byte is
noticed, in data and in metadata. The same rows give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from seesaw.results.errors import StoreError
from seesaw.results.secrets import first_line
from seesaw.results.store.identity import batch_key, image_key
from seesaw.results.store.parquet import plain_table

__all__ = ["ANSWER_SHARD", "IMAGE_SHARD", "LARGEST_SHARD", "check_name", "deserialise", "serialise"]

LARGEST_SHARD = 1 << 30  #: bytes, of the file and of its data uncompressed: eight images of 128 MB each
IMAGE_SHARD = pa.schema(
    [
        ("image_key", pa.string()),
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("model", pa.string()),
        ("prompt", pa.string()),
        ("adapter", pa.string()),
        ("seed", pa.int64()),
        ("withheld", pa.string()),  # "" for an image that is asked about, else why it is not: blank, flagged
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
_ZEROS = b"0" * 64


def serialise(table: pa.Table) -> bytes:
    """The bytes of a shard. StoreError if they are more than a shard may have."""
    schema = table.schema.with_metadata(_HUGGING_FACE) if table.schema.names == IMAGE_SHARD.names else table.schema
    sink = pa.BufferOutputStream()
    # PNGs do not compress further; with page checksums other readers notice a flipped byte too
    codec: Any = {name: "NONE" if name.startswith("image.") else "ZSTD" for name in _leaves(schema)}
    with pq.ParquetWriter(
        sink, schema, compression=codec, write_page_checksum=True, write_statistics=False, store_schema=True
    ) as writer:
        writer.write_table(table.cast(schema))
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
    return table


def _schema_of(name: str) -> pa.Schema:
    return ANSWER_SHARD if name.startswith("answers/") else IMAGE_SHARD


def check_name(name: str, table: pa.Table) -> None:
    """StoreError if images are stored under the name of another batch: a name follows from model, prompt and seeds."""
    kind, folder, file = name.split("/")
    if kind != "images":
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
