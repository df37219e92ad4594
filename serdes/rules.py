"""Rules that a registry stores with a schema, such as the encryption of tagged fields.

The serdes of this package execute no rules. They fail if a rule would have to be executed, as Confluent's serializers
do without its executor, because data that bypasses an ENCRYPT rule is in the log as plain text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

from serdes.errors import SchemaRegistryError
from serdes.registry import RegisteredSchema

Mode = Literal["WRITE", "READ", "MIGRATION"]
_MODES = {
    "WRITE": ("WRITE", "WRITEREAD"),
    "READ": ("READ", "WRITEREAD"),
    "MIGRATION": ("UPGRADE", "DOWNGRADE", "UPDOWN"),
}


def refuse_rules(registered: RegisteredSchema, mode: Mode) -> None:
    """Raise SchemaRegistryError for the first rule that Confluent's serializers would execute, or fail without.

    Rules that are disabled do not count, nor those whose ``onFailure`` is NONE: they let the value pass unchanged.
    """
    rule_set: Mapping[str, Any] = registered.text.rule_set or {}
    if rule_set.get("enableAt") not in (None, "ALL", "CLIENT"):
        return
    groups = ("migrationRules",) if mode == "MIGRATION" else ("domainRules", "encodingRules")
    for group in groups:
        for rule in cast(Iterable[Mapping[str, Any]], rule_set.get(group) or ()):
            if rule.get("mode") in _MODES[mode] and not rule.get("disabled") and _fails(rule, mode):
                subject = f" of subject {registered.subject}" if registered.subject else ""
                raise SchemaRegistryError(
                    f"Rule {rule.get('name')!r} of type {rule.get('type')} cannot be executed. Schema {registered.id}"
                    f"{subject} has it for mode {rule['mode']}, and serdes.Avro executes no rules. Use Confluent's "
                    "serializers, disable the rule, or pass "
                    "ignore_rules=True to Avro to skip all rules",
                    status=422,
                    error_code=42210,
                )


def _fails(rule: Mapping[str, Any], mode: Mode) -> bool:
    """True if the rule's action on failure is an error. A rule has one action, or an action for each of two modes."""
    actions = str(rule.get("onFailure") or "ERROR").split(",")
    if rule["mode"] == "WRITEREAD":
        actions = actions[-1:] if mode == "READ" else actions[:1]
    return any(action.strip() != "NONE" for action in actions)
