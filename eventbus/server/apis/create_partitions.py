"""CreatePartitions (key 37): add partitions to topics."""

from __future__ import annotations

from collections import Counter

from eventbus.broker.topic_admin import check_assignments
from eventbus.errors import InvalidRequest, KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import INVALID_REPLICA_ASSIGNMENT, check_topic, error_of
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation

_Topic = m.CreatePartitionsRequest.CreatePartitionsTopic
_Result = m.CreatePartitionsResponse.CreatePartitionsTopicResult


def create_partitions(call: Call, request: m.CreatePartitionsRequest) -> None:
    names = Counter(topic.name for topic in request.topics)
    results: dict[str, _Result] = {}
    for topic in request.topics:
        result = results[topic.name] = _Result(name=topic.name)
        try:
            if names[topic.name] > 1:
                raise InvalidRequest(
                    f"topic {topic.name!r} stands {names[topic.name]} times in the request: name it once"
                )
            check_topic(call, Operation.ALTER, topic.name)
            _grow(call, topic, request.validate_only)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, str(error)
    call.reply(m.CreatePartitionsResponse(results=list(results.values())))


def _grow(call: Call, topic: _Topic, validate_only: bool) -> None:
    broker = call.node.broker
    broker.topic_admin.check_add_partitions(topic.name, topic.count)
    if topic.assignments is not None:
        present = broker.partitions_of(topic.name)
        if len(topic.assignments) != topic.count - present:
            raise error_of(
                INVALID_REPLICA_ASSIGNMENT,
                f"topic {topic.name!r} grows from {present} to {topic.count} partitions, and {len(topic.assignments)} "
                "are assigned: assign each new one",
            )
        check_assignments(topic.name, [one.broker_ids for one in topic.assignments])
    if not validate_only:
        broker.add_partitions(topic.name, topic.count, call.node.clock())
        call.node.topics_changed()


API = Api(37, "CreatePartitions", 0, 3, create_partitions)
