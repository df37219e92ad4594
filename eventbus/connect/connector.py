"""What a connector is: a class that brings records from elsewhere, or takes them there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from eventbus.connect.settings import Key
from eventbus.connect.values import Schema
from eventbus.types import Headers, TopicPartition

Offset = dict[str, Any]
"""How far a source has come in one of its partitions: JSON data, which only the source understands."""


class SourceRecord(msgspec.Struct, kw_only=True):
    """What a source has read. ``offset`` of ``partition`` is stored with it, in one transaction."""

    topic: str
    value: Any
    """What the converter takes; a SerializationError: the record is at fault, see ``errors.tolerance``."""
    key: Any = None
    schema: Schema | None = None
    """The value's; None: whatever it is, converters go by its Python type."""
    key_schema: Schema | None = None
    partition: dict[str, Any] = {}
    """Which file, which table: JSON data."""
    offset: Offset = {}
    """Where to go on behind this record; empty: nothing is stored."""
    topic_partition: int | None = None
    """Of the topic; None: the partitioner's choice."""
    headers: Headers = ()
    timestamp_ms: int | None = None


class SinkRecord(msgspec.Struct, kw_only=True):
    """What a sink is given: a record of the log, read by the converters."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    schema: Schema | None
    key_schema: Schema | None
    headers: Headers
    timestamp_ms: int


class Refused(NamedTuple):
    """A record that a sink cannot take, and why."""

    record: SinkRecord
    error: Exception


class Context:
    """What a connector knows of where it runs."""

    def __init__(
        self, name: str, settings: Mapping[str, Any], places: Callable[[str], str], clock: Callable[[], int],
        note: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.name = name
        self.settings = settings
        """A value for each of the connector's `keys`, checked."""
        self.place = places
        """Where a key stands, for errors: ``source.properties, line 3``."""
        self.clock = clock
        """Milliseconds since the epoch."""
        self.note = note
        """Say something to whoever watches: once, not with each record."""


class Connector(ABC):  # noqa: B024 - its kinds have them
    """What sources and sinks have in common. All methods are called in a worker thread, never two at a time."""

    keys: ClassVar[Sequence[Key]] = ()
    """Its own settings; those of all connectors are known anyway."""

    def __init__(self, context: Context) -> None:
        """Settings are there to be checked: raise ConfigError. Nothing is opened yet."""
        self.context = context
        self.settings = context.settings

    def stop(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what is open; `start` may follow. Also called after a failure."""


class SourceConnector(Connector):
    """Brings records into the log. ``start``, then ``poll`` again and again, then ``stop``.

    What a poll returns is stored in one transaction, together with the offsets in it: a crash before it is as if the
    poll had not been, and `start` is given what is stored. So none is lost and none comes twice.
    """

    idle_ms: int = 1_000
    """How long to wait after a poll that brought nothing."""
    repeats: bool = False
    """It brings everything again and again: who waits for it to have brought all waits for the first time only."""

    def topics(self) -> Iterable[str]:
        """Those it will write to, as far as it knows: created before `start`, if they are missing."""
        return ()

    @abstractmethod
    def start(self, offsets: Mapping[str, Offset]) -> None:
        """Open. ``offsets``: how far it has come, by `partition_key` of each of its partitions."""

    @abstractmethod
    def poll(self) -> Sequence[SourceRecord]:
        """The next records, a few thousand at most; none when there is nothing now. It should not wait for long."""


class SinkConnector(Connector):
    """Takes records out of the log. ``start``, then ``put`` and ``flush``, then ``stop``.

    The group's offsets are committed after `flush`: a crash before it brings records again, unless the sink keeps
    offsets beside what it writes, see `positions`.
    """

    @abstractmethod
    def start(self) -> None:
        """Open."""

    @abstractmethod
    def put(self, records: Sequence[SinkRecord]) -> Iterable[Refused] | None:
        """Write. Returns the records that are at fault themselves; raises for trouble that may pass."""

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make what was put durable; ``offsets``: the next ones to read, of all partitions that it has been given."""

    def assigned(self, topic_ids: Mapping[str, str]) -> None:
        """Check the ids of topics, by name, before the first record of them is put.

        A sink that stores offsets stores these ids next to them. A topic that was deleted and created again has another
        id, and its offsets mean other records: raise ConfigError then.
        """

    def positions(self) -> Mapping[TopicPartition, int]:
        """Where to go on, if the sink itself knows: it holds where the group's committed offset is lower."""
        return {}


def partition_key(partition: Mapping[str, Any]) -> str:
    """A source partition as text, whatever the order of its keys."""
    return msgspec.json.encode(dict(partition), order="sorted").decode()
