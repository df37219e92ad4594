"""The mirror: copies topics, records, schemas and groups' offsets of a log to another log, once or continuously."""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn
from urllib.parse import unquote

import anyio

from eventbus.backends.base import Backend
from eventbus.backends.masking import shown_url
from eventbus.backends.urls import open_backend, split_url
from eventbus.client.running.single_error import SingleError, passing_on
from eventbus.errors import (
    ConfigError,
    EventBusError,
    LogLocked,
    TransactionAborted,
    UnknownTopicOrPartition,
)
from eventbus.mirror.journal import Journal
from eventbus.mirror.plan import Options, Selection, TopicPlan, by_name, check_plans, plan_topic
from eventbus.mirror.progress import Progress
from eventbus.mirror.refusals import Refusals, may_pass
from eventbus.mirror.session import Session, Superseded
from eventbus.mirror.verify import PartitionCheck, Verifier, refused
from eventbus.suggest import nearest
from eventbus.topic_patterns import check_pattern
from eventbus.types import Compression, TopicPartition

logger = logging.getLogger("eventbus.mirror")

_PRIVATE = "memory://"
"""Each log with this URL is a separate log."""
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_MOST_ATTEMPTS = 10
"""The number of attempts of a copy, in a row and without progress; a mirror that follows never gives up."""


