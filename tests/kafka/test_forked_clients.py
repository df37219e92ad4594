"""A forked child has none of librdkafka's threads: a client that is freed there aborts or hangs it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="what kafka:// is made of")

from eventbus import EventBus
from eventbus.testing import KafkaServer

pytestmark = pytest.mark.system


def exit_code(use: Callable[[], object]) -> int:
    """Call ``use`` in a forked child, collect garbage there, and return how the child ended."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        use()
        gc.collect()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_a_child_frees_no_client_of_its_parent() -> None:
    async with KafkaServer() as server, EventBus(f"kafka://{server.bootstrap}") as bus:
        await bus.admin.create_topic("orders")
        async with bus.new_consumer("orders", group="g") as consumer, bus.new_producer() as producer:
            await consumer.assigned()
            await producer.send("orders", b"1")
            log: Any = consumer._backend  # pyright: ignore[reportPrivateUsage]
            [member], [client] = [one._thread for one in log.consumers], [one.client for one in log.producers]

            def drop() -> None:
                member.client = client.handle = None
                log._admin.close()

            assert exit_code(drop) == 0
            assert [record.value for record in await consumer.poll(timeout_ms=20_000)] == [b"1"], "the parent goes on"
