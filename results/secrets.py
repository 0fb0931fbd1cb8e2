"""Secrets are never shown: text from others passes through here before it becomes a message or a log.

`without_secrets` is for Seesaw's own messages: it knows secrets by the names of their environment variables and by
their shapes. `without_values` is for what others' code says, which may have read any variable: it masks the value of
each that is no path, number or address, whatever it is called. Both mask the values in base64 and in URLs too.
"""

from __future__ import annotations

import base64
import os
import re
from functools import lru_cache
from urllib.parse import quote

__all__ = ["first_line", "secret_in", "without_secrets", "without_values"]

#: environment variables whose values are secret
_SECRET = re.compile(r"(?i)(?:TOKEN|SECRET|PASS|PASSWD|PASSWORD|PASSPHRASE|KEY|KEY_ID|PAT|PWD|AUTH|CREDENTIALS?)$")
#: others that stand in messages: machine, user, terminal, language, settings of libraries
_ORDINARY = re.compile(
    r"(?:HOST|HOSTNAME|USER|USERNAME|LOGNAME|LANG|LANGUAGE|EDITOR|PAGER|DISPLAY|COLORTERM|DEBIAN_FRONTEND|_)$"
    r"|(?:LC|TERM|LS|XDG|SLURM|RAY|CUDA|NVIDIA|NCCL|OMP|KMP|MKL|TORCH|PYTORCH|VLLM|PYTEST|CONDA|KUBERNETES)(?:_|$)"
)
_LEAST = 12  #: characters; a shorter value may be an ordinary word
_LEAST_OF_SECRET = 8  #: of a variable whose name says that it is secret
_NUMBERS = re.compile(r"[\d\s.,:;/x%+-]+")
_ADDRESS = re.compile(r"(?:[a-z][\w+.-]*://)?[a-z0-9-]+(?:\.[a-z0-9-]+)*(?::\d{1,5})?/?")
_SHAPES = (
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), "hf_***"),
    (re.compile(r"\b(gh[pousr]_|github_pat_|glpat-|xox[abprs]-)[A-Za-z0-9_-]{16,}"), r"\1***"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), "sk-***"),
    (re.compile(r"(?i)\b((?:bearer|basic)[:\s]+)[\w.~+/=-]{8,}"), r"\1***"),
    (re.compile(r"(?i)\b((?:x-)?api[-_]?key['\"]?\s*[:=]\s*['\"]?)[\w.~+/=-]{8,}"), r"\1***"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), "***"),
    (re.compile(r"(?i)(\w(?:://|%3A%2F%2F))(?:(?!%2F|%40)[^/\s@'\"])+(@|%40)"), r"\1***\2"),
    (re.compile(r"(\bs3://)[^/\s@'\":]+:[^\s@'\"]*@"), r"\1***@"),  # half of the secrets of AWS contain a slash
    (re.compile(r"(?i)([?&][^=&\s'\"]*(?:token|secret|sig|key|password|credential)[^=&\s'\"]*=)[^&\s'\"]+"), r"\1***"),
)


def without_secrets(text: str) -> str:
    """`text` with tokens, passwords in URLs, signatures of URLs and values of secret environment variables masked."""
    return _masked(text, _forms(tuple(_secret_variables().values())))


def without_values(text: str) -> str:
    """`without_secrets`, and the values of all environment variables masked but paths, numbers and addresses."""
    values = {**_secret_variables(), **{n: v for n, v in os.environ.items() if _may_be_secret(n, v)}}
    return _masked(text, _forms(tuple(values.values())))


def secret_in(text: str) -> str:
    """The environment variable whose secret value is in `text`; "" if none is."""
    secrets = {name: value for name, value in _secret_variables().items() if len(value) >= _LEAST}
    return next((name for name, value in secrets.items() if value in text), "")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, `without_values`; the name of its class if the message is empty."""
    return (without_values(str(error)).strip().splitlines() or [type(error).__name__])[0]


def _secret_variables() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if len(value) >= _LEAST_OF_SECRET and _SECRET.search(name) and not os.path.exists(os.path.expanduser(value))
    }


def _may_be_secret(name: str, value: str) -> bool:
    if len(value) < _LEAST or _ORDINARY.match(name) or _NUMBERS.fullmatch(value):
        return False
    is_address = re.search(r"[.:]", value) and _ADDRESS.fullmatch(value)
    return not is_address and not _is_path(value)


def _is_path(value: str) -> bool:
    """Whether a value is a path, or several."""
    return all(part.startswith(("/", "~", ".")) or os.path.exists(part) for part in value.split(os.pathsep) if part)


def _masked(text: str, forms: tuple[str, ...]) -> str:
    for form in forms:
        text = text.replace(form, "***")
    for shape, masked in _SHAPES:
        text = shape.sub(masked, text)
    return text


@lru_cache(maxsize=8)
def _forms(values: tuple[str, ...]) -> tuple[str, ...]:
    """The values as they may stand in a text: as they are, in a URL, and in base64; the longest first."""
    forms = {form for value in values for form in (value, quote(value, safe=""), *_in_base64(value))}
    forms |= {line for value in values for line in value.splitlines() if len(line) >= _LEAST}  # of a key in PEM
    return tuple(sorted(forms, key=len, reverse=True))


def _in_base64(value: str) -> set[str]:
    """A value in base64, alone or within a longer text: without the letters that depend on what stands around it."""
    raw, found = value.encode(errors="surrogateescape"), set()
    for offset, first in enumerate((0, 2, 3)):  # three bytes are four letters, so it may begin at three places
        letters = base64.b64encode(bytes(offset) + raw).rstrip(b"=").decode()
        inner = letters[first : -1 if (offset + len(raw)) % 3 else None]
        found |= {inner, inner.translate(str.maketrans("+/", "-_"))}
    return {form for form in found if len(form) >= _LEAST_OF_SECRET}
