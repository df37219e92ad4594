"""Limits of the registry's HTTP server on requests and connections."""

from __future__ import annotations

import msgspec

from eventbus.errors import ConfigError


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Every request has an end. An app keeps ``body_bytes``; our server keeps the rest."""

    header_s: float = 10.0
    """From a request's first byte (or the connection's beginning) until its headers are complete."""
    body_s: float = 30.0
    """From then on until its body is complete."""
    body_bytes_per_s: int = 1024
    """A body that comes slower than this, after ``slow_s``, is given up."""
    slow_s: float = 5.0
    answer_s: float = 30.0
    """How long a peer may take no byte of an answer that waits for it."""
    idle_s: float = 60.0
    """A connection between two requests."""
    header_bytes: int = 16 << 10
    body_bytes: int = 8 << 20
    connections: int = 10_000
    connections_per_address: int = 200
    """All clients of a proxy have its address."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)!r}: a limit is a number above 0")
