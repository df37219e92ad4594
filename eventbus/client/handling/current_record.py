"""The current record: code that runs inside of a handler's call can look it up, for log lines and spans.

Nothing is stored per record. A lookup reads the state of the call loop, which `call_timeouts` also reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import anyio

from eventbus.types import FetchedRecords


class RunningHandler(Protocol):
    """A handler that runs for a group, as far as the current record needs it."""

    @property
    def name(self) -> str: ...

    @property
    def group(self) -> str: ...

    def pause(self, caller: CurrentCaller) -> None:
        """Stop the clock of the caller's timeout, because its call waits on purpose."""
        ...

    def resume(self, caller: CurrentCaller) -> None:
        """Start the clock of the caller's timeout again."""
        ...


class CurrentCaller(Protocol):
    """A task that makes the calls of a handler, one at a time."""

    handler: RunningHandler | None
    task_id: int
    """The id of this task."""

    @property
    def at(self) -> tuple[FetchedRecords, int] | None:
        """The record in flight, as a fetch and an index; the first record of a batch."""
        ...


current_caller: ContextVar[CurrentCaller | None] = ContextVar("eventbus_current_caller", default=None)
"""The task that makes the current call. Threads and tasks that the call starts inherit it."""

inside_handler: ContextVar[str] = ContextVar("eventbus_inside_handler", default="")
"""The name of the handler whose task this is; empty outside of handlers."""


class CurrentRecord(NamedTuple):
    """The record that the calling code handles; for a batch handler, the first record of the batch."""

    handler: str
    group: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    """None in tasks that the handler has started. They may outlive the call, while the caller has the next record."""
    key: bytes | None = None


def current_record() -> CurrentRecord | None:
    """Return the record that this context handles; None outside of handlers."""
    caller = current_caller.get()
    if caller is None or caller.handler is None or (at := caller.at) is None:
        return None
    chunk, index = at
    record = CurrentRecord(caller.handler.name, caller.handler.group, chunk.topic, chunk.partition)
    return record if _in_other_task(caller) else record._replace(offset=chunk.offsets[index], key=chunk.keys[index])


@contextmanager
def timeout_paused() -> Generator[None]:
    """Exclude the time spent in this block from the ``timeout`` of the current call."""
    caller = current_caller.get()
    if caller is None or (handler := caller.handler) is None:
        yield
        return
    handler.pause(caller)
    try:
        yield
    finally:
        handler.resume(caller)


def _in_other_task(caller: CurrentCaller) -> bool:
    try:
        return task_id() != caller.task_id
    except anyio.NoEventLoopError:  # a thread: of a plain function, or one that a handler awaits
        return False


def task_id() -> int:
    """Return the id of the current task, at a tenth of the cost of `anyio.get_current_task` under asyncio."""
    try:
        return id(asyncio.current_task())
    except RuntimeError:
        return anyio.get_current_task().id


def set_current_caller(handler: RunningHandler, caller: CurrentCaller) -> None:
    """Register the current task as one that makes calls. It runs once per fetch, so it does as little as possible."""
    caller.handler = handler
    caller.task_id = task_id()
    current_caller.set(caller)
