"""Metadata, rules and settings: their normal form, and one laid over another."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from schema_registry import errors
from schema_registry.entities import ConfigUpdate, Metadata, Rule, RuleSet
from schema_registry.records import ConfigValue
from serdes.avro.text import java_sorted

VERSION_PROPERTY = "confluent:version"
"""The version a schema was registered as, in its metadata: where it was asked for by number."""
T = TypeVar("T")

_UPGRADE_MODES = ("UPGRADE", "DOWNGRADE", "UPDOWN")
_NAME_LENGTH = 64


def normal_metadata(metadata: Metadata | None) -> Metadata | None:
    """Sort, so that equal metadata has equal bytes."""
    if metadata is None:
        return None
    return Metadata(
        {tag: java_sorted(set(metadata.tags[tag])) for tag in java_sorted(metadata.tags)},
        {name: metadata.properties[name] for name in java_sorted(metadata.properties)},
        java_sorted(set(metadata.sensitive)),
    )


def normal_rules(rule_set: RuleSet | None) -> RuleSet | None:
    if rule_set is None:
        return None

    def normal(rules: list[Rule]) -> list[Rule]:
        return [
            msgspec.structs.replace(
                rule,
                kind=rule.kind or "TRANSFORM",
                mode=rule.mode or "WRITEREAD",
                tags=java_sorted(set(rule.tags)),
                params={name: rule.params[name] for name in java_sorted(rule.params)},
                disabled=bool(rule.disabled),
            )
            for rule in rules
        ]

    return RuleSet(
        normal(rule_set.migration_rules), normal(rule_set.domain_rules), normal(rule_set.encoding_rules),
        rule_set.enable_at,
    )  # fmt: skip


def check_rules(rule_set: RuleSet | None) -> None:
    """Raises 42210 for rules that no client could run."""
    if rule_set is None:
        return
    seen: set[str] = set()
    for rule in (*rule_set.migration_rules, *rule_set.domain_rules, *rule_set.encoding_rules):
        name = rule.name
        if not name or len(name) > _NAME_LENGTH or not (name[0].isalpha() or name[0] == "_"):
            raise errors.invalid_rule_set(
                f"a rule's name has 1 to {_NAME_LENGTH} letters, and begins with one: {name!r}"
            )
        if not all(letter.isalnum() or letter in "_-" for letter in name):
            raise errors.invalid_rule_set(f"a rule's name has letters, digits, _ and -: {name!r}")
        if name in seen:
            raise errors.invalid_rule_set(f"Found rule with duplicate name '{name}'")
        seen.add(name)
        if rule.type is None:
            raise errors.invalid_rule_set(f"Missing rule type: rule {name!r} says not what runs it (type, as CEL)")
        actions = f"{rule.on_success or ''}{rule.on_failure or ''}"
        if rule.mode not in (None, "WRITEREAD", "UPDOWN") and "," in actions:
            raise errors.invalid_rule_set(f"rule {name!r}: Multiple actions only valid with WRITEREAD and UPDOWN")
    if any(rule.mode is not None and rule.mode not in _UPGRADE_MODES for rule in rule_set.migration_rules):
        raise errors.invalid_rule_set("Migration rules can only be UPGRADE, DOWNGRADE, UPDOWN")
    if any(rule.mode in _UPGRADE_MODES for rule in (*rule_set.domain_rules, *rule_set.encoding_rules)):
        raise errors.invalid_rule_set("Domain rules can only be WRITE, READ, WRITEREAD")


def merged_metadata(old: Metadata | None, new: Metadata | None) -> Metadata | None:
    """Return the metadata of both, where ``new`` takes precedence."""
    if old is None or new is None:
        return new if old is None else old
    return normal_metadata(
        Metadata(old.tags | new.tags, old.properties | new.properties, [*old.sensitive, *new.sensitive])
    )


def merged_rules(old: RuleSet | None, new: RuleSet | None) -> RuleSet | None:
    """``new`` over ``old``: a rule replaces the one of its name."""
    if old is None or new is None:
        return new if old is None else old

    def merged(before: list[Rule], after: list[Rule]) -> list[Rule]:
        replaced = {rule.name for rule in after}
        return [*(rule for rule in before if rule.name not in replaced), *after]

    return RuleSet(
        merged(old.migration_rules, new.migration_rules),
        merged(old.domain_rules, new.domain_rules),
        merged(old.encoding_rules, new.encoding_rules),
        new.enable_at or old.enable_at,
    )


def with_version(metadata: Metadata | None, version: int | None) -> Metadata | None:
    """Metadata that says which version it belongs to; None: that says nothing of it."""
    properties = dict(metadata.properties) if metadata is not None else {}
    properties.pop(VERSION_PROPERTY, None)
    if version is not None:
        properties[VERSION_PROPERTY] = str(version)
    if metadata is None and not properties:
        return None
    base = metadata or Metadata()
    return normal_metadata(Metadata(base.tags, properties, base.sensitive))


def updated_config(subject: str | None, old: ConfigValue | None, update: ConfigUpdate) -> ConfigValue:
    """``old`` with the members that ``update`` names."""
    given = {
        ("compatibility_level" if name == "compatibility" else name): value
        for name, value in zip(update.__struct_fields__, msgspec.structs.astuple(update), strict=True)
        if value is not msgspec.UNSET
    }
    for name in ("default_metadata", "override_metadata"):
        if name in given:
            given[name] = normal_metadata(given[name])
    for name in ("default_rule_set", "override_rule_set"):
        if name in given:
            given[name] = normal_rules(given[name])
    return msgspec.structs.replace(old or ConfigValue(), subject=subject, **given)
