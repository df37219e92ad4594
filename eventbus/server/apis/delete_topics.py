"""DeleteTopics (key 20). From version 6 on, a topic may be given by its id."""

from __future__ import annotations

from collections import Counter

from eventbus.errors import InvalidRequest, KafkaError
from eventbus.protocol import ZERO_UUID, uuid_text
from eventbus.protocol import messages as m
from eventbus.server.admin import UNKNOWN_TOPIC_ID, check_topic, error_of
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation, ResourceType

_TOPIC_AUTHORIZATION_FAILED = 29

_Result = m.DeleteTopicsResponse.DeletableTopicResult


def delete_topics(call: Call, request: m.DeleteTopicsRequest) -> None:
    if call.version < 6:
        asked: list[tuple[str | None, bytes]] = [(name, ZERO_UUID) for name in request.topic_names]
    else:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    counts = Counter(asked)
    results: list[_Result] = []
    deleted: set[str] = set()
    for name, topic_id in counts:
        try:
            if counts[name, topic_id] > 1:
                raise InvalidRequest(f"topic {name or uuid_text(topic_id)!r} stands twice in the request: name it once")
            results.append(_delete(call, name, topic_id, deleted))
        except KafkaError as error:
            results.append(_Result(name=name, topic_id=topic_id, error_code=error.code, error_message=str(error)))
    if deleted:
        call.node.topics_changed()
    call.reply(m.DeleteTopicsResponse(responses=results))


def _delete(call: Call, name: str | None, topic_id: bytes, deleted: set[str]) -> _Result:
    """Delete one topic. Raises the KafkaError for the answer."""
    if (name is None) == (topic_id == ZERO_UUID):
        raise InvalidRequest("a topic to delete is named by its name or by its id, one of the two")
    by_id = name is None
    if name is None:
        name = call.node.topic_name(topic_id)
        if name is None:
            raise error_of(UNKNOWN_TOPIC_ID, f"no topic has the id {uuid_text(topic_id)}")
        # A caller with the id may learn that the topic exists.
        if not call.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
            raise error_of(_TOPIC_AUTHORIZATION_FAILED)
    check_topic(call, Operation.DELETE, name)
    topic_id = topic_id if by_id else call.node.topic_id(name)
    error = call.node.broker.delete_topics([name], call.node.clock())[name]
    if error is not None:
        raise error
    deleted.add(name)
    return _Result(name=name, topic_id=topic_id)


API = Api(20, "DeleteTopics", 1, 6, delete_topics)
