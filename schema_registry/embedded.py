"""The registry of a bus's own log, as serdes ask it: ``Avro("log")``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import anyio.from_thread
import anyio.lowlevel
import msgspec

from eventbus.errors import ConfigError
from schema_registry.entities import Metadata, RuleSet, Schema, SchemaRequest
from schema_registry.errors import RegistryError
from serdes.registry import Compatibility, RegisteredSchema, SchemaText

if TYPE_CHECKING:
    from eventbus import EventBus
    from schema_registry.reading import Reads
    from schema_registry.registry import Registry

T = TypeVar("T")


class EmbeddedClient:
    """A `SchemaClient` of a registry in this process: for worker threads, while the registry's event loop runs."""

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = registry
        self._is_given = registry is not None
        self._turned_away = 0
        """Buses whose start was refused, and that close what they began to start, as they do with every part."""
        self._moved: list[Callable[[], None]] = []
        self._token: anyio.lowlevel.EventLoopToken | None = None
        self._thread = 0
        """That of the event loop: the registry's memory is looked into from there alone."""
        self._known: dict[tuple[int, str | None], RegisteredSchema] = {}
        if registry is not None:
            self._belong()

    # asking ----------------------------------------------------------------------------------------------------------

    def known(self, schema_id: int, subject: str | None = None) -> RegisteredSchema | None:
        """Return the result of `by_id` if it is cached, else None. Never waits."""
        found = self._known.get((schema_id, subject))
        if found is None and self._registry is not None and get_ident() == self._thread:
            try:
                found = self._by_id(self._registry, schema_id, subject)
            except RegistryError:
                return None
        return found

    def by_id(self, schema_id: int, subject: str | None = None) -> RegisteredSchema:
        found = self.known(schema_id, subject)
        return self._read(lambda registry: self._by_id(registry, schema_id, subject)) if found is None else found

    def _by_id(self, registry: Registry, schema_id: int, subject: str | None) -> RegisteredSchema:
        answer = self._known[schema_id, subject] = schema_with_id(registry, schema_id, subject)
        return answer

    def by_guid(self, guid: str) -> RegisteredSchema:
        def read(registry: Registry) -> RegisteredSchema:
            registry.schema_by_guid(guid)
            one = registry.ids_of_guid(guid)[0]
            context = None if one.context == "." else f":{one.context}:"
            return self._by_id(registry, one.id, context)

        return self._read(read)

    def register(self, subject: str, text: SchemaText, *, normalize: bool = False) -> RegisteredSchema:
        return registered(self._write(lambda one: one.register(subject, request_of(text), normalize=normalize)))

    def lookup(
        self, subject: str, text: SchemaText, *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema:
        request = request_of(text)
        return registered(self._read(lambda one: one.lookup(subject, request, normalize=normalize, deleted=deleted)))

    def latest(self, subject: str) -> RegisteredSchema:
        return registered(self._read(lambda registry: registry.version(subject, "latest"), newest=True))

    def version(self, subject: str, version: int, *, deleted: bool = False) -> RegisteredSchema:
        return registered(self._read(lambda registry: registry.version(subject, version, deleted=deleted)))

    def is_compatible(self, subject: str, text: SchemaText, version: int | str = "latest") -> Compatibility:
        request = request_of(text)
        answer = self._read(lambda registry: registry.check(subject, version, request, verbose=True))
        return Compatibility(answer.is_compatible, tuple(answer.messages or ()))

    # life ------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Clear the cache. The registry continues to run."""
        self._known.clear()

    def when_moved(self, forget: Callable[[], None]) -> None:
        """Have ``forget`` called with each bus that this starts with: its log may be another, with other ids."""
        self._moved.append(forget)

    async def start(self, bus: EventBus) -> None:
        """Start with the bus; all clients of a bus share its registry. Raises ConfigError while it belongs to another
        bus."""
        if self._is_given:
            return
        if self._registry is not None:
            self._turned_away += 1
            raise ConfigError(
                'Avro("log") belongs to another running bus, and ids hold for a single log: '
                'make one Avro("log") for each bus'
            )
        self._belong()
        for forget in self._moved:
            forget()
        self._registry = await _open(bus)

    def _belong(self) -> None:
        self._token = anyio.lowlevel.current_token()
        self._thread = get_ident()

    async def aclose(self) -> None:
        if self._is_given:
            return
        if self._turned_away:
            self._turned_away -= 1
            return
        registry, self._registry = self._registry, None
        self.close()
        if registry is not None:
            await _close(registry)

    # threads ---------------------------------------------------------------------------------------------------------

    def _read(self, read: Callable[[Registry], T], *, newest: bool = False) -> T:
        """Ask on the registry's loop; what is not there may have been written elsewhere a moment ago."""

        async def ask(registry: Registry) -> T:
            if newest:
                await registry.catch_up()
            try:
                return read(registry)
            except RegistryError as error:
                if newest or error.status != 404 or not await registry.catch_up():
                    raise
                return read(registry)

        return self._write(ask)

    def _write(self, ask: Callable[[Registry], Coroutine[Any, Any, T]]) -> T:
        if self._registry is None or self._token is None:
            raise RegistryError(
                500, 50001, 'the registry in the log is not open: serdes of Avro("log") work while their bus runs'
            )
        return anyio.from_thread.run(partial(ask, self._registry), token=self._token)


def open_client(name: str) -> EmbeddedClient:
    """Return the client for ``"log"``. It responds after the bus that it belongs to has started."""
    return EmbeddedClient()


class _Shared(msgspec.Struct):
    registry: Registry
    users: int = 0


_of_buses: WeakKeyDictionary[EventBus, _Shared] = WeakKeyDictionary()


async def _open(bus: EventBus) -> Registry:
    from schema_registry.registry import Registry

    shared = _of_buses.get(bus)
    if shared is None:
        registry = Registry()
        await registry.start(bus)
        shared = _of_buses[bus] = _Shared(registry)
    shared.users += 1
    return shared.registry


async def _close(registry: Registry) -> None:
    for bus, shared in list(_of_buses.items()):
        if shared.registry is registry:
            shared.users -= 1
            if not shared.users:
                del _of_buses[bus]
                await registry.aclose()


def schema_with_id(registry: Reads, schema_id: int, subject: str | None) -> RegisteredSchema:
    """Return the response of `SchemaClient.by_id`. Raises 40403."""
    found = registry.schema_by_id(schema_id, subject=subject)
    schema = Schema(
        subject=found.subject or "", version=found.version or 0, id=schema_id, schema=found.schema,
        schema_type=found.schema_type, references=found.references, metadata=found.metadata, rule_set=found.rule_set,
    )  # fmt: skip
    return RegisteredSchema(schema_id, found.guid, schema.text(), found.subject, found.version)


def request_of(text: SchemaText) -> SchemaRequest:
    """Return a schema as the registry is asked with it."""
    return SchemaRequest(
        schema=text.schema,
        schema_type=text.schema_type,
        references=list(text.references),
        metadata=None if text.metadata is None else msgspec.convert(text.metadata, Metadata),
        rule_set=None if text.rule_set is None else msgspec.convert(text.rule_set, RuleSet),
    )


def registered(schema: Schema) -> RegisteredSchema:
    """Return a version as serdes know it."""
    return RegisteredSchema(
        schema.id, schema.guid, schema.text(), schema.subject, schema.version, schema.deleted is True
    )
