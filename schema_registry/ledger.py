"""The state of a registry: the stored state, and the state after the transaction in flight. Pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from eventbus.coordinator.shard import CoordinatorRecord
from eventbus.types import ConsumerRecord
from schema_registry import names, records
from schema_registry.records import LAST_ID, Key, SchemaValue, UnreadableRecord, Value
from schema_registry.schemas import Schemas
from schema_registry.state import Conflict, State

logger = logging.getLogger("schema_registry")

_ID = re.compile(rb'"id"\s*:\s*(\d{1,10})')
_SUBJECT = re.compile(rb'"subject"\s*:\s*"([^"]*)"')


class Stored(NamedTuple):
    """A record as it was read."""

    offset: int
    key: bytes | None
    value: bytes | None


class Ledger:
    """Two states that fold the same records. Requests are decided on ``ahead``, reads answered from ``settled``."""

    def __init__(self, topic: str, schemas: Schemas) -> None:
        self.topic = topic
        self.settled = State()
        self.ahead = State()
        self.next = 0
        """The offset of the record to come: everything before it is in ``settled``."""
        self._marker_is_due = False
        """The next offset is expected to be our transaction's marker; Kafka writes the marker later than the records.
        """
        self.generation = 0
        """Records folded: as long as it stays, so does every answer."""
        self.burnt: dict[str, int] = {}
        """The highest id in an aborted or unreadable record, by context."""
        self._schemas = schemas
        self._is_loading = True

    def take(self, stored: Iterable[Stored]) -> None:
        """Apply records that were read. Records that were applied when they were written are skipped."""
        for offset, key, value in stored:
            if offset < self.next:
                continue
            self.advance(offset + 1)
            read = self._read(key, value, offset)
            if read is not None:
                self._fold(self.settled, *read, offset)
                if not self._is_loading:
                    self.ahead.apply(*read, offset)

    def loaded(self) -> None:
        """Begin to decide requests: all that was in the topic has been read."""
        self._is_loading = False
        self.ahead = self.settled.copy()

    def propose(self, decided: Sequence[CoordinatorRecord]) -> None:
        """Fold records that are not stored yet, for the requests that are decided after them."""
        for key, value in decided:
            self.ahead.replay(key, value)

    @property
    def expected(self) -> int:
        """The offset of our next record, unless another process writes first."""
        return self.next + self._marker_is_due

    def advance(self, next: int) -> None:
        """Nothing before this offset is missing."""
        if next > self.next:
            self.next = next
            self._marker_is_due = False

    def settle(self, decided: Sequence[CoordinatorRecord], first: int) -> None:
        """Record that the pending records are stored from offset ``first`` on. Some may have been read back already."""
        for offset, (key, value) in enumerate(decided, first):
            if offset < self.next:
                continue
            read = self._read(key, value, offset)
            if read is not None:
                self._fold(self.settled, *read, offset)
        if first + len(decided) > self.next:
            self.next = first + len(decided)
            self._marker_is_due = True

    def undo(self) -> None:
        """Discard the proposed state, because it was not stored."""
        self.ahead = self.settled.copy()

    def burn(self, stored: Iterable[ConsumerRecord]) -> None:
        """Their ids are not given any more, whatever became of the records."""
        for record in stored:
            try:
                name = records.read_key(record.key or b"")
                if record.value is None or name.keytype != records.SCHEMA:
                    continue
                read = records.read_value(name, record.value)
            except UnreadableRecord:
                continue
            if isinstance(read, SchemaValue):
                context = names.context_of(name.subject)
                self.burnt[context] = max(self.burnt.get(context, 0), read.id)

    def _fold(self, state: State, key: Key, form: bytes, value: Value | None, offset: int) -> None:
        self.generation += 1
        if key.keytype == records.CLEAR_SUBJECT or (value is None and key.keytype == records.SCHEMA):
            self._schemas.forget()
        state.apply(key, form, value, offset)
        conflict = state.conflicts.get((key.subject or "", key.version))
        if conflict is not None and conflict.offset == offset:
            logger.error("%s", _second_meaning(self.topic, conflict))

    def _read(self, key: bytes | None, value: bytes | None, offset: int) -> tuple[Key, bytes, Value | None] | None:
        """Decode a record, or return None if it changes nothing. An unreadable record is skipped, as in Confluent's
        registry."""
        try:
            if key is None:
                raise UnreadableRecord("it has no key")
            name = records.read_key(key)
            if name == Key(records.NOOP):
                return None
            return name, key, None if value is None else records.read_value(name, value)
        except UnreadableRecord as error:
            logger.warning("the record at offset %d of topic %r is skipped: %s", offset, self.topic, error)
            self._spare(key, value)
            return None

    def _spare(self, key: bytes | None, value: bytes | None) -> None:
        """A schema's record that cannot be read may still say which id it has: that one is not given to others."""
        found = _ID.search(value or b"")
        if found is None or key is None or b'"SCHEMA"' not in key:
            return
        named = _SUBJECT.search(key)
        context = names.context_of(named[1].decode(errors="replace") if named else "")
        id = int(found[1])
        if id <= LAST_ID:
            self.burnt[context] = max(self.burnt.get(context, 0), id)


def _second_meaning(topic: str, conflict: Conflict) -> str:
    (subject, version), (holder, holder_version) = conflict.place, conflict.other
    if conflict.place == conflict.other:
        remedy = "Write the first record of this key again before compaction removes it"
    else:
        key = records.key_bytes(Key(records.SCHEMA, *conflict.place)).decode()
        remedy = f"Register the ignored schema again to give it its own id, and delete its record (key {key}, no value)"
    return (
        f"The record at offset {conflict.offset} of topic {topic!r} is ignored. It gives another schema to id "
        f"{conflict.id}, as {subject!r} version {version}, and {holder!r} version {holder_version} has this id. Data "
        f"with id {conflict.id} is read with the schema of {holder!r} version {holder_version}. {remedy}"
    )
