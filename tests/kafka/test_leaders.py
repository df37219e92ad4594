"""What the admin client's answers mean while a partition has no leader."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID

from eventbus.backends.base import LATEST
from eventbus.backends.kafka.topic_admin import TopicAdmin
from eventbus.errors import RequestTimedOut
from eventbus.types import IsolationLevel, TopicPartition

pytestmark = pytest.mark.system

ORDERS = TopicPartition("orders", 0)


class Client:
    """librdkafka's admin client: what it answers, one after the other, and no error."""

    def __init__(self, *offsets: int) -> None:
        self.offsets = list(offsets)
        self.looked_up: list[str] = []

    def list_offsets(self, wanted: Iterable[Any], **_: Any) -> dict[Any, Future[Any]]:
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(offset=self.offsets.pop(0), timestamp=-1))
        return dict.fromkeys(wanted, future)

    def list_topics(self, topic: str, **_: Any) -> None:
        self.looked_up.append(topic)


def offset(client: Client) -> int:
    admin: Any = TopicAdmin
    return admin(client, None, 30).list_offsets({ORDERS: LATEST}, IsolationLevel.READ_COMMITTED)[ORDERS].offset


def test_no_offset_is_not_taken_for_one() -> None:
    client = Client(OFFSET_INVALID, 7)
    assert offset(client) == 7
    assert client.looked_up == ["orders"]


def test_a_partition_without_a_leader_is_named() -> None:
    with pytest.raises(RequestTimedOut, match=r"orders-0.*no leader"):
        offset(Client(*[OFFSET_INVALID] * 10))


def test_a_time_after_the_last_record_has_no_offset() -> None:
    assert offset(Client(-1)) == -1
