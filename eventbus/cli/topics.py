"""``eventbus topics``: flags and columns as Kafka's kafka-topics and kafka-delete-records tools."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.cli.output import Output
from eventbus.cli.parser import (
    Subcommands,
    UsageError,
    add_topic,
    key_values,
    natural,
    positive,
    required_topic,
    topic_of,
)
from eventbus.cli.shell import open_bus
from eventbus.cli.skew import add_skew
from eventbus.errors import KafkaError, TopicAlreadyExists, UnknownTopicOrPartition
from eventbus.suggest import nearest
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.broker import TopicDescription
    from eventbus.broker.descriptions import PartitionDescription


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("topics", help="create, list, describe, alter and delete topics; skew of keys")
    actions = parser.add_subparsers(metavar="ACTION", title="actions")

    listing = actions.add_parser("list", help="the names of all topics")
    listing.add_argument("--topic", metavar="TOPIC", help="a name, or a pattern of names; default: all")
    listing.add_argument("--exclude-internal", action="store_true", help="leave out topics that begin with __")
    listing.set_defaults(run=list_topics)

    create = actions.add_parser("create", help="create a topic")
    add_topic(create)
    create.add_argument("--partitions", type=positive, metavar="N", help="default: the log's num_partitions, or 1")
    create.add_argument(
        "--replication-factor", type=positive, metavar="N", help="default: the log's; more than 1 needs a Kafka cluster"
    )
    create.add_argument(
        "--replica-assignment", type=_assignments, metavar="1,2:2,3", help="the brokers of each partition, instead"
    )
    create.add_argument(
        "--config",
        action="append",
        metavar="KEY=VALUE",
        help="a topic configuration, as retention.ms=60000; repeatable",
    )
    create.add_argument("--if-not-exists", action="store_true", help="no error when the topic is there already")
    create.set_defaults(run=create_topic)

    describe = actions.add_parser("describe", help="partitions, leaders, replicas and configurations")
    add_topic(describe, required=False, help="a name, or a pattern of names; default: all topics")
    describe.add_argument("--topic-id", metavar="ID", help="the topic of this id")
    describe.add_argument("--exclude-internal", action="store_true", help="leave out topics that begin with __")
    describe.add_argument("--if-exists", action="store_true", help="no error when there is no such topic")
    for flag, text in _ONLY.items():
        describe.add_argument(f"--{flag}", action="store_true", help=text)
    describe.add_argument(
        "--partition-size-limit-per-response", type=positive, help=argparse.SUPPRESS
    )  # of no meaning to the answer
    describe.set_defaults(run=describe_topics)

    alter = actions.add_parser("alter", help="add partitions, change configurations")
    add_topic(alter, help="a name, or a pattern of names")
    alter.add_argument("--partitions", type=positive, metavar="N", help="the new total; a topic never shrinks")
    alter.add_argument("--if-exists", action="store_true", help="no error when there is no such topic")
    alter.add_argument("--config", "--add-config", action="append", metavar="KEY=VALUE", help="set; repeatable")
    alter.add_argument("--delete-config", action="append", metavar="KEY", help="back to the default; repeatable")
    alter.set_defaults(run=alter_topic)

    delete = actions.add_parser("delete", help="delete a topic and its records")
    add_topic(delete, help="a name, or a pattern of names")
    delete.add_argument("--if-exists", action="store_true", help="no error when there is no such topic")
    delete.set_defaults(run=delete_topic)

    records = actions.add_parser("delete-records", help="delete the oldest records of a topic, for good")
    add_topic(records, required=False)
    records.add_argument("--offset-json-file", metavar="FILE", help="where and how much, as Kafka's tool reads it")
    records.add_argument("--before", type=int, metavar="OFFSET", help="the first offset to keep; -1: keep none")
    records.add_argument("--partition", type=natural, metavar="N", help="default: every partition")
    records.set_defaults(run=delete_records)

    add_skew(actions)


def _assignments(text: str) -> tuple[tuple[int, ...], ...]:
    """Return an argparse type: ``1,2:2,3``, brokers of partition 0, of partition 1 and so on."""
    try:
        return tuple(tuple(int(broker) for broker in part.split(":")) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: brokers are numbers, ':' between those of a partition, ',' between partitions"
        ) from None


def matching(pattern: str | None, names: Sequence[str], *, required: bool = True) -> list[str]:
    """The topics called so; when there is none, those whose whole name matches it as a pattern, as in Kafka's tools.

    Raises UnknownTopicOrPartition when there are none either, unless not ``required``.
    """
    if pattern is None:
        return sorted(names)
    if pattern in names:
        return [pattern]
    try:
        expression = re.compile(pattern.replace(",", "|"))
    except re.error as error:
        raise UsageError(f"--topic {pattern!r} is no pattern: {error}") from None
    found = sorted(name for name in names if expression.fullmatch(name))
    if not found and required:
        raise UnknownTopicOrPartition(
            f"there is no topic {pattern!r}{nearest(pattern, [name for name in names if not name.startswith('__')])}"
        )
    return found


async def list_topics(args: argparse.Namespace) -> None:
    pattern: str | None = args.topic

    async with open_bus(args) as bus:
        topics = {topic.name: topic for topic in await bus.admin.describe_topics()}
    chosen = [topics[name] for name in matching(pattern, list(topics), required=False)]
    shown = [topic for topic in chosen if not (args.exclude_internal and topic.is_internal)]
    out = Output.of(args)
    if not out.json and not out.rich:  # as Kafka's tool: one name per line
        for topic in shown:
            out.line(topic.name)
    else:
        out.table(
            ["topic", "partitions", "records", "bytes"],
            [
                (
                    topic.name,
                    len(topic.partitions),
                    sum(part.log_end_offset - part.log_start_offset for part in topic.partitions),
                    sum(part.size_bytes for part in topic.partitions),
                )
                for topic in shown
            ],
        )


async def create_topic(args: argparse.Namespace) -> None:
    name, out = required_topic(args), Output.of(args)
    configs = key_values(args.config, "--config")
    assigned: tuple[tuple[int, ...], ...] = args.replica_assignment or ()
    if assigned and (args.partitions or args.replication_factor):
        raise UsageError(
            f"{args.program}: --replica-assignment says how many partitions and copies there are: give it alone"
        )

    from eventbus.broker import TopicSpec

    spec = TopicSpec(name, args.partitions or -1, args.replication_factor or -1, dict(configs), assigned)
    async with open_bus(args, create=True) as bus:
        outcome = (await bus.admin.create_topics([spec]))[name]
    created = not (args.if_not_exists and isinstance(outcome, TopicAlreadyExists))
    if created and isinstance(outcome, KafkaError):
        raise outcome
    if created and ("." in name or "_" in name):
        out.note(
            f"warning: {name!r} holds a period or an underscore: names that differ only in these collide in "
            "Kafka's metric names, so use one of the two throughout"
        )
    if args.url.startswith("memory:"):
        out.note("warning: memory:// is forgotten when this command ends")
    out.answer(
        {"topic": name, "created": created},
        f"Created topic {name}." if created else f"Topic {name} exists already; left as it is.",
    )


async def describe_topics(args: argparse.Namespace) -> None:
    name, out = topic_of(args), Output.of(args)
    filters = [flag for flag in _ONLY if getattr(args, flag.replace("-", "_"))]
    if len(filters) > 1:
        raise UsageError(f"{args.program}: --{filters[0]} and --{filters[1]}: give one of the two")

    async with open_bus(args) as bus:
        topics = {topic.name: topic for topic in await bus.admin.describe_topics()}
    if args.topic_id is not None:
        topics = {name: topic for name, topic in topics.items() if topic.topic_id == args.topic_id}
        if not topics and not args.if_exists:
            raise UnknownTopicOrPartition(f"there is no topic of the id {args.topic_id!r}")
    chosen = [topics[one] for one in matching(name, list(topics), required=not args.if_exists)]
    shown = [topic for topic in chosen if not (args.exclude_internal and topic.is_internal)]
    if out.json:
        out.data([_as_json(topic) for topic in shown])
        return
    for topic in shown:
        for line in _filtered_lines(topic, filters[0]) if filters else kafka_lines(topic):
            out.line(line)


_ONLY = {
    "topics-with-overrides": "only topics that have configurations of their own",
    "under-replicated-partitions": "only partitions that lack a copy",
    "unavailable-partitions": "only partitions that have no leader",
    "under-min-isr-partitions": "only partitions with fewer copies in step than min.insync.replicas",
    "at-min-isr-partitions": "only partitions with just as many",
}
"""Filters of describe, as in Kafka's tool."""


