"""Which broker is asked for metadata: another one in each turn, and those that do not answer last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from eventbus.backends.kafka import wire
from eventbus.errors import CoordinatorNotAvailable

pytestmark = pytest.mark.system  # needs confluent_kafka
BROKERS = (("one", 1), ("two", 2), ("three", 3))


def test_each_broker_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that only clients still reach would be asked for ever, and return what it knew when it was cut off."""
    now, asked = [0.0], list[str]()
    monkeypatch.setattr(wire.time, "monotonic", lambda: now[0])
    down = {"two"}

    def ask(address: tuple[str, int], *_: Any) -> None:
        asked.append(address[0])
        if address[0] in down:
            raise CoordinatorNotAvailable("down")

    brokers = wire.Wire(cast(Any, SimpleNamespace(addresses=BROKERS[:1])), 1.0)
    brokers.brokers = BROKERS
    monkeypatch.setattr(brokers, "_ask", ask)
    for second in (0, 1, 30, 31, 60):
        now[0] = float(second)
        brokers.ask(cast(Any, None), "Metadata")
    assert asked == ["one", "one", "two", "three", "three", "three"]
