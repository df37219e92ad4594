"""Databases and topics: events leave a database's transaction exactly once, and become rows exactly once.

`Outbox` writes events beside the rows they tell of, and its relay publishes them; `Inbox` is what ``tx=`` of a handler
takes; `SqlOffsets` is for a consumer with a loop of one's own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox.inbox import Inbox
    from outbox.offsets import OffsetsMoved, SqlConnection, SqlOffsets
    from outbox.outbox import Outbox
    from outbox.quarantine import Choice, Quarantine
    from outbox.status import OutboxStatus

__all__ = ["Choice", "Inbox", "OffsetsMoved", "Outbox", "OutboxStatus", "Quarantine", "SqlConnection", "SqlOffsets"]

# Each is imported when it is asked for: the list of commands, and who has only one of them, need not pay for the rest.
_HOMES = {
    "Choice": "quarantine",
    "Inbox": "inbox",
    "OffsetsMoved": "offsets",
    "Outbox": "outbox",
    "OutboxStatus": "status",
    "Quarantine": "quarantine",
    "SqlConnection": "offsets",
    "SqlOffsets": "offsets",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'outbox' has no attribute {name!r}")
    return getattr(import_module(f"outbox.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
