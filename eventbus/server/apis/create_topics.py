"""CreateTopics (key 19). The answer has the topic's configs from version 5 on, and its id from version 7 on."""

from __future__ import annotations

from collections import Counter

from eventbus.broker import TopicSpec
from eventbus.broker.descriptions import TopicDescription
from eventbus.errors import InvalidConfig, InvalidRequest, KafkaError, TopicAlreadyExists
from eventbus.protocol import messages as m
from eventbus.protocol import uuid_bytes
from eventbus.server.admin import INVALID_REPLICA_ASSIGNMENT, allows_cluster, check_topic, error_of
from eventbus.server.call import Api, Call
from eventbus.server.config_resources import SOURCES
from eventbus.server.security.acls import Operation, ResourceType

_TOPIC_AUTHORIZATION_FAILED = 29

_Topic = m.CreateTopicsRequest.CreatableTopic
_Result = m.CreateTopicsResponse.CreatableTopicResult


def create_topics(call: Call, request: m.CreateTopicsRequest) -> None:
    names = Counter(topic.name for topic in request.topics)
    results: dict[str, _Result] = {}
    specs: list[TopicSpec] = []
    for topic in request.topics:
        try:
            if names[topic.name] > 1:
                raise InvalidRequest(
                    f"topic {topic.name!r} stands {names[topic.name]} times in the request: name it once"
                )
            if not allows_cluster(call, Operation.CREATE):
                check_topic(call, Operation.CREATE, topic.name)
            specs.append(_spec(topic, call.node.config.accept_replication_factor))
            results[topic.name] = _Result(name=topic.name)
        except KafkaError as error:
            results[topic.name] = _refused(topic.name, error)
    for name, outcome in _create(call, specs, request.validate_only).items():
        results[name] = _refused(name, outcome) if isinstance(outcome, KafkaError) else _created(call, outcome)
    call.reply(m.CreateTopicsResponse(topics=list(results.values())))


def _create(call: Call, specs: list[TopicSpec], validate_only: bool) -> dict[str, TopicDescription | KafkaError]:
    if not specs:
        return {}
    try:
        return call.node.broker.create_topics(specs, call.node.clock(), validate_only)
    except KafkaError as error:  # a disk error: whether the topics exist is unknown
        return {spec.name: error for spec in specs}
    finally:
        call.node.topics_changed()


def _spec(topic: _Topic, accept_replication_factor: bool) -> TopicSpec:
    """Return the topic to create. Raises InvalidRequest, InvalidConfig for invalid fields."""
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise InvalidConfig(f"topic {topic.name!r}: {config.name} has no value; leave it out for its default")
        configs[config.name] = config.value
    factor = topic.replication_factor
    if accept_replication_factor and factor > 1:
        factor = 1
    if topic.assignments and (topic.num_partitions != -1 or topic.replication_factor != -1):
        raise InvalidRequest(
            f"topic {topic.name!r}: its partitions are assigned one by one, so the number of partitions and the "
            "replication factor have to be -1"
        )
    return TopicSpec(topic.name, topic.num_partitions, factor, configs, _assignments(topic))


def _assignments(topic: _Topic) -> tuple[tuple[int, ...], ...]:
    """Return the brokers of each partition in order. Raises INVALID_REPLICA_ASSIGNMENT unless they are numbered from
    0."""
    brokers = {one.partition_index: tuple(one.broker_ids) for one in topic.assignments}
    if sorted(brokers) != list(range(len(topic.assignments))):
        raise error_of(
            INVALID_REPLICA_ASSIGNMENT, f"topic {topic.name!r}: assign partitions 0, 1, 2 and so on, each of them once"
        )
    return tuple(brokers[number] for number in range(len(brokers)))


def _refused(name: str, error: KafkaError) -> _Result:
    # Scripts and tools search for Kafka's own words in this message.
    text = f"Topic '{name}' already exists." if isinstance(error, TopicAlreadyExists) else str(error)
    return _Result(name=name, error_code=error.code, error_message=text, configs=[])


def _created(call: Call, topic: TopicDescription) -> _Result:
    result = _Result(name=topic.name, topic_id=uuid_bytes(topic.topic_id), error_message=None, configs=[])
    if not call.allows(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        result.topic_config_error_code = _TOPIC_AUTHORIZATION_FAILED
        return result
    result.num_partitions = len(topic.partitions)
    result.replication_factor = topic.replication_factor
    result.configs = [
        m.CreateTopicsResponse.CreatableTopicConfigs(name=name, value=entry.value, config_source=SOURCES[entry.source])
        for name, entry in topic.configs.items()
    ]
    return result


API = Api(19, "CreateTopics", 2, 7, create_topics)
