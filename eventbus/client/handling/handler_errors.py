"""Build and log the errors of failed calls."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from eventbus.backends.process_exit import check_exit
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.work_actions import Call
from eventbus.errors import EventBusError, HandlerError, SerializationError
from eventbus.recovery import Verdict
from eventbus.types import ConsumerRecord
from eventbus.units_of_work import NotHandled

logger = logging.getLogger("eventbus.runner")


_MOST_TEXT = 10_000
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]
_PACKAGES = Path(__file__).parents[3]
_OURS = tuple(
    f"{folder}{os.sep}"
    for folder in (*(_PACKAGES / name for name in ("eventbus", "serdes", "outbox", "dlq")), Path(anyio.__file__).parent)
)


class CallTimedOut(TimeoutError):
    """A call took longer than ``timeout=``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it took longer than timeout={seconds:g} s")


class Failure(msgspec.Struct, frozen=True):
    """A call of a handler that raised, or whose value could not be read or sent."""

    at: int
    """The record's position in the call; of a batch the first one's."""
    count: int
    error: HandlerError
    cause: Exception
    is_clean: bool
    """Nothing was published on behalf of these records."""
    verdict: Verdict | None = None
    """The verdict of the handler's policy, if it has one."""
    comes_late: bool = False
    """A thread is still in the call, so results of earlier records may come after this."""


OnFailure = Callable[[PartitionDriver, Call, Failure], bool]
"""Acts on a failure. Returns True to continue after the record, False to end the call."""


def check_exit_at(handler: Handler[Any, Any], record: ConsumerRecord, raised: BaseException, count: int = 1) -> None:
    """Raise `ProcessExit` with the record's place if a handler raised SystemExit, KeyboardInterrupt or similar.

    Neither a policy nor ``on_error`` decides then, and the record is not finished.
    """
    if not isinstance(raised, Exception):
        check_exit(raised, f"handler {handler.__name__!r}: {_place_of(record, count)}: the call")


async def as_failure(raised: BaseException) -> Exception:
    """Return the error to report.

    A cancellation that the bus did not request, such as that of a task that the handler awaits, is a failure too.
    Raises when the partition itself is being cancelled, or the coroutine is being closed.
    """
    if isinstance(raised, Exception):
        # A handler may turn our cancellation into another exception, which is not a failure of the handler.
        await anyio.lowlevel.checkpoint_if_cancelled()
        return raised
    if anyio.current_effective_deadline() == -math.inf or not isinstance(raised, anyio.get_cancelled_exc_class()):
        raise raised
    failure = RuntimeError("CancelledError: something that it waited for was cancelled")
    failure.__cause__ = raised
    return failure


def traceback_of(error: BaseException | None) -> ExcInfo | None:
    """Return a traceback for a log message that starts at the first frame of the program, without ours before it.

    Return None if the traceback has no frame of the program, as for a value that could not be decoded.
    """
    if error is None:
        return None
    is_explained = isinstance(error, EventBusError) and _own_frames(error.__cause__) is None
    frames = _own_frames(error) or (None if is_explained else error.__traceback__)
    return None if frames is None else (type(error), error, frames)


def _own_frames(error: BaseException | None) -> TracebackType | None:
    frame = None if error is None else error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OURS):
        frame = frame.tb_next
    return frame


def log_skipped(error: HandlerError) -> None:
    logger.error("%s; skipped (on_error='skip')", error, exc_info=traceback_of(error.__cause__))


def log_skipped_by_policy(error: HandlerError, reason: str) -> None:
    """Log a record that a policy skips. That is a decision, not an error: level INFO, no traceback."""
    logger.info("%s; skipped%s", error, f": {reason}" if reason else "")


def log_stopped(driver: PartitionDriver, error: HandlerError, policy: str) -> None:
    logger.error(
        "%s; %s is stopped here and nothing from this record on is committed (on_error=%r)",
        error, driver.topic_partition, policy, exc_info=traceback_of(error.__cause__),
    )  # fmt: skip


def text_of(error: Exception) -> str:
    """Return the text of an exception. A user's exception may raise in its ``__str__``, or return megabytes."""
    try:
        text = str(error)
    except Exception as raised:
        return f"(its __str__ raised {type(raised).__name__})"
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}... ({len(text):,} characters)"


def _place_of(record: ConsumerRecord, count: int) -> str:
    many = f" (a batch of {count} records)" if count > 1 else ""
    return f"{record.topic}-{record.partition} offset {record.offset}{many}, key {record.key!r:.80}"


def handler_error(handler: Handler[Any, Any], record: ConsumerRecord, error: Exception, count: int) -> HandlerError:
    """Return the error of a failed call, with the handler, the record's place and the cause."""
    where = _place_of(record, count)
    if isinstance(error, CallTimedOut):
        what = "its call was given up: "
    elif isinstance(error, NotHandled):
        what = "it was not handled, and is not to blame: "
    elif isinstance(error, SerializationError):
        what = ""  # its text has whether the record cannot be read or an output cannot be written
    else:
        what = f"made it raise {type(error).__name__}: "
    hint = getattr(error, "without_policy", "") if handler.spec.retry is None else ""
    text = f"{text_of(error)}{f'; {hint}' if hint else ''}"
    wrapped = HandlerError(f"handler {handler.__name__!r}: {where}: {what}{text}")
    wrapped.__cause__ = error
    return wrapped
