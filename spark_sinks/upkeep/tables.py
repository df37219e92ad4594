"""Open an existing table along with its topic."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NamedTuple

from eventbus.backends.shared_reader import readable_outside
from eventbus.errors import ConfigError
from spark_sinks.landing import table_of
from spark_sinks.source.origin import Origin
from spark_sinks.source.origins import open_origin
from spark_sinks.targets.choose import open_target
from spark_sinks.targets.target import NewTable, SinkState, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Opened(NamedTuple):
    """An open table. ``url`` is the log for tasks, ``log`` its name for messages.

    ``session`` starts Spark when it is called, unless a session exists.
    """

    url: str
    log: str
    origin: Origin
    target: Target
    state: SinkState
    session: Callable[[], SparkSession]


@contextlib.contextmanager
def opened(url: str, topic: str | None, to: str, *, spark: SparkSession | None = None) -> Generator[Opened]:
    """Open the table at ``to`` and its topic, without taking over the table.

    Raises `ConfigError` if the table does not exist, or belongs to another topic than ``topic``.
    """
    with contextlib.ExitStack() as stack:
        target = open_target(to if topic is None else table_of(to, topic, several=False))
        stack.callback(target.close)
        state = state_of(target, topic)
        readable = stack.enter_context(readable_outside(url))
        origin = open_origin(readable, state.topic)
        log = url if url.startswith("memory://") else origin.directory or url

        def session() -> SparkSession:
            from spark_sinks.session.spark import spark_session

            own = spark is None and _active() is None
            found = spark or spark_session("eventbus", conf=origin.session_conf(), log_level="OFF")
            if own:
                stack.callback(found.stop)
            origin.check_session(found)
            return found

        yield Opened(readable, log, origin, target, state, session)


def state_of(target: Target, topic: str | None) -> SinkState:
    """Return the account of an existing table of this topic (None: of any topic)."""
    state = target.state()
    if state is None and target.name == "console:":
        raise ConfigError("console: stores no table")
    if state is None:
        raise ConfigError(f"there is no table at {target.name}: `eventbus spark land` makes it")
    if topic is not None and topic != state.topic:
        raise ConfigError(f"{target.name} is the table of topic {state.topic!r}, not of {topic!r}")
    return state


def founding_of(state: SinkState) -> NewTable:
    """Return how the table was created, to open it again."""
    return NewTable(state.topic, state.partition_by, state.upsert, state.transformed, state.started)


def _active() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
