"""Who may do what: the rules of Kafka's StandardAuthorizer, and its filters."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest

from eventbus.coordinator.acls import Acl, AclFilter, PatternType, Permission
from eventbus.errors import InvalidRequest
from eventbus.server.security.acls import (
    CLUSTER_NAME,
    Authorizer,
    Operation,
    ResourceType,
    authorized_operations,
)

ALICE, BOB, HOST = "User:alice", "User:bob", "10.0.0.1"


class Rules:
    """A store of ACLs."""

    def __init__(self, *acls: Acl) -> None:
        self.acls = list(acls)
        self.acls_version = 0

    def all_acls(self) -> Iterable[Acl]:
        return self.acls

    def add(self, acl: Acl) -> None:
        self.acls.append(acl)
        self.acls_version += 1


def acl(
    operation: Operation,
    name: str = "t",
    *,
    kind: ResourceType = ResourceType.TOPIC,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = ALICE,
    host: str = "*",
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(kind, name, pattern, principal, host, operation, permission)


deny = partial(acl, permission=Permission.DENY)
prefixed = partial(acl, pattern=PatternType.PREFIXED)


def allows(
    *acls: Acl, operation: Operation = Operation.READ, name: str = "t", principal: str = ALICE, host: str = HOST
) -> bool:
    return Authorizer(Rules(*acls)).allows(principal, host, operation, ResourceType.TOPIC, name)


def test_what_nothing_allows_is_denied() -> None:
    assert not allows()
    assert not allows(acl(Operation.WRITE))
    assert not allows(acl(Operation.READ, principal=BOB))
    assert not allows(acl(Operation.READ, "other"))
    assert not allows(acl(Operation.READ, kind=ResourceType.GROUP))
    assert not allows(acl(Operation.READ, host="10.0.0.2"))
    assert allows(acl(Operation.READ))


def test_wildcards_stand_for_any_user_host_name_and_operation() -> None:
    assert allows(acl(Operation.ALL, "*", principal="User:*"))
    assert allows(acl(Operation.READ, host=HOST))
    assert not allows(acl(Operation.READ, principal="Group:*"))


def test_a_prefix_covers_names_that_begin_with_it() -> None:
    rule = prefixed(Operation.READ, "pay-")
    assert allows(rule, name="pay-in")
    assert allows(rule, name="pay-")
    assert not allows(rule, name="pay")
    assert not allows(prefixed(Operation.READ, "*"), name="t"), "a star is a letter there"


def test_a_denial_goes_before_everything() -> None:
    assert not allows(acl(Operation.ALL), deny(Operation.READ))
    assert not allows(acl(Operation.READ), deny(Operation.ALL, "*", principal="User:*"))
    assert not allows(acl(Operation.READ), deny(Operation.READ, "", pattern=PatternType.PREFIXED))
    assert allows(acl(Operation.READ), deny(Operation.READ, principal=BOB))
    assert allows(acl(Operation.READ), deny(Operation.READ, host="10.0.0.2"))


@pytest.mark.parametrize("operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_describing_is_implied_where_it_is_allowed_and_nowhere_denied_along(operation: Operation) -> None:
    assert allows(acl(operation), operation=Operation.DESCRIBE)
    assert not allows(acl(operation), operation=Operation.DESCRIBE_CONFIGS)
    assert allows(acl(Operation.DESCRIBE), deny(operation), operation=Operation.DESCRIBE)


def test_altering_configs_implies_describing_them() -> None:
    assert allows(acl(Operation.ALTER_CONFIGS), operation=Operation.DESCRIBE_CONFIGS)
    assert not allows(acl(Operation.ALTER_CONFIGS), operation=Operation.DESCRIBE)
    assert not allows(acl(Operation.DESCRIBE_CONFIGS), operation=Operation.ALTER_CONFIGS)


def test_super_users_are_bound_by_nothing() -> None:
    authorizer = Authorizer(Rules(deny(Operation.ALL, "*", principal="User:*")), [ALICE])
    assert authorizer.allows(ALICE, HOST, Operation.DELETE, ResourceType.TOPIC, "t")
    assert authorizer.allows_some(ALICE, HOST, Operation.WRITE, ResourceType.TOPIC)
    assert not authorizer.allows(BOB, HOST, Operation.DELETE, ResourceType.TOPIC, "t")


def test_a_resource_nobody_speaks_of_may_be_everybodys() -> None:
    authorizer = Authorizer(Rules(acl(Operation.READ)), allow_everyone_if_no_acl_found=True)
    assert authorizer.allows(BOB, HOST, Operation.WRITE, ResourceType.TOPIC, "other")
    assert not authorizer.allows(BOB, HOST, Operation.WRITE, ResourceType.TOPIC, "t")


def test_a_change_of_the_rules_is_obeyed_at_once() -> None:
    rules = Rules()
    authorizer = Authorizer(rules)
    assert not authorizer.allows(ALICE, HOST, Operation.READ, ResourceType.TOPIC, "t")
    rules.add(acl(Operation.READ))
    assert authorizer.allows(ALICE, HOST, Operation.READ, ResourceType.TOPIC, "t")
    rules.add(deny(Operation.READ))
    assert not authorizer.allows(ALICE, HOST, Operation.READ, ResourceType.TOPIC, "t")


def some(*acls: Acl) -> bool:
    return Authorizer(Rules(*acls)).allows_some(ALICE, HOST, Operation.WRITE, ResourceType.TOPIC)


def test_some_topic_is_enough_for_an_idempotent_producer() -> None:
    assert not some()
    assert not some(acl(Operation.READ))
    assert some(acl(Operation.WRITE))
    assert some(acl(Operation.WRITE), deny(Operation.WRITE, "other"))
    assert not some(acl(Operation.WRITE), deny(Operation.WRITE))
    assert not some(acl(Operation.WRITE), deny(Operation.ALL, "*"))
    no_payments = deny(Operation.WRITE, "pay-", pattern=PatternType.PREFIXED)
    assert not some(acl(Operation.WRITE, "pay-in"), no_payments)
    assert not some(prefixed(Operation.WRITE, "pay-x"), no_payments)
    assert some(prefixed(Operation.WRITE, "pay"), no_payments)
    assert some(acl(Operation.WRITE, "*"), no_payments)


class Asker:
    """A call of alice's."""

    def __init__(self, *acls: Acl) -> None:
        self.authorizer = Authorizer(Rules(*acls))

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return self.authorizer.allows(ALICE, HOST, operation, resource_type, name)


