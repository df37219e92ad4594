"""A registration or a lookup, decided on a state: which records to write, and what to answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from eventbus.coordinator.shard import CoordinatorRecord, Decision
from eventbus.errors import IncompatibleSchema
from schema_registry import effective_settings, errors, merging, names, records, reserved
from schema_registry.digest import as_text
from schema_registry.entities import Config, Schema, SchemaRequest
from schema_registry.formats import ParsedSchema, Verdict
from schema_registry.records import LAST_ID, Key, SchemaValue
from schema_registry.schemas import Schemas, content_of, pinned
from schema_registry.state import Content, State, Version
from serdes.registry import SchemaText


class Registration(NamedTuple):
    """Settings for decisions about requests."""

    state: State
    schemas: Schemas
    default_level: str
    max_schema_bytes: int
    burnt: Mapping[str, int] = {}
    """Reserved ids by context: ids up to this one are not assigned, although no valid record has them."""

    def config(self, subject: str) -> Config:
        return effective_settings.config_for(self.state, subject, self.default_level)

    def parse(self, subject: str, request: SchemaRequest, *, is_new: bool = True) -> ParsedSchema:
        text = request.schema or ""
        if len(text) > self.max_schema_bytes:
            raise errors.schema_too_large(len(text), self.max_schema_bytes)
        references = tuple(pinned(self.state, subject, one) for one in request.references or ())
        wanted = SchemaText(text, request.schema_type or "AVRO", references)
        return self.schemas.parse(self.state, subject, wanted, is_new=is_new)

    def parse_known(self, subject: str, request: SchemaRequest) -> ParsedSchema:
        """Return a schema that may be registered already, maybe by a registry that took more than this one."""
        try:
            return self.parse(subject, request)
        except errors.RegistryError:
            return self.parse(subject, request, is_new=False)


def entity(one: Version) -> Schema:
    """Return a version as in a response."""
    content = one.content
    return Schema(
        subject=one.subject,
        version=one.version,
        id=one.id,
        guid=as_text(content.guid),
        schema_type=None if content.schema_type == "AVRO" else content.schema_type,
        references=content.references,
        metadata=content.metadata,
        rule_set=content.rule_set,
        schema=content.text,
        deleted=one.deleted or None,
    )


# lookup --------------------------------------------------------------------------------------------------------------


def find(
    registration: Registration, subject: str, request: SchemaRequest, *, normalize: bool, deleted: bool
) -> Version | None:
    """Find the version of a subject with this schema: identical, or after merging the newest version's metadata."""
    if not (request.schema or "").strip():
        return None
    config = registration.config(subject)
    normalize = normalize or config.normalize is True
    parsed = registration.parse_known(subject, request)
    found = _find_as_is(registration, subject, _content(parsed, request, normalize), deleted)
    if found is not None:
        return found
    newest = registration.state.latest(subject)
    if newest is None:
        return None
    populated = _populated(config, request, newest, None)
    if populated == request:
        return None
    return _find_as_is(registration, subject, _content(parsed, populated, normalize), deleted)


def _content(parsed: ParsedSchema, request: SchemaRequest, normalize: bool) -> Content:
    metadata, rule_set = merging.normal_metadata(request.metadata), merging.normal_rules(request.rule_set)
    return content_of(parsed, metadata, rule_set, normalize=normalize)


def _find_as_is(registration: Registration, subject: str, content: Content, deleted: bool) -> Version | None:
    state = registration.state
    versions = [one for one in reversed(state.versions(subject)) if deleted or not one.deleted]
    for one in versions:
        if one.content.guid == content.guid:
            return one
    return next((one for one in versions if _says_the_same(registration, content, one)), None)


def _says_the_same(registration: Registration, content: Content, known: Version) -> bool:
    """The same but for the version in its metadata, or sent with its references written out."""
    other = known.content
    if content.references == other.references and content.text != other.text:
        return False  # the usual end of it, before anything is compared that takes time
    if content.schema_type != other.schema_type or content.rule_set != other.rule_set:
        return False
    if merging.with_version(content.metadata, None) != merging.with_version(other.metadata, None):
        return False
    if content.references == other.references:
        return True
    if content.references or content.schema_type != "AVRO":
        return False
    written_out = registration.schemas.parse_content(registration.state, known.subject, other).formatted("resolved")
    return content.text == written_out


