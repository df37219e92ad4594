"""Look up which topics the consumer groups of a log read: by their members, and by their committed offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from eventbus import EventBus


class GroupReads(NamedTuple):
    """The topics that one group reads."""

    members: tuple[frozenset[str], ...] = ()
    """The topics of each member. Empty if no member runs, and during a rebalance."""
    committed: frozenset[str] = frozenset()
    """The topics in which the group has committed offsets."""

    @property
    def topics(self) -> frozenset[str]:
        return self.committed.union(*self.members)


class Groups:
    """Looks up groups on demand, each of them once."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self.known: dict[str, GroupReads] = {}

    async def look_up(self, groups: Iterable[str]) -> None:
        """Fill in `known` for these groups."""
        admin, missing = self._bus.admin, sorted({*groups} - self.known.keys())
        for described in await admin.describe_groups(missing) if missing else ():
            members = (frozenset((*one.topics, *(part.topic for part in one.partitions))) for one in described.members)
            offsets = await admin.group_offsets(described.group)
            self.known[described.group] = GroupReads(
                tuple(topics for topics in members if topics), frozenset(partition.topic for partition in offsets)
            )

    async def look_up_all(self) -> None:
        """Fill in `known` for all groups of the log."""
        await self.look_up([listing.group for listing in await self._bus.admin.list_groups()])

    def readers(self, topic: str) -> list[str]:
        """Return the known groups that read a topic."""
        return sorted(group for group, reads in self.known.items() if topic in reads.topics)
