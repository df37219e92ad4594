"""``eventbus schedule list | show | cancel``: records that wait for their time, and functions with a timetable."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from eventbus.cli.output import Output, text_or_base64
from eventbus.cli.parser import Subcommands, UsageError, positive
from eventbus.cli.shell import open_bus

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.client.scheduling.partition_schedule import Pending

EPILOG = """\
  eventbus schedule list                     what waits, the next first
  eventbus schedule show reminder-17         one of them, with its value
  eventbus schedule cancel reminder-17       give it up; a function is every:NAME, until its service starts again

The records of a service stand in the topic _scheduled.SERVICE; --service names one where there are several.
"""


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("schedule", help="records for later: list, show, cancel", epilog=EPILOG)
    actions = parser.add_subparsers(metavar="ACTION", title="actions")

    listing = actions.add_parser("list", help="what waits, the next first")
    listing.add_argument("--topic", metavar="TOPIC", help="only what goes to this topic")
    listing.add_argument("--dead", action="store_true", help="only what cannot be delivered")
    listing.add_argument("--limit", type=positive, metavar="N", help="so many at most")
    listing.set_defaults(run=list_scheduled)

    show = actions.add_parser("show", help="one of them: time, topic, key, headers, value")
    show.set_defaults(run=show_scheduled)

    cancel = actions.add_parser("cancel", help="give one up: it is never delivered")
    cancel.add_argument("--timeout", type=positive, default=10, metavar="SECONDS", help="for the answer; default: 10")
    cancel.set_defaults(run=cancel_scheduled)
    for action in (show, cancel):
        action.add_argument("id", metavar="ID", help="as list shows it")
    for action in (listing, show, cancel):
        action.add_argument("--service", metavar="NAME", help="whose; default: of every service")


async def _topics(bus: EventBus, args: argparse.Namespace) -> list[str]:
    from eventbus.client.scheduling.entries import topic_of

    there = [name for name in await bus.admin.list_topics() if name.startswith(topic_of(""))]
    if args.service is None:
        return there
    return [name for name in there if name == topic_of(args.service)]


async def _waiting(bus: EventBus, args: argparse.Namespace) -> list[tuple[str, Pending]]:
    from eventbus.client.scheduling.cancelling import waiting

    found = [(topic, one) for topic in await _topics(bus, args) for one in await waiting(bus, topic)]
    return sorted(found, key=lambda pair: (pair[1].due_ms, pair[1].offset))


def _described(topic: str, one: Pending) -> dict[str, Any]:
    from eventbus.client.scheduling.entries import Entry, Every, topic_of
    from eventbus.client.scheduling.times import moment

    common = {
        "id": one.id,
        "service": topic.removeprefix(topic_of("")),
        "due": moment(one.due_ms).isoformat(timespec="milliseconds"),
        "due_ms": one.due_ms,
    }
    if isinstance(one.item, Every):
        return {
            **common,
            "topic": one.item.topic,
            "every": str(one.item.timetable),
            "missed": one.item.timetable.missed,
        }
    assert isinstance(one.item, Entry)
    return {
        **common,
        "topic": one.item.topic,
        "partition": one.item.partition,
        **text_or_base64("key", one.item.key),
        **text_or_base64("value", one.item.value),
        "headers": [{"name": name, **text_or_base64("value", value)} for name, value in one.item.headers],
        "error": one.item.error,
    }


async def list_scheduled(args: argparse.Namespace) -> None:
    out = Output.of(args)

    async with open_bus(args) as bus:
        found = [_described(topic, one) for topic, one in await _waiting(bus, args)]
    found = [one for one in found if args.topic in (None, one["topic"]) and (one.get("error") or not args.dead)]
    out.table(
        ["id", "due", "topic", "service", "what"],
        [
            (one["id"], one["due"], one["topic"], one["service"], _what(one))
            for one in found[: args.limit or len(found)]
        ],
    )
    if args.limit is not None and len(found) > args.limit:
        out.note(f"{len(found) - args.limit:,} more")


def _what(one: dict[str, Any]) -> str:
    if one.get("error"):
        return f"cannot be delivered: {one['error']}"
    return one.get("every", "record")


async def show_scheduled(args: argparse.Namespace) -> None:
    out = Output.of(args)

    async with open_bus(args) as bus:
        topic, one = await _chosen(bus, args)
    described = _described(topic, one)
    if out.json:
        out.data(described)
        return
    for name, value in described.items():
        if value not in (None, "", []):
            out.line(f"{name.replace('_', '-'):10} {value}")


async def _chosen(bus: EventBus, args: argparse.Namespace) -> tuple[str, Pending]:
    found = [(topic, one) for topic, one in await _waiting(bus, args) if one.id == args.id]
    if not found:
        raise UsageError(f"{args.program}: nothing with the id {args.id!r} waits; see: eventbus schedule list")
    if len(found) > 1:
        raise UsageError(f"{args.program}: several services have an id {args.id!r}: say which, --service NAME")
    return found[0]


async def cancel_scheduled(args: argparse.Namespace) -> int:
    out = Output.of(args)

    from eventbus.client.scheduling.cancelling import ask, ask_to_cancel

    async with open_bus(args) as bus:
        topic, one = await _chosen(bus, args)
        [described] = await bus.admin.describe_topics([topic])
        if args.url.startswith("kafka:"):
            cancelled = await ask_to_cancel(bus, topic, len(described.partitions), one.id, args.timeout)
        else:  # nobody else has the log open: whoever delivers next reads this first
            await ask(bus, topic, len(described.partitions), one.id)
            cancelled = True
    words = "is cancelled" if cancelled else "was delivered meanwhile"
    out.answer({"id": one.id, "cancelled": cancelled}, f"{one.id} {words}")
    return 0 if cancelled else 1
