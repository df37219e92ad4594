"""A topic's id is one text, whoever tells it."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka", reason="what kafka:// is made of")

from eventbus import EventBus
from eventbus.testing import KafkaServer

pytestmark = pytest.mark.system


async def test_ids_are_written_as_kafka_writes_them() -> None:
    """librdkafka has "+" and "/" in them; twenty topics are enough to meet one."""
    names = [f"topic-{number}" for number in range(20)]
    async with KafkaServer() as server, server.bus() as here, EventBus(f"kafka://{server.bootstrap}") as there:
        for name in names:
            await here.admin.create_topic(name)
        described = await here.admin.describe_topics(names)
        assert [one.topic_id for one in await there.admin.describe_topics(names)] == [one.topic_id for one in described]