def _populated(config: Config, request: SchemaRequest, newest: Version | None, version: int | None) -> SchemaRequest:
    """Return the request with the metadata and rules that the subject's config and newest version add."""
    before = None if newest is None else newest.content
    metadata = merging.normal_metadata(request.metadata) or (None if before is None else before.metadata)
    metadata = merging.merged_metadata(
        merging.merged_metadata(config.default_metadata, metadata), config.override_metadata
    )
    rules = merging.normal_rules(request.rule_set) or (None if before is None else before.rule_set)
    rules = merging.merged_rules(merging.merged_rules(config.default_rule_set, rules), config.override_rule_set)
    says_version = metadata is not None and merging.VERSION_PROPERTY in metadata.properties
    if version is not None and (request.version or says_version):
        metadata = merging.with_version(metadata, version)
    if metadata is None and rules is None:
        return request
    return msgspec.structs.replace(request, metadata=metadata, rule_set=rules)


# registration --------------------------------------------------------------------------------------------------------


def already(registration: Registration, subject: str, request: SchemaRequest, *, normalize: bool) -> Version | None:
    """Return the version that a registration would answer without writing anything."""
    if request.schema_tags_to_add or request.schema_tags_to_remove or request.propagate_schema_tags:
        raise errors.invalid_schema("Inline tags are part of a schema's text. Write them there, as confluent:tags")
    config = registration.config(subject)
    adds = (config.default_metadata, config.override_metadata, config.default_rule_set, config.override_rule_set)
    if any(adds):
        return None
    if not (request.schema or "").strip():
        return None
    parsed = registration.parse_known(subject, request)
    content = _content(parsed, request, normalize or config.normalize is True)
    found = _find_as_is(registration, subject, content, deleted=False)
    if found is None or (request.id is not None and request.id not in (-1, found.id)):
        return None
    if not request.version or request.version == found.version:
        return found
    if request.version == -1:
        newest = registration.state.latest(subject)
        return found if newest is not None and newest.version == found.version else None
    same = registration.state.version((subject, request.version))
    return same if same is not None and not same.deleted and same.id == found.id else None


def register(
    registration: Registration, subject: str, request: SchemaRequest, *, normalize: bool = False, force: bool = False
) -> Decision[Version]:
    """Raises 42205, 42201, 409, and what else keeps a schema out."""
    known = already(registration, subject, request, normalize=normalize)
    if known is not None:
        return Decision((), known)
    wanted_id = None if request.id is None or request.id < 0 else request.id
    mode = _checked_mode(registration.state, subject, wanted_id)
    is_import = effective_settings.is_import(mode)
    versions = registration.state.versions(subject)
    undeleted = [one for one in versions if not one.deleted]
    newest = undeleted[-1] if undeleted else None
    next_version = versions[-1].version + 1 if versions else 1
    config = registration.config(subject)
    if not is_import:
        request = _populated(config, _with_text(request, newest), newest, next_version)
    elif not (request.schema or "").strip():
        raise errors.invalid_schema("Empty schema")
    is_checked = config.validate_new_schemas is not False and not is_import
    parsed = registration.parse(subject, request, is_new=is_checked)
    content = _content(parsed, request, not is_import and (normalize or config.normalize is True))
    same = _same_or_none(registration, subject, content, wanted_id) if not request.version else None
    if same is not None:
        return Decision((), same)
    if not is_import and not force:
        _check_compatible(registration, subject, config, parsed, content, undeleted)
    id = wanted_id if wanted_id is not None else registration.state.id_of(names.context_of(subject), content.guid)
    id = _checked_id(registration, subject, content, id)
    version = _checked_version(registration.state, subject, request.version, next_version, id, is_import)
    new = Version(subject, version, id, False, content)
    return Decision((*_before(registration.state, new), schema_record(new)), new)


def _checked_mode(state: State, subject: str, wanted_id: int | None) -> str:
    mode = effective_settings.mode_for(state, subject)
    where = f"Subject {subject} in context {names.prefix_of(subject)}"
    if effective_settings.is_read_only(state, subject):
        raise errors.not_permitted(f"{where} is in read-only mode")
    if wanted_id is not None and not effective_settings.is_import(mode):
        raise errors.not_permitted(f"{where} is not in import mode")
    if wanted_id is None and mode != "READWRITE":
        raise errors.not_permitted(f"{where} is not in read-write mode")
    return mode


def _with_text(request: SchemaRequest, newest: Version | None) -> SchemaRequest:
    """Complete a request without a text: it is the newest version's schema with other metadata or rules."""
    if (request.schema or "").strip():
        return request
    if newest is None:
        raise errors.invalid_schema("Empty schema")
    known = newest.content
    return msgspec.structs.replace(
        request, schema=known.text, schema_type=known.schema_type, references=list(known.references)
    )


def _same_or_none(registration: Registration, subject: str, content: Content, wanted_id: int | None) -> Version | None:
    for one in reversed(registration.state.versions(subject)):
        if one.deleted or wanted_id not in (None, one.id):
            continue
        if one.content.guid == content.guid or _says_the_same(registration, content, one):
            return one
    return None


