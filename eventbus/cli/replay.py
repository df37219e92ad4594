"""``eventbus replay``: a handler over old records, in a group that is thrown away."""

from __future__ import annotations

import argparse
import copy
import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from eventbus.cli.app import EXIT_INTERRUPTED
from eventbus.cli.offsets import EARLIEST, LATEST
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, natural
from eventbus.cli.run import import_named, load_bus
from eventbus.cli.shell import open_log, run_async, until_signal
from eventbus.cli.window import offsets_at, offsets_within, point_in_time, up_to
from eventbus.errors import ConfigError, HandlerError
from eventbus.suggest import nearest
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.backends.base import Backend
    from eventbus.client.admin import Admin
    from eventbus.client.handling.handlers import Handler
    from eventbus.client.handling.invocation import HandlerCounts

_TOLD = 5
"""Records passed over that are named."""


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "replay",
        help="run a handler over old records again",
        description="Runs one handler over records that are in the log already, from one point to another, as a\n"
        "group of its own that is deleted afterwards: the service's own offsets stay. What the handler does\n"
        "it does again, so it should replace what it had written, not add to it. A record that fails does not\n"
        "go to the handler's retries or dead letters: --on-error says what becomes of it.",
        epilog="a handler of a service, over the topics it reads:\n"
        "  eventbus replay shop:bus revenue --from-beginning\n"
        "  eventbus replay shop:bus revenue --from 2013-01-31T18:00 --to 2013-02-01\n"
        "a topic, through any function that takes a record or its payload:\n"
        "  eventbus replay sales --from 36h --to 1h --handler shop:revenue",
    )
    parser.add_argument("target", metavar="MODULE:BUS | TOPIC", help="app:bus, shop.billing:bus or app:make_bus()")
    parser.add_argument("handler", nargs="?", metavar="HANDLER", help="its name; needless if the bus has only one")
    parser.add_argument("--handler", dest="function", metavar="MODULE:FUNCTION", help="what a TOPIC's records go to")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--from-beginning", action="store_true", help="from the first record held")
    start.add_argument(
        "--from", "--from-datetime", dest="start", type=point_in_time, metavar="WHEN",
        help="from a time, as 2013-01-31T18:00 (UTC), or how long ago: 90m, 36h, 7d",
    )  # fmt: skip
    start.add_argument("--from-offset", type=natural, metavar="N", help="from this offset, in every partition")
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "--to", "--to-datetime", dest="end", type=point_in_time, metavar="WHEN",
        help="up to this time, the same way (default: what there is now)",
    )  # fmt: skip
    end.add_argument("--to-offset", type=natural, metavar="N", help="up to this offset, which is left out")
    parser.add_argument("--publish", action="store_true", help="yes, publish the handler's outputs once more")
    parser.add_argument("--on-error", choices=["stop", "skip"], help="of a record that fails (default: the handler's)")
    parser.set_defaults(run=replay)


def replay(args: argparse.Namespace) -> int:
    import secrets

    from eventbus.backends.clock import system_clock

    _check_window(args)
    bus, handler = _of_topic(args) if args.function is not None else _of_service(args)
    out = Output.of(args)
    if _publishes(handler) and not args.publish:
        raise UsageError(
            f"{args.program}: handler {handler.__name__!r} publishes, and its readers would get all of it a second "
            "time; if that is wanted, say --publish"
        )
    log = _log(bus, args)
    if log.url.startswith("memory:"):
        raise ConfigError(f"{args.target} is on {log.url}, which is empty in every new process: nothing to replay")
    group = f"replay-{handler.__name__}-{secrets.token_hex(3)}"

    async def main() -> int:
        async with _administered(log) as admin:
            window = await _window(admin, handler, args)
            await admin.alter_group_offsets(group, window.starts)
        try:
            with (
                bus.context.on_backend(up_to(log, window.ends), system_clock),
                bus.context.in_group(handler, group),
                _told(out),
            ):
                async with bus, until_signal() as scope:
                    counts = bus.context.runners[0].counts
                    await bus.drain()
        except HandlerError:
            out.note("--on-error skip passes over what fails, and names it")
            raise
        finally:
            reached = await _clean_up(log, group)
        _say(out, handler, group, window, reached, counts, scope.cancel_called)
        return EXIT_INTERRUPTED if scope.cancel_called else 0

    return run_async(main)


