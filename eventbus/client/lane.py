"""One partition's records on their way through a handler, and how far they are finished."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio

from eventbus.errors import EventBusError, HandlerError
from eventbus.types import FetchedRecords, TopicPartition


class Outcome(Protocol):
    """Whether something published is stored; a `Delivery` is one."""

    def done(self) -> bool: ...

    def exception(self) -> EventBusError | None: ...

    async def wait(self) -> None: ...


class Lane:
    """Records of one partition, handled in order.

    ``finished`` is the next offset to read after the contiguous prefix of records whose handlers have returned and
    whose outputs are stored: the only thing a commit ever sees.
    """

    __slots__ = (
        "_in_flight",
        "_on_output_error",
        "abandoned",
        "at_work",
        "chunks",
        "closing",
        "committed",
        "ended",
        "error",
        "finished",
        "predecessor",
        "scope",
        "stopping",
        "topic_partition",
        "wake",
    )

    def __init__(self, topic_partition: TopicPartition, on_output_error: Callable[[HandlerError], bool]) -> None:
        self.topic_partition = topic_partition
        self.chunks: deque[FetchedRecords] = deque()
        self.at_work = False
        self.finished = -1
        self.committed = -1
        self.error: HandlerError | None = None
        """Why the lane has stopped. From then on nothing moves `finished`."""
        self.stopping = False
        """The record at work is the last one for now: looked at before each record."""
        self.closing = False
        """No further record is begun at all: the partition moves away, or the handler stops."""
        self.abandoned = False
        """The partition is gone: what is at work ends, and is not committed."""
        self.wake = anyio.Event()
        self.scope = anyio.CancelScope()
        """Around everything the lane does; cancelled when a handler outlasts the time it has to give up a partition."""
        self.ended = anyio.Event()
        self.predecessor: Lane | None = None
        """The lane of the same partition before this one, when it may still be at work: its end comes first."""
        self._in_flight: deque[tuple[int, Outcome]] = deque()
        self._on_output_error = on_output_error

    def handled(self, next_offset: int, last_output: Outcome | None = None) -> None:
        """Every record below ``next_offset`` was handled; ``last_output`` is what the last of them published."""
        if self.error is not None:
            return
        if last_output is not None:
            self._in_flight.append((next_offset, last_output))
        elif self._in_flight:
            # Without an output of its own it is finished when the outputs before it are stored.
            self._in_flight.append((next_offset, self._in_flight[-1][1]))
        else:
            self.finished = next_offset

    def settle(self) -> None:
        """Move `finished` past records whose outputs are stored; stop at one that was not, unless that is skipped.

        What is on its way came before the record that stopped the lane, if one did: it is finished all the same.
        """
        in_flight = self._in_flight
        while in_flight and in_flight[0][1].done():
            next_offset, output = in_flight.popleft()
            error = output.exception()
            if error is not None:
                stopped = HandlerError(
                    f"{self.topic_partition}: what the handler published for offset {next_offset - 1} was not stored: "
                    f"{error}"
                )
                stopped.__cause__ = error
                if not self._on_output_error(stopped):
                    self.error = stopped
                    in_flight.clear()
                    return
            self.finished = next_offset

    @property
    def reached(self) -> int:
        """The next offset to handle: as `finished`, whether or not the outputs are stored. -1: no record yet."""
        return self._in_flight[-1][0] if self._in_flight else self.finished

    def close(self, *, abandon: bool = False) -> None:
        """Begin no further record. ``abandon``: nothing of it may be committed any more either."""
        self.stopping = self.closing = True
        self.abandoned = self.abandoned or abandon
        self.chunks.clear()
        self.wake.set()

    def rewind(self, offset: int) -> None:
        """What was handled from ``offset`` on is undone, and may be handled again."""
        self._in_flight.clear()
        self.error = None
        self.finished = offset

    async def outputs_stored(self) -> None:
        """Return when the outcome of everything published so far is known, and `finished` tells it."""
        while self._in_flight:
            await self._in_flight[-1][1].wait()
            self.settle()

    @property
    def is_idle(self) -> bool:
        """Nothing waits, is at work, or is on its way to be stored."""
        return not (self.chunks or self.at_work or self._in_flight)

    def __repr__(self) -> str:
        state = "failed" if self.error else "idle" if self.is_idle else "busy"
        return f"<lane {self.topic_partition} {state} finished={self.finished} committed={self.committed}>"
