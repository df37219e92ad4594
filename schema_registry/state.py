"""The hard state of a registry: a fold of its topic's records. Pure; nothing but `State.apply` changes it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import msgspec

from schema_registry import names, records
from schema_registry.digest import as_text, digest
from schema_registry.entities import Metadata, RuleSet
from schema_registry.records import (
    AssociationValue,
    ClearSubjectValue,
    ConfigValue,
    DeleteSubjectValue,
    Key,
    MaxIds,
    ModeValue,
    SchemaValue,
    UnreadableRecord,
    Value,
)
from serdes.registry import Reference, SchemaText

logger = logging.getLogger("schema_registry")

Place = tuple[str, int]
"""A subject, with its context, and a version."""


class Content(msgspec.Struct, frozen=True, gc=False):
    """The content of a schema, which an id identifies."""

    text: str
    schema_type: str
    references: tuple[Reference, ...]
    metadata: Metadata | None
    rule_set: RuleSet | None
    guid: bytes

    def as_text(self) -> SchemaText:
        return SchemaText(self.text, self.schema_type, self.references)


class Version(msgspec.Struct, frozen=True, gc=False):
    """A schema under a subject."""

    subject: str
    version: int
    id: int
    deleted: bool
    content: Content

    @property
    def place(self) -> Place:
        return self.subject, self.version


class Conflict(msgspec.Struct, frozen=True):
    """A record that would give an id a second meaning. It is kept out of the state."""

    place: Place
    id: int
    offset: int
    other: Place
    """The first version that has the id."""


class State:
    """Subjects, ids, settings: what the records of the topic add up to."""

    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, Version]] = {}
        self.places: dict[str, dict[int, tuple[Place, ...]]] = {}
        """Versions by context and id, including deleted versions."""
        self.ids: dict[str, dict[bytes, tuple[int, ...]]] = {}
        """Ids by context and GUID: usually one; an import may assign several ids to a schema."""
        self.max_ids: dict[str, int] = {}
        """The highest id ever assigned, by context. No record lowers it."""
        self.referrers: dict[Place, frozenset[Place]] = {}
        self.configs: dict[str | None, ConfigValue] = {}
        self.modes: dict[str | None, str] = {}
        self.contexts: dict[str, None] = {}
        self.associations: dict[str, AssociationValue] = {}
        self.forms: dict[Key, frozenset[bytes]] = {}
        """Other byte forms of keys than today's: each has to be deleted, or compaction brings its record back."""
        self.conflicts: dict[Place, Conflict] = {}

    def copy(self) -> State:
        """Another state that starts from here; schemas are shared."""
        other = State()
        other.subjects = {subject: dict(versions) for subject, versions in self.subjects.items()}
        other.places = {context: dict(places) for context, places in self.places.items()}
        other.ids = {context: dict(ids) for context, ids in self.ids.items()}
        for name in ("max_ids", "referrers", "configs", "modes", "contexts", "associations", "forms", "conflicts"):
            setattr(other, name, dict(getattr(self, name)))
        return other

    def __repr__(self) -> str:
        """One sorted line of all hard state."""
        versions = sorted((*one.place, one.id, one.deleted, as_text(one.content.guid)) for one in self.all_versions())
        settings = [
            sorted((who or "", str(value)) for who, value in each.items()) for each in (self.configs, self.modes)
        ]
        forms = sorted((key, sorted(forms)) for key, forms in self.forms.items())
        rest = (sorted(self.max_ids.items()), sorted(self.contexts), sorted(self.associations), forms)
        referrers = sorted((place, sorted(those)) for place, those in self.referrers.items())
        return f"{versions} {settings} {rest} {referrers} {sorted(self.conflicts)}"

    # looking ---------------------------------------------------------------------------------------------------------

    def all_versions(self) -> Iterator[Version]:
        for versions in self.subjects.values():
            yield from versions.values()

    def versions(self, subject: str) -> list[Version]:
        """Return the versions of a subject, oldest first, including deleted versions."""
        found = self.subjects.get(subject)
        return [] if found is None else [found[version] for version in sorted(found)]

    def latest(self, subject: str) -> Version | None:
        """Return the newest version that is not deleted."""
        return next((one for one in reversed(self.versions(subject)) if not one.deleted), None)

    def version(self, place: Place) -> Version | None:
        return self.subjects.get(place[0], {}).get(place[1])

    def with_id(self, context: str, id: int) -> list[Version]:
        """Return the versions that have an id, those first that got it first."""
        return [self.subjects[subject][version] for subject, version in self.places.get(context, {}).get(id, ())]

    def id_of(self, context: str, guid: bytes) -> int | None:
        found = self.ids.get(context, {}).get(guid)
        return found[-1] if found else None

    def referring_to(self, place: Place) -> list[Version]:
        """Return the versions that refer to this version, including deleted versions."""
        found = (self.version(referrer) for referrer in self.referrers.get(place, ()))
        return [one for one in found if one is not None]

    # folding ---------------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None, offset: int = -1) -> None:
        """Apply one stored record. An unreadable record is logged and skipped, as in Confluent's registry."""
        try:
            name = records.read_key(key)
            content = None if value is None or name == Key(records.NOOP) else records.read_value(name, value)
        except UnreadableRecord as error:
            logger.warning("the record at offset %d is skipped: %s", offset, error)
            return
        self.apply(name, key, content, offset)

    def apply(self, key: Key, form: bytes, value: Value | None, offset: int = -1) -> None:
        """Fold one record that has been read; ``form`` are its key's bytes."""
        self._note_form(key, form, value is not None)
        match value:
            case None:
                self._remove(key)
            case SchemaValue():
                self._take_schema(key, value, offset)
            case ConfigValue():
                self.configs[key.subject] = value
            case ModeValue():
                self.modes[key.subject] = value.mode
            case DeleteSubjectValue():
                self._delete_subject(value.subject or key.subject or "", value.version)
            case ClearSubjectValue():
                self._clear(value.subject or key.subject)
            case AssociationValue():
                self.associations[key.subject or ""] = value
            case MaxIds():
                for context, highest in value.max_ids.items():
                    self.max_ids[context] = max(self.max_ids.get(context, 0), highest)
            case _:  # a context
                self.contexts[key.subject or names.DEFAULT_CONTEXT] = None

    def _note_form(self, key: Key, form: bytes, is_there: bool) -> None:
        if key.keytype == records.NOOP or form == records.key_bytes(key):
            return
        known = self.forms.get(key, frozenset())
        known = known | {form} if is_there else known - {form}
        if known:
            self.forms[key] = known
        else:
            self.forms.pop(key, None)

    def _remove(self, key: Key) -> None:
        match key.keytype:
            case records.SCHEMA:
                self.conflicts.pop((key.subject or "", key.version), None)
                self._drop(key.subject or "", key.version)
            case records.CONFIG:
                self.configs.pop(key.subject, None)
            case records.MODE:
                self.modes.pop(key.subject, None)
            case records.CONTEXT:
                self.contexts.pop(key.subject or "", None)
            case records.ASSOCIATION:
                self.associations.pop(key.subject or "", None)
            case _:
                pass  # events have no effect

    def _take_schema(self, key: Key, value: SchemaValue, offset: int) -> None:
        subject, version = key.subject or "", key.version
        context = names.context_of(subject)
        self.max_ids[context] = max(self.max_ids.get(context, 0), value.id)
        same_id = self.with_id(context, value.id)
        clash = next((one for one in same_id if one.content.text != value.schema), None)
        if clash is not None:
            self.conflicts[subject, version] = Conflict((subject, version), value.id, offset, clash.place)
            return
        self.conflicts.pop((subject, version), None)
        content = _content(value, same_id)
        self._drop(subject, version)
        is_deleted = value.deleted is True
        self.subjects.setdefault(subject, {})[version] = Version(subject, version, value.id, is_deleted, content)
        places = self.places.setdefault(context, {})
        places[value.id] = (*places.get(value.id, ()), (subject, version))
        ids = self.ids.setdefault(context, {})
        others = tuple(one for one in ids.get(content.guid, ()) if one != value.id)
        ids[content.guid] = (*others, value.id)
        for place in referred(subject, content.references):
            self.referrers[place] = self.referrers.get(place, frozenset()) | {(subject, version)}

    def _drop(self, subject: str, version: int) -> None:
        versions = self.subjects.get(subject, {})
        gone = versions.pop(version, None)
        if gone is None:
            return
        if not versions:
            del self.subjects[subject]
        context = names.context_of(subject)
        places = self.places[context]
        left = tuple(place for place in places[gone.id] if place != gone.place)
        if left:
            places[gone.id] = left
        else:
            del places[gone.id]
            others = tuple(one for one in self.ids[context][gone.content.guid] if one != gone.id)
            if others:
                self.ids[context][gone.content.guid] = others
            else:
                del self.ids[context][gone.content.guid]
        for place in referred(subject, gone.content.references):
            rest = self.referrers.get(place, frozenset()) - {gone.place}
            if rest:
                self.referrers[place] = rest
            else:
                self.referrers.pop(place, None)

    def _delete_subject(self, subject: str, until: int) -> None:
        versions = self.subjects.get(subject, {})
        for one in list(versions.values()):
            if one.version <= until and not one.deleted:
                versions[one.version] = msgspec.structs.replace(one, deleted=True)

    def _clear(self, subject: str | None) -> None:
        for one in [one for one in self.all_versions() if one.deleted and names.belongs(one.subject, subject)]:
            self._drop(*one.place)


def _content(value: SchemaValue, same_id: list[Version]) -> Content:
    """Return the schema of a record; the schema known under its id is shared."""
    references = tuple(value.references or ())
    for one in same_id:
        known = one.content
        if known.references == references and known.metadata == value.metadata and known.rule_set == value.rule_set:
            return known
    guid = digest(value.schema, references, value.metadata, value.rule_set)
    schema_type = value.schema_type or "AVRO"
    return Content(value.schema, schema_type, references, value.metadata, value.rule_set, guid)


def referred(subject: str, references: Iterable[Reference]) -> list[Place]:
    """Resolve the references of a schema of ``subject``."""
    return [(names.within(subject, one.subject), one.version) for one in references]
