"""librdkafka refuses records with "Local: Fatal error" once a producer is useless: its cause is what users get."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

pytest.importorskip("confluent_kafka", reason="what kafka:// is made of")

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from eventbus import EventBus
from eventbus.backends.kafka.producer_client import ProducerClient
from eventbus.errors import EventBusError, ProducerFenced, TransactionAborted
from eventbus.testing import KafkaServer

pytestmark = pytest.mark.system

FATAL = ClientError(ClientError._FATAL, "Unable to produce message: Local: Fatal error")
CAUSE = KafkaException(ClientError(ClientError._FENCED, "Fatal error: fenced", fatal=True))


class Handle:
    """A producer of librdkafka's: what its polls return or raise, one after the other."""

    def __init__(self, *polls: KafkaException | None) -> None:
        self.polls = list(polls)

    def poll(self, _: float) -> None:
        poll = self.polls.pop(0) if self.polls else None
        if poll is not None:
            raise poll


def client(*polls: KafkaException | None) -> ProducerClient:
    made: Any = object.__new__(ProducerClient)
    made.handle, made.is_stopped, made.fatal = Handle(*polls), False, None
    made.on_fatal = lambda *_: None
    return made


def test_the_cause_is_waited_for() -> None:
    """librdkafka refuses records before it has queued the cause."""
    failed = client(None, None, CAUSE)
    assert failed.cause_of(FATAL).code() == ClientError._FENCED
    assert failed.cause_of(FATAL).code() == ClientError._FENCED, "it is returned once, and remembered"


def test_other_errors_are_their_own_cause() -> None:
    full = ClientError(ClientError._QUEUE_FULL)
    assert client(CAUSE).cause_of(full) is full


def test_a_client_that_was_stopped_is_not_polled() -> None:
    stopped = client(CAUSE)
    stopped.is_stopped = True
    assert stopped.cause_of(FATAL) is FATAL


async def refusal(producer: Any, topic: str) -> EventBusError:
    """Send until a record is refused, while the thread that takes librdkafka's reports does nothing."""
    client = producer._backend.client
    client.claim()
    with anyio.fail_after(30):
        while True:
            try:
                producer.send_nowait(topic, b"late")
            except EventBusError as error:
                client.rest()
                return error
            await anyio.sleep(0.01)


async def test_a_fenced_producer_whose_record_is_not_taken_is_fenced() -> None:
    """A mirror went on with "Local: Fatal error" where another one of its name had begun."""
    async with KafkaServer() as server, EventBus(f"kafka://{server.bootstrap}") as bus:
        await bus.admin.create_topic("orders")
        async with bus.new_producer(transactional_id="one") as old:
            await old.begin()
            await old.send("orders", b"1")
            async with bus.new_producer(transactional_id="one") as new:
                await new.begin()
                assert isinstance(await refusal(old, "orders"), ProducerFenced)
            with pytest.raises(ProducerFenced):
                await old.commit()


async def test_a_plain_producer_whose_record_is_not_taken_is_refused_with_the_cause() -> None:
    """Another client would be refused as well, so none takes over."""
    denied = KafkaException(ClientError(ClientError.CLUSTER_AUTHORIZATION_FAILED, "denied", fatal=True))
    async with KafkaServer() as server, EventBus(f"kafka://{server.bootstrap}") as bus:
        await bus.admin.create_topic("orders")
        async with bus.new_producer() as producer:
            await producer.send("orders", b"1")
            backend: Any = producer._backend  # pyright: ignore[reportPrivateUsage]
            handle, backend.client.handle = backend.client.handle, Refusing(FATAL, denied)
            error = await refusal(producer, "orders")
            assert "needs an ACL" in str(error) and not error.retriable
            backend.client.handle = handle


async def test_a_record_that_is_not_taken_by_a_failed_transaction_names_why_it_failed() -> None:
    """Before the reports of the records that librdkafka has given up for it."""
    state = ClientError(ClientError._STATE)
    denied = ClientError(ClientError.TOPIC_AUTHORIZATION_FAILED, txn_requires_abort=True)
    async with KafkaServer() as server, EventBus(f"kafka://{server.bootstrap}") as bus:
        await bus.admin.create_topic("orders")
        async with bus.new_producer(transactional_id="one") as producer:
            await producer.begin()
            await producer.send("orders", b"1")
            backend: Any = producer._backend  # pyright: ignore[reportPrivateUsage]
            handle, backend.client.handle = backend.client.handle, Refusing(state, begins=KafkaException(denied))
            error = await refusal(producer, "orders")
            backend.client.handle = handle
            assert isinstance(error, TransactionAborted) and "Write on the topic" in str(error.__cause__)


class Refusing(Handle):
    """Takes no record, and returns why once, or when a transaction is to begin."""

    def __init__(self, refusal: ClientError, *polls: KafkaException, begins: KafkaException | None = None) -> None:
        super().__init__(*polls)
        self._refusal = refusal
        self._begins = begins

    def produce(self, *_: Any) -> None:
        raise KafkaException(self._refusal)

    def begin_transaction(self) -> None:
        assert self._begins is not None
        raise self._begins

    def purge(self) -> None:
        pass

    def __len__(self) -> int:
        return 0
