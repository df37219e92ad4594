"""The declarations of a bus as an AsyncAPI 3.0.0 document."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from eventbus.asyncapi.keys import type_of_key
from eventbus.asyncapi.payloads import JsonObject, Payload, Payloads, any_of, arms
from eventbus.asyncapi.servers import servers_of
from eventbus.broker import TopicSpec
from eventbus.client.bus import EventBus
from eventbus.client.handling.handlers import Handler, ProducerFunction
from eventbus.client.handling.result_serdes import published_type
from eventbus.client.requests import CORRELATION_ID, REPLY_TO
from eventbus.client.tables.table import Table
from eventbus.errors import ConfigError
from eventbus.recovery import FailurePolicy, Handling, redrive_topic_of
from eventbus.topic_patterns import matches
from eventbus.types import ConsumerRecord
from serdes import Json
from serdes.choose import split_optional

BINDING_VERSION = "0.5.0"
_INTEGERS = ("retention.ms", "retention.bytes", "delete.retention.ms", "max.message.bytes")
_CONFIGS = (*_INTEGERS, "cleanup.policy")
"""The topic settings in Kafka's binding; others go under ``x-eventbus``."""


def asyncapi_document(
    bus: EventBus,
    *,
    title: str | None = None,
    version: str = "1.0.0",
    description: str | None = None,
    url: str | None = None,
) -> JsonObject:
    """Describe what ``bus`` receives and sends, as an AsyncAPI 3.0.0 document: plain data, in a stable order.

    ``title``: of the document, by default the service (or the client_id); ``version``: of the contract. ``url``: a
    ``kafka://`` URL to list as its server, instead of the bus's own; other logs are not listed. Passwords and user
    names are left out. The bus need not run, and no requests are sent.

    Raises ConfigError with the handler or the function whose type has no schema. See
    https://www.asyncapi.com/docs/reference/specification/v3.0.0.
    """
    writer = _Writer(bus)
    handlers = bus.context.handlers_in_force()
    timetables = {topic for handler in handlers if handler.spec.is_firing for topic in handler.spec.topics}
    handlers = [handler for handler in handlers if not handler.spec.is_firing]  # internal to the bus
    for name, spec in _topics(bus).items():
        if name not in timetables:
            writer.declare(name, spec)
    for function in bus.context.producer_functions:
        writer.sends(function)
    for handler in handlers:
        writer.receives(handler)
    for table in bus.context.tables.values():
        writer.keeps(table)
    for name in bus.context.topics:
        writer.holds(name)
    for handler in handlers:
        if handler.spec.retry is not None:
            writer.recovers(handler, handler.spec.retry)
    servers, schemes = servers_of(url or bus.url, bus.context.configuration.settings.log)
    components: JsonObject = {"schemas": _sorted(writer.payloads.schemas), "securitySchemes": schemes}
    info: JsonObject = {"title": title or bus.context.service_name, "version": version}
    if description:
        info["description"] = description
    document: JsonObject = {
        "asyncapi": "3.0.0",
        "info": info,
        "servers": servers,
        "channels": _sorted(writer.channels),
        "operations": _sorted(writer.operations),
        "components": {name: part for name, part in components.items() if part},
    }
    return {name: part for name, part in document.items() if part or name in ("info", "channels", "operations")}


