"""Which record is at work here: known to whoever runs inside of a handler's call, for log lines and spans.

A look costs something, a record nothing: it is found where the watch of slow calls finds it, when somebody asks.
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
    """Who has calls made: a handler, for a group."""

    @property
    def name(self) -> str: ...

    @property
    def group(self) -> str: ...

    def waits(self, one: Calling) -> None:
        """Its call waits on purpose from now on: that is no part of the time it may take."""
        ...

    def goes_on(self, one: Calling) -> None:
        """It waits no longer."""
        ...


class Calling(Protocol):
    """What makes calls, one at a time."""

    member: Member | None
    task_id: int
    """The task that makes them."""

    @property
    def at(self) -> tuple[FetchedRecords, int] | None:
        """The record at work, in its fetch; of a call with several the first."""
        ...


here: ContextVar[Calling | None] = ContextVar("eventbus_here", default=None)
"""Set where calls are made; inherited by the threads and tasks that they begin."""

inside_handler: ContextVar[str] = ContextVar("eventbus_inside_handler", default="")
"""The handler whose task this is; empty elsewhere."""


class RecordHere(NamedTuple):
    """The record that is handled where this is asked for; of a handler of lists the first of its call."""

    handler: str
    group: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    """None in tasks that the handler has begun: they may outlive its call, and then it would be another record's."""
    key: bytes | None = None


def record_here() -> RecordHere | None:
    """What this context handles; None outside of handlers."""
    found = here.get()
    if found is None or found.member is None or (at := found.at) is None:
        return None
    chunk, index = at
    known = RecordHere(found.member.name, found.member.group, chunk.topic, chunk.partition)
    return known if _in_task_of_its_own(found) else known._replace(offset=chunk.offsets[index], key=chunk.keys[index])


@contextmanager
def waiting() -> Generator[None]:
    """What passes in here is not counted by the ``timeout`` of the call at work."""
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
    """As `anyio.get_current_task` has it, at a tenth of the cost under asyncio: it is asked for once per fetch."""
    try:
        return id(asyncio.current_task())
    except RuntimeError:
        return anyio.get_current_task().id


def begin_here(member: Member, calling: Calling) -> None:
    """From now on this task makes calls. Once per fetch: as little as can be."""
    calling.member = member
    calling.task_id = task_id()
    here.set(calling)
