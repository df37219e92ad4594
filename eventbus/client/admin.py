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
from eventbus.durations import setting_ms
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
        """``check_home`` raises ConfigError where the log is not to be used, naming what was tried."""
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
        """Create one topic; -1 stands for the log's default. A ``temporary`` one is deleted as the bus closes.

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
        """Create topics that `delete_temporary` deletes. Raises what `create_topic` raises; TopicAlreadyExists says how
        to be rid of what a killed run has left."""
        results: Mapping[str, TopicDescription | KafkaError] = {}
        if specs:
            with anyio.CancelScope(shield=True):  # a cancelled caller could not know which topics exist now
                results = await self._backend.create_topics(specs)
        created = [result for result in results.values() if not isinstance(result, KafkaError)]
        self._temporary += [topic.name for topic in created]
        for name, result in results.items():
            if isinstance(result, TopicAlreadyExists):
                raise TopicAlreadyExists(
                    f"topic {name!r} is there already, and a temporary topic is made anew. Left by a run that was "
                    f"killed? eventbus topics delete {name}. Somebody else's? Then take another name, or another log"
                )
            if isinstance(result, KafkaError):
                raise result
        return created

    async def delete_temporary(self) -> None:
        """Delete the temporary topics; the bus does it as it closes. What cannot be deleted is named in a warning."""
        names, self._temporary = self._temporary, []
        if not names:
            return
        with anyio.CancelScope(shield=True):  # a cancelled caller leaves no topics either
            try:
                await self._log.delete_topics(names)
            except UnknownTopicOrPartition:
                pass  # the program has deleted it itself
            except EventBusError as error:
                logger.warning("temporary topics are left behind, %s: %s", ", ".join(names), error)

    async def create_topics(
        self, specs: Sequence[TopicSpec | str] | str, *, validate_only: bool = False
    ) -> dict[str, TopicDescription | KafkaError]:
        """Create several topics: each one wholly or not at all, with its outcome. A name alone: with the defaults."""
        named = [specs] if isinstance(specs, str) else specs
        return await self._backend.create_topics(
            [TopicSpec(one) if isinstance(one, str) else one for one in named], validate_only=validate_only
        )

    async def delete_topics(self, names: Sequence[str] | str) -> None:
        """Delete topics, their records and the offsets groups have in them."""
        await self._backend.delete_topics([names] if isinstance(names, str) else names)

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Topic names in order; internal ones on request."""
        return [t.name for t in await self._backend.describe_topics() if internal or not t.is_internal]

    async def describe_topics(self, names: Sequence[str] | str | None = None) -> list[TopicDescription]:
        """Partitions, offsets, sizes and configs; all topics when none is named."""
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
        """Offsets: -1 the end, -2 the beginning, -3 the largest timestamp, or the first at or after a time in ms.

        Offset -1 in the answer means that there is no such record.
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
        """Every group with members or committed offsets: its name, protocol type and state."""
        return await self._backend.list_groups()

    async def describe_group(self, group: str) -> GroupDescription:
        """One group's state and members, with what each reads. An unknown group is "Dead" and empty, as in Kafka."""
        return (await self._backend.describe_groups([group]))[0]

    async def describe_groups(self, groups: Sequence[str]) -> list[GroupDescription]:
        """Several groups, in the order asked for."""
        return await self._backend.describe_groups([groups] if isinstance(groups, str) else groups)

    async def delete_group(self, group: str) -> None:
        """Forget a group and its offsets. Raises GroupIdNotFound, NonEmptyGroup while it has members."""
        await self._backend.delete_group(group)

    async def remove_group_members(self, group: str, members: Sequence[str] | None = None) -> None:
        """Make members leave, named by member id or group instance id; all of them when none is named.

        A consumer that runs joins again at its next poll; for static members whose consumer is gone this ends the
        wait for their session. Raises UnknownMemberId.
        """
        await self._backend.remove_group_members(group, [members] if isinstance(members, str) else members)

    # records and transactions ----------------------------------------------------------------------------------------

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset, -1 being the end; returns where each partition begins then.

        Raises OffsetOutOfRange, PolicyViolation for a topic that is compacted only, UnknownTopicOrPartition.
        """
        return await self._backend.delete_records({TopicPartition(*one): offset for one, offset in before.items()})

    async def list_transactions(self) -> list[TransactionListing]:
        """Every transactional id the log knows, with its state."""
        return await self._backend.list_transactions()

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[TransactionDescription]:
        """Producer, epoch, state, since when it is open and where. Raises TransactionalIdNotFound."""
        ids = [transactional_ids] if isinstance(transactional_ids, str) else transactional_ids
        return await self._backend.describe_transactions(ids)

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort what the id's producer has open, and fence that producer: for one that hangs and blocks readers.

        Raises TransactionalIdNotFound, InvalidTxnState when nothing is open.
        """
        await self._backend.abort_transaction(transactional_id)

    async def fence_producer(self, transactional_id: str) -> ProducerIdAndEpoch:
        """Fence the id's producer, and abort what it has open, if anything. Raises TransactionalIdNotFound."""
        return await self._backend.fence_producer(transactional_id)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """Return the state of producers in partitions: epoch, last sequence number, open transaction."""
        return await self._backend.describe_producers([TopicPartition(*one) for one in partitions])

    # who may do what -------------------------------------------------------------------------------------------------

    @property
    def security(self) -> SecurityDoor:
        """ACLs, SCRAM users and client quotas. They bind clients of `eventbus serve`, and of a Kafka."""
        from eventbus.backends.security import security_of  # few ask

        return security_of(self._backend)


def texts_of(configs: Mapping[str, object] | None) -> dict[str, str]:
    """Return a topic's configs as Kafka writes them: ``True`` as "true", ``"7d"`` of ``retention.ms`` as a number."""
    values = {name: setting_ms(value) if name.endswith(".ms") else value for name, value in (configs or {}).items()}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
