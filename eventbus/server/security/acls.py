"""Decide whether a principal may do something, by the rules of Kafka's ``StandardAuthorizer`` (KIP-11, KIP-290).

Denials take precedence over grants; what nothing allows is denied. Granting READ, WRITE, DELETE or ALTER implies
DESCRIBE, and granting ALTER_CONFIGS implies DESCRIBE_CONFIGS; denying them implies nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from eventbus.coordinator.acls import CLUSTER_NAME as CLUSTER_NAME
from eventbus.coordinator.acls import SUPPORTED_OPERATIONS, WILDCARD, Acl, PatternType, Permission
from eventbus.coordinator.acls import Operation as Operation
from eventbus.coordinator.acls import ResourceType as ResourceType

_IMPLIED_BY = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
_ANY_NAME = "hardcode"
"""A name that no ACL contains; Kafka's."""
_REMEMBERED = 10_000
"""The number of cached decisions; the cache is cleared when it is full."""


class AclStore(Protocol):
    """The source of the ACLs."""

    @property
    def acls_version(self) -> int:
        """A number that changes with every change."""
        ...

    def all_acls(self) -> Iterable[Acl]: ...


class MayAsk(Protocol):
    """The part of a call that its permissions depend on."""

    def allows(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool: ...


class Authorizer:
    """Decides by the store's ACLs. Super users may do everything, whatever the ACLs are."""

    def __init__(
        self, store: AclStore, super_users: Iterable[str] = (), allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        """``super_users``: principals, as in ``User:admin``."""
        self._store = store
        self._super_users = frozenset(super_users)
        self._allow_if_none = allow_everyone_if_no_acl_found
        self._version = -1
        self._by_type: dict[ResourceType, list[Acl]] = {}
        self._decisions: dict[tuple[str, str, Operation, ResourceType, str], bool] = {}

    def allows(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """True if ``principal``, at the address ``host``, is allowed the operation on the resource."""
        if principal in self._super_users:
            return True
        self._refresh()
        question = (principal, host, operation, resource_type, name)
        answer = self._decisions.get(question)
        if answer is None:
            if len(self._decisions) >= _REMEMBERED:
                self._decisions.clear()
            answer = self._decisions[question] = self._decide(*question)
        return answer

    def allows_some(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """True if the operation is allowed on some resource of the type (Kafka's ``authorizeByResourceType``).

        Idempotent producers request an id before they write to a topic: WRITE on any topic is sufficient (KIP-679).
        """
        if self.allows(principal, host, operation, resource_type, _ANY_NAME):
            return True
        rules = [
            acl
            for acl in self._by_type.get(resource_type, ())
            if _applies_to(acl, principal, host) and acl.operation in (operation, Operation.ALL)
        ]
        denials = [acl for acl in rules if acl.permission is Permission.DENY]
        if any(acl.name == WILDCARD and acl.pattern_type is PatternType.LITERAL for acl in denials):
            return False
        grants = (acl for acl in rules if acl.permission is Permission.ALLOW)
        return any(not any(_swallows(denial, grant) for denial in denials) for grant in grants)

    def _refresh(self) -> None:
        if self._version == self._store.acls_version:
            return
        self._version = self._store.acls_version
        self._decisions.clear()
        self._by_type = {}
        for acl in self._store.all_acls():
            self._by_type.setdefault(acl.resource_type, []).append(acl)

    def _decide(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        of_resource = [acl for acl in self._by_type.get(resource_type, ()) if acl.covers(name)]
        if not of_resource:
            return self._allow_if_none
        allowed = False
        implied_by = _IMPLIED_BY.get(operation, ())
        for acl in of_resource:
            if not _applies_to(acl, principal, host):
                continue
            exactly = acl.operation in (operation, Operation.ALL)
            if acl.permission is Permission.DENY:
                if exactly:
                    return False
            elif exactly or acl.operation in implied_by:
                allowed = True
        return allowed


def _applies_to(acl: Acl, principal: str, host: str) -> bool:
    return acl.host in (host, WILDCARD) and acl.principal in (principal, f"{principal.partition(':')[0]}:{WILDCARD}")


def _swallows(denial: Acl, grant: Acl) -> bool:
    """True if the denial covers everything that the grant's pattern matches."""
    if denial.pattern_type is PatternType.PREFIXED:
        is_everything = grant.name == WILDCARD and grant.pattern_type is PatternType.LITERAL
        return not is_everything and grant.name.startswith(denial.name)
    return grant.pattern_type is PatternType.LITERAL and grant.name == denial.name


def authorized_operations(call: MayAsk, resource_type: ResourceType, name: str) -> int:
    """Return Kafka's bit field of what the caller may do: bit n is operation n."""
    bits = 0
    for operation in SUPPORTED_OPERATIONS[resource_type]:
        if call.allows(operation, resource_type, name):
            bits |= 1 << operation
    return bits
