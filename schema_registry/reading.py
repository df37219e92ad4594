"""Requests answered from memory: every operation that changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import anyio.to_thread
import msgspec

from schema_registry import digest, effective_settings, errors, formats, names, records, registering
from schema_registry.entities import (
    Association,
    CompatibilityAnswer,
    Config,
    ContextId,
    Mode,
    Schema,
    SchemaRequest,
    SchemaString,
    SubjectVersion,
)
from schema_registry.errors import RegistryError
from schema_registry.formats import Verdict
from schema_registry.ledger import Ledger
from schema_registry.registering import Registration, entity
from schema_registry.schemas import Schemas, content_of, qualified
from schema_registry.state import Content, State, Version

VersionLike = int | str
"""1 to 2^31-1, or ``"latest"`` (-1 is the same)."""
T = TypeVar("T")

_MOST_SCHEMAS = 1_000


class Reads:
    """The reads of a registry. On the event loop's thread."""

    _ledger: Ledger
    _schemas: Schemas
    _compatibility: str
    _max_schema_bytes: int

    def __init__(self) -> None:
        self._plain: dict[int, SchemaString] = {}
        """Answers to the plainest question, as long as the state stays."""
        self._plain_generation = -1
        self._to_parse: list[Version] | None = None
        """Collects schemas while `prepare_format` runs a read."""

    @property
    def generation(self) -> int:
        """Changes whenever a response may change."""
        return self._ledger.generation

    @property
    def _state(self) -> State:
        return self._ledger.settled

    def _registration(self) -> Registration:
        ledger = self._ledger
        return Registration(ledger.settled, self._schemas, self._compatibility, self._max_schema_bytes, ledger.burnt)

    # by id and GUID --------------------------------------------------------------------------------------------------

    def schema_by_id(
        self,
        id: int,
        *,
        subject: str | None = None,
        format: str = "",
        reference_format: str = "",
        fetch_max_id: bool = False,
    ) -> SchemaString:
        """GET /schemas/ids/{id}, with ``subject`` its place too. Its ``schema`` is .../schema's answer."""
        is_plain = not (subject or format or reference_format or fetch_max_id)
        if is_plain:
            if self._plain_generation != self._ledger.generation:
                self._plain.clear()
                self._plain_generation = self._ledger.generation
            known = self._plain.get(id)
            if known is not None:
                return known
        one = self._by_id(id, subject)
        answer = self._schema_string(one, format, reference_format)
        if is_plain:
            self._plain[id] = answer
            return answer
        context = names.context_of(one.subject)
        return msgspec.structs.replace(
            answer,
            subject=one.subject if subject else None,
            version=one.version if subject else None,
            max_id=self._state.max_ids.get(context) if fetch_max_id else None,
        )

    def _by_id(self, id: int, subject: str | None) -> Version:
        """Return a version that has the id: of the subject, or of its name in another context, or of its context."""
        subject = self._meant(subject) if subject else ""
        context, name = names.split(subject)
        contexts = [context]
        if name and context == names.DEFAULT_CONTEXT:
            contexts += self._state.contexts
        for each in contexts:
            found = self._state.with_id(each, id)
            mine = next((one for one in found if not name or one.subject == names.join(each, name)), None)
            if mine is not None:
                return mine
        anywhere = self._state.with_id(context, id)
        if not anywhere or context != names.DEFAULT_CONTEXT:
            raise errors.schema_not_found(id)
        return anywhere[0]

    def _schema_string(self, one: Version, format: str = "", reference_format: str = "") -> SchemaString:
        content = one.content
        return SchemaString(
            guid=digest.as_text(content.guid),
            schema_type=None if content.schema_type == "AVRO" else content.schema_type,
            schema=self._formatted(one, format),
            references=_references(one, reference_format),
            metadata=content.metadata,
            rule_set=content.rule_set,
        )

    def _formatted(self, one: Version, format: str) -> str:
        if not format or self._to_parse is not None:
            if self._to_parse is not None:
                self._to_parse.append(one)
            return one.content.text
        return self._schemas.parse_content(self._state, one.subject, one.content).formatted(known_format(format))

    async def prepare_format(self, read: Callable[[], object]) -> None:
        """Parse in a worker thread the schemas that ``read`` formats, because Protobuf's compiler is a process."""
        self._to_parse = []
        try:
            read()
        except RegistryError:
            return  # the read itself raises it again
        finally:
            found, self._to_parse = self._to_parse, None
        for one in found:
            with suppress(RegistryError):
                await anyio.to_thread.run_sync(self._schemas.parse_content, self._state, one.subject, one.content)

    def subjects_of_id(
        self, id: int, *, subject: str | None = None, deleted: bool = False, offset: int = 0, limit: int = -1
    ) -> list[str]:
        """Return the subjects that contain a schema (GET /schemas/ids/{id}/subjects)."""
        found = dict.fromkeys(one.subject for one in self._versions_of_id(id, subject, deleted))
        return _page(found, offset, limit)

    def versions_of_id(
        self, id: int, *, subject: str | None = None, deleted: bool = False, offset: int = 0, limit: int = -1
    ) -> list[SubjectVersion]:
        """Return the subjects and versions of a schema (GET /schemas/ids/{id}/versions)."""
        found = [SubjectVersion(one.subject, one.version) for one in self._versions_of_id(id, subject, deleted)]
        return _page(found, offset, limit)

    def _versions_of_id(self, id: int, subject: str | None, deleted: bool) -> list[Version]:
        one = self._by_id(id, subject)
        found = self._state.with_id(names.context_of(one.subject), id)
        return [one for one in found if deleted or not one.deleted]

    def schema_by_guid(self, guid: str, *, format: str = "") -> SchemaString:
        """Return the schema of a GUID (GET /schemas/guids/{guid})."""
        for one in self.ids_of_guid(guid):
            return self._schema_string(self._state.with_id(one.context, one.id)[0], format)
        raise errors.schema_not_found(guid)

    def ids_of_guid(self, guid: str) -> list[ContextId]:
        """Return the ids of a GUID, by context (GET /schemas/guids/{guid}/ids)."""
        wanted = digest.as_bytes(guid)
        if wanted is None:
            return []
        contexts = [names.DEFAULT_CONTEXT, *sorted(self._state.contexts)]
        found = ((context, self._state.id_of(context, wanted)) for context in contexts)
        return [ContextId(context, id) for context, id in found if id is not None]

    def schema_types(self) -> list[str]:
        """Return the types of schemas that are supported (GET /schemas/types)."""
        return list(formats.SCHEMA_TYPES)

    def schemas(
        self,
        *,
        subject_prefix: str = names.EVERYWHERE,
        aliases: bool = False,
        deleted: bool = False,
        latest_only: bool = False,
        rule_type: str | None = None,
        offset: int = 0,
        limit: int = -1,
    ) -> list[Schema]:
        """GET /schemas: in the order of subject and version, 1,000 at most unless ``limit`` says less."""
        others = self._aliases() if aliases else {}
        found: list[Version] = []
        for subject in self._with_prefix(subject_prefix, others):
            versions = [one for one in self._state.versions(subject) if deleted or not one.deleted]
            versions = [one for one in versions if rule_type is None or _has_rule(one.content, rule_type)]
            found += versions[-1:] if latest_only else versions
        limit = _MOST_SCHEMAS if limit < 0 else min(limit, _MOST_SCHEMAS)
        page = _page(found, offset, limit)
        return [msgspec.structs.replace(entity(one), aliases=others.get(one.subject)) for one in page]

    def _aliases(self) -> dict[str, list[str]]:
        """Return the aliases of each subject."""
        found: dict[str, list[str]] = {}
        for subject, config in self._state.configs.items():
            if subject is not None and config.alias:
                found.setdefault(names.within(subject, config.alias), []).append(subject)
        return found

    def _with_prefix(self, prefix: str, aliases: dict[str, list[str]]) -> list[str]:
        wanted = _matcher(prefix)
        return sorted(
            subject for subject in self._state.subjects
            if wanted(subject) or any(wanted(alias) for alias in aliases.get(subject, ()))
        )  # fmt: skip

    # subjects and versions -------------------------------------------------------------------------------------------

    def subjects(
        self,
        *,
        subject_prefix: str = names.EVERYWHERE,
        deleted: bool = False,
        deleted_only: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[str]:
        """Return the subjects that match (GET /subjects)."""
        found: list[str] = []
        for subject in self._with_prefix(subject_prefix, {}):
            is_deleted = all(one.deleted for one in self._state.subjects[subject].values())
            if is_deleted if deleted_only else deleted or not is_deleted:
                found.append(subject)
        return _page(found, offset, limit)

    def versions(
        self,
        subject: str,
        *,
        deleted: bool = False,
        deleted_only: bool = False,
        deleted_as_negative: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[int]:
        """Return the version numbers of a subject (GET /subjects/{subject}/versions)."""
        subject = self._meant(subject)
        versions = self._state.versions(subject)
        if not any(deleted or deleted_only or not one.deleted for one in versions):
            raise errors.subject_not_found(subject)
        if deleted_as_negative:
            found = [-one.version if one.deleted else one.version for one in versions]
        elif deleted_only:
            found = [one.version for one in versions if one.deleted]
        else:
            found = [one.version for one in versions if deleted or not one.deleted]
        return _page(found, offset, limit)

    def version(
        self,
        subject: str,
        version: VersionLike,
        *,
        format: str = "",
        reference_format: str = "",
        deleted: bool = False,
    ) -> Schema:
        """GET /subjects/{subject}/versions/{version}; its ``schema`` is .../schema's answer"""
        one = self._version(subject, version, deleted)
        answer = entity(one)
        if format or reference_format:
            answer = msgspec.structs.replace(
                answer,
                schema=self._formatted(one, format),
                references=_references(one, reference_format),
            )
        return answer

    def _version(self, subject: str, version: VersionLike, deleted: bool = False) -> Version:
        subject, number = self._meant(subject), version_number(version)
        name = names.split(subject)[1]
        is_plain = names.context_of(subject) == names.DEFAULT_CONTEXT
        for context in [names.context_of(subject), *(self._state.contexts if is_plain else ())]:
            where = names.join(context, name)
            one = self._state.latest(where) if number == -1 else self._state.version((where, number))
            if one is not None and (deleted or not one.deleted):
                return one
        if any(deleted or not one.deleted for one in self._state.versions(subject)):
            raise errors.version_not_found(number)
        raise errors.subject_not_found(subject)

    def referenced_by(
        self, subject: str, version: VersionLike, *, deleted: bool = False, offset: int = 0, limit: int = -1
    ) -> list[int]:
        """GET /subjects/{subject}/versions/{version}/referencedby: ids of schemas"""
        referrers = self._state.referring_to(self._version(subject, version, deleted=True).place)
        return _page(sorted({one.id for one in referrers if deleted or not one.deleted}), offset, limit)

    def subject_metadata(
        self,
        subject: str,
        *,
        key: Sequence[str] = (),
        value: Sequence[str] = (),
        format: str = "",
        deleted: bool = False,
    ) -> Schema:
        """GET /subjects/{subject}/metadata: the latest version whose properties have all these values"""
        subject = self._meant(subject)
        wanted = dict(zip(key, value, strict=False)).items()
        versions = [one for one in reversed(self._state.versions(subject)) if deleted or not one.deleted]
        for one in versions:
            metadata = one.content.metadata
            if metadata is not None and wanted <= metadata.properties.items():
                return msgspec.structs.replace(entity(one), schema=self._formatted(one, format))
        raise errors.schema_not_found() if versions else errors.subject_not_found(subject)

    def lookup(
        self,
        subject: str,
        request: SchemaRequest,
        *,
        normalize: bool = False,
        format: str = "",
        deleted: bool = False,
    ) -> Schema:
        """POST /subjects/{subject}: the version that has this schema"""
        subject, registration = self._meant(subject), self._registration()
        found = registering.find(registration, subject, request, normalize=normalize, deleted=deleted)
        if found is None and names.context_of(subject) == names.DEFAULT_CONTEXT:
            found = self._find_elsewhere(registration, subject, request, normalize, deleted)
        if found is not None:
            return msgspec.structs.replace(entity(found), schema=self._formatted(found, format))
        if any(deleted or not one.deleted for one in self._state.versions(subject)):
            raise errors.schema_not_found()
        raise errors.subject_not_found(subject)

    def _find_elsewhere(
        self, registration: Registration, subject: str, request: SchemaRequest, normalize: bool, deleted: bool
    ) -> Version | None:
        """The subject's name may be one of another context."""
        for context in self._state.contexts:
            where = names.join(context, subject)
            if where in self._state.subjects:
                try:
                    found = registering.find(registration, where, request, normalize=normalize, deleted=deleted)
                except RegistryError:  # a reference that is not there
                    continue
                if found is not None:
                    return found
        return None

    # compatibility ---------------------------------------------------------------------------------------------------

    def check(
        self,
        subject: str,
        version: VersionLike | None,
        request: SchemaRequest,
        *,
        normalize: bool = False,
        verbose: bool = False,
    ) -> CompatibilityAnswer:
        """POST /compatibility/subjects/{subject}/versions/{version}; without ``version`` against all that count"""
        subject = self._meant(subject)
        existing = self._to_compare(subject, version)
        try:
            verdict = self.explain(subject, request, existing, normalize=normalize)
        except RegistryError as error:
            if not verbose or error.error_code != 42201:
                raise
            return CompatibilityAnswer(is_compatible=False, messages=[error.message])
        return CompatibilityAnswer(verdict.is_compatible, list(verdict.messages) if verbose else None)

    def _to_compare(self, subject: str, version: VersionLike | None) -> list[Version]:
        if version is None:
            return [one for one in self._state.versions(subject) if not one.deleted]
        number = version_number(version)
        one = self._state.latest(subject) if number == -1 else self._state.version((subject, number))
        if one is None or one.deleted:
            if number != -1:
                raise errors.version_not_found(number)
            return []
        return [one]

    def explain(
        self, subject: str, request: SchemaRequest, existing: list[Version] | None = None, *, normalize: bool = False
    ) -> Verdict:
        """May this be registered? With the reasons as findings: where, which rule, what to change."""
        registration, subject = self._registration(), self._meant(subject)
        config = registration.config(subject)
        if not (request.schema or "").strip():
            raise errors.invalid_schema("Empty schema")
        parsed = registration.parse(subject, request, is_new=config.validate_new_schemas is not False)
        content = content_of(parsed, request.metadata, request.rule_set, normalize=normalize)
        existing = self._to_compare(subject, None) if existing is None else existing
        return registering.compatibility(registration, subject, config, parsed, content, existing)

    # settings --------------------------------------------------------------------------------------------------------

    def config(self, subject: str | None = None, *, default_to_global: bool = False) -> Config:
        """Answer GET /config and /config/{subject}."""
        who = names.level(subject)
        if default_to_global:
            return effective_settings.config_for(self._state, who, self._compatibility)
        found = effective_settings.config_of(self._state, who, self._compatibility)
        if found is None:
            raise errors.no_subject_compatibility(who or "")
        return found

    def mode(self, subject: str | None = None, *, default_to_global: bool = False) -> Mode:
        """Answer GET /mode and /mode/{subject}."""
        who = names.level(subject)
        found = (
            effective_settings.mode_for(self._state, who)
            if default_to_global
            else effective_settings.mode_of(self._state, who)
        )
        if found is None:
            raise errors.no_subject_mode(who or "")
        return Mode(found)

    # contexts and associations ---------------------------------------------------------------------------------------

    def contexts(self, *, context_prefix: str = "", offset: int = 0, limit: int = -1) -> list[str]:
        """Return the contexts, the default context first (GET /contexts)."""
        found = [names.DEFAULT_CONTEXT, *sorted(self._state.contexts)]
        wanted = context_prefix.removeprefix(":")
        return _page([one for one in found if one.startswith(wanted)], offset, limit)

    def associations(
        self,
        *,
        subject: str | None = None,
        resource_name: str | None = None,
        resource_namespace: str | None = None,
        resource_id: str | None = None,
        resource_type: str | None = None,
        association_type: Sequence[str] = (),
        lifecycle: str | None = None,
        offset: int = 0,
        limit: int = -1,
    ) -> list[Association]:
        """Answer the three GETs of /associations with an empty list, so that clients fall back to the topic's name."""
        namespace = None if resource_namespace == "-" else resource_namespace
        wanted: dict[str, Any] = {
            "subject": None if subject is None else names.normalize(subject),
            "resource_name": resource_name,
            "resource_namespace": namespace,
            "resource_id": resource_id,
            "resource_type": resource_type,
            "lifecycle": lifecycle,
        }
        found = [
            one for one in self._state.associations.values()
            if all(value is None or getattr(one, name) == value for name, value in wanted.items())
            and (not association_type or one.association_type in association_type)
        ]  # fmt: skip
        return [_association(one) for one in _page(found, offset, limit)]

    # names -----------------------------------------------------------------------------------------------------------

    def _meant(self, subject: str) -> str:
        """Return the subject in its one spelling; another one's, if it has an alias."""
        return effective_settings.alias_of(self._state, names.normalize(subject))


def version_number(version: VersionLike) -> int:
    """-1 is the latest. Raises 42202."""
    if isinstance(version, str):
        text = version.strip()
        if text.lower() == "latest":
            return -1
        if not text.removeprefix("-").removeprefix("+").isdecimal() or len(text) > 11:
            raise errors.invalid_version(version)
        version = int(text)
    if version == -1 or 1 <= version <= records.LAST_ID:
        return version
    raise errors.invalid_version(version)


def known_format(format: str) -> formats.Format:
    if format not in formats.FORMATS:
        raise errors.unknown_format(format)
    return format


def _page(found: Iterable[T], offset: int, limit: int) -> list[T]:
    first = max(offset, 0)
    return list(islice(found, first, None if limit < 0 else first + limit))


def _references(one: Version, reference_format: str) -> Any:
    references = one.content.references
    return qualified(one.subject, references) if reference_format == "qualified" else references


def _matcher(prefix: str) -> Callable[[str], bool]:
    """Does a subject begin so? ``:*:`` stands for every context."""
    if prefix.startswith(names.EVERYWHERE):
        name = prefix[len(names.EVERYWHERE) :]
        return lambda subject: names.split(subject)[1].startswith(name)
    is_context = prefix.startswith(":.")
    return lambda subject: subject.startswith(prefix) and (is_context or not subject.startswith(":."))


def _has_rule(content: Content, rule_type: str) -> bool:
    rules = content.rule_set
    if rules is None:
        return False
    return any(rule.type == rule_type for rule in (*rules.migration_rules, *rules.domain_rules, *rules.encoding_rules))


def _association(one: records.AssociationValue) -> Association:
    return Association(**{name: getattr(one, name) for name in Association.__struct_fields__})
