"""The requests of a serde to a schema registry, and how a registry is found. Clients implement them elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgspec

ENTRY_POINTS = "serdes.schema_clients"
"""Functions that open a client, by the scheme of the registry: ``http``, ``https``, ``log``, or a custom scheme."""


class Reference(msgspec.Struct, frozen=True):
    """A named type that a schema takes from another subject."""

    name: str
    subject: str
    version: int


class SchemaText(msgspec.Struct, frozen=True):
    """A schema as the registry stores it."""

    schema: str
    schema_type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: Any = None
    rule_set: Any = None


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A schema as a registry knows it. ``subject`` and ``version`` where it was asked for by them."""

    id: int
    guid: str | None
    text: SchemaText
    subject: str | None = None
    version: int | None = None
    deleted: bool = False


class Compatibility(msgspec.Struct, frozen=True):
    """May a schema be registered? If not, ``messages`` say why."""

    is_compatible: bool
    messages: tuple[str, ...] = ()


@runtime_checkable
class SchemaClient(Protocol):
    """Asks a registry. Synchronous and thread-safe; what cannot change is asked for once.

    All but `known` may wait for an answer: never call them on an event loop. They raise `SchemaRegistryError`.
    """

    def known(self, schema_id: int, subject: str | None = None) -> RegisteredSchema | None:
        """Return the result of `by_id` if it is cached, else None. Never waits."""
        ...

    def by_id(self, schema_id: int, subject: str | None = None) -> RegisteredSchema: ...

    def by_guid(self, guid: str) -> RegisteredSchema: ...

    def register(self, subject: str, text: SchemaText, *, normalize: bool = False) -> RegisteredSchema: ...

    def lookup(
        self, subject: str, text: SchemaText, *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema: ...

    def latest(self, subject: str) -> RegisteredSchema: ...

    def version(self, subject: str, version: int, *, deleted: bool = False) -> RegisteredSchema: ...

    def is_compatible(self, subject: str, text: SchemaText, version: int | str = "latest") -> Compatibility: ...

    def close(self) -> None: ...


@runtime_checkable
class MovingClient(Protocol):
    """A client that may come to ask another registry, as one of the bus's own log does when the bus opens another."""

    def when_moved(self, forget: Callable[[], None]) -> None:
        """Have ``forget`` called then: ids mean something else there."""
        ...


def schema_client(registry: str | SchemaClient) -> SchemaClient:
    """Return the client of a registry: ``"http://user:password@host:8081"``, ``"log"`` (the bus's own log) or a client.

    The scheme selects an entry point of the group ``serdes.schema_clients``, a function of the string. No request is
    sent yet. Raises ValueError for an unknown scheme.
    """
    if not isinstance(registry, str):
        return registry
    from importlib.metadata import entry_points  # a tenth of a second of imports

    scheme = registry.partition("://")[0].partition(",")[0]
    openers = entry_points(group=ENTRY_POINTS)
    if scheme not in openers.names:
        known = ", ".join(sorted(openers.names)) or "none is installed"
        raise ValueError(
            f"registry={registry!r}: nothing opens {scheme!r} (there is: {known}). Give a URL as "
            "'http://localhost:8081', 'log' for the registry in the bus's own log, or a SchemaClient"
        )
    try:
        open_client = openers[scheme].load()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"a registry at {scheme}:// needs a library that is not installed ({error.name}): "
            'pip install "eventbus-log[avro]"',
            name=error.name,
        ) from None
    return open_client(registry)