class Mirror:
    """Copies one log to another, exactly once, and continues after any interruption.

    ::

        async with Mirror("file://./data", "kafka://one:9092,two:9092") as mirror:
            await mirror.copy()                 # what exists now
            for check in await mirror.verify():
                assert check.ok, check.differences

    ``await mirror.follow()`` continues to copy until it is cancelled. In a task alongside a bus on the same URL, both
    share the log. The mirror's state is stored at the destination, in the transactions that contain the records. A
    mirror is identified by its ``name``: a later mirror with this name continues the work, and the earlier one is
    stopped.
    """

    def __init__(
        self,
        source: str | Backend,
        destination: str | Backend,
        *,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        exclude: str | None = None,
        groups: str | None = ".*",
        overwrite_groups: bool = False,
        replication_factor: int = -1,
        compression: str = "none",
        again: Sequence[str] = (),
        name: str | None = None,
        refresh_seconds: float = 2.0,
        source_config: Mapping[str, Any] | None = None,
        destination_config: Mapping[str, Any] | None = None,
    ) -> None:
        """Copy ``topics``, or those that match ``pattern`` as a whole, without those that ``exclude`` matches; default:
        all.

        ``groups``: a pattern of the groups whose offsets are translated; None: none. Offsets that were moved at the
        destination stay, unless ``overwrite_groups``. ``replication_factor``: of created topics; -1: the cluster's
        default. ``again``: topics to copy from their beginning again. ``refresh_seconds``: the interval of checks of
        topics, configs and groups. ``source_config`` and ``destination_config``: settings of the two logs, as for
        `EventBus`. Raises ConfigError.
        """
        self._source = open_backend(source, source_config or {}) if isinstance(source, str) else source
        self._destination = (
            open_backend(destination, destination_config or {}) if isinstance(destination, str) else destination
        )
        if identity(self._source.url) == identity(self._destination.url) != _PRIVATE:
            raise ConfigError(f"source and destination are one log, {shown_url(self._source.url)}: name two")
        selection = Selection(names=tuple(topics), pattern=pattern, exclude=exclude)
        selection.check()
        check_pattern(groups or "")
        if name is not None and not re.fullmatch(r"[a-zA-Z0-9._-]{1,200}", name):
            raise ConfigError(f"name={name!r}: 1 to 200 of a-z A-Z 0-9 . _ -")
        self.options = Options(
            name=name or name_of(self._source.url),
            selection=selection,
            groups=groups,
            overwrite_groups=overwrite_groups,
            replication_factor=replication_factor,
            compression=_codec(compression),
            again=tuple(again),
            refresh_seconds=refresh_seconds,
        )
        self.progress = Progress()
        self._stack: AsyncExitStack | None = None

    # life ------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Mirror:
        try:
            await self._source.start()
        except LogLocked as error:
            raise LogLocked(
                f"{error}. To mirror a log that is in use, serve it (`eventbus serve` in place of that process, which "
                "becomes its client) and mirror kafka://HOST:PORT; or run eventbus.mirror.Mirror in that process"
            ) from error
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._source.aclose)
            await self._destination.start()
            stack.push_async_callback(self._destination.aclose)
            stack.push_async_exit(SingleError())
            tasks = await anyio.create_task_group().__aenter__()
            stack.push_async_exit(passing_on(tasks.__aexit__))
            stack.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(self._source.run)
            tasks.start_soon(self._destination.run)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        stack, self._stack = self._stack, None
        return None if stack is None else await stack.__aexit__(kind, error, trace)

    # work ------------------------------------------------------------------------------------------------------------

    async def plan(self) -> list[TopicPlan]:
        """Return what a copy would do, topic by topic, without changing anything."""
        _, plans = await self._plan()
        return plans

    async def _plan(self) -> tuple[Journal, list[TopicPlan]]:
        journal = Journal(self.options.name)
        await journal.load(self._destination)
        there = by_name(await self._destination.describe_topics())
        chosen = self.options.selection.choose(await self._source.describe_topics())
        for topic in self.options.again:
            if topic not in (known := {one.name for one in chosen}):
                raise UnknownTopicOrPartition(f"again: {topic!r} is no topic that is mirrored{nearest(topic, known)}")
            if topic in journal.topics:
                journal.forget(topic)
        plans = [plan_topic(one, there.get(one.name), journal.topics.get(one.name), journal) for one in chosen]
        return journal, plans

    async def copy(self) -> Progress:
        """Copy what exists now, then the groups' offsets.

        Raises ConfigError, with nothing copied, if a topic cannot be mirrored, with the reason and the remedy. Raises
        ProducerFenced if another mirror with the name has begun. Raises the error of a partition that could not be
        copied after all others are: ``progress.refused`` has all of them. After any other error, call it again to
        continue.
        """
        await self._run(follow=False)
        return self.progress

    async def follow(self) -> NoReturn:
        """Copy existing and new records, topics, partitions, configs and groups' offsets until cancelled.

        Topics that cannot be mirrored any more are in ``progress.problems``, and partitions that cannot be copied now
        in ``progress.refused``; the others continue. Raises as `copy` does, except errors of single partitions.
        """
        await self._run(follow=True)
        raise AssertionError("a mirror that follows does not end by itself")

    async def verify(self) -> list[PartitionCheck]:
        """Read both sides, and compare what was mirrored, partition by partition."""
        journal, plans = await self._plan()
        verifier = Verifier(self._source, self._destination)
        checks: list[PartitionCheck] = []
        for plan in plans:
            for number in range(plan.partitions):
                where = TopicPartition(plan.topic, number)
                copied = journal.maps.get(where)
                if copied is None:
                    checks += await verifier.check_absent(where, self.options.name)
                elif plan.reason:
                    checks.append(refused(where, plan.reason))
                else:
                    checks.append(await verifier.check(where, copied))
        for topic in sorted(journal.topics.keys() - {plan.topic for plan in plans}):
            if self.options.selection.takes(topic):
                checks.append(refused(TopicPartition(topic, 0), f"topic {topic!r} is gone at the source"))
        return checks

    async def _run(self, *, follow: bool) -> None:
        if self._stack is None:
            raise ConfigError("the mirror is not open: use it inside `async with mirror:`")
        check_plans(await self.plan())
        timers = self._destination.timers
        owner = uuid.uuid4().hex
        attempts, has_begun = 0, False
        refusals = Refusals(self.progress, timers, follow=follow)
        while True:
            copied = self.progress.copied
            session = Session(
                self._source, self._destination, self.options, self.progress, refusals,
                owner=owner, has_begun=has_begun, attempt=attempts,
            )  # fmt: skip
            try:
                await session.run(follow=follow)
                return
            except EventBusError as error:
                attempts = attempts + 1 if self.progress.copied == copied else 1
                trouble = self._passing(error)
                if trouble is None or (attempts >= _MOST_ATTEMPTS and not follow):
                    raise
                if attempts == 1:
                    logger.warning("the mirror restarts where it was: %s", trouble)
            has_begun = session.has_begun
            self.progress.restarts += 1
            await timers.sleep(min(_FIRST_PAUSE_SECONDS * 2 ** (attempts - 1), _LONGEST_PAUSE_SECONDS))

    def _passing(self, error: EventBusError) -> EventBusError | None:
        """Return an error that is temporary; for others, return None or a better error to raise instead."""
        if isinstance(error, Superseded):
            return None
        cause = error.__cause__ if isinstance(error, TransactionAborted) else None
        if isinstance(cause, EventBusError) and not isinstance(cause, TransactionAborted):
            if not may_pass(cause):
                raise cause
            return error
        return error if may_pass(error) else None


def identity(url: str) -> str:
    """Return a text that is equal for two URLs of the same log, as far as that can be determined."""
    scheme, rest, _ = split_url(url)
    if scheme == "file":
        return f"file://{Path(unquote(rest)).expanduser().resolve()}"
    if scheme == "memory":
        return f"memory://{rest}"
    return f"{scheme}://{','.join(sorted(one.strip() for one in rest.strip('/').split(',')))}"


def name_of(url: str) -> str:
    """Return the default name of a mirror: readable, unique, derived from the source."""
    log_identity = identity(url)
    readable = re.sub(r"[^a-zA-Z0-9]+", "-", log_identity.rpartition("/")[2]).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(log_identity.encode()).hexdigest()[:6]}"


def _codec(name: str) -> Compression:
    try:
        return Compression[name.upper()]
    except KeyError:
        raise ConfigError(f"compression={name!r}: none, gzip, snappy, lz4 or zstd") from None
