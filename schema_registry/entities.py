"""The requests and responses of a registry, as in Confluent's JSON.

``msgspec.json.encode`` of each is the body: members in Confluent's order, without empty ones.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from serdes.registry import Reference, SchemaText

CompatibilityLevel = Literal[
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"
]
ModeName = Literal["READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD"]
COMPATIBILITY_LEVELS: tuple[CompatibilityLevel, ...] = (
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip
MODES: tuple[ModeName, ...] = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD")


class Entity(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """Base of the entities. Empty members are not written; unknown members are ignored."""


class Metadata(Entity, frozen=True):
    tags: dict[str, list[str]] = {}
    properties: dict[str, str] = {}
    sensitive: list[str] = []


class Rule(Entity, frozen=True):
    name: str | None = None
    doc: str | None = None
    kind: Literal["TRANSFORM", "CONDITION"] | None = None
    mode: Literal["UPGRADE", "DOWNGRADE", "UPDOWN", "READ", "WRITE", "WRITEREAD"] | None = None
    type: str | None = None
    tags: list[str] = []
    params: dict[str, str] = {}
    expr: str | None = None
    on_success: str | None = None
    on_failure: str | None = None
    disabled: bool | None = None
    """Confluent writes false too, so only its absence is left out."""


class RuleSet(Entity, frozen=True):
    migration_rules: list[Rule] = []
    domain_rules: list[Rule] = []
    encoding_rules: list[Rule] = []
    enable_at: str | None = None


# asked ---------------------------------------------------------------------------------------------------------------


class SchemaRequest(Entity, kw_only=True, frozen=True):
    """The body of a registration, a lookup or a check. ``id`` and ``version`` are for IMPORT mode."""

    version: int | None = None
    id: int | None = None
    schema_type: str | None = None
    references: list[Reference] | None = None
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    schema: str | None = None
    schema_tags_to_add: list[dict[str, Any]] | None = None
    schema_tags_to_remove: list[dict[str, Any]] | None = None
    propagate_schema_tags: bool | None = None
    """Clients may send these three empty. Anything else is refused, see `registering.already`."""


class ConfigUpdate(Entity, kw_only=True, frozen=True):
    """The body of PUT /config, and its echo: absent members stay as they are, null ones are taken away."""

    alias: str | UnsetType | None = UNSET
    alias_for_deks: str | UnsetType | None = UNSET
    normalize: bool | UnsetType | None = UNSET
    validate_fields: bool | UnsetType | None = UNSET
    validate_new_schemas: bool | UnsetType | None = UNSET
    validate_rules: bool | UnsetType | None = UNSET
    compatibility: str | UnsetType | None = UNSET
    compatibility_policy: str | UnsetType | None = UNSET
    compatibility_group: str | UnsetType | None = UNSET
    default_metadata: Metadata | UnsetType | None = UNSET
    override_metadata: Metadata | UnsetType | None = UNSET
    default_rule_set: RuleSet | UnsetType | None = UNSET
    override_rule_set: RuleSet | UnsetType | None = UNSET


# answered ------------------------------------------------------------------------------------------------------------


class SchemaString(Entity, kw_only=True, frozen=True):
    """GET /schemas/ids/{id}. ``schema_type`` and ``references`` are left out of a plain Avro schema."""

    subject: str | None = None
    version: int | None = None
    guid: str | None = None
    schema_type: str | None = None
    schema: str
    references: tuple[Reference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    max_id: int | None = None
    deleted: bool | None = None


class Schema(Entity, kw_only=True, frozen=True):
    """A schema under a subject. Registration answers it without the subject (see `RegisterAnswer`)."""

    subject: str
    version: int
    id: int
    guid: str | None = None
    schema_type: str | None = None
    references: tuple[Reference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    schema: str
    deleted: bool | None = None
    aliases: list[str] | None = None
    """GET /schemas?aliases=true: subjects whose alias this subject is."""

    def text(self) -> SchemaText:
        """Return the schema as `serdes` represents it."""
        return SchemaText(
            self.schema,
            self.schema_type or "AVRO",
            self.references,
            None if self.metadata is None else msgspec.to_builtins(self.metadata),
            None if self.rule_set is None else msgspec.to_builtins(self.rule_set),
        )

    def answer(self) -> RegisterAnswer:
        """Return the response to a registration."""
        return RegisterAnswer(
            id=self.id, version=self.version, guid=self.guid, schema_type=self.schema_type,
            references=self.references, metadata=self.metadata, rule_set=self.rule_set, schema=self.schema,
        )  # fmt: skip


class RegisterAnswer(Entity, kw_only=True, frozen=True):
    """The body of POST /subjects/{subject}/versions."""

    id: int
    version: int | None = None
    guid: str | None = None
    schema_type: str | None = None
    references: tuple[Reference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    schema: str | None = None


class SubjectVersion(Entity, frozen=True):
    subject: str
    version: int


class ContextId(Entity, frozen=True):
    context: str
    id: int


class Config(Entity, kw_only=True, frozen=True):
    """GET /config. The level is named ``compatibilityLevel`` here, ``compatibility`` in a PUT."""

    alias: str | None = None
    alias_for_deks: str | None = None
    normalize: bool | None = None
    validate_fields: bool | None = None
    validate_new_schemas: bool | None = None
    validate_rules: bool | None = None
    compatibility_level: str | None = None
    compatibility_policy: str | None = None
    compatibility_group: str | None = None
    default_metadata: Metadata | None = None
    override_metadata: Metadata | None = None
    default_rule_set: RuleSet | None = None
    override_rule_set: RuleSet | None = None


class Mode(Entity, frozen=True):
    mode: str | None = None


class CompatibilityAnswer(msgspec.Struct, omit_defaults=True, frozen=True):
    """POST /compatibility/... ``findings`` are for programs in this process; no answer over HTTP has them."""

    is_compatible: bool
    messages: list[str] | None = None


class Association(Entity, kw_only=True, frozen=True):
    """A subject that belongs to a topic (Confluent 8.1.5 and later)."""

    subject: str | None = None
    guid: str | None = None
    resource_name: str | None = None
    resource_namespace: str | None = None
    resource_id: str | None = None
    resource_type: str | None = None
    association_type: str | None = None
    lifecycle: str | None = None
    frozen: bool | None = None
