"""Secrets are never shown: text from others passes through here before it becomes a message or a log."""

from __future__ import annotations

import os
import re

__all__ = ["first_line", "secret_in", "without_secrets"]

_VARIABLE = re.compile(r"(?:TOKEN|SECRET|PASSWORD|_KEY|_KEY_ID)$")  #: environment variables whose values are secret
_LEAST = 12  #: characters; a shorter value may be an ordinary word
_SHAPES = (
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), "hf_***"),
    (re.compile(r"(?i)\b((?:bearer|basic)[:\s]+)[\w.~+/=-]{8,}"), r"\1***"),
    (re.compile(r"(?i)\b((?:x-)?api[-_]?key['\"]?\s*[:=]\s*['\"]?)[\w.~+/=-]{8,}"), r"\1***"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), "***"),
    (re.compile(r"(?i)(\w(?:://|%3A%2F%2F))(?:(?!%2F|%40)[^/\s@'\"])+(@|%40)"), r"\1***\2"),
    (re.compile(r"(\bs3://)[^/\s@'\":]+:[^\s@'\"]*@"), r"\1***@"),  # half of the secrets of AWS contain a slash
    (re.compile(r"(?i)([?&][^=&\s'\"]*(?:token|secret|sig|key|password|credential)[^=&\s'\"]*=)[^&\s'\"]+"), r"\1***"),
)


def without_secrets(text: str) -> str:
    """`text` with tokens, passwords in URLs, signatures of URLs and values of secret environment variables masked."""
    for name, value in os.environ.items():
        if len(value) >= _LEAST and _VARIABLE.search(name):
            text = text.replace(value, "***")
    for shape, masked in _SHAPES:
        text = shape.sub(masked, text)
    return text


def secret_in(text: str) -> str:
    """The environment variable whose secret value is in `text`; "" if none is."""
    secret = {name: value for name, value in os.environ.items() if len(value) >= _LEAST and _VARIABLE.search(name)}
    return next((name for name, value in secret.items() if value in text), "")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without secrets; the name of its class if the message is empty."""
    return (without_secrets(str(error)).strip().splitlines() or [type(error).__name__])[0]
