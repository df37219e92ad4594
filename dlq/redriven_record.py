"""Build the record that a redrive writes for a dead letter."""

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
"""Write all headers of a redrive, and the original timestamp."""
_COUNTS: Final = 1
"""Write only the headers that identify redrives and end loops. A retry entry needs them."""
_NONE: Final = 0
"""Write the record as its topic accepted it. The state topic records the redrive anyway."""


class Redriving(msgspec.Struct, frozen=True):
    """The properties shared by all records of a redrive or an edit."""

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
        """Return the record to write for a letter. ``content`` provides its key, value and own headers.

        In a retry topic it has the form in which the handler writes a record that waits for an earlier one of its key:
        due at once and with all of its tries left. ``timestamp_ms`` is used only in topics that other groups read too.
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
        # Every entry names its group, because another group may read the same topic, whatever its name is.
        entry = entry_behind(failed, letter.group, letter.source_topic_id)
        return LedgerRecord(target.topic, target.partition, entry.key, entry.value, entry.headers)

    def _headers(self, letter: DeadLetter, own: Headers) -> Headers:
        headers: list[Header] = [header for header in own if not header[0].startswith(_NOT_ITS_OWN)]
        if self.detail >= _COUNTS:
            if self.detail == ALL:
                headers.append((REDRIVE_OF, msgspec.json.encode(list(id_of(letter)))))
            headers += (HOPS, b"%d" % (letter.hops + 1)), (REDRIVEN_AT, b"%d" % self.at_ms)
        if self.detail == ALL:
            # Consumers of a topic with several groups can filter by this header.
            texts = ("group", letter.group), ("by", self.by), ("edited", "1" if self.edited else "")
            headers += [(f"{REDRIVE}{name}", text.encode()) for name, text in texts if text]
        return tuple(headers)

    def smaller(self, error: EventBusError, target: Target) -> Redriving | None:
        """Return how to send a record that its topic has refused, or None if leaving out more headers cannot help.

        The topic accepted the record once without the headers of a redrive, so these must not be the reason for a
        refusal.
        """
        least = _NONE if target.group is None else _COUNTS
        if self.detail == least or not isinstance(error, (RecordTooLarge, InvalidTimestamp)):
            return None
        return msgspec.structs.replace(self, detail=self.detail - 1)
