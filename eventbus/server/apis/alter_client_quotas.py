"""AlterClientQuotas (key 49): set or remove quotas. Needs ALTER_CONFIGS on the cluster.

Byte rates are enforced; ``request_percentage``, ``controller_mutation_rate`` and ``connection_creation_rate`` are
stored and described, but not enforced.
"""

from __future__ import annotations

from eventbus.coordinator.security import QuotaAlteration
from eventbus.errors import InvalidRequest, KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import check_cluster
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation


def alter_client_quotas(call: Call, request: m.AlterClientQuotasRequest) -> None:
    try:
        check_cluster(call, Operation.ALTER_CONFIGS)
        alterations = [_alteration(entry) for entry in request.entries]
        if len({alteration.parts for alteration in alterations}) < len(alterations):
            raise InvalidRequest("Duplicate client quota entity in one request")
        results = call.node.broker.security.alter_quotas(alterations, call.node.clock(), request.validate_only)
    except KafkaError as error:
        results = [error for _ in request.entries]
    entries = [_entry(entry, error) for entry, error in zip(request.entries, results, strict=True)]
    call.reply(m.AlterClientQuotasResponse(entries=entries))


def _alteration(entry: m.AlterClientQuotasRequest.EntryData) -> QuotaAlteration:
    parts = tuple(sorted(((part.entity_type, part.entity_name) for part in entry.entity), key=lambda part: part[0]))
    return QuotaAlteration(parts, {op.key: None if op.remove else op.value for op in entry.ops})


def _entry(
    entry: m.AlterClientQuotasRequest.EntryData, error: KafkaError | None
) -> m.AlterClientQuotasResponse.EntryData:
    entity = [
        m.AlterClientQuotasResponse.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
        for part in entry.entity
    ]
    if error is None:
        return m.AlterClientQuotasResponse.EntryData(error_message=None, entity=entity)
    return m.AlterClientQuotasResponse.EntryData(error_code=error.code, error_message=str(error), entity=entity)


API = Api(49, "AlterClientQuotas", 0, 1, alter_client_quotas)
