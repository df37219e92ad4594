"""Arguments of a wrong type or in a wrong order: an error says so at once, and nothing of them reaches the log."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus import EventBus
from eventbus.errors import ConfigError, InvalidPartitions


@pytest.mark.parametrize("partitions", [3.0, True, "3"])
async def test_a_number_of_partitions_that_is_none_does_not_spoil_the_log(file_url: str, partitions: Any) -> None:
    """3.0 was written to the log's own bookkeeping, which could then not be read: the log was lost."""
    async with EventBus(file_url) as bus:
        with pytest.raises(InvalidPartitions, match="a whole number"):
            await bus.admin.create_topic("t", partitions=partitions)
        await bus.admin.create_topic("t")
        with pytest.raises(InvalidPartitions, match="a whole number"):
            await bus.admin.add_partitions("t", partitions)
    async with EventBus(file_url) as bus:
        assert await bus.admin.list_topics() == ["t"]


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        (["orders", "audit"], {}, "the name of one topic"),
        (None, {}, "the name of one topic"),
        ("orders", {"partitions": "3"}, "partitions='3': a whole number"),
        ("orders", {"configs": [("retention.ms", 1)]}, r"configs=\[.*a dict"),
    ],
)
def test_a_topic_is_checked_where_it_is_declared(name: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EventBus("memory://").topic(name, **options)
