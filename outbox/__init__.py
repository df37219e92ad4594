"""Databases and topics: events leave a database's transaction exactly once, and become rows exactly once.

`Outbox` writes events beside the rows they tell of, and its relay publishes them; `Inbox` is what ``tx=`` of a handler
takes; `SqlOffsets` is for a consumer with a loop of one's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventbus.lazy import lazy_names

if TYPE_CHECKING:
    from outbox.inbox import Inbox
    from outbox.offsets import OffsetsMoved, SqlConnection, SqlOffsets
    from outbox.outbox import Outbox
    from outbox.quarantine import Choice, Quarantine
    from outbox.status import OutboxStatus

__all__ = ["Choice", "Inbox", "OffsetsMoved", "Outbox", "OutboxStatus", "Quarantine", "SqlConnection", "SqlOffsets"]

# Each is imported when it is asked for: the list of commands, and who has only one of them, need not pay for the rest.
_HOMES = {
    "inbox": ("Inbox",),
    "offsets": ("OffsetsMoved", "SqlConnection", "SqlOffsets"),
    "outbox": ("Outbox",),
    "quarantine": ("Choice", "Quarantine"),
    "status": ("OutboxStatus",),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)
