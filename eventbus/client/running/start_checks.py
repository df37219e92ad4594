"""Checks before the handlers of a bus start, so that a mistake raises at once; and creation of its topics."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from eventbus.backends.base import Backend
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.client.configuration.resolution import SERVICE_NAME
from eventbus.client.handling.handlers import Handler
from eventbus.errors import ConfigError, KafkaError, TopicAlreadyExists, UnknownTopicOrPartition
from eventbus.suggest import nearest

logger = logging.getLogger("eventbus.runner")


def check_groups(members: Sequence[tuple[Handler[Any, Any], str]], topics: Collection[str]) -> None:
    """Refuse handlers of a bus that would share records by accident, because they read a topic in the same group.

    ``members`` are handlers with their groups. ``topics`` are the known topics, which patterns are matched against.
    Raises ConfigError that names both handlers and the topic.
    """
    for at, (handler, group) in enumerate(members):
        for other, other_group in members[:at]:
            shared = _shared_topic(handler, other, topics) if group == other_group else None
            if shared is not None:
                raise ConfigError(
                    f"{_named(other)} and {_named(handler)} both read {shared} in the group {group!r}: they would be "
                    "two members of it, and each would get only the records of half of the partitions. Give each a "
                    f"separate group (group=...) if both must get every record; to share the work, use "
                    "concurrency=... in one handler, or run the service twice"
                )


def check_named_groups(handlers: Sequence[Handler[Any, Any]], client_id: str) -> None:
    """Refuse handlers whose group would be named by default. Raises ConfigError that names all of them.

    Two services with a function ``handle`` would otherwise share a group, each with a part of the records, and a
    renamed function would read its topic from the beginning. Functions of ``@bus.every`` are checked by
    `unnamed_service`.
    """
    unnamed = [one for one in handlers if one.spec.group is None]
    if not unnamed:
        return
    first = unnamed[0]
    former = f"{client_id}.{first.spec.group_prefix}{first.__name__}"
    others = f" (and {', '.join(repr(one.__name__) for one in unnamed[1:])})" if len(unnamed) > 1 else ""
    raise ConfigError(
        f"{_named(first)}{others} has no group, which a durable log requires. Services that have a function of this "
        f"name would share a default, and each would get a part of the records. {_name_the_service(client_id)}; or "
        f'give the handler a group: @bus.consumer(..., group="billing").{_stored_so_far(client_id, former)}'
    )


def unnamed_service(what: str, client_id: str) -> ConfigError:
    """Return the error for something that is stored under the service's name by a bus without one."""
    return ConfigError(
        f"{what} needs the service's name on a durable log. Services without one would share its topic, and replace "
        f"and cancel each other's entries. {_name_the_service(client_id)}.{_stored_so_far(client_id)}"
    )


def _name_the_service(client_id: str) -> str:
    is_name = client_id != "eventbus" and SERVICE_NAME.fullmatch(client_id)
    name = client_id if is_name else "billing"
    return f'Name the service: EventBus(..., service="{name}"), EVENTBUS_SERVICE={name} or service = "{name}" in a file'


def _stored_so_far(client_id: str, group: str | None = None) -> str:
    """Return a hint on how to keep what the log holds. ``group`` is the handler's group until now."""
    if SERVICE_NAME.fullmatch(client_id):
        return f' What a log holds of it from before is found again with service="{client_id}"'
    # A client_id may have any characters.
    return "" if group is None else f" What a log holds of it from before is found again with group={group!r}"


def _shared_topic(one: Handler[Any, Any], other: Handler[Any, Any], topics: Collection[str]) -> str | None:
    """Return a topic that both handlers read, as far as topics are known."""
    if one.spec.pattern is not None and one.spec.pattern == other.spec.pattern:
        return f"what matches {one.spec.pattern!r}"
    known = {*topics, *one.spec.topics, *other.spec.topics}
    both = sorted(name for name in known if _reads(one, name) and _reads(other, name))
    return repr(both[0]) if both else None


