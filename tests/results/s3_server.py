"""An S3 server for the tests: `python s3_server.py FOLDER PORT` serves the folders in FOLDER as buckets.

It is nanio, which checks signatures, keeps objects as files and uploads in parts, but refuses the empty objects whose
names end in "/" that pyarrow leaves where it took the last object out of a folder. Other servers keep these and mean
nothing by them; here they are accepted and not kept.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from nanio.app import build_app
from nanio.auth.credentials import EnvCredentialResolver
from nanio.config import Settings
from nanio.storage.backend import ObjectInfo
from nanio.storage.filesystem import FilesystemStorage


class Storage(FilesystemStorage):
    async def put_object(self, bucket: str, key: str, body: Any, **more: Any) -> ObjectInfo:
        if not key.endswith("/"):
            return await super().put_object(bucket, key, body, **more)
        self.head_bucket(bucket)
        return ObjectInfo(
            key=key, size=0, etag='"d41d8cd98f00b204e9800998ecf8427e"', last_modified=datetime.now(tz=UTC)
        )


if __name__ == "__main__":
    settings = Settings(data_dir=Path(sys.argv[1]), credentials=EnvCredentialResolver())
    app = build_app(settings)
    app.state.storage = Storage(settings.data_dir, chunk_size=settings.chunk_size)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]))
