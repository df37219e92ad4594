"""Topics that are deleted, and made anew under the same name, while requests wait for them."""

from __future__ import annotations

import pytest

from eventbus.protocol import messages as m
from eventbus.testing import KafkaServer
from eventbus.types import TopicPartition
from tests.server.batches import batch, create, fetch_request, partitions_of, produce, values_in
from tests.server.wire import WireClient
from tests.support import until

UNKNOWN_TOPIC = 3
LONG_MS = 60_000


async def make_anew(client: WireClient, topic: str) -> None:
    """Both requests in one piece: the server hears of the second before anybody hears of the first."""
    creatable = m.CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    deleted = client.send(m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=LONG_MS), 5)
    created = client.send(m.CreateTopicsRequest(topics=[creatable], timeout_ms=LONG_MS), 5)
    assert (await client.receive(deleted)).responses[0].error_code == 0
    assert (await client.receive(created)).topics[0].error_code == 0


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("records", [0, 1])
async def test_a_fetch_that_waits_is_not_given_records_of_another_topic_of_the_name(version: int, records: int) -> None:
    """Nor told that its offset is out of range: a consumer would begin anew at the end, and miss the first records."""
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as other:
        topic_id = await create(client, "t")
        for _ in range(records):
            await produce(client, "t", 0, batch(b"old"))
        ids = {"t": topic_id} if version >= 13 else None
        sent = client.send(fetch_request({("t", 0): records}, max_wait_ms=LONG_MS, ids=ids), version)
        await until(lambda: server.node.engine._listeners.get(TopicPartition("t", 0)))
        await make_anew(other, "t")
        await produce(other, "t", 0, batch(b"new"))
        (answer,) = partitions_of(await client.receive(sent)).values()
        assert (answer.error_code, values_in(answer)) == (UNKNOWN_TOPIC, [])