def _say(
    out: Output, handler: Handler[Any, Any], group: str, window: _Window, reached: Mapping[TopicPartition, int],
    counts: HandlerCounts, interrupted: bool,
) -> None:  # fmt: skip
    offsets = sum(max(reached.get(partition, at) - at, 0) for partition, at in window.starts.items())
    # Some of the offsets may be of transactions' marks; and what a transaction gave up may have been counted twice.
    records, skipped = min(counts.handled + counts.skipped, offsets), counts.skipped
    text = f"{'Interrupted after' if interrupted else 'Replayed'} {records:,} record(s) through {handler.__name__}"
    out.answer(
        {
            "handler": handler.__name__,
            "group": group,
            "offsets": offsets,
            "records": records,
            "skipped": skipped,
            "interrupted": interrupted,
        },
        f"{text}; {skipped:,} of them failed and were passed over." if skipped else f"{text}.",
    )


@contextmanager
def _told(out: Output) -> Generator[None]:
    """Records that fail and are passed over, as lines on stderr: the first few of them."""

    class Handler(logging.Handler):
        left = _TOLD

        def emit(self, record: logging.LogRecord) -> None:
            if "on_error='skip'" in record.getMessage() and self.left >= 0:
                out.note(record.getMessage() if self.left else "... and so on, not shown")
                self.left -= 1

    logger, handler = logging.getLogger("eventbus.runner"), Handler(logging.ERROR)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


# what is run ----------------------------------------------------------------------------------------------------------


def _of_service(args: argparse.Namespace) -> tuple[EventBus, Handler[Any, Any]]:
    """``module:bus HANDLER``."""
    if ":" not in args.target:
        raise UsageError(
            f"{args.program}: {args.target!r} is not of the form module:bus, as in app:bus; to run the topic "
            f"{args.target!r} through a function, name that: --handler module:function"
        )
    bus = load_bus(args.target)
    return bus, _replayed(bus, _choose(bus, args), args)


def _choose(bus: EventBus, args: argparse.Namespace) -> Handler[Any, Any]:
    by_name = {handler.__name__: handler for handler in bus.context.handlers}
    if not by_name:
        raise ConfigError(f"{args.target} has no handlers: nothing to replay through")
    name: str = args.handler or ""
    if not name and len(by_name) == 1:
        return next(iter(by_name.values()))
    if name in by_name:
        return by_name[name]
    wrong = f"there is no handler {name!r}{nearest(name, by_name)}" if name else "which handler?"
    raise UsageError(f"{args.program}: {wrong}; {args.target} has {', '.join(sorted(by_name))}")


def _of_topic(args: argparse.Namespace) -> tuple[EventBus, Handler[Any, Any]]:
    """``TOPIC --handler module:function``: on the bus of the function's module if that has one, else on one of its own.

    The module's bus knows how its payloads are read, and what goes around its handlers.
    """
    from eventbus import EventBus, consumer
    from eventbus.client.handling.handlers import Handler

    if args.handler is not None or ":" in args.target:
        raise UsageError(
            f"{args.program}: --handler goes with a topic alone, as in: {args.program} orders --handler "
            f"{args.function}; without it, name a bus and one of its handlers: {args.program} shop:bus revenue"
        )
    module_name, colon, name = args.function.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"{args.program}: --handler {args.function!r} is not of the form module:function, as in app:f")
    module = import_named(module_name)
    found: Any = getattr(module, name, None)
    if not callable(found) or isinstance(found, (type, EventBus)):
        functions = [key for key, value in vars(module).items() if callable(value) and not isinstance(value, type)]
        wrong = "has no" if found is None else "has no function"
        raise ConfigError(
            f"--handler {args.function}: module {module_name!r} {wrong} {name!r}{nearest(name, functions)}"
        )
    buses = [value for value in vars(module).values() if isinstance(value, EventBus)]
    own = [bus for bus in buses if found in bus.context.handlers] or buses
    bus = own[0] if len(own) == 1 else EventBus(args.url, client_id="eventbus-cli")
    handler = cast("Handler[Any, Any]", found) if isinstance(found, Handler) else consumer(args.target)(found)
    return bus, _replayed(bus, handler, args, topics=(args.target,), pattern=None)


