"""The same on Apache Kafka: the service is killed, the broker lives on."""

from __future__ import annotations

import pytest

from eventbus.testing import RealKafka
from tests.dlq.kill.test_kill import PROGRAM
from tests.killed import kill

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

CASES = [
    pytest.param("once:", 2, id="exactly-once-2"),
    *(pytest.param(promise, kills, id=f"{name}-{kills}", marks=pytest.mark.slow) for promise, name, kills in (
        ("once:", "exactly-once", 4), ("", "at-least-once", 4), ("", "at-least-once", 50), ("once:", "exactly-once", 50)
    )),
]  # fmt: skip
"""Without transactions there is less to go wrong: that is in the long tier."""


@pytest.mark.parametrize(("promise", "kills"), CASES)
@pytest.mark.timeout(1_800)
def test_kills(real: RealKafka, promise: str, kills: int) -> None:
    assert f"{kills} kills" in kill(PROGRAM, f"{promise}{real.url}#{promise[:4]}{kills}", kills, seed=kills)
