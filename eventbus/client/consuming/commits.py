"""Commits without a waiting caller: in order, retried, and never to an earlier offset."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import anyio
import msgspec

from eventbus.backends.clock import RealTimers, Timers
from eventbus.backends.delivery import check_ran
from eventbus.errors import EventBusError
from eventbus.types import OffsetAndMetadata, TopicPartition

logger = logging.getLogger("eventbus.consumer")

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Offsets, EventBusError | None], object]
"""Called with the offsets, and the error that kept them from being stored, or None."""
Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
"""Runs a task concurrently with the caller."""

_ATTEMPTS = 10
_RETRY_SECONDS = 0.1
"""Kafka's default of ``retry.backoff.ms``."""


class _Commit(msgspec.Struct, frozen=True):
    number: int
    offsets: Offsets
    callback: OnCommit | None


class BackgroundCommits:
    """Commits in the background, one at a time. Requests made meanwhile are combined into the next commit.

    Every commit has a number. For each partition only the newest commit counts, so a retry that has become stale is
    dropped.
    """

    def __init__(
        self, commit: Callable[[Offsets], Awaitable[None]], spawn: Spawn, timers: Timers | None = None
    ) -> None:
        self._commit = commit
        self._timers = timers or RealTimers()
        self._spawn = spawn
        self._waiting: list[_Commit] = []
        self._count = 0
        self._newest: dict[TopicPartition, int] = {}
        self._turn = anyio.Lock(fast_acquire=True)
        """Held by the commit in flight. A later commit that overtook it would be undone by it."""
        self._idle: anyio.Event | None = None
        """Set when the background task is idle again; None while it is idle."""

    def number(self, offsets: Offsets) -> int:
        """Number a commit. Earlier commits are stale for its partitions from now on."""
        self._count += 1
        for topic_partition in offsets:
            self._newest[topic_partition] = self._count
        return self._count

    async def now(self, offsets: Offsets) -> None:
        """Commit after the commit in flight. Raises the error of the commit."""
        self.number(offsets)
        async with self._turn:
            await self._commit(offsets)

    def add(self, offsets: Offsets, callback: OnCommit | None) -> None:
        self._waiting.append(_Commit(self.number(offsets), offsets, callback))
        if self._idle is None:
            self._idle = anyio.Event()
            self._spawn(self._run)

    async def finish(self) -> None:
        """Return when the outcome of everything added so far is known."""
        while self._idle is not None:
            await self._idle.wait()

    async def _run(self) -> None:
        try:
            while self._waiting:
                commits, self._waiting = self._waiting, []
                error = await self._store(commits)
                for commit in commits:
                    self._tell(commit, error)
        finally:
            idle, self._idle = self._idle, None
            if idle is not None:
                idle.set()

    async def _store(self, commits: list[_Commit]) -> EventBusError | None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with self._turn:
                    offsets = {
                        topic_partition: offset
                        for commit in commits
                        for topic_partition, offset in commit.offsets.items()
                        if self._newest[topic_partition] == commit.number
                    }
                    if offsets:  # otherwise newer commits are waiting
                        await self._commit(offsets)
                return None
            except EventBusError as error:
                if not error.retriable or attempt == _ATTEMPTS:
                    return error
                logger.info("a commit is tried again: %s", error)
            await self._timers.sleep(_RETRY_SECONDS)
        raise AssertionError("unreachable")

    def _tell(self, commit: _Commit, error: EventBusError | None) -> None:
        if commit.callback is None:
            if error is not None:
                logger.error("offsets were not committed: %s", error)
            return
        try:
            check_ran(commit.callback(commit.offsets, error), commit.callback)
        except Exception:  # the user's code: it must not prevent later commits
            logger.exception("a commit callback raised")
