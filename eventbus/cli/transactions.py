"""``eventbus transactions list | describe | abort``: as Kafka's kafka-transactions."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.cli.shell import open_bus, run_async


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
    listing.set_defaults(run=list_transactions)

    describe = actions.add_parser("describe", help="one transactional id: producer, epoch, since when, where")
    _add_id(describe)
    describe.set_defaults(run=describe_transaction)

    abort = actions.add_parser("abort", help="abort what a transactional id has open, and fence its producer")
    _add_id(abort)
    abort.set_defaults(run=abort_transaction)


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", metavar="ID", help="the transactional id")
    parser.add_argument("--transactional-id", dest="id_option", metavar="ID", help=argparse.SUPPRESS)


def _id_of(args: argparse.Namespace) -> str:
    transactional_id: str | None = args.id or args.id_option
    if transactional_id is None:
        raise UsageError(f"{args.program}: which one? Give its id; see: eventbus transactions list")
    return transactional_id


def list_transactions(args: argparse.Namespace) -> int:
    out = Output.of(args)
    wanted = {state.strip().lower() for state in (args.state or "").split(",") if state}

    async def main() -> None:
        async with open_bus(args) as bus:
            listed = sorted(await bus.admin.list_transactions())
        out.table(
            ["transactional-id", "producer-id", "state"],
            [one for one in listed if not wanted or one.state.lower() in wanted],
        )

    return run_async(main)


def describe_transaction(args: argparse.Namespace) -> int:
    transactional_id, out = _id_of(args), Output.of(args)

    async def main() -> None:
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

    return run_async(main)


def abort_transaction(args: argparse.Namespace) -> int:
    transactional_id, out = _id_of(args), Output.of(args)

    async def main() -> None:
        async with open_bus(args) as bus:
            await bus.admin.abort_transaction(transactional_id)
        out.answer(
            {"transactional_id": transactional_id, "aborted": True},
            f"Aborted the transaction of {transactional_id}; its producer is fenced.",
        )

    return run_async(main)
