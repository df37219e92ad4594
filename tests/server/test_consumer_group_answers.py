"""Groups of the consumer protocol answer as Apache Kafka does, question by question (KIP-848)."""

from __future__ import annotations

from pathlib import Path

from eventbus.testing.server import KafkaServer
from tests.server.consumer_group_answers import play_on

KAFKAS = Path(__file__).parents[1] / "vectors" / "consumer_group_answers.txt"

OTHERWISE = {
    # A group that is gone with its log (a server in memory, started anew) has lost its members, who then join again.
    # Kafka's GROUP_ID_NOT_FOUND ends its own consumer.
    "beat in an unknown group: error 69": "beat in an unknown group: error 25",
    "leave an unknown group: error 69": "leave an unknown group: error 25",
    # A member that was fenced joins again under its id: it need not wait for itself to leave.
    "s3 joins as i1 without having left: error 111": "s3 joins as i1 without having left: epoch 3, partitions 2",
}


async def test_every_answer_is_kafkas_but_for_a_few() -> None:
    """Recorded from Kafka 4.3 by tests/vectors/make_consumer_group_answers.py."""
    async with KafkaServer(group_min_session_timeout_ms=6_000, num_partitions=1) as server:
        lines = await play_on(server)
    kafkas = KAFKAS.read_text(encoding="utf-8").splitlines()
    assert lines == [OTHERWISE.get(line, line) for line in kafkas]
    assert {*OTHERWISE} <= {*kafkas}, "what differs is asked"
