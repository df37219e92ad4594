"""DescribeClientQuotas (key 48): the quotas of the entities that a filter matches.

Needs DESCRIBE_CONFIGS on the cluster.
"""

from __future__ import annotations

from eventbus.coordinator.quotas import CLIENT_ID, IP, USER, QuotaFilter
from eventbus.errors import InvalidRequest, KafkaError, UnsupportedVersion
from eventbus.protocol import messages as m
from eventbus.server.admin import check_cluster
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation

_EXACT, _DEFAULT, _ANY = 0, 1, 2


def describe_client_quotas(call: Call, request: m.DescribeClientQuotasRequest) -> None:
    try:
        check_cluster(call, Operation.DESCRIBE_CONFIGS)
        filters = _filters(request)
        found = call.node.broker.security.find_quotas(filters, request.strict)
    except KafkaError as error:
        response = m.DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None)
        call.reply(response)
        return
    entries = [
        m.DescribeClientQuotasResponse.EntryData(
            entity=[
                m.DescribeClientQuotasResponse.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
            ],
            values=[
                m.DescribeClientQuotasResponse.ValueData(key=key, value=value) for key, value in sorted(values.items())
            ],
        )
        for entity, values in found.items()
    ]
    call.reply(m.DescribeClientQuotasResponse(error_message=None, entries=entries))


def _filters(request: m.DescribeClientQuotasRequest) -> list[QuotaFilter]:
    filters: list[QuotaFilter] = []
    types = [component.entity_type for component in request.components]
    if len(set(types)) < len(types):
        raise InvalidRequest(f"Duplicate filter component entity type in {', '.join(types)}")
    if IP in types and len(types) > 1:
        raise InvalidRequest("Invalid entity filter component combination: an ip stands by itself")
    for component in request.components:
        kind, match_type, match = component.entity_type, component.match_type, component.match
        if not kind:
            raise InvalidRequest("Unexpected empty entity type")
        if kind not in (USER, CLIENT_ID, IP):
            raise UnsupportedVersion(f"Unsupported entity type {kind}; there are {USER}, {CLIENT_ID} and {IP}")
        if (match_type == _EXACT) != (match is not None) or match_type not in (_EXACT, _DEFAULT, _ANY):
            raise InvalidRequest(f"Unexpected match type {match_type} with name {match!r} for {kind}")
        filters.append(QuotaFilter(kind, match, any_name=match_type == _ANY))
    return filters


API = Api(48, "DescribeClientQuotas", 0, 1, describe_client_quotas)
