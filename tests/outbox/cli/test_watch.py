"""A relay looks at the whole outbox from time to time: numbers for plots, and a line for an alarm."""

from __future__ import annotations

from typing import Any

import anyio.lowlevel
import pytest
from sqlalchemy import create_engine

from eventbus import EventBus
from outbox.database import Database
from outbox.status import Backlog, OpenTransaction, Stall
from outbox.watch import Seen, Watch
from tests.outbox.cli.conftest import Shop, fill

pytestmark = pytest.mark.system

STALL = Stall(writer=OpenTransaction(2_500, "pid 7"), snapshot=OpenTransaction(9_000, "pid 8"))


class Timers:
    """Sleeps are only noted."""

    def __init__(self, most: int) -> None:
        self.slept: list[float] = []
        self._most = most

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()
        self.slept.append(seconds)
        if len(self.slept) > self._most:
            raise EOFError


def watch_of(shop: Shop, timers: Any = None, engine: Any = None) -> Watch:
    return Watch(Database(engine or shop.database.engine), shop.tables, timers)


async def test_what_is_seen(shop: Shop) -> None:
    fill(shop)
    watch = watch_of(shop)
    assert (list(watch.samples("eventbus_outbox")), watch.details(), watch.trouble()) == ([], {}, "")
    await watch.look()
    values = {one.name.removeprefix("eventbus_outbox_"): one.value for one in watch.samples("eventbus_outbox")}
    assert (values["backlog_events"], values["refused_events"]) == (5, 1) and 0 <= values["oldest_age_seconds"] < 60
    assert set(values) == {
        "backlog_events", "refused_events", "oldest_age_seconds", "stall_seconds", "oldest_transaction_seconds",
    }  # fmt: skip
    assert all(
        one.labels == {"outbox": "eventbus_outbox"} and one.kind == "gauge" for one in watch.samples("eventbus_outbox")
    )
    assert watch.details()["backlog"] == 5


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
async def test_it_looks_now_and_then(shop: Shop) -> None:
    timers = Timers(2)
    watch = watch_of(shop, timers)
    with pytest.raises(EOFError):
        await watch.run()
    assert timers.slept == [5, 30, 30] and watch.seen is not None


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
async def test_a_database_that_is_away_is_no_trouble_of_its(shop: Shop) -> None:
    watch = watch_of(shop, engine=create_engine("sqlite:////no/such/folder/shop.db"))
    await watch.look()
    assert watch.seen is None


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (Seen(Backlog(10, True, 59_000), Stall(writer=OpenTransaction(59_000, "pid 7"))), ""),
        (Seen(Backlog(1_000, True, 61_000), Stall()), "1,000 events wait, the oldest for 61 s"),
        (Seen(Backlog(2_000_000, False, 600_000), Stall()), "about 2,000,000 events wait, the oldest for 10 min"),
        (
            Seen(Backlog(0, True, None), Stall(writer=OpenTransaction(61_000, "pid 7"))),
            "what pid 7 has written waits for its commit since 61 s",
        ),
        (Seen(Backlog(0, True, None), Stall(snapshot=OpenTransaction(10**7, "pid 7"))), ""),
    ],
)
@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_what_is_worth_an_alarm(shop: Shop, seen: Seen, said: str) -> None:
    watch = watch_of(shop)
    watch.seen = seen
    assert watch.trouble() == said


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_how_long_a_writer_keeps_events_back_is_a_number(shop: Shop) -> None:
    watch = watch_of(shop)
    watch.seen = Seen(Backlog(3, True, 1_500), STALL)
    values = {one.name.removeprefix("eventbus_outbox_"): one.value for one in watch.samples("eventbus_outbox")}
    assert (values["oldest_age_seconds"], values["stall_seconds"], values["oldest_transaction_seconds"]) == (
        1.5,
        2.5,
        9,
    )
    assert watch.details() == {"backlog": 3, "oldest_age_ms": 1_500, "stall_ms": 2_500}


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
async def test_a_bus_tells_of_the_outbox_it_publishes(shop: Shop) -> None:
    relay, bus = shop.outbox.relay(), EventBus("memory://")
    bus.topic("orders")
    bus.include(relay)
    shop.publish("a", "b")
    async with bus:
        await bus.drain()
        watch = relay._watch  # pyright: ignore[reportPrivateUsage] - it would look in five seconds
        assert watch is not None
        await watch.look()
        values = {one.name: one.value for one in bus.metrics().samples()}
        assert values["eventbus_outbox_published_events_total"] == 2 and values["eventbus_outbox_backlog_events"] == 0
        [part] = (await bus.health()).parts
        assert (part.part, part.status, part.details["backlog"]) == ("outbox eventbus_outbox", "ok", 0)
        watch.seen = Seen(Backlog(3, True, 90_000), STALL)
        health = await bus.health()
        assert (health.status, health.reason) == (
            "degraded", "outbox eventbus_outbox: 3 events wait, the oldest for 90 s",
        )  # fmt: skip
