"""Databases and topics: events leave a database's transaction exactly once, and become rows exactly once.

`Outbox` writes events beside the rows they tell of, and its relay publishes them; `Inbox` is what ``tx=`` of a handler
takes; `SqlOffsets` is for a consumer with a loop of one's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventbus.errors import OffsetsMoved
from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from outbox.inbox import Inbox
    from outbox.offsets import SqlOffsets
    from outbox.outbox import Outbox
    from outbox.status import OutboxStatus

__all__ = ["Inbox", "OffsetsMoved", "Outbox", "OutboxStatus", "SqlOffsets"]

# Each is imported when it is asked for: the list of commands, and who has only one of them, need not pay for the rest.
_HOMES = {
    "inbox": ("Inbox",),
    "offsets": ("SqlOffsets",),
    "outbox": ("Outbox",),
    "status": ("OutboxStatus",),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)
