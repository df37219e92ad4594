"""``eventbus log-dirs describe``: what each partition takes on the disk, as kafka-log-dirs tells it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands
from eventbus.cli.shell import open_log
from eventbus.error_codes import KAFKA_ERRORS

if TYPE_CHECKING:
    from eventbus.protocol.messages import DescribeLogDirsResponse


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("log-dirs", help="sizes of partitions on the disk")
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    # In this tool alone --broker-list is no old name of --bootstrap-server.
    describe = actions.add_parser(
        "describe", help="bytes of each partition, in one JSON document", conflict_handler="resolve"
    )
    describe.add_argument("--topic-list", metavar="TOPIC,TOPIC", help="default: all topics")
    describe.add_argument("--broker-list", metavar="ID,ID", help="default: all brokers", dest="brokers")
    describe.set_defaults(run=describe_log_dirs)


async def describe_log_dirs(args: argparse.Namespace) -> None:
    out = Output.of(args)
    wanted = {name.strip() for name in (args.topic_list or "").split(",") if name.strip()}
    brokers = [text.strip() for text in (args.brokers or "").split(",") if text.strip()]

    from eventbus.cli.ask import ask
    from eventbus.protocol import messages as m

    bus, backend = open_log(args)
    async with bus:
        cluster: m.DescribeClusterResponse = await ask(backend, m.DescribeClusterRequest())
        answer: m.DescribeLogDirsResponse = await ask(backend, m.DescribeLogDirsRequest(topics=None))
    ids = [broker.broker_id for broker in cluster.brokers]
    shown = [_as_json(ids[0] if ids else 1, answer, wanted)]
    if not out.json:
        out.line("Querying brokers for log directories information")
        out.line(f"Received log directory information from brokers {','.join(map(str, ids))}")
    out.data({"version": 1, "brokers": [one for one in shown if not brokers or str(one["broker"]) in brokers]})


def _as_json(broker: int, answer: DescribeLogDirsResponse, wanted: set[str]) -> dict[str, Any]:
    """In the fields of Kafka's tool."""
    return {
        "broker": broker,
        "logDirs": [
            {
                "logDir": directory.log_dir,
                "error": KAFKA_ERRORS[directory.error_code].name if directory.error_code else None,
                "partitions": [
                    {
                        "partition": f"{topic.name}-{one.partition_index}",
                        "size": one.partition_size,
                        "offsetLag": one.offset_lag,
                        "isFuture": one.is_future_key,
                    }
                    for topic in directory.topics
                    if not wanted or topic.name in wanted
                    for one in topic.partitions
                ],
            }
            for directory in answer.results
        ],
    }