def _filtered_lines(topic: TopicDescription, only: str) -> list[str]:
    """What a filter leaves of `kafka_lines`: the topic's own line, or some of its partitions' lines."""
    first, *lines = kafka_lines(topic)
    if only == "topics-with-overrides":
        return [first] if any(entry.source == "topic" for entry in topic.configs.values()) else []
    least = int(topic.configs["min.insync.replicas"].value)
    chosen: dict[str, Callable[[PartitionDescription], bool]] = {
        "under-replicated-partitions": lambda part: len(part.isr) < len(part.replicas),
        "unavailable-partitions": lambda part: part.leader < 0,
        "under-min-isr-partitions": lambda part: len(part.isr) < least,
        "at-min-isr-partitions": lambda part: len(part.isr) == least,
    }
    return [line for part, line in zip(topic.partitions, lines, strict=True) if chosen[only](part)]


def kafka_lines(topic: TopicDescription) -> list[str]:
    """Return a topic in the words and tabs of ``kafka-topics --describe``."""
    configs = ",".join(f"{key}={entry.value}" for key, entry in sorted(_own_configs(topic).items()))
    replication = max((len(part.replicas) for part in topic.partitions), default=0)
    lines = [
        f"Topic: {topic.name}\tTopicId: {topic.topic_id}\tPartitionCount: {len(topic.partitions)}\t"
        f"ReplicationFactor: {replication}\tConfigs: {configs}"
    ]
    lines += [
        f"\tTopic: {topic.name}\tPartition: {part.partition}\tLeader: {part.leader}\t"
        f"Replicas: {_ids(part.replicas)}\tIsr: {_ids(part.isr)}"
        for part in topic.partitions
    ]
    return lines


