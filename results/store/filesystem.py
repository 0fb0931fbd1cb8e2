"""Opening the filesystem of a store, and what an error of the filesystem means for a run."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from seesaw.results.errors import ConfigError, EnvironmentFault, StoreUnavailable, nearest
from seesaw.results.secrets import first_line, without_secrets

__all__ = ["meaning", "no_bucket", "open_filesystem"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_AWAY = (
    *(errno.EIO, errno.ESTALE, errno.EROFS, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.ENETUNREACH, errno.ECONNREFUSED, errno.ECONNRESET),
)
#: how pyarrow words a denied access, and a bucket that does not exist
_DENIED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID|UNRECOGNIZED_CLIENT"
    r"|MISSING_AUTHENTICATION_TOKEN|ExpiredToken|InvalidToken|PERMISSION_DENIED|UNAUTHENTICATED|HTTP status 40[13]"
    r"|AuthorizationHeaderMalformed"
)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|bucket does not exist|Bucket '.*' not found|PermanentRedirect|HTTP status 301")
_S3_PARAMETERS = ("region", "scheme", "endpoint_override", "tls_ca_file_path")  #: what an s3:// URI may set


def open_filesystem(root: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a directory or URI, and the path of the root in it.

    Raises:
        ConfigError: the URI holds credentials, or an unknown parameter.
        EnvironmentFault: pyarrow does not know the filesystem, or access is denied.
        StoreUnavailable: the region of a bucket has to be asked for, and no server answers.
    """
    if "://" not in root:
        return fs.LocalFileSystem(), str(Path(root).absolute())
    _refuse_credentials(root)
    scheme = root.partition("://")[0].lower()
    try:
        if scheme == "s3":
            return _open_s3(root)
        if scheme in ("gs", "gcs") and "retry_limit_seconds" not in root:  # pyarrow would try for 15 minutes
            root += f"{'&' if '?' in root else '?'}retry_limit_seconds=10"
        opened: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(root)
    except pa.ArrowInvalid as error:
        raise EnvironmentFault(f"store '{root}' cannot be opened: {first_line(error)}") from error
    except OSError as error:
        raise meaning(error, root, local=False) from error
    return opened


def _open_s3(root: str) -> tuple[fs.FileSystem, str]:
    """As `FileSystem.from_uri`, but with shorter timeouts: its own are 100 s for each request."""
    parts = urlsplit(root)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in given:
        if name not in _S3_PARAMETERS:
            raise ConfigError(f"store: an s3:// URI has no parameter '{name}'{nearest(name, _S3_PARAMETERS)}")
    env, bucket = os.environ, parts.netloc
    if not bucket:
        raise ConfigError(f"store: '{root}' names no bucket; expected s3://bucket/prefix")
    endpoint = given.pop("endpoint_override", "") or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
    region = given.pop("region", "") or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    filesystem = fs.S3FileSystem(
        **given,
        endpoint_override=endpoint,
        region=region or (None if endpoint else fs.resolve_s3_region(bucket)),
        allow_delayed_open=True,  # a small shard is one PUT instead of three requests
        connect_timeout=3,
        request_timeout=5,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
    )
    return filesystem, f"{bucket}/{unquote(parts.path).strip('/')}".rstrip("/")


def meaning(error: Exception, root: str, *, local: bool, gone: bool = False) -> Exception:
    """StoreUnavailable for what may pass by itself, EnvironmentFault for what will not, else the error itself.

    `gone` says that the root of the store has gone.
    """
    code, message = getattr(error, "errno", None), first_line(error)
    if code in _FULL:
        return StoreUnavailable(f"store '{root}' is full: {os.strerror(code)}; make room and the run goes on")
    if not local and _NO_BUCKET.search(message):
        return no_bucket(root, message)
    if isinstance(error, PermissionError) or (not local and _DENIED.search(message)):
        who = "this user" if local else "the credentials in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        return EnvironmentFault(
            f"store '{root}' denies access: {message}; {who} must be allowed to read and write there"
        )
    if gone:
        message = "its folder is not there any more (is a share not mounted?)"
    elif isinstance(error, FileNotFoundError):
        return error
    elif local:
        if code not in _AWAY:
            return error
        message = os.strerror(code)
    elif type(error) in (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return error  # an error that pyarrow itself finds does not pass
    return StoreUnavailable(f"store '{root}' cannot be reached: {message}; the run goes on when it can be")


def no_bucket(root: str, message: str) -> EnvironmentFault:
    return EnvironmentFault(f"store '{root}' has no bucket: {message}; make it first, or correct its name or region")


def _refuse_credentials(uri: str) -> None:
    """ConfigError for a URI with a password or key: the URI is written into config.yaml and logs."""
    place, _, query = uri.partition("?")
    scheme, _, rest = place.partition("://")
    host = rest.partition("/")[0]
    # a secret may contain a slash, and the @ is then not in `host`: for s3 a colon is enough
    named = re.search("[:@]", host) if scheme.lower() == "s3" else ":" in host.rpartition("@")[0]
    given = "?" + unquote(query)
    if named or without_secrets(given) != given:
        raise ConfigError(
            f"store: the {scheme}:// URI holds credentials, and it would be written down with the run; give it without "
            "them, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
        )
