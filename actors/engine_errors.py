"""What an engine raised, made fit to travel from its process to the driver as plain text, and what it asks for.

An exception of an HTTP client often holds a socket or a lock, or is of a class that the driver does not have: it cannot
be sent. So what arrives is one of:

- `TryLater`, if a service asks for patience: the engine raised it, or an error with HTTP status 429, 503 or 529 or with
  a header `Retry-After`;
- `EnvironmentFault`, which ends the run, if a service lets nobody in (401, 403) or wants to be paid (402, or a quota
  that is used up): every other batch would meet the same;
- another of Seesaw's own errors, as it was raised;
- `EngineError` for everything else, with the name of the original's class.

Errors are known by their attributes, so that no client library is imported: `status_code`, `status` or `code`, of the
error or of its `response`. An error without any is known by a message that begins with the status.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any

from seesaw.results import errors
from seesaw.results.errors import BatchFailed, EnvironmentFault, SeesawError, TryLater
from seesaw.results.secrets import without_values

__all__ = ["EngineError", "kind_of", "plain_error", "plain_errors"]

LATER = (429, 503, 529)  #: too many requests; unavailable; overloaded
CLOSED = (401, 403)  #: no key, or the wrong one
UNPAID = 402
MESSAGE_CHARACTERS = 2000
_STATUS = re.compile(r"\W*(?:HTTP\S*|status(?:[ _-]code)?|error(?:[ _-]code)?)?\W*(429|503)\b", re.IGNORECASE)
_SECONDS = re.compile(r"retry[ _-]?after\W{0,4}(\d+(?:\.\d+)?)(?!\d*\s*(?:ms|m\b|min))", re.IGNORECASE)
_USED_UP = re.compile(r"insufficient[ _](?:quota|funds|credit|balance)|billing[ _]hard[ _]limit", re.IGNORECASE)
_POLICY = re.compile(r"content[ _-]?policy|content[ _-]?filter|moderation|safety system", re.IGNORECASE)


class EngineError(Exception):
    """An error of an engine as plain text; `kind` is the name of the class that was raised."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind, self.message = kind, message

    def __str__(self) -> str:
        return self.message or self.kind


def kind_of(error: BaseException) -> str:
    """The name of the class that was raised first."""
    return error.kind if isinstance(error, EngineError) else type(error).__name__


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise what the block raises in its plain form."""
    try:
        yield
    except Exception as error:
        raise plain_error(error) from None


def plain_error(error: Exception) -> Exception:
    """The plain form of what an engine raised; see the head of this module."""
    whole = without_values(str(error))
    text = whole.strip()[:MESSAGE_CHARACTERS]
    if isinstance(error, TryLater):
        return TryLater(text, error.seconds)
    if isinstance(error, SeesawError):
        own = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        return error if own is BatchFailed or (type(error) is own and str(error) == whole) else own(whole)
    status, told = _status(error), f"{whole} {getattr(error, 'body', '')}"
    label = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if status == UNPAID or _USED_UP.search(told):
        return EnvironmentFault(f"the service wants to be paid ({label}): see to its quota or bill")
    if status in CLOSED:
        return EnvironmentFault(f"the service lets nobody in ({label}): check the key and what it may do")
    seconds = _retry_after(error)
    if status in LATER or (status and seconds is not None):
        return TryLater(label, seconds)
    if _POLICY.search(told):
        text += "; an engine hands back an image that was refused as seesaw.Withheld(None, 'flagged')"
    return EngineError(type(error).__name__, text)


def _status(error: Exception) -> int:
    """The HTTP status that an error tells; 0 if it tells none."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        response = response.get("ResponseMetadata", {})
        told = [response.get("HTTPStatusCode")]
    else:
        told = [getattr(owner, name, None) for owner in (error, response) for name in ("status_code", "status", "code")]
    status = next((int(s) for s in told if isinstance(s, int) and not isinstance(s, bool) and 400 <= s < 600), 0)
    if status:
        return status
    begins = _STATUS.match(str(error))
    return int(begins[1]) if begins else 0


def _retry_after(error: Exception) -> float | None:
    """Seconds that a service asks to be left alone for; None if it does not say. A date counts from now."""
    response: Any = getattr(error, "response", None)
    for owner in (error, response):
        headers = getattr(owner, "headers", None)
        told = headers.get("Retry-After") if headers is not None and hasattr(headers, "get") else None
        if told is not None and (seconds := _seconds(str(told))) is not None:
            return seconds
    given = getattr(error, "retry_after", None)
    if isinstance(given, int | float) and math.isfinite(given):
        return max(float(given), 0.0)
    words = _SECONDS.search(str(error))
    return float(words[1]) if words else None


def _seconds(told: str) -> float | None:
    try:
        seconds = float(told)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(told).timestamp() - time.time()
        except (TypeError, ValueError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