def test_operations_are_told_as_bits() -> None:
    caller = Asker(acl(Operation.READ), acl(Operation.ALL, CLUSTER_NAME, kind=ResourceType.CLUSTER))
    assert authorized_operations(caller, ResourceType.TOPIC, "t") == 1 << Operation.READ | 1 << Operation.DESCRIBE
    every = [4 + 1, 7, 8, 9, 10, 11, 12]
    assert authorized_operations(caller, ResourceType.CLUSTER, CLUSTER_NAME) == sum(1 << bit for bit in every)


# filters -------------------------------------------------------------------------------------------------------------

LITERAL, PREFIX, STAR = (
    acl(Operation.READ, "pay-in"),
    prefixed(Operation.READ, "pay-"),
    acl(Operation.READ, "*"),
)


@pytest.mark.parametrize(
    ("acl_filter", "matched"),
    [
        (AclFilter(), {LITERAL, PREFIX, STAR}),
        (AclFilter(name="pay-in"), {LITERAL}),
        (AclFilter(name="pay-in", pattern_type=PatternType.LITERAL), {LITERAL}),
        (AclFilter(name="pay-in", pattern_type=PatternType.PREFIXED), set()),
        (AclFilter(name="pay-in", pattern_type=PatternType.MATCH), {LITERAL, PREFIX, STAR}),
        (AclFilter(name="pay-out", pattern_type=PatternType.MATCH), {PREFIX, STAR}),
        (AclFilter(name="*"), {STAR}),
        (AclFilter(pattern_type=PatternType.PREFIXED), {PREFIX}),
        (AclFilter(principal=BOB), set()),
        (AclFilter(principal="User:*"), set()),
        (AclFilter(operation=Operation.ALL), set()),
        (AclFilter(operation=Operation.READ, permission=Permission.ALLOW), {LITERAL, PREFIX, STAR}),
        (AclFilter(permission=Permission.DENY), set()),
        (AclFilter(host=HOST), set()),
        (AclFilter(resource_type=ResourceType.GROUP), set()),
    ],
)
def test_what_a_filter_means(acl_filter: AclFilter, matched: set[Acl]) -> None:
    assert {rule for rule in (LITERAL, PREFIX, STAR) if acl_filter.matches(rule)} == matched


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (acl(Operation.ANY), "Invalid operation"),
        (acl(Operation.UNKNOWN), "Invalid operation"),
        (acl(Operation.READ, ""), "empty resource name"),
        (acl(Operation.READ, pattern=PatternType.MATCH), "Invalid patternType"),
        (acl(Operation.READ, permission=Permission.ANY), "Invalid permissionType"),
        (acl(Operation.READ, kind=ResourceType.ANY), "Invalid resourceType"),
        (acl(Operation.READ, "x", kind=ResourceType.CLUSTER), "kafka-cluster"),
        (acl(Operation.READ, principal="alice"), "Could not parse principal"),
        (acl(Operation.READ, host=""), "empty host"),
    ],
)
def test_rules_that_cannot_be(rule: Acl, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        rule.check()
