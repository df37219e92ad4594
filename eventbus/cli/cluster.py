"""``eventbus cluster cluster-id | list-endpoints``: as kafka-cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, bootstrap_url, natural
from eventbus.cli.shell import open_log

if TYPE_CHECKING:
    from eventbus.protocol.messages import DescribeClusterResponse


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("cluster", help="the cluster's id and brokers")
    actions = parser.add_subparsers(metavar="ACTION", title="actions")

    one = actions.add_parser("cluster-id", help="the id that tells this log from every other")
    _add_short_flags(one)
    one.set_defaults(run=show_id)

    endpoints = actions.add_parser("list-endpoints", help="the brokers, and where clients are told to find them")
    endpoints.add_argument("--include-fenced-brokers", action="store_true", help=argparse.SUPPRESS)  # none is, here
    _add_short_flags(endpoints)
    endpoints.set_defaults(run=list_endpoints)

    unregister = actions.add_parser("unregister", help="take a broker out of a cluster: not from here")
    unregister.add_argument("--id", "-i", type=natural, required=True, metavar="ID", help="which broker")
    _add_short_flags(unregister)
    unregister.set_defaults(run=unregister_broker)


def _add_short_flags(parser: argparse.ArgumentParser) -> None:
    """As this tool of Kafka's alone has them."""
    quiet: Any = argparse.SUPPRESS
    parser.add_argument("-b", "-C", dest="url", type=bootstrap_url, default=quiet, help=argparse.SUPPRESS)
    parser.add_argument("-c", "--config", dest="command_config", default=quiet, help=argparse.SUPPRESS)


def unregister_broker(args: argparse.Namespace) -> int:
    raise UsageError(
        f"{args.program}: a log of one broker has none to spare; of a cluster, use Kafka's own kafka-cluster unregister"
    )


async def show_id(args: argparse.Namespace) -> None:
    cluster = await _describe(args)
    Output.of(args).answer({"cluster_id": cluster.cluster_id}, f"Cluster ID: {cluster.cluster_id}")


async def list_endpoints(args: argparse.Namespace) -> None:
    out = Output.of(args)
    rows = [
        (one.broker_id, one.host, one.port, one.rack, "broker") for one in (await _describe(args)).brokers if one.port
    ]
    if not rows:
        out.note("a log in this process has no endpoints: `eventbus serve` gives it some")
    out.table(["id", "host", "port", "rack", "endpoint_type"], rows)


async def _describe(args: argparse.Namespace) -> DescribeClusterResponse:
    from eventbus.cli.ask import ask
    from eventbus.protocol import messages as m

    bus, backend = open_log(args)
    async with bus:
        return await ask(backend, m.DescribeClusterRequest())
