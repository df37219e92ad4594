"""ACLs, credentials and quotas of a log: stored before anybody is told."""

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
        """Every one, in no order."""
        return self._shard.acls

    def find_acls(self, acl_filter: AclFilter) -> list[Acl]:
        """Those that the filter matches, sorted. Raises InvalidRequest."""
        return self._shard.find_acls(acl_filter)

    def create_acls(self, acls: Sequence[Acl], now_ms: int) -> list[KafkaError | None]:
        """For each: None, or why it is not stored."""
        return self._execute(self._shard.create_acls(acls, lambda: uuid_bytes(self._new_text_id())), now_ms)

    def delete_acls(self, filters: Sequence[AclFilter], now_ms: int) -> list[list[Acl] | KafkaError]:
        """For each filter: what it matched, all of it removed, or why not."""
        return self._execute(self._shard.delete_acls(filters), now_ms)

    # credentials -----------------------------------------------------------------------------------------------------

    def scram_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """What is kept of the user's password."""
        return self._shard.credentials.get((mechanism, user))

    def scram_users(self) -> Mapping[str, dict[ScramMechanism, int]]:
        """The users: for which mechanisms they have credentials, with how many iterations."""
        return self._shard.users()

    def alter_scram_credentials(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion], now_ms: int
    ) -> dict[str, KafkaError | None]:
        """By user: None, or why nothing of that user's was changed."""
        return self._execute(self._shard.alter_credentials(deletions, upsertions), now_ms)

    # quotas ----------------------------------------------------------------------------------------------------------

    @property
    def quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        """What is set, live."""
        return self._shard.quotas

    def find_quotas(self, filters: Sequence[QuotaFilter], strict: bool) -> dict[Entity, dict[str, float]]:
        """The entities that all filters meet; ``strict``: and that have no further part."""
        return {
            entity: dict(values)
            for entity, values in sorted(self._shard.quotas.items(), key=lambda item: repr(item[0]))
            if matches(entity, filters, strict)
        }

    def alter_quotas(
        self, alterations: Sequence[QuotaAlteration], now_ms: int, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """For each: None, or why it is not stored."""
        return self._execute(self._shard.alter_quotas(alterations, validate_only=validate_only), now_ms)
