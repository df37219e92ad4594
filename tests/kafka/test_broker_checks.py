"""What goes wrong beside the work on kafka:// is said, and stops nothing: refusals, tokens, greetings that hang."""

from __future__ import annotations

import socket
import time
from typing import Any

import anyio
import pytest
from confluent_kafka import KafkaError as ClientError

from eventbus.backends.clock import RealTimers
from eventbus.backends.kafka.broker_checks import BrokerChecks
from eventbus.backends.kafka.settings import read_settings
from eventbus.backends.kafka.threads import Loop, Worker
from eventbus.backends.kafka.tokens import Tokens
from eventbus.backends.kafka.wire import Connection
from eventbus.errors import CoordinatorNotAvailable

pytestmark = pytest.mark.system


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_a_refusal_is_said_once_from_whichever_loop(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    anyio.run(_refused, backend=kind)
    lines = [one.getMessage() for one in caplog.records if "lets this process in no more" in one.getMessage()]
    assert len(lines) == 1 and "expired" in lines[0]


async def _refused() -> None:
    watch = BrokerChecks(read_settings("127.0.0.1:1", {}), RealTimers())
    watch.start()
    said = anyio.Event()
    error = ClientError(ClientError._AUTHENTICATION, "sasl_ssl://b:9093/1: Authentication failed: expired")

    def complain() -> None:
        for _ in range(3):
            watch.listener.error(error)
        loop.tell(said.set)

    loop = Loop()
    worker = Worker("complains", loop)
    with anyio.fail_after(10):
        await worker.do(complain).wait()
        await said.wait()
    worker.stop()


def test_a_function_that_gives_no_token_is_an_error_that_passes() -> None:
    """Whoever looks after the brokers meanwhile must not end of it."""

    def fail(_: str) -> Any:
        raise OSError("the token server is away")

    with pytest.raises(CoordinatorNotAvailable, match="oauth_cb gives no token: OSError: the token server is away"):
        Tokens({}, fail).take()


def test_a_greeting_of_tls_that_hangs_is_a_broker_that_is_away() -> None:
    """And another one is asked."""
    settings = read_settings("127.0.0.1:1", {"security.protocol": "SSL"})
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        began = time.monotonic()
        with pytest.raises(CoordinatorNotAvailable, match="greeting"):
            Connection(("127.0.0.1", hangs.getsockname()[1]), settings, 0.2)
        assert time.monotonic() - began < 10