class _Writer:
    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self.payloads = Payloads()
        self.channels: dict[str, JsonObject] = {}
        self.operations: dict[str, JsonObject] = {}
        self._serdes = bus.context.serdes
        self._keys = self._all_keys()
        """The type of keys of each topic."""

    def _all_keys(self) -> dict[str, JsonObject]:
        found: dict[str, list[JsonObject]] = {}
        for function in self._bus.context.producer_functions:
            key = function.spec.key
            if key is not None:
                kinds = [type_of_key(key, arm) for arm in arms(function.published)]
                found.setdefault(function.spec.topic, []).extend(
                    {} if kind is None else self._key(kind, f"the key of producer function {function.__name__!r}")
                    for kind in kinds
                )
        for table in self._bus.context.tables.values():
            key = self._key(table.spec.key, f"the key of table {table.name!r}")
            found.setdefault(table.topic, []).append(key)
        return {topic: any_of(schemas) for topic, schemas in found.items()}

    def _key(self, kind: Any, where: str) -> JsonObject:
        return self.payloads.key(kind, self._serdes, where)

    def declare(self, name: str, spec: TopicSpec | None = None) -> JsonObject:
        """Return the channel of a topic, which is added if it is new."""
        channel = self.channels.setdefault(name, {"address": name, "messages": {}})
        binding: JsonObject = {"bindingVersion": BINDING_VERSION}
        if spec is not None:
            if spec.partitions > 0:
                binding["partitions"] = spec.partitions
            if spec.replication_factor > 0:
                binding["replicas"] = spec.replication_factor
            configs = {key: _config(name, key, value) for key, value in sorted(spec.configs.items()) if key in _CONFIGS}
            if configs:
                binding["topicConfiguration"] = configs
            others = {key: value for key, value in sorted(spec.configs.items()) if key not in _CONFIGS}
            if others:
                channel["x-eventbus"] = {"configs": others}
        channel.setdefault("bindings", {"kafka": binding})
        return channel

    def sends(self, function: ProducerFunction[..., Any, Any]) -> None:
        topic, name = function.spec.topic, function.__name__
        self.declare(topic)
        payloads: list[Payload] = []
        declared = self._serdes.declared_type(topic)
        published = function.published if declared is None else declared
        if published is not None:
            serdes = self._serdes.joined_with(function.serdes)
            written = self._serdes.of_topics.get(topic)
            written = written if isinstance(written, Json) else None  # for other serdes the annotation is more exact
            where = f"producer function {name!r} to topic {topic!r}"
            payloads = self.payloads.of(published, serdes, where, written=written)
        self._operation(f"send.{topic}.{name}", "send", topic, self._messages(topic, payloads), function.function)

    def holds(self, topic: str) -> None:
        """Add the declared type of a topic without a producer function."""
        declared = self._serdes.declared_type(topic)
        if declared is not None and not self.channels[topic]["messages"]:
            self._messages(topic, self.payloads.of(declared, self._serdes, f"topic {topic!r}"))

    def receives(self, handler: Handler[Any, Any]) -> None:
        (annotation, takes_nulls), name = split_optional(handler.signature.payload), handler.__name__
        reads_records = handler.signature.payload_name is None or annotation is ConsumerRecord
        for topic in self._topics(handler):
            where = f"handler {name!r} of topic {topic!r}"
            payloads = [] if reads_records else self.payloads.of(annotation, self._serdes, where)
            operation = self._operation(
                f"receive.{topic}.{name}", "receive", topic, self._messages(topic, payloads), handler.undecorated
            )
            group: JsonObject = {"type": "string", "enum": [self._bus.context.group_of(handler)]}
            operation["bindings"] = {"kafka": {"groupId": group, "bindingVersion": BINDING_VERSION}}
            operation["x-eventbus"] = {**_promises(handler), **({"nulls": True} if takes_nulls else {})}
            if handler.spec.replies:
                operation["reply"] = self._reply(handler)

    def keeps(self, table: Table[Any, Any]) -> None:
        """Add a table, which reads its topic without a group."""
        payloads = self.payloads.of(table.spec.value, self._serdes, f"table {table.name!r}")
        operation = self._operation(
            f"receive.{table.topic}.{table.name}", "receive", table.topic, self._messages(table.topic, payloads)
        )
        keeps = "the last value of each key" if table.spec.fold is None else "a state of each key, folded from all"
        operation["x-eventbus"] = {"table": table.name, "keeps": keeps}

    def _topics(self, handler: Handler[Any, Any]) -> Sequence[str]:
        """Return the topics of a handler; for a pattern the declared ones, else a channel without an address."""
        spec = handler.spec
        if spec.pattern is None:
            for topic in spec.topics:
                self.declare(topic)
            return spec.topics
        found = [name for name in self._bus.context.topics if matches(spec.pattern, name)]
        if found:
            return found
        name = f"pattern.{_identifier(handler.__name__)}"
        self.channels.setdefault(name, {"address": None, "messages": {}, "x-eventbus": {"pattern": spec.pattern}})
        return [name]

    def _operation(self, name: str, action: str, topic: str, messages: list[str], function: Any = None) -> JsonObject:
        operation: JsonObject = {"action": action, "channel": {"$ref": f"#/channels/{topic}"}}
        text = None if function is None else inspect.getdoc(function)
        if text:
            operation["summary"] = text.partition("\n")[0].strip()
            operation["description"] = text
        if messages:  # otherwise all messages of the channel
            operation["messages"] = [{"$ref": f"#/channels/{topic}/messages/{one}"} for one in messages]
        name, number = _identifier(name), 2
        while name in self.operations:
            name, number = f"{name.removesuffix(f'_{number - 1}')}_{number}", number + 1
        self.operations[name] = operation
        return operation

    def _messages(self, topic: str, payloads: Sequence[Payload], headers: bool = False) -> list[str]:
        """Add messages to the channel; return their names."""
        known: dict[str, JsonObject] = self.channels[topic]["messages"]
        names: list[str] = []
        for payload in payloads:
            message = self._message(topic, payload)
            if headers:
                message["correlationId"] = {"location": f"$message.header#/{CORRELATION_ID}"}
            name, number = payload.name, 2
            while known.setdefault(name, message) != message:
                name, number = f"{payload.name}_{number}", number + 1
            names.append(name)
        return names

    def _message(self, topic: str, payload: Payload) -> JsonObject:
        message: JsonObject = {"name": payload.name, "contentType": payload.content_type, "payload": payload.schema}
        if payload.description:
            message["description"] = payload.description
        binding: JsonObject = {"key": self._keys[topic]} if topic in self._keys else {}
        if payload.avro_id_in:
            binding["schemaIdLocation"] = payload.avro_id_in
            binding["schemaIdPayloadEncoding"] = "confluent"
        if binding:
            message["bindings"] = {"kafka": {**binding, "bindingVersion": BINDING_VERSION}}
        return message

    def _reply(self, handler: Handler[Any, Any]) -> JsonObject:
        """Return the reply of a handler. Its address is in the request's header."""
        channel = f"replies.{_identifier(handler.__name__)}"
        self.channels[channel] = {
            "address": None,
            "messages": {},
            "description": f"The topic that a request names in its header {REPLY_TO!r}.",
        }
        returned = published_type(handler.undecorated, None)
        payloads: list[Payload] = []
        if returned is not None:
            payloads = self.payloads.of(returned, self._serdes, f"what handler {handler.__name__!r} replies")
        names = self._messages(channel, payloads, headers=True)
        return {
            "address": {"location": f"$message.header#/{REPLY_TO}"},
            "channel": {"$ref": f"#/channels/{channel}"},
            "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names],
        }

    def recovers(self, handler: Handler[Any, Any], policy: FailurePolicy) -> None:
        """Add the handler's retry and dead-letter topics with the failed messages; they belong to no operation."""
        group = self._bus.context.group_of(handler)
        recovery = policy.open(Handling.of(handler, group, self._bus.context.client_id))
        is_alone = [self._bus.context.group_of(one) for one in self._bus.context.handlers].count(group) == 1
        retry_topic = recovery.retry_topic or (redrive_topic_of(policy, group) if is_alone else None)
        for role, topic in (("retry", retry_topic), ("dead letters", recovery.dead_letter_topic)):
            if topic is None:
                continue
            channel = self.declare(topic)
            channel.setdefault("x-eventbus", {})["role"] = role
            for source in self._topics(handler):
                for name in self.channels[source]["messages"]:
                    reference = {"$ref": f"#/channels/{source}/messages/{name}"}
                    if channel["messages"].setdefault(name, reference) != reference:
                        channel["messages"][f"{source}.{name}"] = reference


