"""``eventbus topics``: flags and columns as Kafka's kafka-topics and kafka-delete-records tools."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

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
from eventbus.cli.shell import open_bus, run_async
from eventbus.cli.skew import add_skew
from eventbus.errors import TopicAlreadyExists, UnknownTopicOrPartition

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.broker import TopicDescription


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("topics", help="create, list, describe, alter and delete topics; skew of keys")
    actions = parser.add_subparsers(metavar="ACTION", title="actions")

    listing = actions.add_parser("list", help="the names of all topics")
    listing.add_argument("--exclude-internal", action="store_true", help="leave out topics that begin with __")
    listing.set_defaults(run=list_topics)

    create = actions.add_parser("create", help="create a topic")
    add_topic(create)
    create.add_argument("--partitions", type=positive, default=1, metavar="N", help="default: 1")
    create.add_argument(
        "--replication-factor", type=positive, default=1, metavar="N", help="default: 1; more needs a Kafka cluster"
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
    add_topic(describe, required=False, help="default: all topics")
    describe.add_argument("--exclude-internal", action="store_true", help="leave out topics that begin with __")
    describe.set_defaults(run=describe_topics)

    alter = actions.add_parser("alter", help="add partitions, change configurations")
    add_topic(alter)
    alter.add_argument("--partitions", type=positive, metavar="N", help="the new total; a topic never shrinks")
    alter.add_argument("--config", "--add-config", action="append", metavar="KEY=VALUE", help="set; repeatable")
    alter.add_argument("--delete-config", action="append", metavar="KEY", help="back to the default; repeatable")
    alter.set_defaults(run=alter_topic)

    delete = actions.add_parser("delete", help="delete a topic and its records")
    add_topic(delete)
    delete.add_argument("--if-exists", action="store_true", help="no error when there is no such topic")
    delete.set_defaults(run=delete_topic)

    records = actions.add_parser("delete-records", help="delete the oldest records of a topic, for good")
    add_topic(records)
    records.add_argument("--before", type=int, metavar="OFFSET", help="the first offset to keep; -1: keep none")
    records.add_argument("--partition", type=natural, metavar="N", help="default: every partition")
    records.set_defaults(run=delete_records)

    add_skew(actions)


def list_topics(args: argparse.Namespace) -> int:
    async def main() -> None:
        async with open_bus(args) as bus:
            topics = await bus.admin.describe_topics()
        shown = sorted(
            (topic for topic in topics if not (args.exclude_internal and topic.is_internal)),
            key=lambda topic: topic.name,
        )
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

    return run_async(main)


def create_topic(args: argparse.Namespace) -> int:
    name, out = required_topic(args), Output.of(args)
    configs = key_values(args.config, "--config")

    async def main() -> None:
        created = True
        async with open_bus(args, create=True) as bus:
            try:
                await bus.admin.create_topic(name, args.partitions, args.replication_factor, configs)
            except TopicAlreadyExists:
                if not args.if_not_exists:
                    raise
                created = False
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

    return run_async(main)


def describe_topics(args: argparse.Namespace) -> int:
    name, out = topic_of(args), Output.of(args)

    async def main() -> None:
        async with open_bus(args) as bus:
            topics = await bus.admin.describe_topics(None if name is None else [name])
        shown = [topic for topic in topics if not (args.exclude_internal and topic.is_internal)]
        if out.json:
            out.data([_as_json(topic) for topic in shown])
            return
        for topic in sorted(shown, key=lambda topic: topic.name):
            for line in kafka_lines(topic):
                out.line(line)

    return run_async(main)


def kafka_lines(topic: TopicDescription) -> list[str]:
    """A topic in the words and tabs of ``kafka-topics --describe``."""
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
    """The configurations that are not the defaults."""
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


def alter_topic(args: argparse.Namespace) -> int:
    name, out = required_topic(args), Output.of(args)
    configs = key_values(args.config, "--config")
    deleted: list[str] = args.delete_config or []
    if args.partitions is None and not configs and not deleted:
        raise UsageError("eventbus topics alter: nothing to change: give --partitions, --config or --delete-config")

    async def main() -> None:
        async with open_bus(args) as bus:
            if args.partitions is not None:
                keyed = await _has_keys(bus, name)
                await bus.admin.add_partitions(name, args.partitions)
                if keyed:
                    out.note(
                        f"warning: {name!r} holds keyed records: from now on a key may go to another partition than "
                        "its older records, so the order of one key across the change is lost"
                    )
            if configs or deleted:
                await bus.admin.alter_configs(name, configs, deleted)
        out.answer(
            {"topic": name, "partitions": args.partitions, "set": configs, "deleted": deleted}, f"Altered topic {name}."
        )

    return run_async(main)


async def _has_keys(bus: EventBus, topic: str) -> bool:
    """Whether one of the first records of ``topic`` has a key: a look, not a search."""
    from eventbus import TopicPartition

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


def delete_topic(args: argparse.Namespace) -> int:
    name, out = required_topic(args), Output.of(args)

    async def main() -> None:
        deleted = True
        async with open_bus(args) as bus:
            try:
                await bus.admin.delete_topics([name])
            except UnknownTopicOrPartition:
                if not args.if_exists:
                    raise
                deleted = False
        out.answer(
            {"topic": name, "deleted": deleted}, f"Deleted topic {name}." if deleted else f"There is no topic {name}."
        )

    return run_async(main)


def delete_records(args: argparse.Namespace) -> int:
    name, out = required_topic(args), Output.of(args)
    if args.before is None:
        raise UsageError("eventbus topics delete-records: say up to where: --before OFFSET, or --before -1 for all")

    async def main() -> None:
        from eventbus import TopicPartition

        async with open_bus(args) as bus:
            [topic] = await bus.admin.describe_topics([name])
            partitions = range(len(topic.partitions)) if args.partition is None else [args.partition]
            before = {TopicPartition(name, number): args.before for number in partitions}
            starts = await bus.admin.delete_records(before)
        out.table(["partition", "begins at"], [(number, starts[TopicPartition(name, number)]) for number in partitions])

    return run_async(main)
