"""The ``kafka://`` backend. Blocking calls run in threads; frequently used data (partition counts) is cached."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition

from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.clock import Clock, Timers, timers_of
from eventbus.backends.kafka.admin_handle import AdminHandle
from eventbus.backends.kafka.broker_checks import BrokerChecks
from eventbus.backends.kafka.cluster_metadata import ClusterMetadata
from eventbus.backends.kafka.consumer import KafkaConsumer
from eventbus.backends.kafka.diagnosis import check_advertised, check_security
from eventbus.backends.kafka.failures import raised
from eventbus.backends.kafka.group_admin import CoordinatorAdmin
from eventbus.backends.kafka.limits import UNKNOWN, TopicLimits
from eventbus.backends.kafka.producer import KafkaProducer
from eventbus.backends.kafka.settings import ClientSettings, read_settings
from eventbus.backends.kafka.topic_admin import TopicAdmin
from eventbus.backends.kafka.wire import Wire
from eventbus.backends.masking import shown_url
from eventbus.backends.statistics import Statistics
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.coordinator.requests import (
    GroupDescription,
    GroupListing,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from eventbus.errors import (
    ConcurrentTransactions,
    ConfigError,
    CoordinatorNotAvailable,
    EventBusError,
    KafkaError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eventbus.suggest import nearest
from eventbus.types import (
    GroupMetadata,
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ProducerIdAndEpoch,
    TopicPartition,
)

logger = logging.getLogger("eventbus.kafka")
T = TypeVar("T")

_START_SECONDS = 10.0
"""How long to look for a broker before raising an error."""
_ANSWER_SECONDS = 30.0
_LOOK_UP_SECONDS = 5.0
"""The limit for a send to an unknown topic, which blocks the event loop. Kafka's own client blocks there, too."""
_SEEN_SECONDS = 15.0
"""How long it may take until the contacted broker has noticed a change of topics."""
_CLOSE_SECONDS = 5.0
_CLOSE_DEAD_SECONDS = 0.5
"""The time for a client's threads to end while no broker answers, so that none can be notified that a member leaves."""
_PAUSE_SECONDS = 0.02
_MARKER_PAUSE_SECONDS = 0.001
_LOOK_SECONDS = 5.0
"""The interval at which topics in use are looked up."""
_REFRESH_LOOKS = 6
"""Every sixth refresh also lists all topics, if a consumer reads by pattern, the brokers, and the limits of topics."""
_LEADER_SECONDS = 2.0
_THREADS = 8
_REFUSALS = frozenset((ClientError._AUTHENTICATION, ClientError._SSL))
_PASSING = frozenset(
    (
        ClientError.LEADER_NOT_AVAILABLE,
        ClientError.NOT_LEADER_FOR_PARTITION,
        ClientError.NETWORK_EXCEPTION,
        ClientError.COORDINATOR_LOAD_IN_PROGRESS,
        ClientError.COORDINATOR_NOT_AVAILABLE,
        ClientError.NOT_COORDINATOR,
        ClientError.NOT_CONTROLLER,
        ClientError.FENCED_LEADER_EPOCH,
        ClientError.UNKNOWN_LEADER_EPOCH,
        ClientError.UNSTABLE_OFFSET_COMMIT,
        ClientError.OFFSET_NOT_AVAILABLE,  # a new leader has not yet determined its high watermark
    )
)
"""Errors of a cluster that are temporary."""


