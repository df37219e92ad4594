"""The single writer of dead-letter states.

A decision is made on the newest states and stored in one transaction with the records that it is about. A letter is
therefore sent once, even when several processes redrive it at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType

import anyio
import msgspec

from dlq.following import Following
from dlq.reading import reader
from dlq.selection import LetterId
from dlq.state import LetterState, write_key, write_state
from eventbus import Consumer, EventBus
from eventbus.client.ledger_writer import LedgerBatch, LedgerRecord, LedgerWriter
from eventbus.errors import UnknownTopicOrPartition
from eventbus.types import RecordMetadata, TopicPartition

TRANSACTIONAL_ID = "dlq-redrive"
_MOST_FAILURES = 8
"""Consecutive failures of the log after which the caller gets the error."""


class Writes(msgspec.Struct, frozen=True):
    """A decision: the records and states to store in one transaction."""

    records: Sequence[LedgerRecord]
    states: Sequence[tuple[LetterId, LetterState]]
    """The new states of letters. A decision without states has no records either."""
    committed: Callable[[Sequence[RecordMetadata]], None]
    """Called with the places of the records once everything is stored."""


class StateWriter:
    """Writes states while inside ``async with``. Several tasks may share one writer."""

    def __init__(self, bus: EventBus, following: Following) -> None:
        self._bus = bus
        self._following = following
        self._users = 0
        self._writer: LedgerWriter | None = None
        self._states: Consumer | None = None

    async def __aenter__(self) -> StateWriter:
        self._users += 1
        if self._writer is None:
            final = (UnknownTopicOrPartition,)
            self._writer = LedgerWriter(
                self._bus, TRANSACTIONAL_ID, self._open_states, final=final, most_failures=_MOST_FAILURES
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._users -= 1
        if not self._users:
            writer, self._writer = self._writer, None
            states, self._states = self._states, None
            with anyio.CancelScope(shield=True):
                if writer is not None:
                    await writer.release()
                if states is not None:
                    await states.aclose()

    async def _open_states(self) -> None:
        if self._states is None:
            await self._following.make_state_topic()
            states = reader(self._bus, [TopicPartition(self._following.state_topic, 0)])
            self._states = await states.__aenter__()  # closes itself when that fails

    async def write(self, decide: Callable[[], Awaitable[Writes]]) -> None:
        """Store what ``decide`` returns for the newest states. It is called again if another writer was faster.

        Raises the error that prevents the records from being stored, such as RecordTooLarge. Then nothing is stored.
        """

        async def decide_on_newest() -> LedgerBatch:
            assert self._states is not None
            await self._following.catch_up_states(self._states)
            writes = await decide()
            topic = self._following.state_topic
            states = (LedgerRecord(topic, 0, write_key(letter), write_state(state)) for letter, state in writes.states)
            return LedgerBatch((*writes.records, *states), partial(self._stored, writes))

        assert self._writer is not None, "the writer is open inside async with"
        await self._writer.write(decide_on_newest)

    def _stored(self, writes: Writes, places: Sequence[RecordMetadata]) -> None:
        count = len(writes.records)
        if writes.states:
            self._following.written(writes.states, [place.offset for place in places[count:]])
        writes.committed(places[:count])
