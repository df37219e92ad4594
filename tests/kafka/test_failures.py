"""What librdkafka's errors mean here."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from eventbus.backends.base import ConsumerConfig
from eventbus.backends.kafka.failures import error_of
from eventbus.backends.kafka.poll_thread import PollThread
from eventbus.client.handling.exactly_once import _is_away
from eventbus.errors import EventBusError, FencedInstanceId, KafkaError
from eventbus.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    "name",
    [
        "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT", "_DESTROY",
        "_DESTROY_BROKER", "_UNKNOWN_BROKER", "_WAIT_COORD", "_WAIT_CACHE", "_NODE_UPDATE", "_RETRY",
    ],
)  # fmt: skip
def test_a_broker_that_does_not_answer_is_no_records_fault(name: str) -> None:
    """A broker that is cut off is also told as a connection that was given up: its partition stopped for good then."""
    assert _is_away(error_of(ClientError(getattr(ClientError, name)), "offsets were not added"))


class Message:
    def __init__(self, error: ClientError | None) -> None:
        self._error = error

    def error(self) -> ClientError | None:
        return self._error


class Useless:
    """A consumer of confluent-kafka whose static member was fenced, as another call than the commit has seen first."""

    def __init__(self) -> None:
        fenced = ClientError(ClientError.FENCED_INSTANCE_ID)
        self._told = [Message(None), Message(ClientError(ClientError._FATAL, f"Fatal error: {fenced.str()}"))]

    def commit(self, **_: Any) -> None:
        raise KafkaException(ClientError(ClientError._FATAL, "Commit failed: Local: Fatal error"))

    def poll(self, seconds: float) -> Message | None:
        return self._told.pop(0) if self._told else None


def test_a_commit_says_what_made_its_client_useless() -> None:
    member: Any = object.__new__(PollThread)
    member._is_lost, member.config, member.client = False, ConsumerConfig(group="g"), Useless()
    with pytest.raises(FencedInstanceId, match="group 'g' did not commit"):
        member.commit({TopicPartition("t", 0): OffsetAndMetadata(1)})


def codes() -> list[str]:
    """The names of all codes that librdkafka can return, besides success."""
    return [name for name, code in vars(ClientError).items() if isinstance(code, int) and code != ClientError.NO_ERROR]


RETRIABLE = {
    "_DESTROY", "_TRANSPORT", "_RESOLVE", "_MSG_TIMED_OUT", "_UNKNOWN_PARTITION", "_FS", "_UNKNOWN_TOPIC",
    "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_QUEUE_FULL", "_ISR_INSUFF", "_NODE_UPDATE", "_WAIT_COORD", "_IN_PROGRESS",
    "_PREV_IN_PROGRESS", "_OUTDATED", "_TIMED_OUT_QUEUE", "_WAIT_CACHE", "_INTR", "_PARTIAL", "_NOENT", "_RETRY",
    "_PURGE_QUEUE", "_PURGE_INFLIGHT", "_UNKNOWN_BROKER", "_DESTROY_BROKER",
}  # fmt: skip
"""Those of librdkafka's own codes that are retriable. The codes of the brokers follow Kafka's table."""


def test_every_code_of_librdkafka_has_a_row() -> None:
    """A code without a translation counted as permanent, and ended the process."""
    assert len(codes()) > 150
    for name in codes():
        code = getattr(ClientError, name)
        error = error_of(ClientError(code), "it failed")
        assert type(error) is not EventBusError, name
        assert type(error).__doc__, "the class states what its user does"
        if name.startswith("_"):
            assert error.retriable == (name in RETRIABLE), name
        else:
            assert isinstance(error, KafkaError), name
            assert error.code == code


def test_a_code_of_a_newer_librdkafka_is_named() -> None:
    error = error_of(ClientError(9_999), "it failed")
    assert isinstance(error, KafkaError)
    assert (error.code, "9999" in str(error)) == (-1, True)
