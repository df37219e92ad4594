"""The topic of a ledger: found, or created by whichever process is first."""

from __future__ import annotations

from eventbus.backends.base import Backend
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.errors import KafkaError, TopicAlreadyExists, UnknownTopicOrPartition


async def find_or_create(backend: Backend, spec: TopicSpec) -> TopicDescription:
    """Return the topic. Create it as ``spec`` describes it if it is missing.

    Raises the KafkaError that prevents its creation. The caller checks whether a topic that existed is fit for use.
    """
    try:
        [found] = await backend.describe_topics([spec.name])
        return found
    except UnknownTopicOrPartition:
        created = (await backend.create_topics([spec]))[spec.name]
    if not isinstance(created, KafkaError):
        return created
    if not isinstance(created, TopicAlreadyExists):
        raise created
    [found] = await backend.describe_topics([spec.name])  # another process created it between the two requests
    return found
