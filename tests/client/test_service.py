"""Names that two services must not share by default: groups, schedules, replies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventbus import EventBus, Router
from eventbus.client.configuration.display import rows_of
from eventbus.client.requests import replies_topic
from eventbus.errors import ConfigError
from eventbus.testing import TestBus, in_memory

NOT_OPENED = "file://./not-opened"


class LogElsewhere:
    """A log that a durable scheme names, and that no test opens."""

    def __init__(self, url: str) -> None:
        self.url = url


def bus_on(url: str, **config: Any) -> EventBus:
    backend: Any = LogElsewhere(url)
    bus = EventBus(url, backend=backend, **config)

    @bus.consumer("orders")
    async def handle(order: str) -> None: ...

    @bus.consumer("orders", group="mailer")
    async def mail(order: str) -> None: ...

    return bus


@pytest.mark.parametrize("url", ["file://./orders", "kafka://one:9092", "plugin://somewhere"])
async def test_a_durable_log_refuses_a_handler_without_a_group(url: str) -> None:
    bus = bus_on(url)

    @bus.consumer("bills")
    async def archive(bill: str) -> None: ...

    with pytest.raises(ConfigError) as error:
        await bus.start()
    message = str(error.value)
    assert "handler 'handle' (" in message and "(and 'archive')" in message and "mail" not in message
    for way in ('service="billing"', "EVENTBUS_SERVICE=billing", 'group="billing"', 'again with service="eventbus"'):
        assert way in message
    assert not bus.is_running


async def test_a_client_id_that_is_no_service_name_is_not_proposed_as_one() -> None:
    with pytest.raises(ConfigError) as error:
        await bus_on(NOT_OPENED, client_id="my shop/1").start()
    assert 'service="my shop' not in str(error.value)
    assert "found again with group='my shop/1.handle'" in str(error.value)


def test_the_group_is_the_handlers_own_or_its_routers_or_the_services() -> None:
    bus = bus_on("file://./orders", service="billing")
    team, others = Router(group="team"), Router(prefix="eu.")

    @team.consumer("orders")
    async def count(order: str) -> None: ...

    @others.consumer("orders")
    async def weigh(order: str) -> None: ...

    bus.include(team, others)
    assert list(map(bus.context.group_of, bus.context.handlers)) == [
        "billing.handle",
        "mailer",
        "team",
        "billing.eu.weigh",
    ]
    bus.context.check_names()


async def test_the_group_prefix_of_a_router_names_no_service() -> None:
    bus, router = EventBus(NOT_OPENED), Router(prefix="eu.")

    @router.consumer("orders")
    async def weigh(order: str) -> None: ...

    bus.include(router)
    with pytest.raises(ConfigError, match=r"handler 'weigh'.* has no group"):
        await bus.start()


def test_memory_keeps_a_default() -> None:
    bus = bus_on("memory://")
    assert bus.context.group_of(bus.context.handlers[0]) == "eventbus.handle"
    bus.context.check_names()


def test_a_service_with_the_former_client_id_continues_its_groups() -> None:
    former, now = bus_on("memory://", client_id="shop"), bus_on("file://./orders", service="shop")
    assert former.context.group_of(former.context.handlers[0]) == now.context.group_of(now.context.handlers[0])
    assert former.context.service_name == now.context.service_name == now.context.client_id


async def test_services_with_a_function_of_one_name_each_get_every_record(tmp_path: Path) -> None:
    url, received = f"file://{tmp_path}/log", dict[str, list[int]]()

    def service(name: str) -> EventBus:
        bus = EventBus(url, service=name, fsync="os")
        bus.topic("orders", partitions=2)
        received[name] = []

        @bus.consumer("orders")
        async def handle(order: int) -> None:
            received[name].append(order)

        return bus

    async with service("billing") as billing, service("mailer") as mailer:
        await billing.send_many("orders", range(20))
        await billing.drain()
        await mailer.drain()
    assert {name: sorted(orders) for name, orders in received.items()} == {
        "billing": [*range(20)],
        "mailer": [*range(20)],
    }


def test_the_service_comes_from_the_environment_or_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bus.toml"
    file.write_text('service = "of-file"\n')
    bus = bus_on("file://./orders", config_file=str(file))
    context = bus.context
    assert (context.service, context.client_id, context.group_of(context.handlers[0])) == (
        "of-file",
        "of-file",
        "of-file.handle",
    )
    monkeypatch.setenv("EVENTBUS_SERVICE", "billing")
    assert bus_on("file://./orders", config_file=str(file)).context.service == "billing"
    bus = bus_on("file://./orders", client_id="pod-3")
    context = bus.context
    assert (context.service, context.client_id, context.group_of(context.handlers[0])) == (
        "billing",
        "pod-3",
        "billing.handle",
    )
    shown = {row.setting: row.value for row in rows_of(EventBus(NOT_OPENED).context.configuration)}
    assert (shown["service"], shown["client_id"]) == ("billing", "billing")


@pytest.mark.parametrize("name", ["", "shop/1", "shop eu", "s" * 101, 7])
def test_a_name_that_cannot_be_part_of_a_topics_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"is not a service's name.*Choose 1 to 100 of a-z"):
        EventBus("memory://", service=name)


async def test_a_durable_bus_that_a_test_runs_in_memory_is_refused_as_in_production() -> None:
    bus = bus_on("file://./orders")
    with pytest.raises(ConfigError, match="has no group"):
        async with in_memory(bus):
            pass
    async with in_memory(bus_on("file://./orders", service="billing"), auto_create_topics=True):
        pass


@pytest.mark.parametrize("group", [{}, {"group": "own"}])
async def test_a_durable_log_refuses_functions_at_times_of_a_bus_without_a_service(group: dict[str, str]) -> None:
    """Nor is ``group=`` enough: services would still share the schedule and the topic of the calls."""
    bus = EventBus(NOT_OPENED)

    @bus.every("30s", **group)
    async def tick() -> None: ...

    with pytest.raises(ConfigError, match=r"@bus\.every: 'tick' needs the service's name.*service=\"eventbus\""):
        await bus.start()


async def test_a_durable_log_refuses_a_delayed_record_of_a_bus_without_a_service(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    async with EventBus(url, auto_create_topics=True) as bus:
        with pytest.raises(ConfigError, match=r"send\('orders', ...\) with a delay needs the service's name"):
            await bus.send("orders", "o-1", delay=60)
    async with EventBus(url, service="billing", client_id="pod-3", auto_create_topics=True) as bus:
        await bus.send("orders", "o-1", delay=60)
        assert "_scheduled.billing" in await bus.admin.list_topics()


async def test_names_of_a_service_do_not_depend_on_the_client_id() -> None:
    bus, runs = TestBus(service="billing", client_id="pod-3"), list[str]()

    @bus.every("1s")
    async def tick() -> None:
        runs.append("tick")

    async with bus:
        await bus.clock.advance(seconds=1)
        await bus.log.drain()
        topics = await bus.admin.list_topics()
        groups = [one.group for one in await bus.admin.list_groups()]
    assert runs == ["tick"]
    assert {"_every.billing.tick", "_scheduled.billing"} <= {*topics}
    assert sorted(groups) == ["_scheduled.billing", "billing.every.tick"]
    assert replies_topic(bus.context.service_name) == "billing.replies"
