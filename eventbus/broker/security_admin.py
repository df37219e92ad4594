"""ACLs, credentials and quotas of a log. Every change is stored before it is acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from eventbus.broker.logs import Logs
from eventbus.broker.shard_log import ShardLog
from eventbus.coordinator import Decision, TopicsShard
from eventbus.coordinator.acls import Acl, AclFilter
from eventbus.coordinator.credentials import ScramCredential, ScramMechanism
from eventbus.coordinator.quotas import Entity, QuotaFilter, matches
from eventbus.coordinator.security import QuotaAlteration, ScramDeletion, ScramUpsertion
from eventbus.coordinator.shard import ReplyT_co
from eventbus.errors import KafkaError
from eventbus.protocol import uuid_bytes


class SecurityAdmin:
    """`Broker.security`. Every change is on disk on return; each may raise StorageError."""

    def __init__(self, shard_log: ShardLog[TopicsShard], logs: Logs, new_text_id: Callable[[], str]) -> None:
        self._shard_log = shard_log
        self._shard = shard_log.shard.security
        self._logs = logs
        self._new_text_id = new_text_id

    def _execute(self, decision: Decision[ReplyT_co], now_ms: int) -> ReplyT_co:
        reply = self._shard_log.execute(decision, now_ms)
        if decision.records:
            self._logs.sync_metadata(self._shard_log.log)
        return reply

    # ACLs ------------------------------------------------------------------------------------------------------------

    @property
    def acls_version(self) -> int:
        """Rises with every change of the ACLs."""
        return self._shard.acls_version

    def all_acls(self) -> Iterable[Acl]:
        """All ACLs, in no order."""
        return self._shard.acls

    def find_acls(self, acl_filter: AclFilter) -> list[Acl]:
        """Return the ACLs that the filter matches, sorted. Raises InvalidRequest."""
        return self._shard.find_acls(acl_filter)

    def create_acls(self, acls: Sequence[Acl], now_ms: int) -> list[KafkaError | None]:
        """Create ACLs; return None or the error for each."""
        return self._execute(self._shard.create_acls(acls, lambda: uuid_bytes(self._new_text_id())), now_ms)

    def delete_acls(self, filters: Sequence[AclFilter], now_ms: int) -> list[list[Acl] | KafkaError]:
        """Delete ACLs; return, for each filter, the ACLs it matched and removed, or the error."""
        return self._execute(self._shard.delete_acls(filters), now_ms)

    # credentials -----------------------------------------------------------------------------------------------------

    def scram_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Return the user's stored credential, or None."""
        return self._shard.credentials.get((mechanism, user))

    def scram_users(self) -> Mapping[str, dict[ScramMechanism, int]]:
        """Return the users with credentials, and the number of iterations for each mechanism."""
        return self._shard.users()

    def alter_scram_credentials(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion], now_ms: int
    ) -> dict[str, KafkaError | None]:
        """Change credentials; return, for each user, None or the error because of which nothing of that user was
        changed."""
        return self._execute(self._shard.alter_credentials(deletions, upsertions), now_ms)

    # quotas ----------------------------------------------------------------------------------------------------------

    @property
    def quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        """The quotas as set, a live view."""
        return self._shard.quotas

    def find_quotas(self, filters: Sequence[QuotaFilter], strict: bool) -> dict[Entity, dict[str, float]]:
        """Return the entities that all filters match; ``strict`` excludes entities with further parts."""
        return {
            entity: dict(values)
            for entity, values in sorted(self._shard.quotas.items(), key=lambda item: repr(item[0]))
            if matches(entity, filters, strict)
        }

    def alter_quotas(
        self, alterations: Sequence[QuotaAlteration], now_ms: int, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """Change quotas; return None or the error for each."""
        return self._execute(self._shard.alter_quotas(alterations, validate_only=validate_only), now_ms)
