"""``eventbus outbox retry | drop``: publish refused events again, or delete them. Relays may run meanwhile."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

from eventbus.cli.confirm import confirmed
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.cli.progress import progress_bars
from eventbus.errors import ConfigError
from eventbus.format import format_count
from outbox.cli.choosing import add_choice, choice_of
from outbox.cli.database import add_database, open_outbox

if TYPE_CHECKING:
    from outbox.quarantine import Choice, Quarantine


class _Way(NamedTuple):
    done: str
    help: str
    description: str


_WAYS = {
    "retry": _Way(
        "put back",
        "publish refused events again, with those that wait for them",
        "They go back among those that wait, before the later ones of their key; relays see them at once.\n"
        "What the log refuses again is put aside again.",
    ),
    "drop": _Way(
        "dropped",
        "delete refused events permanently; those that wait for them go on",
        "They are never published. Those that wait for them are, in their order.",
    ),
}


def add(actions: Subcommands) -> None:
    for name, way in _WAYS.items():
        parser = actions.add_parser(
            name,
            help=way.help,
            description=way.description,
            epilog=f"  eventbus outbox {name} 4711 4712\n  eventbus outbox {name} --topic orders --yes",
        )
        add_choice(parser)
        add_database(parser)
        parser.add_argument("--all", action="store_true", help="all there are, where nothing else is chosen")
        parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
        parser.set_defaults(run=release, action=name)


async def release(args: argparse.Namespace) -> int:
    choice, out = choice_of(args), Output.of(args)
    if not (args.chosen or args.topic or args.reason or args.all):
        raise UsageError(
            f"{args.program}: which events? Name some as `eventbus outbox list` does, or a --topic, or a --reason; "
            "--all for all there are"
        )
    async with open_outbox(args) as opened:
        from outbox.notify import Notifier
        from outbox.quarantine import Quarantine
        from outbox.table_names import channel_of

        tables = opened.outbox.tables
        quarantine = Quarantine(opened.database, tables)
        count = await quarantine.count(choice)
        if args.chosen:
            await _check_named(quarantine, choice, count)
        asks = not args.yes and (args.action == "drop" or count > 1)
        if count and asks and not confirmed(out, f"{args.action.capitalize()} {format_count(count, 'event')}?"):
            return 1
        change = quarantine.retry if args.action == "retry" else quarantine.drop
        with progress_bars(out) as bars:
            done = await change(choice, bars.bar("events", count).update)
        if done.refused:
            notifier = Notifier(channel_of(tables.name, tables.schema))
            notifier.notify(opened.database.plain)
            notifier.close()
        go = "goes" if done.behind == 1 else "go"
        behind = f", {format_count(done.behind, 'event')} behind {'it' if done.refused == 1 else 'them'} {go} on"
        text = f"{format_count(done.refused, 'event')} {_WAYS[args.action].done}{behind if done.behind else ''}"
        out.answer({"refused": done.refused, "behind": done.behind}, text)
        return 0


async def _check_named(quarantine: Quarantine, choice: Choice, count: int) -> None:
    """Raise ConfigError for an id that does not belong to a refused event."""
    named = len(choice.ids or ()) + len(choice.event_ids or ())
    if count == named:
        return
    found = await quarantine.events(choice, limit=named, behind=True)
    behind = next((event for event in found if event.is_behind), None)
    if behind is not None:
        raise ConfigError(
            f"event {behind.id} was not refused, it {behind.reason}: retry or drop that one, see "
            f"`eventbus outbox list --topic {behind.topic}`"
        )
    there = {event.id for event in found} | {event.event_id for event in found}
    missing = [id for id in (*(choice.ids or ()), *(choice.event_ids or ())) if id not in there]
    if missing:
        raise ConfigError(f"event {missing[0]} is not among the refused ones: published, dropped, or put back already")
