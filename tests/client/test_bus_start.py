"""Checks of a bus before its handlers start, and what it creates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventbus import EventBus
from eventbus.errors import ConfigError


def _two_handlers(bus: EventBus, first: dict[str, Any], second: dict[str, Any]) -> None:
    @bus.consumer(**first)
    async def bill(text: str) -> None: ...

    @bus.consumer(**second)
    async def mail(text: str) -> None: ...


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ({"topics": "orders"}, {"topics": "orders"}, "'orders'"),
        ({"topics": ["a", "orders"]}, {"topics": ["orders", "b"]}, "'orders'"),
        ({"topics": "orders"}, {"pattern": "or.*"}, "'orders'"),
        ({"pattern": "or.*"}, {"topics": "orders"}, "'orders'"),
        ({"pattern": "order.*"}, {"pattern": ".*ders"}, "'orders'"),
        ({"pattern": "not yet.*"}, {"pattern": "not yet.*"}, r"what matches 'not yet\.\*'"),
    ],
)
async def test_two_handlers_of_one_topic_and_group_are_refused(
    make_bus: Any, first: dict[str, Any], second: dict[str, Any], shared: str
) -> None:
    bus = make_bus()
    for topic in ("a", "b", "orders"):
        bus.topic(topic)
    _two_handlers(bus, {**first, "group": "g"}, {**second, "group": "g"})
    message = rf"handler 'bill' .*test_bus.*'mail' .*both read {shared} in the group 'g'.*half of the partitions"
    with pytest.raises(ConfigError, match=message):
        await bus.start()
    assert not bus.is_running
    with pytest.raises(ConfigError, match="not open"):  # it was not even opened
        await bus.admin.list_topics()


async def test_patterns_that_meet_in_a_topic_that_is_there_are_refused(make_bus: Any) -> None:
    bus = make_bus()
    _two_handlers(bus, {"pattern": "order.*", "group": "g"}, {"pattern": ".*ders", "group": "g"})
    async with make_bus(), bus:
        pass  # nothing matches both
    if bus.url.startswith("memory"):
        return
    async with make_bus() as other:
        await other.admin.create_topic("orders")
    with pytest.raises(ConfigError, match="both read 'orders'"):
        await bus.start()
    assert not bus.is_running
    async with make_bus() as other:  # and the log was closed again
        assert "orders" in await other.admin.list_topics()


async def test_default_groups_of_two_functions_of_one_name_meet(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")
    for _ in range(2):

        @bus.consumer("t")
        async def handle(text: str) -> None: ...

    with pytest.raises(ConfigError, match=r"'eventbus\.handle'"):
        await bus.start()


async def test_groups_of_their_own_or_topics_of_their_own_are_fine(make_bus: Any) -> None:
    for first, second in (
        ({"topics": "a", "group": "g"}, {"topics": "a", "group": "h"}),
        ({"topics": "a", "group": "g"}, {"topics": "b", "group": "g"}),
        ({"pattern": "a.*", "group": "g"}, {"topics": "b", "group": "g"}),
    ):
        bus = make_bus()
        bus.topic("a")
        bus.topic("b")
        _two_handlers(bus, first, second)
        async with bus:
            assert len(bus.context.runners) == 2
        assert bus.context.runners == ()


@pytest.mark.parametrize("which", [{"topics": "t"}, {"pattern": "t.*"}])
async def test_a_global_order_needs_one_partition(make_bus: Any, which: dict[str, Any]) -> None:
    bus = make_bus(num_partitions=3)
    bus.topic("t", partitions=2)

    @bus.consumer(**which, order="global")
    async def handle(text: str) -> None: ...

    with pytest.raises(ConfigError, match=r"'handle'.*order='global'.*'t' has 2 partitions.*partitions=1"):
        await bus.start()
    assert not bus.is_running


@pytest.mark.parametrize("config", [{}, {"auto_create_topics": True}])
async def test_a_topic_read_in_global_order_is_made_with_one_partition(make_bus: Any, config: dict[str, Any]) -> None:
    bus = make_bus(num_partitions=3, **config)
    bus.topic("other")
    if not config:
        bus.topic("t")

    @bus.consumer("t", order="global")
    async def handle(text: str) -> None: ...

    async with bus:
        described = {one.name: len(one.partitions) for one in await bus.admin.describe_topics()}
    assert described["t"] == 1 and described["other"] == 3


async def test_what_is_wrong_by_itself_is_refused_before_anything_opens(tmp_path: Path) -> None:
    bus = EventBus(f"file://{tmp_path}/log")
    _two_handlers(bus, {"topics": "t", "group": "g"}, {"topics": "t", "group": "g"})
    with pytest.raises(ConfigError, match="half of the partitions"):
        await bus.start()
    assert not (tmp_path / "log").exists()
