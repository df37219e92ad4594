"""ACLs, SCRAM users and client quotas of an opened log: one interface for a log in this process and for Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from eventbus.backends.base import Backend
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.engine import Engine
from eventbus.backends.masking import shown_url
from eventbus.coordinator.acls import Acl, AclFilter, known
from eventbus.coordinator.credentials import ScramMechanism
from eventbus.coordinator.quotas import Entity, QuotaFilter
from eventbus.coordinator.security import QuotaAlteration, ScramDeletion, ScramUpsertion
from eventbus.errors import ConfigError, KafkaError, error_for_code
from eventbus.protocol import messages as m

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


class SecurityDoor(Protocol):
    """Queries and changes of security. Changes are durable on return; errors are returned per item."""

    async def find_acls(self, acl_filter: AclFilter) -> list[Acl]: ...

    async def create_acls(self, acls: Sequence[Acl]) -> list[KafkaError | None]: ...

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[Acl] | KafkaError]:
        """Delete ACLs; return, for each filter, the ACLs it matched, or an error."""
        ...

    async def scram_users(self) -> Mapping[str, Mapping[ScramMechanism, int]]:
        """Return the users with SCRAM credentials, and the number of iterations for each mechanism."""
        ...

    async def alter_scram_users(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
    ) -> dict[str, KafkaError | None]: ...

    async def find_quotas(self, filters: Sequence[QuotaFilter], strict: bool) -> dict[Entity, dict[str, float]]: ...

    async def alter_quotas(self, alterations: Sequence[QuotaAlteration]) -> list[KafkaError | None]: ...


@runtime_checkable
class Asks(Protocol):
    """A backend with remote brokers."""

    async def ask(self, request: Any) -> Any:
        """Send a request of `eventbus.protocol.messages` to a broker; return its response."""
        ...


def security_of(backend: Backend) -> SecurityDoor:
    """Return the interface of an opened log. Raises ConfigError for a log without one."""
    if isinstance(backend, EmbeddedBackend):
        return EmbeddedSecurity(backend.engine)
    if isinstance(backend, Asks):
        return RemoteSecurity(backend)
    raise ConfigError(f"{shown_url(backend.url)} keeps no ACLs, users and quotas")


class EmbeddedSecurity:
    """The security of a log in this process. It applies to clients of `eventbus serve`, not to code in the process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.broker.security

    async def find_acls(self, acl_filter: AclFilter) -> list[Acl]:
        return self._store.find_acls(acl_filter)

    async def create_acls(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        return self._store.create_acls(acls, self._engine.clock())

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[Acl] | KafkaError]:
        return self._store.delete_acls(filters, self._engine.clock())

    async def scram_users(self) -> Mapping[str, Mapping[ScramMechanism, int]]:
        return self._store.scram_users()

    async def alter_scram_users(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
    ) -> dict[str, KafkaError | None]:
        return self._store.alter_scram_credentials(deletions, upsertions, self._engine.clock())

    async def find_quotas(self, filters: Sequence[QuotaFilter], strict: bool) -> dict[Entity, dict[str, float]]:
        return self._store.find_quotas(filters, strict)

    async def alter_quotas(self, alterations: Sequence[QuotaAlteration]) -> list[KafkaError | None]:
        return self._store.alter_quotas(alterations, self._engine.clock())


