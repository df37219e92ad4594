"""The record as which a dead letter is sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from dlq.headers import OURS, SHARED
from dlq.targets import Target, id_of
from eventbus.client.ledger_writer import LedgerRecord
from eventbus.delays.retry_records import HOPS, PREFIX, REDRIVE, REDRIVE_OF, entry_behind
from eventbus.errors import EventBusError, InvalidTimestamp, RecordTooLarge
from eventbus.recovery import REDRIVEN_AT
from eventbus.types import ConsumerRecord, Header, Headers, TimestampType

if TYPE_CHECKING:
    from dlq.letters import DeadLetter

_NOT_ITS_OWN = (OURS, SHARED, REDRIVE, PREFIX)
ALL: Final = 2
"""All headers of a redrive, and the original timestamp."""
_COUNTS: Final = 1
"""Only the headers that tell redrives apart and end loops. An entry needs them."""
_NONE: Final = 0
"""The record as its topic took it. What became of the letter is in the state topic anyway."""


class Redriving(msgspec.Struct, frozen=True):
    """The common part of the records of a redrive or an edit."""

    at_ms: int
    by: str = ""
    edited: bool = False
    detail: int = ALL

    def record(
        self,
        letter: DeadLetter,
        target: Target,
        content: ConsumerRecord | DeadLetter,
        timestamp_ms: int | None,
    ) -> LedgerRecord:
        """Return the record to write for a letter. ``content`` has its key, value and own headers.

        In a retry topic it is an entry as the handler writes it for a record that waits after another one of its key:
        due at once, and with all its tries. ``timestamp_ms``: of the record in a topic that other groups read too.
        """
        headers = self._headers(letter, content.headers)
        if target.group is None:
            kept_ms = timestamp_ms if self.detail == ALL else None
            return LedgerRecord(target.topic, target.partition, content.key, content.value, headers, kept_ms)
        assert letter.source is not None and letter.source_offset is not None
        original_ms, kind = letter.original_timestamp_ms, TimestampType.CREATE_TIME
        if isinstance(content, ConsumerRecord):
            original_ms, kind = content.timestamp_ms, content.timestamp_type
        failed = ConsumerRecord(
            *letter.source, letter.source_offset, -1 if original_ms is None else original_ms, kind,
            content.key, content.value, headers,
        )  # fmt: skip
        # Every entry names its group. Another group may read the same topic, whatever its name is.
        entry = entry_behind(failed, letter.group, letter.source_topic_id)
        return LedgerRecord(target.topic, target.partition, entry.key, entry.value, entry.headers)

    def _headers(self, letter: DeadLetter, own: Headers) -> Headers:
        headers: list[Header] = [header for header in own if not header[0].startswith(_NOT_ITS_OWN)]
        if self.detail >= _COUNTS:
            if self.detail == ALL:
                headers.append((REDRIVE_OF, msgspec.json.encode(list(id_of(letter)))))
            headers += (HOPS, b"%d" % (letter.hops + 1)), (REDRIVEN_AT, b"%d" % self.at_ms)
        if self.detail == ALL:
            # In a topic that other groups read, they can filter by the group.
            texts = ("group", letter.group), ("by", self.by), ("edited", "1" if self.edited else "")
            headers += [(f"{REDRIVE}{name}", text.encode()) for name, text in texts if text]
        return tuple(headers)

    def smaller(self, error: EventBusError, target: Target) -> Redriving | None:
        """Return how a record is sent that its topic has refused, or None if it does not help to leave out more.

        The topic took the record once, without the headers of a redrive. They must not be what it does not take.
        """
        least = _NONE if target.group is None else _COUNTS
        if self.detail == least or not isinstance(error, (RecordTooLarge, InvalidTimestamp)):
            return None
        return msgspec.structs.replace(self, detail=self.detail - 1)
