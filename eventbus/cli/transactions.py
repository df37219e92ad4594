"""``eventbus transactions list | describe | abort | ...``: as Kafka's kafka-transactions."""

from __future__ import annotations

import argparse
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, natural
from eventbus.cli.shell import open_bus, open_log
from eventbus.errors import InvalidTxnState
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus.coordinator.requests import TransactionDescription


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "transactions",
        help="list, describe and abort transactions",
        description="Transactional ids and what their producers have open. Opening a log that nobody has open aborts\n"
        "what was left open there: its producers are gone.",
    )
    actions = parser.add_subparsers(metavar="ACTION", title="actions")

    listing = actions.add_parser("list", help="every transactional id, with its state")
    listing.add_argument("--state", metavar="STATES", help="only those in these states, as Ongoing,CompleteAbort")
    listing.add_argument("--duration-filter", type=int, default=-1, metavar="MS", help="only those open for longer")
    listing.add_argument("--transactional-id-pattern", metavar="PATTERN", help="only ids that match")
    listing.set_defaults(run=list_transactions)

    describe = actions.add_parser("describe", help="one transactional id: producer, epoch, since when, where")
    _add_id(describe)
    describe.set_defaults(run=describe_transaction)

    producers = actions.add_parser("describe-producers", help="what a partition remembers of those who wrote to it")
    _add_partition(producers, required=True)
    producers.set_defaults(run=describe_producers)

    hanging = actions.add_parser("find-hanging", help="open transactions that no coordinator will end")
    _add_partition(hanging, required=False)
    hanging.add_argument(
        "--max-transaction-timeout", type=natural, default=15, metavar="MINUTES", help="open for longer; default: 15"
    )
    hanging.set_defaults(run=find_hanging)

    abort = actions.add_parser(
        "abort",
        help="abort what a transactional id has open, and fence its producer; or what hangs in a partition",
    )
    _add_id(abort)
    _add_partition(abort, required=False)
    abort.add_argument("--start-offset", type=natural, metavar="N", help="where what hangs in the partition began")
    for flag in ("producer-id", "producer-epoch", "coordinator-epoch"):
        abort.add_argument(f"--{flag}", type=int, metavar="N", help=argparse.SUPPRESS)  # or these three, as of old
    abort.set_defaults(run=abort_transaction)

    force = actions.add_parser("forceTerminateTransaction", help="as abort, by Kafka's other name")
    force.add_argument("--transactionalId", dest="id", required=True, metavar="ID")
    force.set_defaults(run=abort_transaction, id_option=None, topic=None)