def _topics(bus: EventBus) -> dict[str, TopicSpec]:
    """Return the declared topics, with the settings that tables need."""
    topics = dict(bus.context.topics)
    for table in bus.context.tables.values():
        spec = topics.get(table.topic, TopicSpec(table.topic))
        topics[table.topic] = msgspec.structs.replace(spec, configs={**table.topic_configs, **spec.configs})
    return topics


def _promises(handler: Handler[Any, Any]) -> JsonObject:
    spec = handler.spec
    options: JsonObject = {
        "delivery": "once in its database" if spec.tx is not None else spec.delivery,
        "order": spec.order,
    }
    if spec.batch:
        options["batch"] = True
    if spec.retry is not None:
        ladder: Any = getattr(spec.retry, "retry", None)  # our own policy contains what the user wrote
        options["retry"] = type(spec.retry if ladder is None else ladder).__name__
    return options


def _config(topic: str, key: str, value: str) -> Any:
    """Return a config as in the binding: integers, and a list of policies."""
    if key == "cleanup.policy":
        return [one.strip() for one in value.split(",") if one.strip()]
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"topic {topic!r}: {key}={value!r} is not an integer") from None


def _identifier(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)


def _sorted(members: dict[str, JsonObject]) -> dict[str, JsonObject]:
    return dict(sorted(members.items()))
