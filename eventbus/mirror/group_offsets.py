"""Translate the groups' committed offsets: a consumer that moves continues at its position, and skips nothing."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from eventbus.backends.base import EARLIEST, Backend
from eventbus.errors import KafkaError, RebalanceInProgress, UnknownMemberId
from eventbus.mirror.journal import Journal
from eventbus.mirror.plan import Options
from eventbus.mirror.progress import GroupProgress, GroupState, Progress
from eventbus.mirror.refusals import may_pass
from eventbus.mirror.writer import Writer
from eventbus.types import OffsetAndMetadata, TopicPartition

logger = logging.getLogger("eventbus.mirror")

_TAKEN = (UnknownMemberId, RebalanceInProgress)
"""A coordinator's errors for commits by non-members of an active group."""

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class GroupOffsets:
    """Keeps the destination's offsets in step with the source's, until another client moves them."""

    def __init__(
        self, source: Backend, destination: Backend, journal: Journal, options: Options, progress: Progress
    ) -> None:
        self._source = source
        self._destination = destination
        self._journal = journal
        self._options = options
        self._progress = progress
        self._settled: dict[str, Offsets] = {}
        """Groups whose offsets are already committed, and need no further check."""

    async def sync(self, writer: Writer) -> None:
        """Check every group once. Called between transactions, when the maps contain only committed records."""
        if self._options.groups is None:
            return
        for listing in await self._source.list_groups():
            if re.fullmatch(self._options.groups, listing.group) and listing.protocol_type in ("consumer", ""):
                try:
                    await self._sync(listing.group, writer)
                except KafkaError as error:
                    if may_pass(error):
                        raise
                    self._refuse(listing.group, error)

    def _refuse(self, group: str, error: KafkaError) -> None:
        """Record an error; the next check tries the group again."""
        before = self._progress.groups.get(group)
        if before is None or before.state != "refused":
            logger.warning("the offsets of group %r are not translated: %s", group, error)
        self._settled.pop(group, None)
        self._progress.groups[group] = GroupProgress(state="refused", partitions=0)

    async def _sync(self, group: str, writer: Writer) -> None:
        committed = {
            where: at
            for where, at in (await self._source.group_offsets(group)).items()
            if where in self._journal.maps and where.topic not in self._progress.problems and at.offset >= 0
        }
        if not committed:
            return
        wanted = {where: self._translated(where, at) for where, at in committed.items()}
        if self._settled.get(group) != wanted:
            state, count = await self._settle(group, wanted, writer)
            if state == "translated":
                self._settled[group] = wanted
                if any(self._is_ahead(where, at.offset) for where, at in committed.items()):
                    state = "ahead of the copy"
            self._record_progress(group, state, len(wanted), count)

    def _translated(self, where: TopicPartition, at: OffsetAndMetadata) -> OffsetAndMetadata:
        return OffsetAndMetadata(self._journal.maps[where].translate(at.offset), at.metadata)

    def _is_ahead(self, where: TopicPartition, offset: int) -> bool:
        """True if the group has read records that are not copied yet, so that its offset has no translation yet."""
        return offset > max(self._progress.of(where).position, self._journal.maps[where].position)

    def _record_progress(self, group: str, state: GroupState, partitions: int, committed: int) -> None:
        before = self._progress.groups.get(group)
        if before is None or before.state != state:
            logger.info("group %r: %s", group, state)
        total = committed + (0 if before is None else before.committed)
        self._progress.groups[group] = GroupProgress(state=state, partitions=partitions, committed=total)

    async def _settle(self, group: str, wanted: Offsets, writer: Writer) -> tuple[GroupState, int]:
        """Commit missing offsets; return the group's state, and how many offsets were committed."""
        there = await self._destination.group_offsets(group)
        written = self._journal.groups.get(group, {})
        missing = {where: at for where, at in wanted.items() if there.get(where) != at}
        moved = {where for where in missing if where in there and there[where].offset not in written.get(where, ())}
        if self._options.overwrite_groups:
            moved.clear()
        to_commit = await self._held({where: at for where, at in missing.items() if where not in moved})
        to_commit = {where: at for where, at in to_commit.items() if there.get(where) != at}
        if to_commit:
            (described,) = await self._destination.describe_groups([group])
            if described.members:
                return "live at the destination", 0
            steps = {w: (there[w].offset if w in there else None, at.offset) for w, at in to_commit.items()}
            await writer.save([self._journal.committing(group, steps)])
            try:
                await self._destination.alter_group_offsets(group, to_commit)
            except _TAKEN:
                return "live at the destination", 0
        return "moved at the destination" if moved else "translated", len(to_commit)

    async def _held(self, offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
        """Raise offsets to the destination's first record: below it, a consumer would be reset, perhaps to the end."""
        try:
            first = await self._destination.list_offsets(dict.fromkeys(offsets, EARLIEST))
        except KafkaError as error:
            if not error.retriable:
                raise
            return dict(offsets)  # a leader does not answer now; the next check tries again
        return {where: at._replace(offset=max(at.offset, first[where].offset)) for where, at in offsets.items()}
