"""Databases and topics: a group's offsets beside the rows its records become. (Outbox and inbox land here later.)"""

from __future__ import annotations

from outbox.offsets import OffsetsMoved, SqlConnection, SqlOffsets

__all__ = ["OffsetsMoved", "SqlConnection", "SqlOffsets"]
