"""Kafka's UUIDs: 16 bytes on the wire, 22 characters of URL-safe base64 everywhere else."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable

_BYTES = 16
_TEXT_CHARACTERS = 22
_RESERVED = {bytes(_BYTES), (1).to_bytes(_BYTES, "big")}
"""The null id, and the id of the metadata topic."""


def random_uuid(chance: Callable[[], bytes]) -> bytes:
    """Return 16 bytes of ``chance``, retried as in Kafka: no reserved ids, no text that looks like a command-line
    option."""
    while (data := chance()) in _RESERVED or uuid_text(data).startswith("-"):
        pass
    return data


def uuid_text(data: bytes) -> str:
    """Format 16 bytes as Kafka does."""
    return urlsafe_b64encode(data)[:_TEXT_CHARACTERS].decode()


def uuid_bytes(text: str) -> bytes:
    """Parse the result of `uuid_text`. Raises ValueError for other text."""
    try:
        data = urlsafe_b64decode(text + "==")
    except ValueError:
        data = b""
    if uuid_text(data) != text or len(data) != _BYTES:
        raise ValueError(f"{text!r} is no UUID: {_TEXT_CHARACTERS} characters of URL-safe base64 are one")
    return data
