"""Move events between databases and topics exactly once, in both directions.

`Outbox` stores events in the transaction of the rows they describe, and its relay publishes them. `Inbox` is the value
of a handler's ``tx=``: each record changes the database once. `SqlOffsets` does the same for a custom consumer loop.

- ``outbox``, ``writing``, ``serializing``, ``sessions``: `publish` in the caller's transaction
- ``relay``: publishes committed events; ``commit_listeners`` and ``notify`` make it prompt
- ``quarantine``, ``status``, ``watch``: events that the log refused, and monitoring
- ``inbox``, ``units``, ``calls``, ``claims``, ``tries``: handlers with ``tx=``
- ``offsets``: `SqlOffsets`
- ``tables``, ``schema``, ``migrations``, ``database``: tables, and transactions on any engine
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventbus.errors import OffsetsMoved as OffsetsMoved
from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from outbox.inbox import Inbox as Inbox
    from outbox.offsets import SqlOffsets as SqlOffsets
    from outbox.outbox import Outbox as Outbox
    from outbox.status import OutboxStatus as OutboxStatus

# Import each module on first use, so that a program pays only for the parts that it uses.
_HOMES = {
    "inbox": ("Inbox",),
    "offsets": ("SqlOffsets",),
    "outbox": ("Outbox",),
    "status": ("OutboxStatus",),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES, also=("OffsetsMoved",))
