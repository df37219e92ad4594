"""Kafka's access control lists (KIP-11, KIP-290). Pure.

An ACL allows or denies a principal, from a host, an operation on every resource that a pattern matches. The numbers of
the enums are Kafka's, on the wire and in stored records.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Self, TypeVar

import msgspec

from eventbus.errors import InvalidRequest

CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""
WILDCARD = "*"
"""Matches any name, any host, or (as ``User:*``) any user."""


class ResourceType(IntEnum):
    """Kafka's resource types that an ACL can protect."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Operation(IntEnum):
    """Kafka's operations that an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PatternType(IntEnum):
    """How an ACL's name is compared. MATCH is for filters only and selects every pattern that covers the name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Kafka's ``AclPermissionType``: whether an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


SUPPORTED_OPERATIONS: dict[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that each resource type supports (Kafka's ``AclEntry.supportedOperations``)."""

EnumT = TypeVar("EnumT", bound=IntEnum)


class Acl(msgspec.Struct, frozen=True, order=True):
    """One ACL (Kafka's ``AclBinding``). ACLs with equal fields are the same ACL."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    """The user, as ``User:name`` or ``User:*``."""
    host: str
    """An IP address, or ``*``."""
    operation: Operation
    permission: Permission

    @classmethod
    def read(cls, resource_type: int, name: str, pattern_type: int, entry: Any) -> Self:
        """Return the ACL of a message with Kafka's fields. Unknown numbers become UNKNOWN, which `check` refuses."""
        return cls(
            known(ResourceType, resource_type), name, known(PatternType, pattern_type),
            entry.principal, entry.host, known(Operation, entry.operation), known(Permission, entry.permission_type),
        )  # fmt: skip

    def fields(self) -> dict[str, Any]:
        """Return the fields of a message that has the ACL."""
        return {
            "resource_type": self.resource_type, "resource_name": self.name, "pattern_type": self.pattern_type,
            "principal": self.principal, "host": self.host, "operation": self.operation,
            "permission_type": self.permission,
        }  # fmt: skip

    def check(self) -> None:
        """Raise InvalidRequest if the ACL cannot be stored (Kafka's ``AclControlManager.validateNewAcl``)."""
        _refuse(self.resource_type in SUPPORTED_OPERATIONS, f"Invalid resourceType {self.resource_type.name}")
        known_pattern = self.pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
        _refuse(known_pattern, f"Invalid patternType {self.pattern_type.name}: an ACL is LITERAL or PREFIXED")
        _refuse(self.operation > Operation.ANY, f"Invalid operation {self.operation.name}: name one, or ALL")
        known_permission = self.permission in (Permission.ALLOW, Permission.DENY)
        _refuse(known_permission, f"Invalid permissionType {self.permission.name}: an ACL is ALLOW or DENY")
        _refuse(bool(self.name), "Invalid empty resource name")
        if self.resource_type is ResourceType.CLUSTER:
            _refuse(self.name == CLUSTER_NAME, f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
        _refuse(bool(self.host), "Invalid empty host: an address, or * for every host")
        kind, colon, user = self.principal.partition(":")
        _refuse(
            bool(kind and colon and user),
            f"Could not parse principal {self.principal!r}: it is a type, a colon and a name, as in User:alice",
        )

    def covers(self, name: str) -> bool:
        """True if the pattern matches the resource's ``name``."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class AclFilter(msgspec.Struct, frozen=True):
    """Selects ACLs (Kafka's ``AclBindingFilter``): None and ANY match everything."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def check(self) -> None:
        """Raise InvalidRequest if an element of the filter is unknown."""
        elements = (self.resource_type, self.pattern_type, self.operation, self.permission)
        _refuse(all(element != 0 for element in elements), "The filter contains an unknown element")

    def matches(self, acl: Acl) -> bool:
        """True if the ACL matches. As in Kafka, operations and principals are compared literally: wildcards are not
        expanded."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None:
            return True
        return acl.covers(self.name) if self.pattern_type is PatternType.MATCH else self.name == acl.name


def known(kind: type[EnumT], number: int) -> EnumT:
    """Return the enum's member for a number from the wire, or UNKNOWN."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def _refuse(legal: bool, why: str) -> None:
    if not legal:
        raise InvalidRequest(why)
