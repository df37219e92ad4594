"""ACLs, SCRAM credentials and client quotas, replayed from ``__cluster_metadata-0``. Pure.

Records are Kafka's own: AccessControlEntryRecord, UserScramCredentialRecord, ClientQuotaRecord and their removals
(schemas: Apache Kafka, Apache-2.0), without a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from eventbus.coordinator.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from eventbus.coordinator.credentials import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential, ScramMechanism
from eventbus.coordinator.credentials import from_salted_password as credential_of
from eventbus.coordinator.quotas import Entity, check_key, check_value, entity_of
from eventbus.coordinator.shard import CoordinatorRecord, Decision
from eventbus.errors import KafkaError, error_for_code
from eventbus.protocol import messages as m
from eventbus.protocol.log_records import decode_metadata_record, encode_metadata_record

_VERSION = 0
UNSUPPORTED_SASL_MECHANISM = 33
RESOURCE_NOT_FOUND = 91
DUPLICATE_RESOURCE = 92
UNACCEPTABLE_CREDENTIAL = 93


class ScramUpsertion(msgspec.Struct, frozen=True):
    """A user's new password for one mechanism, salted by the client that sets it."""

    user: str
    mechanism: ScramMechanism
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        # Never log the other fields: with them one can log in as the user.
        return f"ScramUpsertion({self.user!r}, {self.mechanism.title})"


class ScramDeletion(msgspec.Struct, frozen=True):
    """The removal of a user's credential for one mechanism."""

    user: str
    mechanism: ScramMechanism


class QuotaAlteration(msgspec.Struct, frozen=True):
    """Quotas to set for an entity; None removes a quota."""

    parts: tuple[tuple[str, str | None], ...]
    values: dict[str, float | None]


