"""Metadata (key 3): the only broker, and topics with their partitions.

A missing topic is created if the log and the request allow it (``auto.create.topics.enable``). It exists at once, so
LEADER_NOT_AVAILABLE is never returned.
"""

from __future__ import annotations

from collections.abc import Iterable

from eventbus.broker import TopicSpec
from eventbus.broker.names import INTERNAL_TOPICS, check_topic_name
from eventbus.errors import KafkaError, UnknownTopicOrPartition
from eventbus.protocol import ZERO_UUID
from eventbus.protocol import messages as m
from eventbus.server.apis._partitions import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import CLUSTER_NAME, Operation, ResourceType, authorized_operations

_INVALID_REQUEST = 42
_IDS_FROM = 12
"""The version from which topics may be given by their ids."""
_NOT_ASKED = -(1 << 31)

Topic = m.MetadataResponse.MetadataResponseTopic
Partition = m.MetadataResponse.MetadataResponsePartition


def metadata(call: Call, request: m.MetadataRequest) -> None:
    node, listener = call.node, call.listener
    broker = m.MetadataResponse.MetadataResponseBroker(
        node_id=node.node_id, host=listener.advertised_host, port=listener.advertised_port
    )
    operations = _NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = authorized_operations(call, ResourceType.CLUSTER, CLUSTER_NAME)
    asked = request.topics
    if asked is None or (call.version == 0 and not asked):
        names = node.broker.list_topics()
        topics = [
            _describe(call, request, name)
            for name in names
            if call.allows(Operation.DESCRIBE, ResourceType.TOPIC, name)
        ]
    else:
        topics = list(_asked_for(call, request, asked))
    call.reply(
        m.MetadataResponse(
            brokers=[broker],
            cluster_id=node.cluster_id,
            controller_id=node.node_id,
            topics=topics,
            cluster_authorized_operations=operations,
        )
    )


def _asked_for(
    call: Call, request: m.MetadataRequest, asked: Iterable[m.MetadataRequest.MetadataRequestTopic]
) -> Iterable[Topic]:
    for topic in asked:
        name, topic_id = topic.name, topic.topic_id
        if name is None or topic_id != ZERO_UUID:
            yield _by_id(call, request, name, topic_id)
        elif not call.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
            yield Topic(error_code=TOPIC_AUTHORIZATION_FAILED, name=name)
        else:
            code = _create_if_missing(call, request, name)
            yield Topic(error_code=code, name=name) if code else _describe(call, request, name)


def _by_id(call: Call, request: m.MetadataRequest, name: str | None, topic_id: bytes) -> Topic:
    if call.version < _IDS_FROM:
        return Topic(error_code=_INVALID_REQUEST, name=name or "", topic_id=topic_id)
    found = call.node.topic_name(topic_id)
    if found is None or not call.allows(Operation.DESCRIBE, ResourceType.TOPIC, found):
        return Topic(error_code=UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    return _describe(call, request, found)


def _create_if_missing(call: Call, request: m.MetadataRequest, name: str) -> int:
    """Create the topic unless it exists; return 0 or an error code."""
    node = call.node
    broker = node.broker
    if broker.has_topic(name):
        return 0
    try:
        check_topic_name(name)
        if not (request.allow_auto_topic_creation and broker.config.auto_create_topics) or name in INTERNAL_TOPICS:
            return UnknownTopicOrPartition.code
        may_create = call.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        if not may_create and not call.allows(Operation.CREATE, ResourceType.TOPIC, name):
            return TOPIC_AUTHORIZATION_FAILED
        created = broker.create_topics([TopicSpec(name)], node.clock())[name]
    except KafkaError as error:
        return error.code
    if isinstance(created, KafkaError):
        return created.code
    node.topics_changed()
    return 0


def _describe(call: Call, request: m.MetadataRequest, name: str) -> Topic:
    node = call.node
    replicas = [node.node_id]
    return Topic(
        name=name,
        topic_id=node.topic_id(name),
        is_internal=name in INTERNAL_TOPICS,
        partitions=[
            Partition(
                partition_index=number,
                leader_id=node.node_id,
                leader_epoch=0,
                replica_nodes=replicas,
                isr_nodes=replicas,
            )
            for number in range(node.broker.partitions_of(name))
        ],
        topic_authorized_operations=authorized_operations(call, ResourceType.TOPIC, name)
        if request.include_topic_authorized_operations
        else _NOT_ASKED,
    )


API = Api(3, "Metadata", 0, 13, metadata)
