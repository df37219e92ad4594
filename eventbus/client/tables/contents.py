"""The entries of a table, to which the records of a fetch are applied. Nothing here waits."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from eventbus.client.consuming.reading import Decoding
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
    """What became of an entry: ``before`` is None where there was none, ``after`` where there is none any more."""

    key: K
    before: V | None
    after: V | None


class Format:
    """Keys and values of one topic, from bytes to what was asked for, column by column."""

    def __init__(self, topic: str, key: Any, value: Any, serdes: Mapping[type, Serde]) -> None:
        """Raises TypeError for an annotation that no serde reads."""
        self._needs = Decoding(key, value, serdes)
        self.key_serde = for_keys(serde_for(key, serdes))
        self.value_serde = serde_for(value, serdes)
        self.key = bind_decoder(self.key_serde, topic)
        self.value = bind_decoder(self.value_serde, topic)

    def needed(self, chunk: FetchedRecords) -> SchemaNeeded | None:
        """Return the schemas that must be fetched before the records can be decoded."""
        return self._needs.needed(chunk, 0) if self._needs.waits else None

    def columns(self, chunk: FetchedRecords) -> tuple[Column, Column]:
        """Keys and values, with what headers say of their schemas before them."""
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
    """The entries, and the errors of those that could not be read."""

    def __init__(self, table: str, format: Format, *, skips: bool) -> None:
        """``skips``: a record that cannot be read is skipped."""
        self._table = table
        self.format = format
        self._skips = skips
        self.entries: dict[K, V] = {}
        self.broken: dict[Any, str] = {}
        """Keys whose entry is not known, and why; under a `_NoKey` what has no key that could be read."""
        self.applied = 0
        """The number of records that were applied."""
        self.skipped = 0
        """The number of records that were skipped: unreadable, or without a key."""
        self._bytes_of_values = 0
        self._values = 0

    @property
    def size_bytes(self) -> int:
        """About what the entries take in the log: their number, by what records had on average."""
        return len(self.entries) * self._bytes_of_values // self._values if self._values else 0

    def clear(self) -> None:
        """The topic is another one now."""
        self.entries.clear()
        self.broken.clear()

    def apply(self, chunk: FetchedRecords, unreadable: Mapping[int, Exception], told: bool) -> list[TableChange[K, V]]:
        """Take records over. ``told``: return what changed, the last change of each key.

        ``unreadable``: by index, what keeps values from being restored, as a claim that is gone.
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
        before = {key: self.entries.get(key) for key in decoded if key is not None} if told else {}
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
        """``keys``: read already; None where a record has none, or one that is passed over."""

    def _decoded(self, chunk: FetchedRecords, keys: Column) -> list[Any]:
        decode = self.format.key
        try:
            decoded: list[Any] = [None if key is None else decode(key) for key in keys]
            deque(map(hash, decoded), 0)
        except Exception:  # a serde may raise anything; and a frozen Struct is as hashable as what is in it
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
        """Handle a record that cannot be applied: its entry is unknown from now on, or the record is skipped."""
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
            logger.warning("table %r: records without a key belong to no entry, and are passed over", self._table)
        self.skipped += count

    def check(self) -> None:
        """Raises TableError when there is something that could not be read."""
        for problem in self.broken.values():
            more = f" (and {len(self.broken) - 1} more)" if len(self.broken) > 1 else ""
            raise TableError(f"{problem}{more}. {self._remedy()}, or declare the table with on_error='skip'")

    @abstractmethod
    def _remedy(self) -> str:
        """The fix for the broken entry."""


class _NoKey(NamedTuple):
    """Stands for a key that could not be read."""

    partition: int
    offset: int


class View(Contents[K, V]):
    """The last value of each key; a null takes the entry away."""

    def _apply(
        self, chunk: FetchedRecords, keys: Sequence[Any], values: Sequence[Any], decode: Callable[[Any], Any]
    ) -> None:
        latest = dict(zip(keys, values, strict=True))  # of what one fetch says of a key the last word counts
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
    """A state for each key, made of all its events in their order."""

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
        """Made as they are folded: what breaks an entry must not take away what was folded before it."""
        for at, (key, value) in enumerate(zip(keys, values, strict=True)):
            event = None
            if value is not None and key is not None:
                try:
                    event = decode(value)
                except Exception as error:  # a serde may raise anything
                    self._pass_over(chunk, at, key, f"the event cannot be read: {error}")
            yield event

    def _remedy(self) -> str:
        return "Mend the type or the function, so that it takes that event"
