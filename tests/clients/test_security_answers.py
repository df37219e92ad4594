"""The same answers as a real Kafka broker to requests for ACLs, users and quotas, good and bad ones.

Where it differs on purpose is left out: Kafka answers UNKNOWN_SERVER_ERROR or closes the connection for elements that
are not known, takes principals without a name, an empty salt and NaN for a quota, and refuses a request that sets both
mechanisms of a user.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from eventbus.protocol import messages as m
from eventbus.server import Listener, ServerConfig
from eventbus.server.security.config import SecurityConfig
from eventbus.testing import KafkaServer, RealKafka
from tests.clients.sockets import PATIENCE_SECONDS, Socket

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

ANYTHING: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


@pytest.fixture(scope="module")
def brokers(real: RealKafka) -> Iterator[tuple[Socket, Socket]]:
    """A real Kafka, which other tests share, and this server."""
    security = SecurityConfig(acls=True, super_users=("User:ANONYMOUS",))
    config = ServerConfig(listeners=(Listener(port=0),), security=security)
    with (
        KafkaServer(config=config) as server,
        Socket(real.bootstrap) as theirs,
        Socket(server.bootstrap) as ours,
    ):
        forget_all(theirs)
        yield theirs, ours
        forget_all(theirs)


def forget_all(kafka: Socket) -> None:
    """Delete its ACLs, users and quotas, and wait until the broker has heard of that from its controller."""
    kafka.call(delete())
    for user in kafka.call(describe_users()).results:
        kafka.call(users(*(("-", user.user, one.mechanism, 0) for one in user.credential_infos)))
    for entry in kafka.call(quotas()).entries or ():
        entity = {part.entity_type: part.entity_name for part in entry.entity}
        kafka.call(quota(entity, **{value.key: None for value in entry.values}))
    deadline = time.monotonic() + PATIENCE_SECONDS
    looks = ((describe(), "resources"), (describe_users(), "results"), (quotas(), "entries"))
    while any(getattr(kafka.call(look), found) for look, found in looks):
        assert time.monotonic() < deadline


def acl(**fields: Any) -> m.CreateAclsRequest:
    default = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return m.CreateAclsRequest(creations=[m.CreateAclsRequest.AclCreation(**{**default, **fields})])


def describe(**fields: Any) -> m.DescribeAclsRequest:
    return m.DescribeAclsRequest(**{**ANYTHING, **fields})


def delete(**fields: Any) -> m.DeleteAclsRequest:
    return m.DeleteAclsRequest(filters=[m.DeleteAclsRequest.DeleteAclsFilter(**{**ANYTHING, **fields})])


def users(*changes: tuple[str, str, int, int]) -> m.AlterUserScramCredentialsRequest:
    """Changes are (what, user, mechanism, iterations)."""
    return m.AlterUserScramCredentialsRequest(
        deletions=[
            m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=mechanism)
            for what, name, mechanism, _ in changes
            if what == "-"
        ],
        upsertions=[
            m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=bytes(32)
            )
            for what, name, mechanism, iterations in changes
            if what == "+"
        ],
    )


def describe_users(*names: str) -> m.DescribeUserScramCredentialsRequest:
    asked = [m.DescribeUserScramCredentialsRequest.UserName(name=name) for name in names]
    return m.DescribeUserScramCredentialsRequest(users=asked or None)


def quota(entity: dict[str, str | None], **values: float | None) -> m.AlterClientQuotasRequest:
    parts = [m.AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    ops = [
        m.AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
        for key, value in values.items()
    ]
    entry = m.AlterClientQuotasRequest.EntryData(entity=parts, ops=ops)
    return m.AlterClientQuotasRequest(entries=[entry])


def quotas(*components: tuple[str, int, str | None], strict: bool = False) -> m.DescribeClientQuotasRequest:
    return m.DescribeClientQuotasRequest(
        components=[
            m.DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=how, match=name)
            for kind, how, name in components
        ],
        strict=strict,
    )


ACLS = [
    acl(),
    acl(),
    acl(resource_name=""),
    acl(resource_type=4, resource_name="x"),
    acl(resource_type=4, resource_name="kafka-cluster", operation=4),
    acl(resource_pattern_type=4, resource_name="p"),
    acl(resource_pattern_type=4, resource_name="*"),
    acl(principal="a"),
    acl(principal=""),
    acl(operation=2),
    acl(operation=15),
    acl(operation=12),
    acl(permission_type=2),
    acl(resource_type=3, resource_name="g", operation=4),
    acl(resource_type=5, resource_name="x", operation=4),
    acl(resource_type=6, resource_name="token", operation=8),
    acl(resource_type=7, resource_name="User:a", operation=13),
    describe(),
    describe(resource_name_filter="p1", pattern_type_filter=2),
    describe(resource_name_filter="t"),
    describe(resource_name_filter="t", pattern_type_filter=4),
    describe(resource_type_filter=4),
    describe(principal_filter="a"),
    describe(principal_filter="User:*"),
    describe(operation=2),
    describe(permission_type=2),
    delete(resource_name_filter="nothing"),
    delete(resource_name_filter="t", resource_type_filter=2),
    describe(),
]
USERS = [
    users(("+", "u", 1, 4_096)),
    users(("+", "u", 1, 4_095)),
    users(("+", "u", 1, 16_385)),
    users(("+", "", 1, 4_096)),
    users(("+", "u", 9, 4_096)),
    users(("+", "u", 0, 4_096)),
    users(("+", "v", 1, 4_096), ("+", "v", 1, 4_096)),
    users(("-", "u", 1, 0), ("+", "u", 1, 4_096)),
    users(("-", "nobody", 1, 0)),
    users(("-", "u", 9, 0)),
    users(("-", "u", 2, 0)),
    users(("-", "u", 1, 0), ("-", "u", 1, 0)),
    users(("+", "w", 2, 8_192), ("-", "u", 1, 0), ("+", "bad", 1, 1)),
    describe_users(),
    describe_users("w"),
    describe_users("w", "w"),
    describe_users("w", "nobody"),
]
RATE = {"producer_byte_rate": 1_000.0}
QUOTAS = [
    quota({"user": "a"}, **RATE),
    quota({"user": None}, **RATE),
    quota({"user": ""}, **RATE),
    quota({}, **RATE),
    quota({"group": "x"}, **RATE),
    quota({"user": "a", "ip": "10.0.0.1"}, **RATE),
    quota({"ip": "10.0.0.1"}, connection_creation_rate=5.0),
    quota({"ip": None}, connection_creation_rate=3.0),
    quota({"ip": "10.0.0.1"}, **RATE),
    quota({"user": "a"}, connection_creation_rate=5.0),
    quota({"user": "a"}, producer_byte_rate=1.5),
    quota({"user": "a"}, producer_byte_rate=0.0),
    quota({"user": "a"}, producer_byte_rate=-1.0),
    quota({"user": "a"}, request_percentage=0.5),
    quota({"user": "a"}, no_such_rate=1.0),
    quota({"client-id": "c", "user": "a"}, consumer_byte_rate=7.0),
    quota({"user": "a"}, controller_mutation_rate=None),
    quota({"user": "a"}, request_percentage=None),
    quotas(),
    quotas(strict=True),
    quotas(("user", 0, "a")),
    quotas(("user", 0, "a"), strict=True),
    quotas(("user", 1, None)),
    quotas(("user", 2, None)),
    quotas(("user", 2, None), ("client-id", 2, None), strict=True),
    quotas(("ip", 2, None)),
    quotas(("topic", 0, "a")),
    quotas(("", 0, "a")),
    quotas(("user", 0, None)),
    quotas(("user", 1, "a")),
    quotas(("user", 9, None)),
    quotas(("user", 0, "a"), ("user", 0, "b")),
    quotas(("ip", 2, None), ("user", 0, "b")),
]


@pytest.mark.parametrize("requests", [ACLS, USERS, QUOTAS], ids=["acls", "users", "quotas"])
def test_the_answers_are_kafkas(brokers: tuple[Socket, Socket], requests: list[Any]) -> None:
    theirs, ours = brokers
    for request in requests:
        told = plain(msgspec.to_builtins(ours.call(request)))
        expected = None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while expected != told:  # a Kafka broker learns from its controller what it has just confirmed
            assert expected is None or (is_a_look(request) and time.monotonic() < deadline), (
                f"{request!r}: Kafka says {expected}, not {told}"
            )
            expected = plain(msgspec.to_builtins(theirs.call(request)))


def is_a_look(request: Any) -> bool:
    return type(request).__name__.startswith("Describe")


def plain(answer: Any) -> Any:
    """What is told, without the words it is told in, and without the order of lists."""
    if isinstance(answer, dict):
        return {key: plain(value) for key, value in answer.items() if key not in ("error_message", "throttle_time_ms")}
    if isinstance(answer, list):
        return sorted((plain(item) for item in answer), key=repr)
    return answer
