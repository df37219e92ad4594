"""The GUID of a schema: a digest of everything it is made of, so the same schema has the same one everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID

from schema_registry.entities import Metadata, Rule, RuleSet
from serdes.registry import Reference


def digest(
    text: str, references: Sequence[Reference] = (), metadata: Metadata | None = None, rule_set: RuleSet | None = None
) -> bytes:
    """The sixteen bytes of the GUID, as Confluent computes them; metadata and rules in their normal form."""
    parts: list[str | bytes] = [text]
    for reference in references:
        parts += (reference.name, reference.subject, reference.version.to_bytes(4, "big", signed=True))
    if metadata is not None:
        parts.append(b"\x01")
        for tag, entities in metadata.tags.items():
            parts += (tag, *entities)
        for name, value in metadata.properties.items():
            parts += (name, value)
        parts += metadata.sensitive
    if rule_set is not None:
        parts.append(b"\x01")
        for rule in (*rule_set.migration_rules, *rule_set.domain_rules, *rule_set.encoding_rules):
            parts += _of_rule(rule)
        parts.append(rule_set.enable_at or "")
    whole = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return hashlib.md5(whole, usedforsecurity=False).digest()


def _of_rule(rule: Rule) -> list[str | bytes]:
    parts: list[str | bytes] = [
        text or "" for text in (rule.name, rule.doc, rule.kind, rule.mode, rule.type, *rule.tags)
    ]
    for name, value in rule.params.items():
        parts += (name, value)
    parts += (text or "" for text in (rule.expr, rule.on_success, rule.on_failure))
    if rule.disabled:
        parts.append(b"\x01")
    return parts


def as_text(guid: bytes) -> str:
    return str(UUID(bytes=guid))


def as_bytes(guid: str) -> bytes | None:
    """None where it is no GUID."""
    try:
        return UUID(guid).bytes
    except ValueError:
        return None