def _reads(handler: Handler[Any, Any], topic: str) -> bool:
    return handler.spec.reads(topic)


def _named(handler: Handler[Any, Any]) -> str:
    """Return a handler's name and source line, because several handlers may share a name."""
    code = getattr(handler.undecorated, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"handler {handler.__name__!r}{place}"


async def prepare_topics(
    backend: Backend, declared: Mapping[str, TopicSpec], members: Sequence[tuple[Handler[Any, Any], str]]
) -> dict[str, TopicDescription]:
    """Create declared topics that are missing, and check that the handlers may read their topics. Return all topics.

    Raises the log's error for a topic that it refuses to create; UnknownTopicOrPartition (with the nearest name) for a
    topic that neither exists nor is declared; ConfigError as `check_groups` and `check_global_order` do.
    """
    if not declared and not members:
        return {}
    topics = {topic.name: topic for topic in await backend.describe_topics()}
    handlers = [handler for handler, _ in members]
    missing = [spec for spec in _wanted(declared, handlers, backend) if spec.name not in topics]
    for name, result in (await backend.create_topics(missing)).items() if missing else ():
        if isinstance(result, TopicAlreadyExists):  # another bus created it meanwhile
            topics |= {topic.name: topic for topic in await backend.describe_topics([name])}
        elif isinstance(result, KafkaError):
            raise result
        else:
            topics[name] = result
    partitions = {name: len(topic.partitions) for name, topic in topics.items()}
    for handler in handlers:
        for topic in handler.spec.topics:
            if topic not in partitions and not backend.auto_creates_topics:
                raise UnknownTopicOrPartition(
                    f"{handler!r}: there is no topic {topic!r}{nearest(topic, partitions)}; declare it with "
                    f"bus.topic({topic!r}), or create it: eventbus topics create {topic}"
                )
    check_groups(members, partitions)
    check_global_order(handlers, partitions)
    tell_idle_patterns(handlers, partitions)
    return topics


def _wanted(
    declared: Mapping[str, TopicSpec], handlers: Sequence[Handler[Any, Any]], backend: Backend
) -> list[TopicSpec]:
    """Return the topics to create. A topic that is read with ``order="global"`` gets one partition by default."""
    wanted = dict(declared)
    for handler in handlers:
        if handler.spec.order == "global":
            if backend.auto_creates_topics:  # its first record would create it with the log's default
                wanted = {name: TopicSpec(name, -1, 1, {}) for name in handler.spec.topics} | wanted
            for name, spec in wanted.items():
                if spec.partitions == -1 and _reads(handler, name):
                    wanted[name] = msgspec.structs.replace(spec, partitions=1)
    return list(wanted.values())


def tell_idle_patterns(handlers: Sequence[Handler[Any, Any]], topics: Collection[str]) -> None:
    """Warn of a pattern that matches no topic: it may be wrong, or its topics are created later."""
    for handler in handlers:
        pattern = handler.spec.pattern
        if pattern is None or any(_reads(handler, topic) for topic in topics):
            continue
        within = next((topic for topic in sorted(topics) if re.search(pattern, topic)), None)
        hint = f"; it must match whole names, {within!r} as well as its part" if within is not None else ""
        logger.warning("%r: no topic matches %r%s. A topic that is created later is read then", handler, pattern, hint)


def check_global_order(handlers: Sequence[Handler[Any, Any]], partitions: Mapping[str, int]) -> None:
    """Refuse ``order="global"`` on a topic with several partitions, because order exists only within a partition.

    ``partitions`` are the partition counts of known topics. Raises ConfigError.
    """
    for handler in handlers:
        if handler.spec.order != "global":
            continue
        for name, count in partitions.items():
            if count > 1 and _reads(handler, name):
                raise ConfigError(
                    f"{_named(handler)} has order='global', and {name!r} has {count} partitions: records of different "
                    f"partitions have no order. Make it a topic of one partition (bus.topic({name!r}, partitions=1); a "
                    "topic never shrinks, so copy it into a new one), or use order='partition' with the key that "
                    "must be in order"
                )