def _checked_id(registration: Registration, subject: str, content: Content, id: int | None) -> int:
    """Return the id of the new version; a new one is above all that were ever given."""
    context = names.context_of(subject)
    if id is None:
        id = max(registration.state.max_ids.get(context, 0), registration.burnt.get(context, 0)) + 1
    if id > LAST_ID:
        where = context or names.DEFAULT_CONTEXT
        raise errors.store_failed(
            "no id is left",
            OverflowError(
                f"a record in the topic has id {id - 1}, the highest one there is, in context {where!r}. Register "
                "under another context (:.NAME:SUBJECT), or import an export without that record into a new topic"
            ),
        )
    if any(one.content.guid != content.guid for one in registration.state.with_id(context, id)):
        where = names.prefix_of(subject)
        raise errors.not_permitted(f"Overwrite new schema with id {id} in context {where} is not permitted.")
    return id


def _checked_version(
    state: State, subject: str, wanted: int | None, next_version: int, id: int, is_import: bool
) -> int:
    if not wanted or wanted < 0:
        if next_version > LAST_ID:
            raise errors.not_permitted(
                f"Subject {subject} has version {LAST_ID}, the highest one there is. Delete that version permanently"
            )
        return next_version
    if wanted > LAST_ID:
        raise errors.invalid_version(wanted)
    if not is_import:
        if wanted != next_version:
            raise errors.invalid_schema(f"Version is not one more than previous version: the next is {next_version}")
        return wanted
    there = state.version((subject, wanted))
    if there is not None and there.id != id:
        raise errors.not_permitted(f"Version {wanted} of subject {subject} has id {there.id}, not {id}")
    return wanted


def _before(state: State, new: Version) -> list[CoordinatorRecord]:
    """Return the records to write before the schema: its context, and the end of deleted versions that it restores."""
    written: list[CoordinatorRecord] = []
    context = names.context_of(new.subject)
    if context != names.DEFAULT_CONTEXT and context not in state.contexts:
        value = records.ContextValue(records.TENANT, context)
        written.append(records.put(Key(records.CONTEXT, context), value))
    for old in state.versions(new.subject):
        if old.deleted and old.id == new.id and old.version < new.version and not state.referring_to(old.place):
            written += tombstones(state, Key(records.SCHEMA, *old.place))
    return written


def schema_record(one: Version) -> CoordinatorRecord:
    content = one.content
    value = SchemaValue(
        subject=one.subject,
        version=one.version,
        id=one.id,
        schema_type=None if content.schema_type == "AVRO" else content.schema_type,
        references=list(content.references) or None,
        metadata=content.metadata,
        rule_set=content.rule_set,
        schema=content.text,
        deleted=one.deleted,
    )
    return records.put(Key(records.SCHEMA, *one.place), value)


def tombstones(state: State, key: Key) -> list[CoordinatorRecord]:
    """Return the end of a key, in every form it was ever written in."""
    today = records.key_bytes(key)
    return [records.tombstone(form) for form in (today, *sorted(state.forms.get(key, frozenset()) - {today}))]


# compatibility -------------------------------------------------------------------------------------------------------


def compatibility(
    registration: Registration,
    subject: str,
    config: Config,
    parsed: ParsedSchema,
    content: Content,
    existing: list[Version],
) -> Verdict:
    """May the schema follow ``existing`` (oldest first)? Of a compatibility group only its own versions count."""
    level = (config.compatibility_level or registration.default_level).upper()
    problems: list[str] = []
    if config.validate_fields:
        problems = reserved.violations(content, existing[-1].content if existing else None)
    group = config.compatibility_group
    if group is not None:
        mine = _group(content, group)
        existing = [one for one in existing if _group(one.content, group) == mine]
    if not level.endswith("_TRANSITIVE"):
        existing = existing[-1:]
    if level == "NONE":
        existing = []
    options = {"policy": config.compatibility_policy or "STRICT", "validate_fields": config.validate_fields is True}
    verdict = registration.schemas.verdict(registration.state, level, parsed, existing, **options)
    if not problems:
        return verdict
    last = () if verdict.messages else (f"{{validateFields: 'true', compatibility: '{level}'}}",)
    return Verdict(False, (*problems, *verdict.messages, *last), verdict.findings)


def _group(content: Content, name: str) -> str | None:
    return None if content.metadata is None else content.metadata.properties.get(name)


def _check_compatible(
    registration: Registration,
    subject: str,
    config: Config,
    parsed: ParsedSchema,
    content: Content,
    existing: list[Version],
) -> None:
    verdict = compatibility(registration, subject, config, parsed, content, existing)
    if not verdict.is_compatible:
        details = ", ".join(verdict.messages)
        raise IncompatibleSchema(
            f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
            f"details: [{details}]",
            verdict.messages,
            verdict.findings,
        )
