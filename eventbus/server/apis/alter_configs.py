"""AlterConfigs (key 33), which unsets every config that the request does not contain."""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.config_resources import replace

_Result = m.AlterConfigsResponse.AlterConfigsResourceResponse


def alter_configs(call: Call, request: m.AlterConfigsRequest) -> None:
    responses: list[_Result] = []
    for resource in request.resources:
        result = _Result(error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name)
        values = {config.name: config.value for config in resource.configs}
        try:
            replace(call, resource.resource_type, resource.resource_name, values, request.validate_only)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, str(error)
        responses.append(result)
    call.reply(m.AlterConfigsResponse(responses=responses))


API = Api(33, "AlterConfigs", 0, 2, alter_configs)
