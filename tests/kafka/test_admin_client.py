"""The life of librdkafka's admin client."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="what kafka:// is made of")

from eventbus import EventBus
from eventbus.backends.kafka.backend import KafkaBackend
from eventbus.errors import UnknownTopicOrPartition
from eventbus.testing import KafkaServer

pytestmark = pytest.mark.system


async def test_a_closed_bus_leaves_no_client_to_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be destroyed in any thread, also one of librdkafka's that has called back."""
    clients: list[weakref.ref[Any]] = []
    start = KafkaBackend.start

    async def started(self: KafkaBackend) -> None:
        await start(self)
        clients.append(weakref.ref(self._opened.client))  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(KafkaBackend, "start", started)
    gc.disable()
    try:
        async with KafkaServer() as server:
            async with EventBus(f"kafka://{server.bootstrap}") as bus:
                assert clients[-1]() is not None
                with pytest.raises(UnknownTopicOrPartition) as caught:  # and keeps what its frames use
                    await bus.admin.alter_configs("missing", {"retention.ms": "1"})
            assert [client() for client in clients] == [None] * len(clients)
            assert caught.value.__traceback__ is not None
    finally:
        gc.enable()
