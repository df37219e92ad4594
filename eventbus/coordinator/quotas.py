"""Client quotas (KIP-546): entities, keys and values. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from eventbus.errors import InvalidRequest

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

Entity = tuple[tuple[str, "str | None"], ...]
"""The client a quota applies to: pairs of type and name, sorted by type. The name None is the default, for all that
have no separate quota."""

_CLIENT_KEYS = {
    "producer_byte_rate": int,
    "consumer_byte_rate": int,
    "request_percentage": float,
    "controller_mutation_rate": float,
}
_IP_KEYS = {"connection_creation_rate": int}


class QuotaFilter(msgspec.Struct, frozen=True):
    """One part of a quota query: selects entities with a type, and a name."""

    entity_type: str
    name: str | None = None
    """The entity's name; None selects the default."""
    any_name: bool = False
    """Selects every name, and the default."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return an entity made of its parts. Raises InvalidRequest for an entity that cannot have quotas."""
    given = list(parts)
    entity = tuple(sorted(given, key=lambda part: part[0]))
    types = [kind for kind, _ in entity]
    if not entity:
        raise InvalidRequest("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise InvalidRequest(f"Unhandled client quota entity type: {kind}; there are {USER}, {CLIENT_ID} and {IP}")
        if name == "":
            raise InvalidRequest(f"Empty {kind} of a client quota: leave the name out to set the default")
    if len(set(types)) < len(types):
        raise InvalidRequest(f"Duplicate client quota entity type in {', '.join(types)}")
    if IP in types and len(types) > 1:
        raise InvalidRequest("Invalid quota entity combination: an ip stands by itself")
    return entity


def check_value(entity: Entity, key: str, value: float) -> None:
    """Raise InvalidRequest for a quota that the entity cannot have, or an invalid value."""
    check_key(entity, key)
    is_whole = (_IP_KEYS if entity[0][0] == IP else _CLIENT_KEYS)[key] is int
    if not value > 0 or value == float("inf"):
        raise InvalidRequest(f"Quota {key} must be greater than 0, not {value}")
    if is_whole and (abs(value - round(value)) > 1e-6 or value >= 1 << 63):
        raise InvalidRequest(f"Quota {key} must be a whole number, not {value}")


def check_key(entity: Entity, key: str) -> None:
    """Raise InvalidRequest for a quota that the entity cannot have."""
    keys = _IP_KEYS if entity[0][0] == IP else _CLIENT_KEYS
    if key not in keys:
        raise InvalidRequest(f"Invalid configuration key {key} for a quota; there are {', '.join(keys)}")


def matches(entity: Entity, filters: Iterable[QuotaFilter], strict: bool) -> bool:
    """True if each filter matches a part of the entity, and, if ``strict``, no part is left over."""
    names = dict(entity)
    count = 0
    for part in filters:
        count += 1
        if part.entity_type not in names:
            return False
        if not part.any_name and names[part.entity_type] != part.name:
            return False
    return not strict or count == len(names)
