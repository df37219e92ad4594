"""The options of a mirror."""

from __future__ import annotations

import msgspec

from eventbus.mirror.plan import Selection
from eventbus.types import Compression


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `eventbus.mirror.Mirror`."""

    name: str
    selection: Selection
    groups: str | None = ".*"
    """A pattern of whole names; None selects no group."""
    overwrite_groups: bool = False
    replication_factor: int = -1
    compression: Compression = Compression.NONE
    again: tuple[str, ...] = ()
    refresh_seconds: float = 2.0

    @property
    def transactional_id(self) -> str:
        return f"eventbus-mirror.{self.name}"
