"""A schema registry in the process: Confluent's operations on a topic of the bus's log, without HTTP.

Reads answer from memory and never wait; writes return when their records are stored. Keywords are Confluent's query
parameters. All raise `RegistryError` with Confluent's status, code and text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import anyio
import anyio.to_thread
import msgspec

from eventbus.coordinator.shard import Decision
from eventbus.durations import Milliseconds, setting_ms
from eventbus.errors import ConfigError, EventBusError, RegistryRefused
from schema_registry import backup, deleting, errors, merging, names, registering, settings
from schema_registry.entities import (
    COMPATIBILITY_LEVELS,
    Config,
    ConfigUpdate,
    Mode,
    Schema,
    SchemaRequest,
)
from schema_registry.errors import RegistryError
from schema_registry.follower import Follower
from schema_registry.ledger import Ledger
from schema_registry.reading import Reads, VersionLike, known_format, version_number
from schema_registry.registering import Registration, entity
from schema_registry.schemas import Schemas
from schema_registry.writer import Writer

if TYPE_CHECKING:
    from eventbus import EventBus
    from serdes.registry import SchemaClient

TOPIC = "_schemas"
T = TypeVar("T")

_LONG = 50_000
"""Characters of a schema that is parsed in a worker thread: the event loop would feel it."""
_LONG_TO_COMPARE = 1_000
"""The same limit for JSON Schema, with all compared versions: short schemas can be slow to compare."""
_READ_SECONDS = 4.0
"""How long a request for a missing schema waits for records of other processes."""
_LINES = 500
"""The maximum number of records of an import in one transaction."""


class Registry(Reads):
    """The registry kept in a log. A bus has one per topic. Several processes may open a registry on the log.

    ::

        async with EventBus("file://./data") as bus, Registry(bus) as registry:
            schema = await registry.register("orders-value", SchemaRequest(schema='"string"'))
            registry.schema_by_id(schema.id)

    ``compatibility`` holds where none is configured. ``read_only`` refuses every write. ``timeout_ms``: how long a
    write may take before it fails with 50002. It may be stored then; repeat the request to find out.
    ``accept_truncated`` starts on a topic whose beginning was deleted; ids go on above the highest that is left.
    Instead of ``async with``, ``bus.include(Registry())`` starts and stops it with the bus.
    """

    def __init__(
        self,
        bus: EventBus | None = None,
        *,
        topic: str = TOPIC,
        compatibility: str = "BACKWARD",
        replication_factor: int = -1,
        read_only: bool = False,
        timeout_ms: Milliseconds = 30_000,
        max_schema_bytes: int = 1_000_000,
        accept_truncated: bool = False,
    ) -> None:
        super().__init__()
        if compatibility.upper() not in COMPATIBILITY_LEVELS:
            known = ", ".join(COMPATIBILITY_LEVELS)
            raise ConfigError(f"compatibility={compatibility!r} is no level: one of {known}")
        self.topic = topic
        self._bus = bus
        self._compatibility = compatibility.upper()
        self._replication_factor = replication_factor
        self._read_only = read_only
        self._timeout_ms: int = setting_ms(timeout_ms)
        self._max_schema_bytes = max_schema_bytes
        self._accept_truncated = accept_truncated
        self._schemas = Schemas()
        self._ledger = cast(Ledger, _NOT_STARTED)
        self._follower = cast(Follower, _NOT_STARTED)
        self._writer: Writer | None = None

    def __repr__(self) -> str:
        return f"<Registry on {self.topic!r}, {'running' if self._writer else 'stopped'}>"

    # life ------------------------------------------------------------------------------------------------------------

    async def start(self, bus: EventBus | None = None) -> None:
        """Make or check the topic, read it to its end. Raises RegistryRefused when ids would be in danger."""
        bus = bus or self._bus
        if bus is None:
            raise ConfigError("a registry is kept in a bus's log: Registry(bus), or bus.include(Registry())")
        if self._writer is not None:
            raise ConfigError("this registry is running already")
        ledger = Ledger(self.topic, self._schemas)
        follower = Follower(bus, ledger)
        await follower.start(self._replication_factor, accept_truncated=self._accept_truncated)
        self._ledger, self._follower = ledger, follower
        self._writer = Writer(bus, ledger, follower, self._timeout_ms)
        self._writer.start()

    async def aclose(self) -> None:
        """Stop. A caller that still waits for a write gets the error that it may be stored or not. Any task may call
        this."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.aclose()
            await self._follower.aclose()
            self._ledger = cast(Ledger, _NOT_STARTED)
            self._follower = cast(Follower, _NOT_STARTED)

    async def __aenter__(self) -> Registry:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def catch_up(self) -> bool:
        """Read what others have written since; whether there was anything.

        What a read does not find may have been written by another process a moment ago: ask once more after this.
        """
        try:
            with anyio.fail_after(_READ_SECONDS):
                return await self._follower.catch_up()
        except RegistryError:
            raise
        except TimeoutError:
            text = (
                f"reading topic {self.topic!r} to its end takes more than {_READ_SECONDS:g} s: do its brokers answer?"
            )
            raise RegistryError(500, 50002, text) from None
        except EventBusError as error:
            raise errors.store_failed(f"reading topic {self.topic!r} failed", error) from error

    @property
    def is_ready(self) -> bool:
        """Started, read to the end, and not refused since."""
        return self._writer is not None and self.refusal is None

    @property
    def refusal(self) -> RegistryRefused | None:
        """Why a started registry serves nothing any more; None while it serves, or before it is started."""
        return None if self._writer is None else self._follower.refusal

    @property
    def cluster_id(self) -> str:
        """The cluster id of its log, or empty if it is not known."""
        return ""

    def client(self) -> SchemaClient:
        """Return the same registry for serdes: synchronous, for worker threads."""
        from schema_registry.embedded import EmbeddedClient

        return EmbeddedClient(self)

    # writing ---------------------------------------------------------------------------------------------------------

    async def register(
        self,
        subject: str,
        request: SchemaRequest,
        *,
        normalize: bool = False,
        format: str = "",
        force: bool = False,
    ) -> Schema:
        """POST /subjects/{subject}/versions. HTTP answers with ``.answer()`` of it."""
        if not names.is_valid(subject):
            raise errors.invalid_subject(subject)
        if format:
            known_format(format)
        merging.check_rules(request.rule_set)
        subject = self._meant(subject)
        await self.prepare(subject, request)
        found = registering.already(self._registration(), subject, request, normalize=normalize)
        if found is None:
            await self.prepare_check(subject, None, request)
            found = await self._submit(
                "Register schema",
                lambda registration: registering.register(
                    registration, subject, request, normalize=normalize, force=force
                ),
            )
        return msgspec.structs.replace(entity(found), schema=self._formatted(found, format))

    async def prepare(self, subject: str, request: SchemaRequest) -> None:
        """Parse a long schema in a worker thread, so that what asks for it next finds it parsed.

        A Protobuf schema always is: its compiler is a process.
        """
        shortest = 0 if request.schema_type == "PROTOBUF" else _LONG
        if shortest < len(request.schema or "") <= self._max_schema_bytes:
            with suppress(RegistryError):  # a caller that needs it gets the error
                await anyio.to_thread.run_sync(self._registration().parse_known, subject, request)

    async def prepare_check(self, subject: str, version: VersionLike | None, request: SchemaRequest) -> None:
        """Compare in a worker thread what may take long, so that `check` and a registration find it compared."""
        with suppress(RegistryError):
            subject = self._meant(subject)
            existing = self._to_compare(subject, version)
            longest = {"JSON": _LONG_TO_COMPARE, "PROTOBUF": 0}.get(request.schema_type or "AVRO", _LONG)
            length = len(request.schema or "") + sum(len(one.content.text) for one in existing)
            if existing and length > longest and len(request.schema or "") <= self._max_schema_bytes:
                await anyio.to_thread.run_sync(self.explain, subject, request, existing)
            else:
                await self.prepare(subject, request)

    async def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete all versions of a subject and return their numbers (DELETE /subjects/{subject})."""
        subject = self._meant(subject)
        return await self._submit(
            "Delete subject",
            lambda registration: deleting.delete_subject(registration.state, subject, permanent=permanent),
        )

    async def delete_version(self, subject: str, version: VersionLike, *, permanent: bool = False) -> int:
        """Delete a version and return its number (DELETE /subjects/{subject}/versions/{version})."""
        subject, number = self._meant(subject), version_number(version)
        return await self._submit(
            "Delete Schema Version",
            lambda registration: deleting.delete_version(registration.state, subject, number, permanent=permanent),
        )

    async def update_config(self, subject: str | None, update: ConfigUpdate) -> ConfigUpdate:
        """Change a configuration and return it (PUT /config, /config/{subject})."""
        who = names.level(subject)
        return await self._submit(
            "Update config", lambda registration: settings.update_config(registration.state, who, update)
        )

    async def delete_config(self, subject: str | None = None) -> Config:
        """Delete a configuration and return it (DELETE /config, /config/{subject})."""
        who, level = names.level(subject), self._compatibility
        return await self._submit(
            "Delete config", lambda registration: settings.delete_config(registration.state, who, level)
        )

    async def update_mode(self, subject: str | None, mode: str | None, *, force: bool = False) -> Mode:
        """Change a mode and return it (PUT /mode, /mode/{subject})."""
        who = names.level(subject)
        return await self._submit(
            "Update mode", lambda registration: settings.update_mode(registration.state, who, mode, force=force)
        )

    async def delete_mode(self, subject: str | None = None, *, recursive: bool = False) -> Mode:
        """Delete a mode and return it (DELETE /mode/{subject})."""
        who = names.level(subject)
        return await self._submit(
            "Delete mode", lambda registration: settings.delete_mode(registration.state, who, recursive=recursive)
        )

    async def delete_context(self, context: str) -> None:
        """Delete an empty context (DELETE /contexts/{context})."""
        await self._submit("Delete context", lambda registration: deleting.delete_context(registration.state, context))

    async def change_associations(
        self, operation: Literal["create", "upsert", "delete", "mutate"], body: Mapping[str, object]
    ) -> None:
        """Refuse writes of /associations (42205): this registry does not store associations."""
        raise errors.not_permitted(
            f"this registry takes no {operation} of associations: a topic's subjects are <topic>-key and <topic>-value"
        )

    async def _submit(self, what: str, decide: Callable[[Registration], Decision[T]]) -> T:
        if self._read_only:
            raise errors.not_permitted("this registry is read-only: ask the one that writes")
        if self._writer is None:
            raise _not_started()
        registration = self._registration()
        ledger = self._ledger
        return await self._writer.submit(what, lambda: decide(registration._replace(state=ledger.ahead)))

    # backup ----------------------------------------------------------------------------------------------------------

    def export_lines(self, *, subject_prefix: str = names.EVERYWHERE, deleted: bool = True) -> Iterator[bytes]:
        """Everything as lines of JSON, with ids, GUIDs, deleted flags, configs and modes; see `backup`."""
        return backup.lines(self._state, subject_prefix=subject_prefix, deleted=deleted)

    async def import_lines(self, lines: Iterable[bytes | str]) -> int:
        """Take an export in, ids as they are; how many versions are new. Twice is as once.

        Raises 42205 where an id or a version is taken by another schema: then nothing is taken in.
        """
        read = backup.read_lines(lines)
        backup.restore(self._state, read)
        new = 0
        for begin in range(0, len(read), _LINES):
            part = read[begin : begin + _LINES]
            new += await self._submit(
                "Import", lambda registration, part=part: backup.restore(registration.state, part)
            )
        return new


class _NotStarted:
    """Raises an error in place of the parts of a registry that is not running."""

    def __getattr__(self, name: str) -> Any:
        raise _not_started()


_NOT_STARTED = _NotStarted()


def _not_started() -> RegistryError:
    return RegistryError(500, 50001, "the registry is not running: use it inside `async with Registry(bus)`")
