"""The same on Apache Kafka: the service is killed, the broker lives on."""

from __future__ import annotations

import pytest

from eventbus.testing import RealKafka
from tests.dlq.kill.test_kill import PROGRAM
from tests.kafka_fixtures import real
from tests.killed import kill

__all__ = ["real"]


@pytest.mark.parametrize("promise", ["", "once:"], ids=["at-least-once", "exactly-once"])
@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.timeout(1_800)
def test_kills(real: RealKafka, promise: str, kills: int) -> None:
    assert f"{kills} kills" in kill(PROGRAM, f"{promise}{real.url}#{promise[:4]}{kills}", kills, seed=kills)
