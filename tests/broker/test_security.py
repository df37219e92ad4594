"""ACLs, credentials and quotas of a broker: stored before they are told, and folded in again from their records."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.coordinator.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from eventbus.coordinator.credentials import ScramMechanism
from eventbus.coordinator.quotas import USER
from eventbus.coordinator.security import QuotaAlteration, ScramDeletion, ScramUpsertion, SecurityShard
from eventbus.errors import KafkaError
from eventbus.testing.storage import CrashStorage

pytestmark = pytest.mark.usefixtures("latest_records_are_saved_often")

NOW_MS = 1_700_000_000_000
SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


class Machine:
    """A broker on a disk that can lose power."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.storage = CrashStorage()
        self.ids = itertools.count(2)
        self.open()

    def open(self) -> None:
        self.broker = Broker.open(
            self.storage, BrokerConfig(), now_ms=NOW_MS, new_id=lambda: next(self.ids).to_bytes(16, "big")
        )

    def told(self) -> object:
        """All that the broker says."""
        security = self.broker.security
        users = security.scram_users()
        credentials = {
            (user, mechanism): security.scram_credential(mechanism, user) for user in users for mechanism in users[user]
        }
        return security.find_acls(AclFilter()), credentials, security.find_quotas([], strict=False)

    def step(self) -> None:
        security, random = self.broker.security, self.random
        user = random.choice(("alice", "bob", "carol"))
        match random.randrange(6):
            case 0 | 1:
                results = security.create_acls([self.acl(user) for _ in range(random.randrange(1, 4))], NOW_MS)
                assert results.count(None) == len(results)
            case 2:
                for found in security.delete_acls([AclFilter(principal=f"User:{user}", name="a")], NOW_MS):
                    assert not isinstance(found, KafkaError)
            case 3:
                change = ScramUpsertion(user, random.choice((SHA_256, SHA_512)), 4_096, b"salt", random.randbytes(4))
                assert security.alter_scram_credentials([], [change], NOW_MS) == {user: None}
            case 4:
                security.alter_scram_credentials([ScramDeletion(user, SHA_256)], [], NOW_MS)
            case _:
                value = random.choice((None, 1_000.0, 2_000.0))
                alteration = QuotaAlteration(((USER, user),), {"producer_byte_rate": value})
                assert security.alter_quotas([alteration], NOW_MS) == [None]

    def acl(self, user: str) -> Acl:
        random = self.random
        return Acl(
            ResourceType.TOPIC,
            random.choice("ab"),
            random.choice((PatternType.LITERAL, PatternType.PREFIXED)),
            f"User:{user}",
            "*",
            random.choice((Operation.READ, Operation.WRITE)),
            random.choice((Permission.ALLOW, Permission.DENY)),
        )


@pytest.mark.parametrize("seed", range(20))
def test_what_was_answered_outlives_a_power_cut(seed: int) -> None:
    machine = Machine(Random(seed))
    for number in range(25):
        machine.step()
        if number % 8 == 0:
            machine.broker.create_topics([TopicSpec(f"t{number}")], NOW_MS)
        if machine.random.random() < 0.3:
            before = machine.told()
            machine.storage = machine.storage.crash(machine.random)
            machine.open()
            assert machine.told() == before
        machine.broker.check()


def test_nothing_is_stored_where_nothing_changes() -> None:
    machine = Machine(Random(1))
    security = machine.broker.security
    acl = machine.acl("alice")
    alteration = QuotaAlteration(((USER, "alice"),), {"producer_byte_rate": 1.0})
    security.create_acls([acl], NOW_MS)
    security.alter_quotas([alteration], NOW_MS)
    before = repr(machine.broker)
    security.create_acls([acl], NOW_MS)
    security.alter_quotas([alteration], NOW_MS)
    security.alter_quotas([QuotaAlteration(((USER, "bob"),), {"producer_byte_rate": None})], NOW_MS)
    security.delete_acls([AclFilter(name="other")], NOW_MS)
    assert repr(machine.broker) == before, "the offset of the metadata log is part of it"


@pytest.mark.parametrize(
    "value", [None, b"", b"\x01", b"\x02\x12\x00", b"\x01\x7f\x00", b"\x01\x12\x09", b"\x01\x12\x00\x00"]
)
def test_records_that_are_none(value: bytes | None) -> None:
    with pytest.raises(ValueError):
        SecurityShard().replay(value)


def test_no_credential_is_in_what_is_shown_of_the_state() -> None:
    machine = Machine(Random(1))
    change = ScramUpsertion("alice", SHA_256, 4_096, b"5alt5alt", b"5ecret5ecret")
    machine.broker.security.alter_scram_credentials([], [change], NOW_MS)
    credential = machine.broker.security.scram_credential(SHA_256, "alice")
    assert credential is not None
    shown = repr(machine.broker) + repr(change) + repr(credential)
    assert "alice:SCRAM-SHA-256" in shown
    for secret in ("5alt", "5ecret", repr(credential.stored_key), repr(credential.server_key)):
        assert secret not in shown
