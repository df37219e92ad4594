"""ACLs over the wire: three APIs and what they bind, kept over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventbus.coordinator.acls import Acl, Operation, PatternType, Permission, ResourceType
from eventbus.protocol import messages as m
from eventbus.server import Listener, ServerConfig
from eventbus.server.security.config import SecurityConfig
from eventbus.testing import KafkaServer
from tests.server.wire import WireClient

INVALID_REQUEST, SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED = 42, 54, 31
ANY = 1
SASL = Listener(name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", port=0)
SECURITY = SecurityConfig(
    users={"admin": "admin-secret", "alice": "alice-secret"}, acls=True, super_users=("User:admin",)
)


def server(url: str | None = None) -> KafkaServer:
    return KafkaServer(url, ServerConfig(listeners=(SASL,), security=SECURITY))


class User(WireClient):
    """A client that has logged in."""

    def __init__(self, running: KafkaServer, name: str) -> None:
        super().__init__(running)
        self.name = name

    async def __aenter__(self) -> User:
        await super().__aenter__()
        await self.call(m.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        token = f"\0{self.name}\0{self.name}-secret".encode()
        assert (await self.call(m.SaslAuthenticateRequest(auth_bytes=token), 2)).error_code == 0
        return self

    async def create(self, *acls: Acl, version: int = 3) -> list[tuple[int, str | None]]:
        creations = [
            m.CreateAclsRequest.AclCreation(
                resource_type=acl.resource_type,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
        answer = await self.call(m.CreateAclsRequest(creations=creations), version)
        return [(result.error_code, result.error_message) for result in answer.results]

    async def describe(self, version: int = 3, **fields: object) -> list[Acl]:
        asked = {"resource_type_filter": ANY, "pattern_type_filter": ANY, "operation": ANY, "permission_type": ANY}
        answer = await self.call(m.DescribeAclsRequest(**{**NO_NAMES, **asked, **fields}), version)
        assert answer.error_code == 0, answer.error_message
        return [
            Acl(
                ResourceType(resource.resource_type),
                resource.resource_name,
                PatternType(resource.pattern_type),
                acl.principal,
                acl.host,
                Operation(acl.operation),
                Permission(acl.permission_type),
            )
            for resource in answer.resources
            for acl in resource.acls
        ]

    async def delete(self, **fields: object) -> m.DeleteAclsResponse.DeleteAclsFilterResult:
        asked = {"resource_type_filter": ANY, "pattern_type_filter": ANY, "operation": ANY, "permission_type": ANY}
        one = m.DeleteAclsRequest.DeleteAclsFilter(**{**NO_NAMES, **asked, **fields})
        (result,) = (await self.call(m.DeleteAclsRequest(filters=[one]), 3)).filter_results
        return result


NO_NAMES = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
READ = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
PAY = Acl(ResourceType.TOPIC, "pay-", PatternType.PREFIXED, "User:alice", "10.0.0.1", Operation.ALL, Permission.DENY)
GROUP = Acl(ResourceType.GROUP, "g", PatternType.LITERAL, "User:*", "*", Operation.READ, Permission.ALLOW)


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_create_describe_delete(version: int) -> None:
    async with server() as running, User(running, "admin") as admin:
        assert await admin.create(READ, PAY, GROUP, version=version) == [(0, None)] * 3
        assert await admin.describe(version) == [PAY, READ, GROUP]
        assert await admin.describe(version, resource_name_filter="pay-in", pattern_type_filter=2) == [PAY]
        assert await admin.describe(version, principal_filter="User:*") == [GROUP]
        result = await admin.delete(resource_type_filter=ResourceType.TOPIC)
        assert (result.error_code, len(result.matching_acls)) == (0, 2)
        assert await admin.describe(version) == [GROUP]
        assert (await admin.delete(principal_filter="User:nobody")).matching_acls == []


async def test_an_acl_that_is_there_is_not_stored_twice() -> None:
    async with server() as running, User(running, "admin") as admin:
        assert await admin.create(READ, READ) == [(0, None)] * 2
        end = running.node.broker.security.acls_version
        assert await admin.create(READ) == [(0, None)]
        assert running.node.broker.security.acls_version == end == 1
        assert len((await admin.delete()).matching_acls) == 1
        assert await admin.describe() == []


async def test_each_acl_is_stored_or_refused_for_itself() -> None:
    async with server() as running, User(running, "admin") as admin:
        strange = Acl(READ.resource_type, "t", READ.pattern_type, "alice", "*", Operation.READ, Permission.ALLOW)
        (bad, why), good = await admin.create(strange, READ)
        assert bad == INVALID_REQUEST
        assert "Could not parse principal" in (why or "")
        assert good == (0, None)
        assert await admin.describe() == [READ]


async def test_numbers_nobody_knows_are_refused() -> None:
    async with server() as running, User(running, "admin") as admin:
        creation = m.CreateAclsRequest.AclCreation(
            resource_type=99, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
        )
        answer = await admin.call(m.CreateAclsRequest(creations=[creation]), 3)
        assert answer.results[0].error_code == INVALID_REQUEST
        fields = {**NO_NAMES, "resource_type_filter": 99, "pattern_type_filter": 1, "operation": 1}
        answer = await admin.call(m.DescribeAclsRequest(**fields, permission_type=1), 3)
        assert answer.error_code == INVALID_REQUEST


async def test_who_may_not_alter_the_cluster_may_not_give_itself_permissions() -> None:
    async with server() as running, User(running, "alice") as alice:
        assert [code for code, _ in await alice.create(READ)] == [CLUSTER_AUTHORIZATION_FAILED]
        assert (await alice.delete()).error_code == CLUSTER_AUTHORIZATION_FAILED
        fields = {**NO_NAMES, "resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1}
        answer = await alice.call(m.DescribeAclsRequest(**fields, permission_type=1), 3)
        assert answer.error_code == CLUSTER_AUTHORIZATION_FAILED
        assert "DESCRIBE" in (answer.error_message or "")


async def test_users_and_quotas_are_for_those_who_may_alter_the_cluster() -> None:
    allowed = {
        Operation.DESCRIBE: m.DescribeUserScramCredentialsRequest(users=None),
        Operation.ALTER: m.AlterUserScramCredentialsRequest(
            deletions=[m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="nobody", mechanism=1)]
        ),
        Operation.DESCRIBE_CONFIGS: m.DescribeClientQuotasRequest(components=[], strict=False),
        Operation.ALTER_CONFIGS: m.AlterClientQuotasRequest(entries=[m.AlterClientQuotasRequest.EntryData()]),
    }
    async with server() as running, User(running, "admin") as admin, User(running, "alice") as alice:
        for operation, request in allowed.items():
            assert error_of(await alice.call(request, 0)) == CLUSTER_AUTHORIZATION_FAILED, operation
            on_cluster = Acl(
                ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL, "User:alice", "*", operation,
                Permission.ALLOW,
            )  # fmt: skip
            await admin.create(on_cluster)
            assert error_of(await alice.call(request, 0)) != CLUSTER_AUTHORIZATION_FAILED, operation
            await admin.delete()


def error_of(answer: Any) -> int:
    """The answer's error code, or that of its only item."""
    if hasattr(answer, "error_code"):
        return answer.error_code
    (item,) = answer.results if hasattr(answer, "results") else answer.entries
    return item.error_code


async def test_acls_are_off_unless_they_are_asked_for() -> None:
    async with KafkaServer() as running, WireClient(running) as client:
        fields = {**NO_NAMES, "resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1}
        answer = await client.call(m.DescribeAclsRequest(**fields, permission_type=1), 3)
        assert answer.error_code == SECURITY_DISABLED


async def test_acls_outlive_the_server(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'log'}"
    async with server(url) as running, User(running, "admin") as admin:
        await admin.create(READ, PAY, GROUP)
        await admin.delete(resource_type_filter=ResourceType.GROUP)
        running.node.broker.check()
    async with server(url) as running, User(running, "admin") as admin:
        assert await admin.describe() == [PAY, READ]
        running.node.broker.check()
