"""Partition checks shared by several APIs."""

from __future__ import annotations

from typing import ClassVar

from eventbus.errors import KafkaError
from eventbus.log.partition_log import LEADER_EPOCH

TOPIC_AUTHORIZATION_FAILED = 29
UNKNOWN_TOPIC_ID = 100


class FencedLeaderEpoch(KafkaError):
    """Refresh the metadata: the partition has a newer leader."""

    code: ClassVar[int] = 74
    retriable = True


class UnknownLeaderEpoch(KafkaError):
    """Try again: the client has metadata of a leader that this broker does not know yet."""

    code: ClassVar[int] = 75
    retriable = True


def check_leader_epoch(current_leader_epoch: int) -> None:
    """Reject a client whose metadata belongs to another leader (KIP-320); -1 skips the check.

    The leader never changes, so a larger epoch comes from another log, such as a Kafka cluster that was here before.
    """
    if current_leader_epoch in (-1, LEADER_EPOCH):
        return
    if current_leader_epoch < LEADER_EPOCH:
        raise FencedLeaderEpoch(f"leader epoch {current_leader_epoch} is over, it is {LEADER_EPOCH}")
    raise UnknownLeaderEpoch(f"leader epoch {current_leader_epoch} is not known here, it is {LEADER_EPOCH}")
