"""IncrementalAlterConfigs (key 44): set, delete, append to a list, remove from a list (KIP-339)."""

from __future__ import annotations

from eventbus.errors import InvalidRequest, KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.config_resources import Change, Wanted, alter

_Resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource
_Result = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


def incremental_alter_configs(call: Call, request: m.IncrementalAlterConfigsRequest) -> None:
    responses: list[_Result] = []
    for resource in request.resources:
        result = _Result(error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name)
        try:
            alter(call, resource.resource_type, resource.resource_name, _changes(resource), request.validate_only)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, str(error)
        responses.append(result)
    call.reply(m.IncrementalAlterConfigsResponse(responses=responses))


def _changes(resource: _Resource) -> list[Wanted]:
    try:
        return [Wanted(one.name, Change(one.config_operation), one.value) for one in resource.configs]
    except ValueError as error:
        raise InvalidRequest(
            f"{error}: configs are set (0), deleted (1), appended to (2), subtracted from (3)"
        ) from None


API = Api(44, "IncrementalAlterConfigs", 0, 1, incremental_alter_configs)
