"""Groups and transactions answer as Apache Kafka does, question by question."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventbus.testing.server import KafkaServer
from tests.server.group_answers import play_on

pytestmark = pytest.mark.system

KAFKAS = Path(__file__).parents[1] / "vectors" / "group_answers.txt"


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_every_answer_is_kafkas(where: str, tmp_path: Path) -> None:
    """Recorded from Kafka 4.3 by tests/vectors/make_group_answers.py."""
    url = None if where == "memory" else f"file://{tmp_path}"
    async with KafkaServer(url, group_min_session_timeout_ms=6_000, num_partitions=1) as server:
        lines = await play_on(server)
    assert lines == KAFKAS.read_text(encoding="utf-8").splitlines()
