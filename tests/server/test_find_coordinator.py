"""FindCoordinator: it is always this broker."""

from __future__ import annotations

import pytest

from eventbus.protocol import messages as m
from eventbus.server import Listener, ServerConfig
from eventbus.testing import KafkaServer
from tests.server.wire import WireClient

INVALID_REQUEST = 42
GROUP, TRANSACTION, SHARE = 0, 1, 2


@pytest.mark.parametrize("key_type", [GROUP, TRANSACTION])
async def test_one_by_one_and_many_at_once(key_type: int) -> None:
    listener = Listener(port=0, advertised_host="kafka.example.org", advertised_port=19092)
    async with KafkaServer(config=ServerConfig(listeners=(listener,))) as server, WireClient(server) as client:
        for version in range(4):
            response = await client.call(m.FindCoordinatorRequest(key="k", key_type=key_type), version)
            assert (response.error_code, response.node_id) == (0, 1)
            assert (response.host, response.port) == ("kafka.example.org", 19092)
        for version in range(4, 7):
            request = m.FindCoordinatorRequest(coordinator_keys=["a", "b"], key_type=key_type)
            response = await client.call(request, version)
            assert [(one.key, one.node_id, one.error_code) for one in response.coordinators] == [
                ("a", 1, 0), ("b", 1, 0),
            ]  # fmt: skip
            assert {(one.host, one.port) for one in response.coordinators} == {("kafka.example.org", 19092)}


@pytest.mark.parametrize("key_type", [SHARE, 3, -1])
async def test_other_kinds_of_coordinators_are_refused(key_type: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        response = await client.call(m.FindCoordinatorRequest(key="k", key_type=key_type), 3)
        assert (response.error_code, response.node_id, response.host, response.port) == (INVALID_REQUEST, -1, "", -1)
        assert "not served here" in response.error_message
        response = await client.call(m.FindCoordinatorRequest(coordinator_keys=["a"], key_type=key_type), 6)
        assert [one.error_code for one in response.coordinators] == [INVALID_REQUEST]