def _own_configs(topic: TopicDescription) -> dict[str, Any]:
    """Return the configurations that are not the defaults."""
    return {key: entry for key, entry in topic.configs.items() if entry.value != entry.default}


def _ids(brokers: Any) -> str:
    return ",".join(str(broker) for broker in brokers)


def _as_json(topic: TopicDescription) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": str(topic.topic_id),
        "is_internal": topic.is_internal,
        "partition_count": len(topic.partitions),
        "replication_factor": max((len(part.replicas) for part in topic.partitions), default=0),
        "configs": {key: entry.value for key, entry in sorted(_own_configs(topic).items())},
        "partitions": [
            {
                "partition": part.partition,
                "leader": part.leader,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "log_start_offset": part.log_start_offset,
                "high_watermark": part.high_watermark,
                "last_stable_offset": part.last_stable_offset,
                "log_end_offset": part.log_end_offset,
                "size_bytes": part.size_bytes,
            }
            for part in topic.partitions
        ],
    }


async def alter_topic(args: argparse.Namespace) -> None:
    name, out = required_topic(args), Output.of(args)
    configs = key_values(args.config, "--config")
    deleted: list[str] = args.delete_config or []
    if args.partitions is None and not configs and not deleted:
        raise UsageError("eventbus topics alter: nothing to change: give --partitions, --config or --delete-config")

    async with open_bus(args) as bus:
        names = matching(name, await bus.admin.list_topics(internal=True), required=not args.if_exists)
        for one in names:
            if args.partitions is not None:
                await _grow(bus, one, args.partitions, out)
            if configs or deleted:
                await bus.admin.alter_configs(one, configs, deleted)
            out.answer(
                {"topic": one, "partitions": args.partitions, "set": configs, "deleted": deleted},
                f"Altered topic {one}.",
            )


