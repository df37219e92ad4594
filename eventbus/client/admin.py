"""Topics, offsets, groups and transactions of a log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from eventbus.backends.base import Backend
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.coordinator.requests import (
    GroupDescription,
    GroupListing,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from eventbus.durations import texts_of
from eventbus.errors import EventBusError, KafkaError, TopicAlreadyExists, UnknownTopicOrPartition
from eventbus.types import (
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ProducerIdAndEpoch,
    TopicPartition,
)

if TYPE_CHECKING:
    from eventbus.backends.security import SecurityDoor

logger = logging.getLogger("eventbus")


class Admin:
    """Administration, the same on every backend. Every change is durable when its call returns."""

    def __init__(self, backend: Backend, check_home: Callable[[str], None]) -> None:
        """``check_home`` raises ConfigError in a thread, event loop or process where the log must not be used."""
        self._log = backend
        self._check_home = check_home
        self._temporary: list[str] = []

    @property
    def _backend(self) -> Backend:
        self._check_home("a method of bus.admin")
        return self._log

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        configs: Mapping[str, object] | None = None,
        *,
        temporary: bool = False,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Create one topic; -1 is the log's default. A ``temporary`` topic is deleted when the bus closes.

        Raises TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidReplicationFactor, InvalidConfig.
        """
        spec = TopicSpec(name, partitions, replication_factor, texts_of(configs))
        if temporary and not validate_only:
            return (await self.create_temporary([spec]))[0]
        result = (await self._backend.create_topics([spec], validate_only=validate_only))[name]
        if isinstance(result, KafkaError):
            raise result
        return result

    async def create_temporary(self, specs: Sequence[TopicSpec]) -> list[TopicDescription]:
        """Create topics that `delete_temporary` deletes. Raises what `create_topic` raises.

        The message of TopicAlreadyExists explains how to remove topics left by a killed run.
        """
        results: Mapping[str, TopicDescription | KafkaError] = {}
        if specs:
            with anyio.CancelScope(shield=True):  # a cancelled caller could not know which topics exist now
                results = await self._backend.create_topics(specs)
        created = [result for result in results.values() if not isinstance(result, KafkaError)]
        self._temporary += [topic.name for topic in created]
        for name, result in results.items():
            if isinstance(result, TopicAlreadyExists):
                raise TopicAlreadyExists(
                    f"topic {name!r} exists already, and a temporary topic must be new. Was it left by a run that was "
                    f"killed? eventbus topics delete {name}. If another program uses it, choose another name or log"
                )
            if isinstance(result, KafkaError):
                raise result
        return created

    async def delete_temporary(self) -> None:
        """Delete the temporary topics; the bus calls it when it closes. Topics that cannot be deleted are logged."""
        names, self._temporary = self._temporary, []
        if not names:
            return
        with anyio.CancelScope(shield=True):  # a cancelled caller leaves no topics either
            try:
                await self._log.delete_topics(names)
            except UnknownTopicOrPartition:
                pass  # the program has deleted it itself
            except EventBusError as error:
                logger.warning("temporary topics could not be deleted, %s: %s", ", ".join(names), error)

    async def create_topics(
        self, specs: Sequence[TopicSpec | str] | str, *, validate_only: bool = False
    ) -> dict[str, TopicDescription | KafkaError]:
        """Create several topics, each independently of the others. Return the outcomes by name.

        A plain name creates a topic with the log's defaults.
        """
        named = [specs] if isinstance(specs, str) else specs
        return await self._backend.create_topics(
            [TopicSpec(spec) if isinstance(spec, str) else spec for spec in named], validate_only=validate_only
        )

    async def delete_topics(self, names: Sequence[str] | str) -> None:
        """Delete topics, their records and the offsets groups have in them."""
        await self._backend.delete_topics([names] if isinstance(names, str) else names)

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return the topic names in order; internal topics only on request."""
        return [t.name for t in await self._backend.describe_topics() if internal or not t.is_internal]

    async def describe_topics(self, names: Sequence[str] | str | None = None) -> list[TopicDescription]:
        """Return partitions, offsets, sizes and configs of these topics, or of all."""
        return await self._backend.describe_topics([names] if isinstance(names, str) else names)

    async def add_partitions(self, topic: str, total_count: int) -> None:
        """Grow a topic to ``total_count`` partitions. Keys hash differently from then on; a topic never shrinks."""
        await self._backend.add_partitions(topic, total_count)

    async def alter_configs(
        self, topic: str, set: Mapping[str, Any] | None = None, delete: Sequence[str] | str = ()
    ) -> None:
        """Set or delete configs of a topic, under Kafka's dotted names."""
        deleted = [delete] if isinstance(delete, str) else delete
        await self._backend.alter_configs(topic, texts_of(set), deleted)

    async def list_offsets(
        self, at: Mapping[TopicPartition, int], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the offset at each time in ms (-1 is the end, -2 the beginning, -3 the largest timestamp).

        It is that of the first record at or after the time, or -1 if the partition has none.
        """
        return await self._backend.list_offsets(at, isolation)

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group: the next offset to read per partition."""
        return await self._backend.group_offsets(group)

    async def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Set a group's offsets. Raises UnknownMemberId while it has members: stop its consumers first."""
        await self._backend.alter_group_offsets(
            group, {tp: OffsetAndMetadata(o) if isinstance(o, int) else o for tp, o in offsets.items()}
        )

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget some offsets of a group. Raises GroupSubscribedToTopic while a member reads the topic."""
        await self._backend.delete_group_offsets(group, [TopicPartition(*one) for one in partitions])

    async def list_groups(self) -> list[GroupListing]:
        """Return every group with members or committed offsets: its name, protocol type and state."""
        return await self._backend.list_groups()

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group's state and members, with what they read. An unknown group is empty and "Dead"."""
        return (await self._backend.describe_groups([group]))[0]

    async def describe_groups(self, groups: Sequence[str]) -> list[GroupDescription]:
        """Return the state and members of several groups, in the given order."""
        return await self._backend.describe_groups([groups] if isinstance(groups, str) else groups)

    async def delete_group(self, group: str) -> None:
        """Forget a group and its offsets. Raises GroupIdNotFound, NonEmptyGroup while it has members."""
        await self._backend.delete_group(group)

    async def remove_group_members(self, group: str, members: Sequence[str] | None = None) -> None:
        """Remove members by member id or group instance id, or all members if none are given.

        A running consumer joins again at its next poll. For a static member whose consumer is gone, this ends the wait
        for its session timeout. Raises UnknownMemberId.
        """
        await self._backend.remove_group_members(group, [members] if isinstance(members, str) else members)

    # records and transactions ----------------------------------------------------------------------------------------

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset (-1 is the end). Return the new log start offset of each partition.

        Raises OffsetOutOfRange, PolicyViolation for a topic that is only compacted, UnknownTopicOrPartition.
        """
        return await self._backend.delete_records({TopicPartition(*one): offset for one, offset in before.items()})

    async def list_transactions(self) -> list[TransactionListing]:
        """Return every transactional id in the log, with its state."""
        return await self._backend.list_transactions()

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[TransactionDescription]:
        """Return producer, epoch, state, start time and partitions. Raises TransactionalIdNotFound."""
        ids = [transactional_ids] if isinstance(transactional_ids, str) else transactional_ids
        return await self._backend.describe_transactions(ids)

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort a hanging transaction that blocks readers, and fence its producer.

        Raises TransactionalIdNotFound, or InvalidTxnState if no transaction is open.
        """
        await self._backend.abort_transaction(transactional_id)

    async def fence_producer(self, transactional_id: str) -> ProducerIdAndEpoch:
        """Fence the producer with this id, and abort its open transaction, if any. Raises TransactionalIdNotFound."""
        return await self._backend.fence_producer(transactional_id)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """Return the state of producers in partitions: epoch, last sequence number, open transaction."""
        return await self._backend.describe_producers([TopicPartition(*one) for one in partitions])

    # access control
    # -----------------------------------------------------------------------------------------------------

    @property
    def security(self) -> SecurityDoor:
        """ACLs, SCRAM users and client quotas. They apply to clients of `eventbus serve` and of Kafka."""
        from eventbus.backends.security import security_of  # rarely needed

        return security_of(self._backend)
