"""A partition whose beginning is not known, because its topic is gone or denied, keeps no other from being read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from eventbus.backends.base import ConsumerConfig
from eventbus.backends.kafka.start_positions import StartPositions
from eventbus.errors import EventBusError, NoCommittedOffset, OffsetOutOfRange, error_for_code
from eventbus.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.system

GONE, DENIED, GOOD, OTHER = (TopicPartition(topic, 0) for topic in ("gone", "denied", "good", "other"))


class Cluster:
    """A backend and a member of a group: a topic has no leader, and the group may not look at another one."""

    def offsets_in_thread(
        self, at: Mapping[TopicPartition, int], isolation: object
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, EventBusError]]:
        errors: dict[TopicPartition, EventBusError] = {GONE: error_for_code(5, "no leader")}
        return {where: 7 for where in at if where != GONE}, {GONE: errors[GONE]} if GONE in at else {}

    def committed(
        self, partitions: Iterable[TopicPartition], wait_seconds: float
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, EventBusError]]:
        return {OTHER: OffsetAndMetadata(3)}, {DENIED: error_for_code(29, "denied")}


def beginnings(start: Any) -> tuple[StartPositions, Any]:
    cluster: Any = Cluster()
    found = StartPositions(cluster, ConsumerConfig(group="g", start=start))
    found.set_partition_counts(dict.fromkeys(("gone", "denied", "good", "other"), 1))
    return found, cluster


def test_errors_of_single_partitions_leave_the_others_their_beginning() -> None:
    found, member = beginnings("earliest")
    result = found.offsets(member, [DENIED, GONE, GOOD, OTHER], {})
    assert result.offsets == {GOOD: 7, OTHER: 3}, "a refusal to look is not taken for 'never committed'"
    assert {where: error.topic_partition for where, error in result.errors.items()} == {DENIED: DENIED, GONE: GONE}
    assert found.known_offsets(member, [DENIED, GONE, GOOD, OTHER]) == {GOOD: 7, OTHER: 3}


def test_start_none_concerns_the_partitions_without_a_commit() -> None:
    found, member = beginnings("none")
    result = found.offsets(member, [GOOD, OTHER], {GONE: 1_000})
    assert result.offsets == {OTHER: 3}
    assert isinstance(result.errors[GOOD], NoCommittedOffset)
    assert isinstance(result.errors[GONE], OffsetOutOfRange)
