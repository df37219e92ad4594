"""DescribeConfigs (key 32): all or selected configs of topics, brokers and loggers."""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.config_resources import Entry, describe

_Resource = m.DescribeConfigsRequest.DescribeConfigsResource
_Result = m.DescribeConfigsResponse.DescribeConfigsResult
_Config = m.DescribeConfigsResponse.DescribeConfigsResourceResult


def describe_configs(call: Call, request: m.DescribeConfigsRequest) -> None:
    results: list[_Result] = []
    for resource in request.resources:
        result = _Result(error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name)
        try:
            entries = describe(call, resource.resource_type, resource.resource_name)
            wanted = None if resource.configuration_keys is None else set(resource.configuration_keys)
            result.configs = [
                _make_config(entry, request) for entry in entries if wanted is None or entry.name in wanted
            ]
        except KafkaError as error:
            result.error_code, result.error_message = error.code, str(error)
        results.append(result)
    call.reply(m.DescribeConfigsResponse(results=results))


def _make_config(entry: Entry, request: m.DescribeConfigsRequest) -> _Config:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return _Config(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            m.DescribeConfigsResponse.DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source)
            for one in synonyms
        ],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


API = Api(32, "DescribeConfigs", 1, 4, describe_configs)
