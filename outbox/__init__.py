"""Databases and topics: events leave a database's transaction exactly once, and become rows exactly once.

`Outbox` writes events beside the rows they tell of, and its relay publishes them; `Inbox` is what ``tx=`` of a handler
takes; `SqlOffsets` is for a consumer with a loop of one's own.
"""

from __future__ import annotations

from outbox.inbox import Inbox
from outbox.offsets import OffsetsMoved, SqlConnection, SqlOffsets
from outbox.outbox import Outbox
from outbox.quarantine import Choice, Quarantine
from outbox.status import OutboxStatus

__all__ = ["Choice", "Inbox", "OffsetsMoved", "Outbox", "OutboxStatus", "Quarantine", "SqlConnection", "SqlOffsets"]