async def _grow(bus: EventBus, topic: str, total_count: int, out: Output) -> None:
    keyed = await _has_keys(bus, topic)
    await bus.admin.add_partitions(topic, total_count)
    if keyed:
        out.note(
            f"warning: {topic!r} holds keyed records: from now on a key may go to another partition than its older "
            "records, so the order of one key across the change is lost"
        )


async def _has_keys(bus: EventBus, topic: str) -> bool:
    """Whether one of the first records of ``topic`` has a key: a look, not a search."""
    [description] = await bus.admin.describe_topics([topic])
    filled = [
        TopicPartition(topic, part.partition)
        for part in description.partitions
        if part.log_end_offset > part.log_start_offset
    ]
    if not filled:
        return False
    async with bus.new_consumer(start="earliest") as consumer:
        await consumer.assign(filled)
        records = await consumer.poll(timeout_ms=500, max_records=100)
    return any(record.key is not None for record in records)


async def delete_topic(args: argparse.Namespace) -> None:
    name, out = required_topic(args), Output.of(args)

    async with open_bus(args) as bus:
        names = matching(name, await bus.admin.list_topics(internal=True), required=not args.if_exists)
        for one in names:
            await bus.admin.delete_topics([one])
            out.answer({"topic": one, "deleted": True}, f"Deleted topic {one}.")
    if not names:
        out.answer({"topic": name, "deleted": False}, f"There is no topic {name}.")


async def delete_records(args: argparse.Namespace) -> None:
    name, out = topic_of(args), Output.of(args)
    if (name is None) == (args.offset_json_file is None):
        raise UsageError(f"{args.program}: which topic? Give its name, or --offset-json-file, one of the two")
    if name is not None and args.before is None:
        raise UsageError("eventbus topics delete-records: say up to where: --before OFFSET, or --before -1 for all")

    async with open_bus(args) as bus:
        if name is None:
            before = read_offsets_file(args.offset_json_file)
        else:
            [topic] = await bus.admin.describe_topics([name])
            partitions = range(len(topic.partitions)) if args.partition is None else [args.partition]
            before = {TopicPartition(name, number): args.before for number in partitions}
        starts = await bus.admin.delete_records(before)
    if name is not None:
        out.table(["partition", "begins at"], [(one.partition, starts[one]) for one in before])
    elif out.json:
        out.data([{"topic": one.topic, "partition": one.partition, "begins_at": starts[one]} for one in before])
    else:  # the lines of Kafka's tool
        out.line("Executing records delete operation")
        out.line("Records delete operation completed:")
        for one in before:
            out.line(f"partition: {one}\tlow_watermark: {starts[one]}")


class _OffsetOf(msgspec.Struct):
    topic: str
    partition: int
    offset: int


class _OffsetsFile(msgspec.Struct):
    partitions: list[_OffsetOf]
    version: int = 1


def read_offsets_file(path: str) -> dict[TopicPartition, int]:
    """``{"partitions": [{"topic": ..., "partition": ..., "offset": ...}], "version": 1}``. Raises UsageError."""
    try:
        told = msgspec.json.decode(Path(path).read_bytes(), type=_OffsetsFile)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"--offset-json-file {path}: {getattr(error, 'strerror', None) or error}") from None
    if told.version != 1:
        raise UsageError(f"--offset-json-file {path}: version {told.version}; there is only version 1")
    return {TopicPartition(one.topic, one.partition): one.offset for one in told.partitions}
