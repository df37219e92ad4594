"""The entries of a table, updated by fetched records. Nothing here waits."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from eventbus.client.consuming.fetch_buffer import RecordDecoder
from eventbus.errors import TableError
from eventbus.types import FetchedRecords
from serdes import Serde, serde_for
from serdes.base import SchemaNeeded, SchemaSerde, bind_decoder, for_keys
from serdes.framing import with_prefix

logger = logging.getLogger("eventbus.tables")

K = TypeVar("K")
V = TypeVar("V")
Column = Sequence[bytes | None]


class TableChange(NamedTuple, Generic[K, V]):
    """A changed entry. ``before`` is None if it was added, ``after`` is None if it was removed."""

    key: K
    before: V | None
    after: V | None


class Format:
    """Decodes keys and values of a topic, column by column."""

    def __init__(self, topic: str, key: Any, value: Any, serdes: Mapping[type, Serde]) -> None:
        """Raises TypeError for an annotation that no serde can read."""
        self._needs = RecordDecoder(key, value, serdes)
        self.key_serde = for_keys(serde_for(key, serdes))
        self.value_serde = serde_for(value, serdes)
        self.key = bind_decoder(self.key_serde, topic)
        self.value = bind_decoder(self.value_serde, topic)

    def needed(self, chunk: FetchedRecords) -> SchemaNeeded | None:
        """Return the schemas that must be fetched before the records can be decoded."""
        return self._needs.needed(chunk, 0) if self._needs.waits else None

    def columns(self, chunk: FetchedRecords) -> tuple[Column, Column]:
        """Return keys and values, prefixed with the schema ids from headers."""
        if chunk.headers is None:
            return chunk.keys, chunk.values
        return _named(chunk.keys, chunk, self.key_serde), _named(chunk.values, chunk, self.value_serde)


def _named(column: Column, chunk: FetchedRecords, serde: Serde) -> Column:
    name = serde.header if isinstance(serde, SchemaSerde) else None
    if name is None or chunk.headers is None:
        return column
    return [
        None if data is None else with_prefix(data, headers, name)
        for data, headers in zip(column, chunk.headers, strict=True)
    ]


class Contents(ABC, Generic[K, V]):
    """The entries of a table, and the errors of entries that could not be read."""

    def __init__(self, table: str, format: Format, *, skips: bool) -> None:
        """``skips`` is True if unreadable records are skipped."""
        self._table = table
        self.format = format
        self._skips = skips
        self.entries: dict[K, V] = {}
        self.broken: dict[Any, str] = {}
        """Keys whose entry is unknown, and why. Records with an unreadable key are listed under a `_NoKey`."""
        self.applied = 0
        """Number of applied records."""
        self.skipped = 0
        """Number of skipped records: unreadable, or without a key."""
        self._bytes_of_values = 0
        self._values = 0

    @property
    def size_bytes(self) -> int:
        """Approximate size of the entries in the log: their number times the average size of a record."""
        return len(self.entries) * self._bytes_of_values // self._values if self._values else 0

    def clear(self) -> None:
        """Remove everything, because the topic was recreated."""
        self.entries.clear()
        self.broken.clear()

    def apply(
        self, chunk: FetchedRecords, unreadable: Mapping[int, Exception], report: bool
    ) -> list[TableChange[K, V]]:
        """Apply records. With ``report`` return the changes, only the last of each key.

        ``unreadable`` maps indexes to errors of restoring values, such as a lost claim check.
        """
        keys, values = self.format.columns(chunk)
        self.applied += len(keys)
        self._values += len(values)
        self._bytes_of_values += sum(map(len, filter(None, values))) + sum(map(len, filter(None, keys)))
        if without := keys.count(None):
            self._without_key(without)
        decode: Callable[[Any], Any] = self.format.value
        if unreadable:
            values = [unreadable.get(at, value) for at, value in enumerate(values)]
            decode = self._raising
        decoded = self._decoded(chunk, keys)
        before = {key: self.entries.get(key) for key in decoded if key is not None} if report else {}
        self._apply(chunk, decoded, values, decode)
        after = ((key, old, self.entries.get(key)) for key, old in before.items())
        return [TableChange(key, old, new) for key, old, new in after if old is not None or new is not None]

    def _raising(self, value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return self.format.value(value)

    @abstractmethod
    def _apply(
        self, chunk: FetchedRecords, keys: Sequence[Any], values: Sequence[Any], decode: Callable[[Any], Any]
    ) -> None:
        """Apply decoded ``keys``; None for a record that has no key, or is skipped."""

    def _decoded(self, chunk: FetchedRecords, keys: Column) -> list[Any]:
        decode = self.format.key
        try:
            decoded: list[Any] = [None if key is None else decode(key) for key in keys]
            deque(map(hash, decoded), 0)
        except Exception:  # a serde may raise anything, and even a frozen Struct may contain something unhashable
            return self._keys_one_by_one(chunk, keys)
        return decoded

    def _keys_one_by_one(self, chunk: FetchedRecords, keys: Column) -> list[Any]:
        decoded: list[Any] = []
        for at, data in enumerate(keys):
            key = None
            if data is not None:
                try:
                    key = self.format.key(data)
                    hash(key)
                except Exception as error:  # a serde may raise anything
                    key = None
                    where = _NoKey(chunk.partition, chunk.offsets[at])
                    self._pass_over(chunk, at, where, f"its key cannot be read: {error}")
            decoded.append(key)
        return decoded

    def _pass_over(self, chunk: FetchedRecords, at: int, key: Any, problem: str) -> None:
        """Handle a record that cannot be applied: skip it, or mark its entry as unknown from now on."""
        where = f"{chunk.topic}-{chunk.partition} offset {chunk.offsets[at]}"
        if self._skips:
            self.skipped += 1
            logger.warning("table %r: %s is skipped: %s", self._table, where, problem)
            return
        self.entries.pop(key, None)
        self.broken[key] = f"table {self._table!r}: {where}: {problem}"
        logger.error("%s", self.broken[key])

    def _without_key(self, count: int) -> None:
        if not self.skipped:
            logger.warning("table %r: records without a key belong to no entry, and are skipped", self._table)
        self.skipped += count

    def check(self) -> None:
        """Raise TableError if a record could not be read."""
        for problem in self.broken.values():
            more = f" (and {len(self.broken) - 1} more)" if len(self.broken) > 1 else ""
            raise TableError(f"{problem}{more}. {self._remedy()}, or declare the table with on_error='skip'")

    @abstractmethod
    def _remedy(self) -> str:
        """Return what the user can do about a broken entry."""


class _NoKey(NamedTuple):
    """Stands in `Contents` for a key that could not be read."""

    partition: int
    offset: int


class View(Contents[K, V]):
    """Keeps the last value of each key. A null removes the entry."""

    def _apply(
        self, chunk: FetchedRecords, keys: Sequence[Any], values: Sequence[Any], decode: Callable[[Any], Any]
    ) -> None:
        latest = dict(zip(keys, values, strict=True))  # within a fetch only the last record of a key counts
        latest.pop(None, None)
        if None in latest.values():
            for key in [key for key, value in latest.items() if value is None]:
                del latest[key]
                self.entries.pop(key, None)
                self.broken.pop(key, None)
        try:
            self.entries.update(zip(latest, map(decode, latest.values()), strict=True))
        except Exception:  # a serde may raise anything
            self._one_by_one(chunk, keys, latest, decode)
        else:
            if self.broken:
                for key in latest:
                    self.broken.pop(key, None)

    def _one_by_one(
        self, chunk: FetchedRecords, keys: Sequence[Any], latest: Mapping[Any, Any], decode: Callable[[Any], Any]
    ) -> None:
        at_of = {key: at for at, key in enumerate(keys)}
        for key, data in latest.items():
            try:
                self.entries[key] = decode(data)
            except Exception as error:  # a serde may raise anything
                self._pass_over(chunk, at_of[key], key, f"its value cannot be read: {error}")
            else:
                self.broken.pop(key, None)

    def _remedy(self) -> str:
        return "Send a right value, or a null, for that key"


class Folded(Contents[K, V]):
    """Keeps a state per key, folded from all of its events in order."""

    def __init__(
        self,
        table: str,
        format: Format,
        fold: Callable[[Any, Any], V | None],
        initial: Callable[[], V] | None,
        *,
        skips: bool,
    ) -> None:
        super().__init__(table, format, skips=skips)
        self._fold = fold
        self._initial = initial

    def _apply(
        self, chunk: FetchedRecords, keys: Sequence[Any], values: Sequence[Any], decode: Callable[[Any], Any]
    ) -> None:
        events: Iterable[Any]
        try:
            events = [None if value is None else decode(value) for value in values]
        except Exception:  # a serde may raise anything
            events = self._events_one_by_one(chunk, keys, values, decode)
        entries, broken, fold, initial = self.entries, self.broken, self._fold, self._initial
        for at, (key, event) in enumerate(zip(keys, events, strict=True)):
            if key is None or event is None or key in broken:
                continue  # a null is not an event; a broken entry lacks an event
            state = entries.get(key)
            try:
                state = fold(initial() if state is None and initial is not None else state, event)
            except Exception as error:  # the user's function
                self._pass_over(chunk, at, key, f"the event could not be folded: {error!r}")
                continue
            if state is None:
                entries.pop(key, None)
            else:
                entries[key] = state

    def _events_one_by_one(
        self, chunk: FetchedRecords, keys: Sequence[Any], values: Sequence[Any], decode: Callable[[Any], Any]
    ) -> Iterable[Any]:
        """Decode lazily, so that an unreadable event does not discard what was folded before it."""
        for at, (key, value) in enumerate(zip(keys, values, strict=True)):
            event = None
            if value is not None and key is not None:
                try:
                    event = decode(value)
                except Exception as error:  # a serde may raise anything
                    self._pass_over(chunk, at, key, f"the event cannot be read: {error}")
            yield event

    def _remedy(self) -> str:
        return "Fix the type or the function, so that it takes that event"
