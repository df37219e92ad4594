"""``bus.admin.security``: the same of a log in this process and of one behind a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from eventbus.backends.security import EmbeddedSecurity, RemoteSecurity, SecurityDoor
from eventbus.coordinator.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from eventbus.coordinator.credentials import ScramMechanism
from eventbus.coordinator.quotas import USER, QuotaFilter
from eventbus.coordinator.security import QuotaAlteration, ScramDeletion, ScramUpsertion
from eventbus.errors import InvalidRequest, KafkaError
from eventbus.protocol import API_KEYS
from eventbus.server import Listener, ServerConfig
from eventbus.server.security.config import SecurityConfig
from eventbus.testing import KafkaServer
from tests.server.wire import WireClient, key_of

READ = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
BAD = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "alice", "*", Operation.READ, Permission.ALLOW)
SHA_256 = ScramMechanism.SCRAM_SHA_256
QUOTA = QuotaAlteration(((USER, "alice"),), {"producer_byte_rate": 1_000.0})


class Broker:
    """What a backend with brokers elsewhere does: ask one."""

    def __init__(self, client: WireClient) -> None:
        self._client = client

    async def ask(self, request: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        return await self._client.call(request, API_KEYS[key_of(name)].max_version)


@pytest.fixture(params=["here", "elsewhere"])
async def door(request: pytest.FixtureRequest) -> AsyncIterator[SecurityDoor]:
    security = SecurityConfig(acls=True, super_users=("User:ANONYMOUS",))
    config = ServerConfig(listeners=(Listener(port=0),), security=security)
    async with KafkaServer(config=config) as server, WireClient(server) as client:
        yield EmbeddedSecurity(server.node.engine) if request.param == "here" else RemoteSecurity(Broker(client))


def code(error: object) -> int:
    return error.code if isinstance(error, KafkaError) else 0


async def test_acls(door: SecurityDoor) -> None:
    assert [code(error) for error in await door.create_acls([READ, BAD])] == [0, 42]
    assert await door.find_acls(AclFilter(name="t")) == [READ]
    assert await door.delete_acls([AclFilter(name="other"), AclFilter()]) == [[], [READ]]
    assert await door.find_acls(AclFilter()) == []
    with pytest.raises(InvalidRequest):
        await door.find_acls(AclFilter(ResourceType.UNKNOWN))


async def test_users(door: SecurityDoor) -> None:
    change = ScramUpsertion("alice", SHA_256, 4_096, b"salt", b"salted")
    weak = ScramUpsertion("bob", SHA_256, 1, b"salt", b"salted")
    assert {user: code(error) for user, error in (await door.alter_scram_users([], [change, weak])).items()} == {
        "alice": 0,
        "bob": 93,
    }
    assert await door.scram_users() == {"alice": {SHA_256: 4_096}}
    assert await door.alter_scram_users([ScramDeletion("alice", SHA_256)], []) == {"alice": None}
    assert await door.scram_users() == {}


async def test_quotas(door: SecurityDoor) -> None:
    wrong = QuotaAlteration(((USER, "bob"),), {"no_such_rate": 1.0})
    assert [code(error) for error in await door.alter_quotas([QUOTA, wrong])] == [0, 42]
    for filters in ([], [QuotaFilter(USER, "alice")], [QuotaFilter(USER, any_name=True)]):
        assert await door.find_quotas(filters, strict=bool(filters)) == {
            ((USER, "alice"),): {"producer_byte_rate": 1_000.0}
        }
    assert await door.find_quotas([QuotaFilter(USER, None)], strict=False) == {}
    assert await door.alter_quotas([QuotaAlteration(((USER, "alice"),), {"producer_byte_rate": None})]) == [None]
    assert await door.find_quotas([], strict=False) == {}