def _add_partition(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--topic", required=required, metavar="TOPIC", help="the topic's name")
    parser.add_argument("--partition", type=natural, required=required, metavar="N", help="which of its partitions")
    parser.add_argument("--broker-id", type=int, help=argparse.SUPPRESS)  # there is one copy to ask


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", metavar="ID", help="the transactional id")
    parser.add_argument("--transactional-id", dest="id_option", metavar="ID", help=argparse.SUPPRESS)


def _id_of(args: argparse.Namespace) -> str:
    transactional_id: str | None = args.id or args.id_option
    if transactional_id is None:
        raise UsageError(f"{args.program}: which one? Give its id; see: eventbus transactions list")
    return transactional_id


async def list_transactions(args: argparse.Namespace) -> None:
    out = Output.of(args)
    wanted = {state.strip().lower() for state in (args.state or "").split(",") if state}
    pattern = _pattern(args)

    async with open_bus(args) as bus:
        listed = [
            one
            for one in sorted(await bus.admin.list_transactions())
            if (not wanted or one.state.lower() in wanted)
            and (pattern is None or pattern.fullmatch(one.transactional_id))
        ]
        if args.duration_filter >= 0:
            described = await bus.admin.describe_transactions([one.transactional_id for one in listed])
            before_ms = round(time.time() * 1000) - args.duration_filter
            old = {one.transactional_id for one in described if 0 <= one.start_ms < before_ms and _is_open(one)}
            listed = [one for one in listed if one.transactional_id in old]
    out.table(["transactional-id", "producer-id", "state"], listed)


def _pattern(args: argparse.Namespace) -> re.Pattern[str] | None:
    if args.transactional_id_pattern is None:
        return None
    try:
        return re.compile(args.transactional_id_pattern)
    except re.error as error:
        raise UsageError(f"--transactional-id-pattern {args.transactional_id_pattern!r}: {error}") from None


def _is_open(one: TransactionDescription) -> bool:
    return not one.state.startswith(("Complete", "Empty", "Dead"))


async def describe_transaction(args: argparse.Namespace) -> None:
    transactional_id, out = _id_of(args), Output.of(args)

    async with open_bus(args) as bus:
        [one] = await bus.admin.describe_transactions([transactional_id])
    is_open = one.start_ms >= 0
    if out.json:
        out.data(
            {
                "transactional_id": one.transactional_id,
                "producer_id": one.producer_id,
                "producer_epoch": one.producer_epoch,
                "state": one.state,
                "timeout_ms": one.timeout_ms,
                "start_ms": one.start_ms if is_open else None,
                "partitions": [{"topic": topic, "partition": number} for topic, number in sorted(one.partitions)],
            }
        )
        return
    began = datetime.fromtimestamp(one.start_ms / 1000, UTC).isoformat(timespec="seconds") if is_open else None
    open_ms = round(time.time() * 1000) - one.start_ms if is_open else None
    out.table(
        ["transactional-id", "producer-id", "epoch", "state", "timeout-ms", "began", "open-ms", "partitions"],
        [
            (
                one.transactional_id,
                one.producer_id,
                one.producer_epoch,
                one.state,
                one.timeout_ms,
                began,
                open_ms,
                ",".join(map(str, sorted(one.partitions))) or None,
            )
        ],
    )


async def abort_transaction(args: argparse.Namespace) -> None:
    out = Output.of(args)
    if args.topic is not None:
        return await _abort_in_partition(args, out)
    transactional_id = _id_of(args)

    async with open_bus(args) as bus:
        await bus.admin.abort_transaction(transactional_id)
    out.answer(
        {"transactional_id": transactional_id, "aborted": True},
        f"Aborted the transaction of {transactional_id}; its producer is fenced.",
    )


# by partition, whatever the coordinator knows of it -------------------------------------------------------------------


def _moment(ms: int) -> str | None:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms >= 0 else None


async def describe_producers(args: argparse.Namespace) -> None:
    out, partition = Output.of(args), TopicPartition(args.topic, args.partition)

    async with open_bus(args) as bus:
        found = (await bus.admin.describe_producers([partition]))[partition]
    out.table(
        ["producer-id", "producer-epoch", "coordinator-epoch", "last-sequence", "last-timestamp", "start-offset"],
        [
            (
                one.producer_id,
                one.producer_epoch,
                one.coordinator_epoch,
                one.last_sequence,
                _moment(one.last_timestamp_ms),
                one.transaction_start_offset if one.transaction_start_offset >= 0 else None,
            )
            for one in found
        ],
    )


async def find_hanging(args: argparse.Namespace) -> None:
    """Transactions that are open in a partition for longer than any may be, and that no coordinator has there."""
    out = Output.of(args)
    if args.partition is not None and args.topic is None:
        raise UsageError(f"{args.program}: --partition {args.partition} of which topic? Give --topic")

    async with open_bus(args) as bus:
        described = await bus.admin.describe_topics(None if args.topic is None else [args.topic])
        partitions = [
            TopicPartition(topic.name, part.partition)
            for topic in described
            for part in topic.partitions
            if args.partition in (None, part.partition) and part.last_stable_offset < part.high_watermark
        ]
        found = await bus.admin.describe_producers(partitions)
        ids = [one.transactional_id for one in await bus.admin.list_transactions()]
        known = {
            (one.producer_id, partition)
            for one in await bus.admin.describe_transactions(ids)
            if _is_open(one)
            for partition in one.partitions
        }
    now_ms = round(time.time() * 1000)
    limit_ms = now_ms - args.max_transaction_timeout * _MINUTE_MS
    rows = [
        (
            *partition,
            one.producer_id,
            one.producer_epoch,
            one.coordinator_epoch,
            one.transaction_start_offset,
            _moment(one.last_timestamp_ms),
            (now_ms - one.last_timestamp_ms) // _MINUTE_MS,
        )
        for partition, producers in found.items()
        for one in producers
        if one.transaction_start_offset >= 0
        and one.last_timestamp_ms <= limit_ms
        and (one.producer_id, partition) not in known
    ]
    out.table(_HANGING, rows)


_MINUTE_MS = 60_000
_HANGING = ["topic", "partition", "producer-id", "producer-epoch", "coordinator-epoch", "start-offset",
            "last-timestamp", "minutes"]  # fmt: skip


async def _abort_in_partition(args: argparse.Namespace, out: Output) -> None:
    """Write an abort marker for one producer, as a coordinator would that knew of it."""
    told = (args.producer_id, args.producer_epoch, args.coordinator_epoch)
    if args.partition is None or (args.start_offset is None and None in told):
        raise UsageError(
            f"{args.program}: which one? Give --partition and --start-offset (see: eventbus transactions find-hanging)"
        )
    partition = TopicPartition(args.topic, args.partition)

    from eventbus.cli.ask import ask, raise_error
    from eventbus.protocol import messages as m

    bus, backend = open_log(args)
    async with bus:
        producer_id, producer_epoch, coordinator_epoch = told
        if args.start_offset is not None:
            found = (await bus.admin.describe_producers([partition]))[partition]
            [one] = [one for one in found if one.transaction_start_offset == args.start_offset] or [None]
            if one is None:
                raise InvalidTxnState(f"no transaction is open in {partition} since offset {args.start_offset}")
            producer_id, producer_epoch = one.producer_id, one.producer_epoch
            coordinator_epoch = max(one.coordinator_epoch, 0)
        marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            transaction_result=False,
            topics=[
                m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                    name=partition.topic, partition_indexes=[partition.partition]
                )
            ],
        )
        answer: m.WriteTxnMarkersResponse = await ask(backend, m.WriteTxnMarkersRequest(markers=[marker]))
    raise_error(answer.markers[0].topics[0].partitions[0])
    out.answer(
        {"topic": partition.topic, "partition": partition.partition, "producer_id": producer_id, "aborted": True},
        f"Aborted what producer {producer_id} had open in {partition}.",
    )
