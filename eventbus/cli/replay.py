"""``eventbus replay module:bus HANDLER``: a service's own handler over old records, in a group that is thrown away."""

from __future__ import annotations

import argparse
import re
import secrets
from typing import TYPE_CHECKING, Any

from eventbus.cli.group_reset import moment
from eventbus.cli.offsets import EARLIEST, LATEST
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, natural
from eventbus.cli.run import load_bus
from eventbus.cli.shell import run_async, until_signal
from eventbus.errors import ConfigError
from eventbus.suggest import nearest
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.client.handling.handlers import Handler


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "replay",
        help="run a handler over old records again",
        description="Runs one handler of a service over records it may have had before, up to what there is now, as\n"
        "a group of its own that is deleted afterwards: the service's own offsets stay. What the handler\n"
        "does it does again, so it should replace what it had written, not add to it.",
        epilog="  eventbus replay shop:bus revenue --from-beginning\n"
        "  eventbus replay shop:bus revenue --from-datetime 2013-01-31T18:00",
    )
    parser.add_argument("target", metavar="MODULE:BUS", help="as in app:bus, shop.billing:bus or app:make_bus()")
    parser.add_argument("handler", nargs="?", metavar="HANDLER", help="its name; needless if the bus has only one")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--from-beginning", action="store_true", help="from the first record held")
    start.add_argument("--from-datetime", type=moment, metavar="WHEN", help="from a time, as 2013-01-31T18:00 (UTC)")
    start.add_argument("--from-offset", type=natural, metavar="N", help="from this offset, in every partition")
    parser.add_argument("--publish", action="store_true", help="yes, publish the handler's outputs once more")
    parser.set_defaults(run=replay)


def replay(args: argparse.Namespace) -> int:
    bus, out = load_bus(args.target), Output.of(args)
    handler = _choose(bus, args)
    if _publishes(handler) and not args.publish:
        raise UsageError(
            f"{args.program}: handler {handler.__name__!r} publishes, and its readers would get all of it a second "
            "time; if that is wanted, say --publish"
        )
    if bus.url.startswith("memory:"):
        raise ConfigError(f"{args.target} is on {bus.url}, which is empty in every new process: nothing to replay")
    group = f"replay-{handler.__name__}-{secrets.token_hex(3)}"

    async def main() -> int:
        starts = await _prepare(bus, handler, group, args)
        try:
            with bus.in_group(handler, group):
                async with bus, until_signal() as scope:
                    await bus.drain()
        finally:
            reached = await _clean_up(bus, group)
        count = sum(max(reached.get(partition, at) - at, 0) for partition, at in starts.items())
        interrupted = scope.cancel_called
        out.answer(
            {"handler": handler.__name__, "group": group, "offsets": count, "interrupted": interrupted},
            f"{'Interrupted after' if interrupted else 'Replayed'} {count:,} record(s) through {handler.__name__}.",
        )
        return 130 if interrupted else 0

    return run_async(main)


def _choose(bus: EventBus, args: argparse.Namespace) -> Handler[Any, Any]:
    by_name = {handler.__name__: handler for handler in bus.handlers}
    if not by_name:
        raise ConfigError(f"{args.target} has no handlers: nothing to replay through")
    name: str = args.handler or ""
    if not name and len(by_name) == 1:
        return next(iter(by_name.values()))
    if name in by_name:
        return by_name[name]
    wrong = f"there is no handler {name!r}{nearest(name, by_name)}" if name else "which handler?"
    raise UsageError(f"{args.program}: {wrong}; {args.target} has {', '.join(sorted(by_name))}")


def _publishes(handler: Handler[Any, Any]) -> bool:
    """As far as can be seen: what it sends with `bus.send` inside is its own affair."""
    return handler.producer is not None or handler.signature.transaction_name is not None


async def _prepare(
    bus: EventBus, handler: Handler[Any, Any], group: str, args: argparse.Namespace
) -> dict[TopicPartition, int]:
    """Commit where the throw-away group begins. The bus is opened without its handlers: they must not start yet."""
    async with _without_handlers(bus) as log:
        topics = await log.admin.describe_topics(list(handler.spec.topics) or None)
        pattern = handler.spec.pattern
        partitions = [
            TopicPartition(topic.name, part.partition)
            for topic in topics
            if pattern is None or (re.fullmatch(pattern, topic.name) and not topic.is_internal)
            for part in topic.partitions
        ]
        when: int = EARLIEST if args.from_datetime is None else args.from_datetime
        starts = await _offsets(log, partitions, when)
        if args.from_offset is not None:
            last = await _offsets(log, partitions, LATEST)
            starts = {at: min(max(args.from_offset, first), last[at]) for at, first in starts.items()}
        await log.admin.alter_group_offsets(group, starts)
        return starts


async def _offsets(log: EventBus, partitions: list[TopicPartition], when: int) -> dict[TopicPartition, int]:
    """As `Admin.list_offsets`; the end where there is no record so late."""
    last = await log.admin.list_offsets(dict.fromkeys(partitions, LATEST))
    found = await log.admin.list_offsets(dict.fromkeys(partitions, when))
    return {at: one.offset if one.offset >= 0 else last[at].offset for at, one in found.items()}


async def _clean_up(bus: EventBus, group: str) -> dict[TopicPartition, int]:
    """How far the group came; then it is forgotten, also after Ctrl-C."""
    import anyio

    reached: dict[TopicPartition, int] = {}
    with anyio.CancelScope(shield=True):
        async with _without_handlers(bus) as log:
            reached |= {at: offset.offset for at, offset in (await log.admin.group_offsets(group)).items()}
            await log.admin.delete_group(group)
    return reached


def _without_handlers(bus: EventBus) -> EventBus:
    """Another bus on the same log: administration alone."""
    from eventbus import EventBus

    return EventBus(bus.url, client_id="eventbus-cli")
