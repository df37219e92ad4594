"""The current record: code that runs inside of a handler's call can look it up, for log lines and spans.

Nothing is stored per record. A lookup reads the state of the call loop, which the watch of slow calls also reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import anyio

from eventbus.types import FetchedRecords


class Member(Protocol):
    """A handler that runs for a group, as far as the current record needs it."""

    @property
    def name(self) -> str: ...

    @property
    def group(self) -> str: ...

    def waits(self, one: Calling) -> None:
        """The call waits on purpose from now on, and this time does not count for its timeout."""
        ...

    def goes_on(self, one: Calling) -> None:
        """The call waits no longer."""
        ...


class Calling(Protocol):
    """A task that makes calls, one at a time."""

    member: Member | None
    task_id: int
    """The task that makes them."""

    @property
    def at(self) -> tuple[FetchedRecords, int] | None:
        """The record in flight, as a fetch and an index; the first record of a batch."""
        ...


here: ContextVar[Calling | None] = ContextVar("eventbus_here", default=None)
"""Set where calls are made; inherited by the threads and tasks that they begin."""

inside_handler: ContextVar[str] = ContextVar("eventbus_inside_handler", default="")
"""The handler whose task this is; empty elsewhere."""


class RecordHere(NamedTuple):
    """The record that the calling code handles; for a batch handler, the first record of the batch."""

    handler: str
    group: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    """None in tasks that the handler has begun: they may outlive its call, and then it would be another record's."""
    key: bytes | None = None


def record_here() -> RecordHere | None:
    """Return the record that this context handles; None outside of handlers."""
    found = here.get()
    if found is None or found.member is None or (at := found.at) is None:
        return None
    chunk, index = at
    known = RecordHere(found.member.name, found.member.group, chunk.topic, chunk.partition)
    return known if _in_task_of_its_own(found) else known._replace(offset=chunk.offsets[index], key=chunk.keys[index])


@contextmanager
def waiting() -> Generator[None]:
    """Time spent in this block does not count for the ``timeout`` of the current call."""
    found = here.get()
    if found is None or (member := found.member) is None:
        yield
        return
    member.waits(found)
    try:
        yield
    finally:
        member.goes_on(found)


def _in_task_of_its_own(found: Calling) -> bool:
    try:
        return task_id() != found.task_id
    except anyio.NoEventLoopError:  # a thread: of a plain function, or one that a handler awaits
        return False


def task_id() -> int:
    """Return the id of the current task, at a tenth of the cost of `anyio.get_current_task` under asyncio."""
    try:
        return id(asyncio.current_task())
    except RuntimeError:
        return anyio.get_current_task().id


def begin_here(member: Member, calling: Calling) -> None:
    """Register this task as one that makes calls. It runs once per fetch, so it does as little as possible."""
    calling.member = member
    calling.task_id = task_id()
    here.set(calling)