class KafkaBackend:
    """The backend of a Kafka cluster, see `Backend`."""

    def __init__(self, url: str, settings: ClientSettings, clock: Clock) -> None:
        self.url = url
        self.clock = clock
        self.timers: Timers = timers_of(clock)
        settings = msgspec.structs.replace(settings, kept_tokens=settings.tokens)
        self._broker_checks = BrokerChecks(settings, self.timers)
        self.settings = msgspec.structs.replace(settings, listener=self._broker_checks.listener)
        self.known_counts: dict[str, int] = {}
        """Topics in use with their partition counts, as of the last lookup."""
        self.known_ids: dict[str, str] = {}
        """The ids of topics in use, as of the last lookup. Ids of deleted topics stay; each change replaces the
        dict."""
        self.leaderless: frozenset[TopicPartition] = frozenset()
        """Partitions of topics in use that had no leader at the last lookup."""
        self.known_limits: dict[str, TopicLimits] = {}
        """The limits of topics that this process writes to."""
        self.topic_listeners: list[Callable[[], object]] = []
        self.consumers: list[KafkaConsumer] = []
        self.producers: list[KafkaProducer] = []
        self._in_use: set[str] = set()
        """Topics that are read or written, whether they exist or not: a large cluster has many more."""
        self._identified: set[str] = set()
        """Topics that consumers read, also by pattern: their ids are looked up."""
        self._watches_all_topics = False
        """True if a consumer reads by pattern."""
        self._admin: AdminHandle | None = None
        self._wire = Wire(settings, _ANSWER_SECONDS)
        self._coordinators = CoordinatorAdmin(self._wire)
        self._limiter: anyio.CapacityLimiter | None = None

    @property
    def _opened(self) -> AdminHandle:
        if self._admin is None:
            raise ConfigError(f"{shown_url(self.url)} is not open: use it inside `async with bus:`")
        return self._admin

    @property
    def _topics(self) -> TopicAdmin:
        return TopicAdmin(self._opened, self._wire, _ANSWER_SECONDS)

    @property
    def auto_creates_topics(self) -> bool:
        return self.settings.auto_create_topics

    # life ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._admin is not None:
            return
        self._limiter = anyio.CapacityLimiter(_THREADS)
        said: list[ClientError] = []
        self._admin = AdminHandle({**self.settings.admin(), "error_cb": said.append})
        self._broker_checks.start()
        self._wire.open()
        try:
            await self._in_thread(partial(self._connect, self._admin, said))
            await self.refresh()
        except BaseException:
            await self._close_admin()
            raise

    async def _close_admin(self) -> None:
        admin, self._admin = self._opened, None
        self._wire.close()
        # librdkafka's threads may take a while to end. Running calls may have used up the shared thread limiter.
        with self.timers.move_on_after(self.close_seconds, shield=True):
            await anyio.to_thread.run_sync(admin.close, limiter=anyio.CapacityLimiter(1), abandon_on_cancel=True)

    def _connect(self, admin: AdminHandle, said: list[ClientError]) -> None:
        """Return when a broker has answered. Raises ConfigError as soon as it is certain that none ever will."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._find_brokers(admin, 1)
                if not {*self._wire.brokers} & {*self.settings.addresses}:
                    check_advertised(self.settings)  # librdkafka connects to these addresses only
                return
            except KafkaError as failure:
                admin.client.poll(0)
                # librdkafka retries forever and logs the reason. A wrong password must be an error at the start
                # instead.
                check_security(self.settings)
                check_advertised(self.settings)
                refusal = next((one.str() for one in said if one.code() in _REFUSALS), None)
                if refusal is not None:
                    raise ConfigError(
                        f"kafka://{self.settings.bootstrap} lets nobody in like that: {refusal}"
                    ) from None
                if time.monotonic() > deadline:
                    texts = "; ".join(dict.fromkeys(one.str() for one in said)) or str(failure)
                    raise CoordinatorNotAvailable(
                        f"no broker of kafka://{self.settings.bootstrap} has answered within {_START_SECONDS:.0f} s "
                        f"({texts}): is it running, and is the address right?"
                    ) from None

    def _find_brokers(self, admin: AdminHandle, wait_seconds: float) -> None:
        """Look up the brokers; runs in a thread."""
        brokers = ClusterMetadata(admin, self._wire, wait_seconds).brokers()
        self._broker_checks.set_brokers(brokers)
        self._wire.brokers = tuple(brokers.values())

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._broker_checks.run, self._in_thread)
            for number in itertools.count(1):
                await self.timers.sleep(_LOOK_SECONDS)
                try:
                    # Most refreshes only ask for the topics in use: a list of all topics of a large cluster has
                    # megabytes.
                    if number % _REFRESH_LOOKS:
                        await self.refresh(of_all=False)
                        continue
                    await self._in_thread(partial(self._find_brokers, self._opened, _LOOK_UP_SECONDS))
                    await self.refresh()
                    if self.known_limits:
                        await self._in_thread(partial(self.learn_limits, list(self.known_limits)))
                except EventBusError as error:
                    # Unreachable brokers are logged by `BrokerChecks`, once.
                    said = logger.debug if self._broker_checks.trouble else logger.warning
                    said("the topics of %s cannot be listed now: %s", self.settings.bootstrap, error)

    @property
    def trouble(self) -> str:
        return self._broker_checks.trouble

    @property
    def close_seconds(self) -> float:
        """How long a client may take to close."""
        return _CLOSE_DEAD_SECONDS if self._broker_checks.is_out else _CLOSE_SECONDS

    def statistics(self) -> Statistics:
        return Statistics(clients=self._broker_checks.statistics.clients())

    async def aclose(self) -> None:
        """Close the clients that are still open on this log: a member without polls would delay its group."""
        with self.timers.move_on_after(self.close_seconds, shield=True):
            # Consumers first: they leave their groups, and the other members wait for that.
            for consumer in list(self.consumers):
                await consumer.aclose()
        for producer in list(self.producers):
            producer.give_up(RequestTimedOut("the bus was closed before the brokers answered"))
        if self._admin is not None:
            await self._close_admin()

    async def ask(self, request: Any) -> Any:
        """Send a request of `eventbus.protocol.messages` to any broker, for administration without a method here.

        Raises RequestTimedOut, CoordinatorNotAvailable, and ConfigError for a broker that does not support it.
        """
        return await self._in_thread(partial(self._wire.call, request))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(call, limiter=self._limiter, abandon_on_cancel=True)

    async def _retry_while_passing(self, call: Callable[[], T]) -> T:
        """Call ``call``, again while its error comes from a broker that has just started, or just become a leader."""
        deadline = self.timers.current_time() + _ANSWER_SECONDS
        pause = _PAUSE_SECONDS
        while True:
            try:
                return await self._in_thread(call)
            except KafkaError as error:
                if error.code not in _PASSING or self.timers.current_time() > deadline:
                    raise
            await self.timers.sleep(pause)
            pause = min(2 * pause, 1.0)

    # what topics there are -------------------------------------------------------------------------------------------

    async def refresh(self, *, of_all: bool = True) -> None:
        """Look up the topics in use, or all topics if a consumer reads by pattern."""
        self._know(*await self._retry_while_passing(partial(self._look_up_topics, of_all)))

    def _look_up_topics(self, of_all: bool) -> tuple[Mapping[str, int], dict[str, str]]:
        """Return counts and ids; runs in a thread."""
        topics = self._topics.metadata.known(frozenset(self._in_use | self._identified))
        self.leaderless = frozenset[TopicPartition]().union(*(topic.leaderless for topic in topics.values()))
        counts: Mapping[str, int] = {name: topic.partitions for name, topic in topics.items()}
        if self._watches_all_topics:
            counts = self._topics.metadata.all_counts() if of_all else self.known_counts
        return counts, {name: topic.id for name, topic in topics.items()}

    def identify(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of topics that a consumer begins to read, and look them up from now on; runs in its thread."""
        self._identified.update(topics)
        return {name: topic.id for name, topic in self._topics.metadata.known(topics).items()}

    async def verify(self, topics: Collection[str]) -> bool:
        """Look up the ids of topics that a consumer reads. Return True if some of them were not found."""
        found = await self._in_thread(partial(self._topics.metadata.known, topics))
        counts = {name: topic.partitions for name, topic in found.items()}
        self._know({**self.known_counts, **counts}, {name: topic.id for name, topic in found.items()})
        return len(found) < len(topics)

    def _know(self, counts: Mapping[str, int], ids: Mapping[str, str]) -> None:
        # An id that is missing in the answer of a broker with old metadata is not forgotten. Only a different id means
        # another topic.
        ids = {**self.known_ids, **ids}
        # The dicts are replaced and not changed, because threads read them without a lock.
        if counts != self.known_counts or ids != self.known_ids:
            self.known_counts, self.known_ids = dict(counts), ids
            for listener in list(self.topic_listeners):
                listener()

    async def partition_counts(self, topics: Iterable[str] | None = None) -> dict[str, int]:
        """Return current partition counts: of the named topics and those in use, or of all, also from now on."""
        if topics is None:
            # A pattern may match any topic, so all of them have to be listed from now on.
            self._watches_all_topics = True
        else:
            self._in_use.update(topics)
        await self.refresh()
        return self.known_counts

    def partition_count(self, topic: str) -> int:
        """Return the partition count. Queries the broker, and blocks, for an unknown topic. Raises
        UnknownTopicOrPartition."""
        count = self.known_counts.get(topic)
        if count is None:
            topics = TopicAdmin(self._opened, self._wire, _LOOK_UP_SECONDS)
            try:
                count = topics.metadata.count(topic)
            except UnknownTopicOrPartition:
                if not self.auto_creates_topics:
                    raise UnknownTopicOrPartition(
                        f"there is no topic {topic!r}{nearest(topic, topics.metadata.counts())}; create it: "
                        f"`eventbus topics create {topic}`"
                    ) from None
                count = self._create(topics, topic)
            self._in_use.add(topic)
            # Consumers match patterns again when the dict is replaced.
            self.known_counts = {**self.known_counts, topic: count}
        return count

    def learn_limits(self, topics: Collection[str]) -> None:
        """Request the limits of topics; runs in a thread. Without an answer, a refusal of the broker will show the
        limit."""
        try:
            found = TopicAdmin(self._opened, self._wire, _LOOK_UP_SECONDS).limits(topics)
        except EventBusError as error:
            logger.debug("the limits of %s are not known: %s", sorted(topics), error)
            found = {}
        for topic in topics:
            self.known_limits[topic] = found.get(topic) or self.known_limits.get(topic, UNKNOWN)

    @staticmethod
    def _create(topics: TopicAdmin, topic: str) -> int:
        """Create a topic with the brokers' defaults, because it is used; return its partition count."""
        error = topics.create([TopicSpec(topic, -1, replication_factor=-1)], validate_only=False)[topic]
        if error is not None and not isinstance(error, TopicAlreadyExists):
            raise error
        deadline = time.monotonic() + _SEEN_SECONDS
        while True:
            try:
                return topics.metadata.count(topic)
            except UnknownTopicOrPartition:  # the contacted broker has not noticed it yet
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)  # in a producer's thread: brokers send no notification when they have noticed

    async def _until(self, true: Callable[[Mapping[str, int]], bool], what: str) -> None:
        """Refresh until a condition holds: brokers learn of a change from their controller, with a small delay."""
        deadline = self.timers.current_time() + _SEEN_SECONDS
        while True:
            await self.refresh()
            if true(self.known_counts):
                return
            if self.timers.current_time() > deadline:
                raise RequestTimedOut(f"{what}, but the broker does not know of it yet")
            await self.timers.sleep(_PAUSE_SECONDS)

    # topics ----------------------------------------------------------------------------------------------------------

    async def create_topics(
        self, specs: Sequence[TopicSpec], *, validate_only: bool = False
    ) -> dict[str, TopicDescription | KafkaError]:
        topics = self._topics
        outcomes = await self._retry_while_passing(lambda: topics.create(specs, validate_only=validate_only))
        created = [name for name, error in outcomes.items() if error is None]
        described: dict[str, TopicDescription] = {}
        if validate_only:
            described = {spec.name: TopicDescription(spec.name, "", [], {}) for spec in specs if spec.name in created}
        elif created:
            self._in_use.update(created)
            await self._until(lambda counts: counts.keys() >= set(created), f"topics {created} were created")
            described = {one.name: one for one in await self._described(created)}
            self.known_limits.update({name: _limits_of(one) for name, one in described.items()})
        return {name: described[name] if error is None else error for name, error in outcomes.items()}

    async def _described(self, names: Sequence[str]) -> list[TopicDescription]:
        """Describe new topics once all partitions have leaders, which may take a moment."""
        deadline = self.timers.current_time() + _SEEN_SECONDS
        while True:
            try:
                found = await self._retry_while_passing(partial(self._topics.describe, names))
            except UnknownTopicOrPartition:
                found = []
            if found and all(one.log_end_offset >= 0 for topic in found for one in topic.partitions):
                return found
            if self.timers.current_time() > deadline:
                raise RequestTimedOut(f"topics {list(names)} were created, but their partitions have no leader yet")
            await self.timers.sleep(_PAUSE_SECONDS)

    async def delete_topics(self, names: Sequence[str]) -> None:
        self._in_use.update(names)  # to notice when they are deleted
        await self._retry_while_passing(partial(self._topics.delete, names))
        await self._until(lambda counts: not counts.keys() & set(names), f"topics {list(names)} were deleted")

    async def add_partitions(self, topic: str, total_count: int) -> None:
        self._in_use.add(topic)
        await self._retry_while_passing(partial(self._topics.add_partitions, topic, total_count))
        await self._until(lambda counts: counts.get(topic, 0) >= total_count, f"topic {topic!r} has grown")
        await self._described([topic])

    async def alter_configs(self, topic: str, set: Mapping[str, str], delete: Sequence[str]) -> None:
        topics = self._topics
        await self._retry_while_passing(lambda: topics.alter_configs(topic, set, delete))
        deadline = self.timers.current_time() + _SEEN_SECONDS
        while self.timers.current_time() < deadline:
            [found] = await self._retry_while_passing(lambda: topics.describe([topic]))
            own = {name for name, entry in found.configs.items() if entry.source == "topic"}
            if own >= set.keys() and not own & {*delete}:
                self.known_limits[topic] = _limits_of(found)
                return
            await self.timers.sleep(_PAUSE_SECONDS)

    async def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]:
        return await self._retry_while_passing(partial(self._topics.describe, names))

    async def list_offsets(
        self, at: Mapping[TopicPartition, int], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await self._retry_while_passing(partial(self._topics.offsets.list_offsets, at, isolation))

    def offsets_in_thread(
        self, at: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, EventBusError]]:
        """Return the offsets, and the errors of the partitions whose offsets are not known now. This call blocks.

        A leader that does not answer is abandoned soon, because a consumer has other partitions to read meanwhile.
        """
        found, errors = self._topics.offsets.try_offsets(at, isolation, (_LEADER_SECONDS,))
        return {where: one.offset for where, one in found.items()}, errors

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return await self._retry_while_passing(partial(self._topics.offsets.delete_records, before))

    # groups ----------------------------------------------------------------------------------------------------------

    async def group_offsets(
        self, group: str, stable: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets. ``stable``: only those partitions, after open transactions that commit them
        (KIP-447)."""
        return await self._retry_while_passing(partial(self._coordinators.offsets, group, stable))

    async def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await self._retry_while_passing(partial(self._coordinators.alter_offsets, group, offsets))

    async def list_groups(self) -> list[GroupListing]:
        return await self._retry_while_passing(self._coordinators.list_groups)

    async def describe_groups(self, groups: Sequence[str]) -> list[GroupDescription]:
        members: dict[str, list[GroupMetadata]] = {}
        for consumer in self.consumers:
            metadata = consumer.known_group
            if metadata.member_id:
                members.setdefault(metadata.group, []).append(metadata)
        return await self._retry_while_passing(partial(self._coordinators.describe_groups, groups, members))

    async def delete_group(self, group: str) -> None:
        await self._retry_while_passing(partial(self._coordinators.delete_group, group))

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        await self._retry_while_passing(partial(self._coordinators.delete_offsets, group, list(partitions)))

    async def remove_group_members(self, group: str, members: Sequence[str] | None = None) -> None:
        await self._retry_while_passing(partial(self._coordinators.remove_members, group, members))

    # transactions ----------------------------------------------------------------------------------------------------

    async def list_transactions(self) -> list[TransactionListing]:
        return await self._retry_while_passing(self._coordinators.list_transactions)

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[TransactionDescription]:
        describe = self._coordinators.describe_transaction
        return await self._retry_while_passing(lambda: [describe(one) for one in transactional_ids])

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        return await self._retry_while_passing(partial(self._topics.offsets.describe_producers, list(partitions)))

    async def abort_transaction(self, transactional_id: str) -> None:
        await self._retry_while_passing(partial(self._coordinators.check_open, transactional_id))
        await self.fence_producer(transactional_id)

    async def fence_producer(self, transactional_id: str) -> ProducerIdAndEpoch:
        deadline = self.timers.current_time() + _ANSWER_SECONDS
        while True:
            try:
                return await self._retry_while_passing(partial(self._coordinators.fence, transactional_id))
            except ConcurrentTransactions:
                if self.timers.current_time() > deadline:
                    raise
            await self.timers.sleep(_PAUSE_SECONDS)

    async def until_marked(self, transactional_id: str) -> None:
        """Return when readers see the outcome of the last transaction: the coordinator answers before it notifies
        partitions.

        The outcome is already decided, so errors are only logged.
        """
        pause = _MARKER_PAUSE_SECONDS
        deadline = self.timers.current_time() + _SEEN_SECONDS
        try:
            while True:
                found = await self._retry_while_passing(
                    partial(self._coordinators.describe_transaction, transactional_id)
                )
                if not found.state.startswith("Prepare"):
                    return
                if self.timers.current_time() > deadline:
                    raise RequestTimedOut(f"it is {found.state} still")
                await self.timers.sleep(pause)
                pause = min(2 * pause, _PAUSE_SECONDS)
        except EventBusError as error:
            logger.debug("whether readers see the last transaction of %r is not known: %s", transactional_id, error)

    async def is_visible(self, where: TopicPartition, offset: int) -> bool:
        """Return True if read-committed readers see the record at an offset. Its transaction must have ended."""
        return await self._retry_while_passing(partial(self._is_visible, where, offset))

    def _is_visible(self, where: TopicPartition, offset: int) -> bool:
        config = ConsumerConfig(isolation=IsolationLevel.READ_COMMITTED)
        client = Consumer({**self.settings.consumer(config, "range")})
        try:
            client.assign([ClientPartition(*where, offset)])
            deadline = time.monotonic() + _ANSWER_SECONDS
            while time.monotonic() < deadline:
                message = client.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                found: Any = message.offset()
                if error is None:
                    return found == offset
                if error.code() == ClientError._PARTITION_EOF and found > offset:
                    return False
        except KafkaException as failure:
            raise raised(failure, f"{where} cannot be read") from None
        finally:
            client.close()
        raise RequestTimedOut(f"{where} could not be read up to offset {offset}")

    # clients ---------------------------------------------------------------------------------------------------------

    def producer(self, config: ProducerConfig) -> KafkaProducer:
        return KafkaProducer(self, config)

    def consumer(self, config: ConsumerConfig) -> KafkaConsumer:
        return KafkaConsumer(self, config)


def _limits_of(topic: TopicDescription) -> TopicLimits:
    return TopicLimits.read({name: entry.value for name, entry in topic.configs.items()})


def open_kafka(url: str, rest: str, config: Mapping[str, Any], clock: Clock) -> KafkaBackend:
    """Return the backend of a ``kafka://`` URL, not started. Raises ConfigError."""
    return KafkaBackend(url, read_settings(rest, config), clock)
