"""One trace tells the whole story: through the outbox, retries, the dead letters, and back from there."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from dlq import DeadLetters, Retry, Selection
from eventbus import EventBus
from outbox import Outbox
from tests.telemetry.conftest import Spans, traces

pytestmark = pytest.mark.system


@pytest.mark.parametrize("log", ["memory", "file"])
async def test_a_request_an_outbox_tries_a_dead_letter_and_its_redrive_are_one_trace(
    log: str, spans: Spans, tmp_path: Path
) -> None:
    database = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(database)
    bus = EventBus("memory://" if log == "memory" else f"file://{tmp_path}/log")
    bus.topic("orders")
    bus.include(outbox.relay())
    bus.include(spans.tracing())
    is_repaired = False

    @bus.consumer("orders", group="billing", retry=Retry(immediate=1, delays=["1ms"], jitter=False))
    async def bill(value: bytes) -> None:
        if not is_repaired:
            raise ValueError("no account")
        await bus.send("receipts", value)

    bus.topic("receipts")
    async with bus:
        with spans.tracer.start_as_current_span("POST /orders"), Session(database) as session, session.begin():
            outbox.publish(session, "orders", b"o-1", key=b"o-1")
        letters = DeadLetters(bus)
        while not await letters.groups():
            await bus.drain()
        is_repaired = True
        assert (await letters.redrive(Selection(), by="ann")).redriven == 1
        await bus.drain()
        await bus.flush()
    database.dispose()
    sent = "POST /orders > send orders"
    dead = f"{sent} > send retry.billing > send dlq.billing"
    assert spans.tree() == [
        "POST /orders",
        sent,
        f"{sent} > process orders !",
        f"{sent} > process orders !",
        f"{sent} > send retry.billing",
        f"{sent} > send retry.billing > process orders !",
        dead,
        f"{dead} > send retry.billing",
        f"{dead} > send retry.billing > process orders",
        f"{dead} > send retry.billing > process orders > send receipts",
    ]
    assert len(traces(spans.ended)) == 1
    first, *_, last = spans.named("process orders")
    assert first.attributes is not None and last.attributes is not None
    assert (first.attributes["error.type"], first.attributes["messaging.kafka.offset"]) == ("ValueError", 0)
    assert first.events[0].attributes is not None and first.events[0].attributes["exception.message"] == "no account"
    assert "error.type" not in last.attributes and last.attributes["messaging.kafka.offset"] == 0  # its first place