class RemoteSecurity:
    """The security of a Kafka cluster, or of an `eventbus serve`."""

    def __init__(self, broker: Asks) -> None:
        self._ask = broker.ask

    async def find_acls(self, acl_filter: AclFilter) -> list[Acl]:
        answer: m.DescribeAclsResponse = await self._ask(m.DescribeAclsRequest(**_fields(acl_filter)))
        _raise(answer.error_code, answer.error_message)
        return sorted(
            Acl.read(resource.resource_type, resource.resource_name, resource.pattern_type, acl)
            for resource in answer.resources
            for acl in resource.acls
        )

    async def create_acls(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        creations = [
            m.CreateAclsRequest.AclCreation(
                resource_type=acl.resource_type,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
        answer: m.CreateAclsResponse = await self._ask(m.CreateAclsRequest(creations=creations))
        return [_error(result.error_code, result.error_message) for result in answer.results]

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[Acl] | KafkaError]:
        asked = [m.DeleteAclsRequest.DeleteAclsFilter(**_fields(acl_filter)) for acl_filter in filters]
        answer: m.DeleteAclsResponse = await self._ask(m.DeleteAclsRequest(filters=asked))
        return [_error(result.error_code, result.error_message) or _deleted(result) for result in answer.filter_results]

    async def scram_users(self) -> Mapping[str, Mapping[ScramMechanism, int]]:
        request = m.DescribeUserScramCredentialsRequest(users=None)
        answer: m.DescribeUserScramCredentialsResponse = await self._ask(request)
        _raise(answer.error_code, answer.error_message)
        return {
            result.user: {known(ScramMechanism, info.mechanism): info.iterations for info in result.credential_infos}
            for result in answer.results
        }

    async def alter_scram_users(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
    ) -> dict[str, KafkaError | None]:
        request = m.AlterUserScramCredentialsRequest(
            deletions=[
                m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=item.user, mechanism=item.mechanism)
                for item in deletions
            ],
            upsertions=[
                m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                    name=item.user,
                    mechanism=item.mechanism,
                    iterations=item.iterations,
                    salt=item.salt,
                    salted_password=item.salted_password,
                )
                for item in upsertions
            ],
        )
        answer: m.AlterUserScramCredentialsResponse = await self._ask(request)
        return {result.user: _error(result.error_code, result.error_message) for result in answer.results}

    async def find_quotas(self, filters: Sequence[QuotaFilter], strict: bool) -> dict[Entity, dict[str, float]]:
        components = [
            m.DescribeClientQuotasRequest.ComponentData(
                entity_type=part.entity_type,
                match_type=_SPECIFIED if part.any_name else _DEFAULT if part.name is None else _EXACT,
                match=None if part.any_name else part.name,
            )
            for part in filters
        ]
        request = m.DescribeClientQuotasRequest(components=components, strict=strict)
        answer: m.DescribeClientQuotasResponse = await self._ask(request)
        _raise(answer.error_code, answer.error_message)
        return {
            tuple(sorted(((part.entity_type, part.entity_name) for part in entry.entity), key=lambda part: part[0])): {
                value.key: value.value for value in entry.values
            }
            for entry in answer.entries or ()
        }

    async def alter_quotas(self, alterations: Sequence[QuotaAlteration]) -> list[KafkaError | None]:
        entries = [
            m.AlterClientQuotasRequest.EntryData(
                entity=[
                    m.AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in alteration.parts
                ],
                ops=[
                    m.AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in alteration.values.items()
                ],
            )
            for alteration in alterations
        ]
        answer: m.AlterClientQuotasResponse = await self._ask(m.AlterClientQuotasRequest(entries=entries))
        return [_error(entry.error_code, entry.error_message) for entry in answer.entries]


def _fields(acl_filter: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": acl_filter.resource_type,
        "resource_name_filter": acl_filter.name,
        "pattern_type_filter": acl_filter.pattern_type,
        "principal_filter": acl_filter.principal,
        "host_filter": acl_filter.host,
        "operation": acl_filter.operation,
        "permission_type": acl_filter.permission,
    }


def _deleted(result: m.DeleteAclsResponse.DeleteAclsFilterResult) -> list[Acl]:
    return sorted(
        Acl.read(acl.resource_type, acl.resource_name, acl.pattern_type, acl)
        for acl in result.matching_acls
        if not acl.error_code
    )


def _error(code: int, message: str | None) -> KafkaError | None:
    return error_for_code(code, message or "") if code else None


def _raise(code: int, message: str | None) -> None:
    error = _error(code, message)
    if error is not None:
        raise error