class SecurityShard:
    """Hard state: ``acls`` with their ids, ``credentials``, ``quotas``."""

    __slots__ = ("_acl_ids", "acls", "acls_version", "credentials", "quotas")

    def __init__(self) -> None:
        self.acls: dict[Acl, bytes] = {}
        self._acl_ids: dict[bytes, Acl] = {}
        self.acls_version = 0
        """Rises with every change of the ACLs."""
        self.credentials: dict[tuple[ScramMechanism, str], ScramCredential] = {}
        self.quotas: dict[Entity, dict[str, float]] = {}

    def __repr__(self) -> str:
        acls = [f"{acl.permission.name} {acl.principal} {acl.operation.name} {acl.name}" for acl in sorted(self.acls)]
        users = [f"{user}:{mechanism.title}" for mechanism, user in sorted(self.credentials)]
        quotas = sorted(f"{entity}={sorted(values.items())}" for entity, values in self.quotas.items())
        return f"SecurityShard({' '.join([*acls, *users, *quotas])})"

    @property
    def is_used(self) -> bool:
        """True if there is an ACL, a credential or a quota."""
        return bool(self.acls or self.credentials or self.quotas)

    # decide ----------------------------------------------------------------------------------------------------------

    def create_acls(self, acls: Iterable[Acl], new_id: Callable[[], bytes]) -> Decision[list[KafkaError | None]]:
        """Store ACLs; the reply has an error or None for each. An ACL that exists already is not stored again."""
        records: list[CoordinatorRecord] = []
        results: list[KafkaError | None] = []
        created: set[Acl] = set()
        for acl in acls:
            try:
                acl.check()
            except KafkaError as error:
                results.append(error)
                continue
            results.append(None)
            if acl not in self.acls and acl not in created:
                created.add(acl)
                records.append(_record(_entry(acl, new_id())))
        return Decision(tuple(records), results)

    def delete_acls(self, filters: Iterable[AclFilter]) -> Decision[list[list[Acl] | KafkaError]]:
        """Delete the ACLs that match; the reply lists them, or the error, for each filter."""
        doomed: dict[bytes, None] = {}
        results: list[list[Acl] | KafkaError] = []
        for acl_filter in filters:
            try:
                matched = self.find_acls(acl_filter)
            except KafkaError as error:
                results.append(error)
                continue
            doomed.update((self.acls[acl], None) for acl in matched)
            results.append(matched)
        records = [_record(m.RemoveAccessControlEntryRecord(id=key)) for key in doomed]
        return Decision(tuple(records), results)

    def alter_credentials(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
    ) -> Decision[dict[str, KafkaError | None]]:
        """Change SCRAM credentials. The reply maps each user to None, or to the error that prevented all its changes
        (KIP-554)."""
        results: dict[str, KafkaError | None] = {}
        seen: set[tuple[ScramMechanism, str]] = set()
        changes: list[tuple[str, CoordinatorRecord]] = []
        for change in (*deletions, *upsertions):
            results.setdefault(change.user, None)
            try:
                self._check_credential(change, seen)
            except KafkaError as error:
                results[change.user] = results[change.user] or error
                continue
            seen.add((change.mechanism, change.user))
            changes.append((change.user, _credential_record(change)))
        return Decision(tuple(record for user, record in changes if results[user] is None), results)

    def _check_credential(self, change: ScramDeletion | ScramUpsertion, seen: set[tuple[ScramMechanism, str]]) -> None:
        if not change.user:
            raise error_for_code(UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        if change.mechanism is ScramMechanism.UNKNOWN:
            raise error_for_code(
                UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism; there are SCRAM-SHA-256 and SCRAM-SHA-512"
            )
        key = (change.mechanism, change.user)
        if key in seen:
            raise error_for_code(DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
        if isinstance(change, ScramDeletion):
            if key not in self.credentials:
                raise error_for_code(RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
            return
        if change.iterations < MIN_ITERATIONS:
            raise error_for_code(UNACCEPTABLE_CREDENTIAL, f"Too few iterations: at least {MIN_ITERATIONS}")
        if change.iterations > MAX_ITERATIONS:
            raise error_for_code(UNACCEPTABLE_CREDENTIAL, f"Too many iterations: at most {MAX_ITERATIONS}")
        if not change.salt or not change.salted_password:
            raise error_for_code(
                UNACCEPTABLE_CREDENTIAL, "A credential has a salt and a salted password, neither of them empty"
            )

    def alter_quotas(
        self, alterations: Iterable[QuotaAlteration], *, validate_only: bool = False
    ) -> Decision[list[KafkaError | None]]:
        """Change quotas; the reply has an error or None for each entity. All changes of an entity are stored, or
        none."""
        records: list[CoordinatorRecord] = []
        results: list[KafkaError | None] = []
        for alteration in alterations:
            try:
                changes = self._quota_changes(alteration)
            except KafkaError as error:
                results.append(error)
                continue
            results.append(None)
            records += changes
        return Decision(() if validate_only else tuple(records), results)

    def _quota_changes(self, alteration: QuotaAlteration) -> list[CoordinatorRecord]:
        entity = entity_of(alteration.parts)
        before = self.quotas.get(entity, {})
        records: list[CoordinatorRecord] = []
        for key, value in alteration.values.items():
            if value is None:
                check_key(entity, key)
            else:
                check_value(entity, key, value)
            if before.get(key) != value:
                parts = [m.ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
                record = m.ClientQuotaRecord(entity=parts, key=key, value=value or 0.0, remove=value is None)
                records.append(_record(record))
        return records

    # replay ----------------------------------------------------------------------------------------------------------

    def replay(self, value: bytes | None) -> None:
        """Apply one record. Raises ValueError."""
        record = decode_metadata_record(value or b"")
        if isinstance(record, m.AccessControlEntryRecord):
            self._replay_acl(record)
        elif isinstance(record, m.RemoveAccessControlEntryRecord):
            self._replay_acl_removal(record)
        elif isinstance(record, m.UserScramCredentialRecord):
            self._replay_credential(record)
        elif isinstance(record, m.RemoveUserScramCredentialRecord):
            self._replay_credential_removal(record)
        elif isinstance(record, m.ClientQuotaRecord):
            self._replay_quota(record)
        else:
            raise ValueError(f"a metadata record {type(record).__name__}, which is never written here")

    def _replay_acl(self, record: m.AccessControlEntryRecord) -> None:
        acl = Acl(
            ResourceType(record.resource_type),
            record.resource_name,
            PatternType(record.pattern_type),
            record.principal,
            record.host,
            Operation(record.operation),
            Permission(record.permission_type),
        )
        self.acls[acl] = record.id
        self._acl_ids[record.id] = acl
        self.acls_version += 1

    def _replay_acl_removal(self, record: m.RemoveAccessControlEntryRecord) -> None:
        acl = self._acl_ids.pop(record.id, None)
        if acl is None:
            raise ValueError("an ACL is removed that is not there")
        del self.acls[acl]
        self.acls_version += 1

    def _replay_credential(self, record: m.UserScramCredentialRecord) -> None:
        self.credentials[ScramMechanism(record.mechanism), record.name] = ScramCredential(
            record.salt, record.stored_key, record.server_key, record.iterations
        )

    def _replay_credential_removal(self, record: m.RemoveUserScramCredentialRecord) -> None:
        self.credentials.pop((ScramMechanism(record.mechanism), record.name), None)

    def _replay_quota(self, record: m.ClientQuotaRecord) -> None:
        entity = tuple((part.entity_type, part.entity_name) for part in record.entity)
        values = self.quotas.setdefault(entity, {})
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if not values:
            del self.quotas[entity]

    # look ------------------------------------------------------------------------------------------------------------

    def find_acls(self, acl_filter: AclFilter) -> list[Acl]:
        """Return the ACLs that the filter matches, sorted. Raises InvalidRequest."""
        acl_filter.check()
        return sorted(acl for acl in self.acls if acl_filter.matches(acl))

    def users(self) -> Mapping[str, dict[ScramMechanism, int]]:
        """Return the users with credentials, and the number of iterations for each mechanism."""
        result: dict[str, dict[ScramMechanism, int]] = {}
        for (mechanism, user), credential in sorted(self.credentials.items(), key=lambda item: item[0][::-1]):
            result.setdefault(user, {})[mechanism] = credential.iterations
        return result


def identify_security_record(value: bytes | None) -> tuple[bytes, bool]:
    """Return a name for the subject of the record, and False if the record removes that subject. Raises ValueError.

    The records have no keys, as in Kafka. A removal of an ACL contains only its id.
    """
    record = decode_metadata_record(value or b"")
    match record:
        case m.AccessControlEntryRecord() | m.RemoveAccessControlEntryRecord():
            return b"acl " + record.id, isinstance(record, m.AccessControlEntryRecord)
        case m.UserScramCredentialRecord() | m.RemoveUserScramCredentialRecord():
            name = f"scram {record.mechanism} {record.name}"
            return name.encode(), isinstance(record, m.UserScramCredentialRecord)
        case m.ClientQuotaRecord():
            entity = [(part.entity_type, part.entity_name) for part in record.entity]
            return b"quota " + msgspec.json.encode((entity, record.key)), not record.remove
        case _:
            raise ValueError(f"a metadata record {type(record).__name__}, which is never written here")


def _record(message: msgspec.Struct) -> CoordinatorRecord:
    return CoordinatorRecord(b"", encode_metadata_record(message, _VERSION))


def _entry(acl: Acl, acl_id: bytes) -> m.AccessControlEntryRecord:
    return m.AccessControlEntryRecord(id=acl_id, **acl.fields())


def _credential_record(change: ScramDeletion | ScramUpsertion) -> CoordinatorRecord:
    if isinstance(change, ScramDeletion):
        removal = m.RemoveUserScramCredentialRecord(name=change.user, mechanism=change.mechanism)
        return _record(removal)
    credential = credential_of(change.mechanism, change.salted_password, change.salt, change.iterations)
    record = m.UserScramCredentialRecord(
        name=change.user,
        mechanism=change.mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )
    return _record(record)
