"""Answers that are given again and again, ready to be sent, for as long as the registry has not changed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from schema_registry.registry import Registry

MOST_BYTES = 16 << 20
LONGEST = 64 << 10
LONGEST_REQUEST = 2 << 10

K = TypeVar("K", bound=Hashable)


class Shelf(Generic[K]):
    """A cache with a limit in bytes; it is cleared when it is full."""

    def __init__(self) -> None:
        self.found: dict[K, bytes] = {}
        self._bytes = 0

    def put(self, key: K, value: bytes) -> None:
        if len(value) > LONGEST or key in self.found:
            return
        self._bytes += len(value) + LONGEST_REQUEST  # the key
        if self._bytes > MOST_BYTES:
            self.clear()
        self.found[key] = value

    def clear(self) -> None:
        self.found.clear()
        self._bytes = 0


class KeptAnswers:
    """Bodies of GET by id by path and query, and whole answers by the bytes of the request."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._bodies: Shelf[tuple[bytes, bytes]] = Shelf()
        self._replies: Shelf[bytes] = Shelf()
        self._generation = -1

    def _now(self) -> int:
        """The registry's generation; what was kept of another is forgotten."""
        generation = self._registry.generation if self._registry.is_ready else -1
        if generation != self._generation:
            self._bodies.clear()
            self._replies.clear()
            self._generation = generation
        return generation

    def body(self, path: bytes, query: bytes) -> tuple[int, bytes | None]:
        """The generation, to keep things with, and the body."""
        return self._now(), self._bodies.found.get((path, query))

    def keep_body(self, path: bytes, query: bytes, body: bytes, generation: int) -> None:
        """Store a body. ``generation`` was read before the body was made; if it has changed since, the body may be
        stale and is dropped."""
        if generation == self._now() and len(path) + len(query) <= LONGEST_REQUEST:
            self._bodies.put((path, query), body)

    def reply(self, request: bytes) -> bytes | None:
        self._now()
        return self._replies.found.get(request)

    def keep_reply(self, body: bytes, content_type: bytes, generation: int, request: bytes) -> None:
        if generation == self._now() and len(request) <= LONGEST_REQUEST:
            head = b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (content_type, len(body))
            self._replies.put(request, head + body)
