"""The base classes of connectors, which copy records into the log or out of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from eventbus.connect.settings import Key
from eventbus.connect.values import Schema
from eventbus.types import Headers, TopicPartition

Offset = dict[str, Any]
"""The position of a source in one of its partitions: JSON data that only the source interprets."""


class SourceRecord(msgspec.Struct, kw_only=True):
    """A record that a source has read. ``offset`` of ``partition`` is stored with it, in one transaction."""

    topic: str
    value: Any
    """The value for the converter; a SerializationError marks a record that is at fault, see ``errors.tolerance``."""
    key: Any = None
    schema: Schema | None = None
    """The value's schema; without it, converters use the value's Python type."""
    key_schema: Schema | None = None
    partition: dict[str, Any] = {}
    """The source partition, such as a file or a table: JSON data."""
    offset: Offset = {}
    """The position after this record; if it is empty, nothing is stored."""
    topic_partition: int | None = None
    """The topic's partition; None leaves the choice to the partitioner."""
    headers: Headers = ()
    timestamp_ms: int | None = None


class SinkRecord(msgspec.Struct, kw_only=True):
    """A record of the log, decoded by the converters, for a sink."""

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
    """A record that a sink cannot write, with the reason."""

    record: SinkRecord
    error: Exception


class Context:
    """The environment of a connector."""

    def __init__(
        self, name: str, settings: Mapping[str, Any], places: Callable[[str], str], clock: Callable[[], int],
        note: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.name = name
        self.settings = settings
        """A checked value for each of the connector's `keys`."""
        self.place = places
        """Returns the position of a key for errors: ``source.properties, line 3``."""
        self.clock = clock
        """Returns milliseconds since the epoch."""
        self.note = note
        """Logs a message for the user; call it once, not for each record."""


class Connector(ABC):  # noqa: B024 - its subclasses have them
    """The base of sources and sinks. All methods are called in a worker thread, never two at a time."""

    keys: ClassVar[Sequence[Key]] = ()
    """Its own settings, in addition to those of all connectors."""

    def __init__(self, context: Context) -> None:
        """Check the settings: raise ConfigError. Do not open anything yet."""
        self.context = context
        self.settings = context.settings

    def stop(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what is open; `start` may follow. Also called after a failure."""


class SourceConnector(Connector):
    """Copies records into the log. Called: ``start``, then ``poll`` repeatedly, then ``stop``.

    The records of a poll are stored in one transaction, together with the offsets in them. A crash before that cancels
    the poll, and `start` gets the stored offsets. So no record is lost and none is doubled.
    """

    idle_ms: int = 1_000
    """How long to wait after an empty poll."""
    repeats: bool = False
    """True if it copies everything repeatedly: `drain` waits only for the first time."""

    def topics(self) -> Iterable[str]:
        """Return the topics it will write to, as far as known: missing ones are created before `start`."""
        return ()

    @abstractmethod
    def start(self, offsets: Mapping[str, Offset]) -> None:
        """Open. ``offsets``: its positions, by `partition_key` of each of its partitions."""

    @abstractmethod
    def poll(self) -> Sequence[SourceRecord]:
        """Return the next records, a few thousand at most; none if there are none now. It should not wait for long."""


class SinkConnector(Connector):
    """Copies records out of the log. Called: ``start``, then ``put`` and ``flush``, then ``stop``.

    The group's offsets are committed after `flush`: after an earlier crash, records come again, unless the sink stores
    offsets together with its output, see `positions`.
    """

    @abstractmethod
    def start(self) -> None:
        """Open the destination of the records."""

    @abstractmethod
    def put(self, records: Sequence[SinkRecord]) -> Iterable[Refused] | None:
        """Write. Return the records that are themselves at fault; raise for temporary errors."""

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make all written records durable. ``offsets``: the next offsets of all partitions that it was given."""

    def assigned(self, topic_ids: Mapping[str, str]) -> None:
        """Check the ids of topics, by name, before their first record is put.

        A sink that stores offsets stores these ids next to them. A topic that was deleted and created again has another
        id, and its offsets mean other records: raise ConfigError then.
        """

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the sink's own positions, if it has any: they apply where the group's committed offset is lower."""
        return {}


def partition_key(partition: Mapping[str, Any]) -> str:
    """Return a source partition as text, whatever the order of its keys."""
    return msgspec.json.encode(dict(partition), order="sorted").decode()