def _replayed(bus: EventBus, handler: Handler[Any, Any], args: argparse.Namespace, **changes: Any) -> Handler[Any, Any]:
    """The handler as it is to run, declared on its bus beside the others: what fails is not tried again later."""
    changes["retry"] = None
    if args.on_error is not None:
        changes["on_error"] = args.on_error
    replayed = copy.copy(handler)
    replayed.spec = msgspec.structs.replace(handler.spec, **changes)
    bus.include(replayed)
    return replayed


def _publishes(handler: Handler[Any, Any]) -> bool:
    """True if its declaration shows that it publishes. What it sends with `bus.send` shows only when it is called."""
    return handler.producer is not None or handler.signature.transaction_name is not None


# from where to where --------------------------------------------------------------------------------------------------


class _Window(NamedTuple):
    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]


def _check_window(args: argparse.Namespace) -> None:
    if args.start == LATEST:
        raise UsageError(f"{args.program}: --from latest leaves nothing to replay")
    if args.end == EARLIEST:
        raise UsageError(f"{args.program}: --to earliest leaves nothing to replay")
    both_times = (args.start or 0) > 0 and (args.end or 0) > 0
    if both_times and args.start >= args.end:
        raise UsageError(f"{args.program}: --to is not behind --from: there is nothing between them")
    if args.from_offset is not None and args.to_offset is not None and args.from_offset >= args.to_offset:
        raise UsageError(
            f"{args.program}: --to-offset {args.to_offset} is not behind --from-offset {args.from_offset}: there is "
            "nothing between them (the record at --to-offset is left out)"
        )


async def _window(admin: Admin, handler: Handler[Any, Any], args: argparse.Namespace) -> _Window:
    topics = await admin.describe_topics(list(handler.spec.topics) or None)
    partitions = [
        TopicPartition(topic.name, part.partition)
        for topic in topics
        if handler.spec.reads(topic.name)
        for part in topic.partitions
    ]
    if args.from_offset is not None:
        starts = await offsets_within(admin, partitions, args.from_offset)
    else:
        starts = await offsets_at(admin, partitions, EARLIEST if args.start is None else args.start)
    if args.to_offset is not None:
        ends = await offsets_within(admin, partitions, args.to_offset)
    else:
        ends = await offsets_at(admin, partitions, LATEST if args.end is None else args.end)
    return _Window(starts, ends)


# the log --------------------------------------------------------------------------------------------------------------


def _log(bus: EventBus, args: argparse.Namespace) -> Backend:
    """Return the bus's own log, or the one that ``--url`` names."""
    if args.url_is_default:
        args = argparse.Namespace(**{**vars(args), "url": bus.url, "url_is_default": False})
    return open_log(args)[1]


@asynccontextmanager
async def _administered(log: Backend) -> AsyncGenerator[Admin]:
    """The log's administration, while no handler runs."""
    from eventbus import EventBus

    async with EventBus(log.url, client_id="eventbus-cli", backend=log) as bus:
        yield bus.admin


async def _clean_up(log: Backend, group: str) -> dict[TopicPartition, int]:
    """How far the group came; then it is forgotten, also after Ctrl-C."""
    import anyio

    reached: dict[TopicPartition, int] = {}
    with anyio.CancelScope(shield=True):
        async with _administered(log) as admin:
            reached |= {at: offset.offset for at, offset in (await admin.group_offsets(group)).items()}
            await admin.delete_group(group)
    return reached
