"""``eventbus outbox status``: show what waits, since when, and which relays publish it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.format import format_duration
from outbox.cli.database import add_database, open_outbox

if TYPE_CHECKING:
    from outbox.status import OutboxStatus, RelayStatus, TopicStatus

_EPILOG = """\
  eventbus outbox status --database postgresql://me@localhost/shop
  eventbus outbox status --watch                 again every 2 seconds, with the rates of relays as they are now
  eventbus outbox status --json | jq .oldest_age_ms

All that waits is counted, row by row.
"""
_WATCH_SECONDS = 2.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("status", help="what waits, since when, and who publishes it", epilog=_EPILOG)
    add_database(parser)
    parser.add_argument(
        "--watch", "-w", nargs="?", type=float, const=_WATCH_SECONDS, metavar="SECONDS",
        help=f"again and again, until Ctrl-C (every {_WATCH_SECONDS:g} s)",
    )  # fmt: skip
    parser.set_defaults(run=status)


async def status(args: argparse.Namespace) -> None:
    out, watch = Output.of(args), args.watch
    if watch is not None and watch <= 0:
        raise UsageError(f"{args.program}: --watch takes seconds between two looks, more than 0")
    async with open_outbox(args) as opened:
        from anyio import sleep

        from eventbus.cli.shell import until_signal

        rates = Rates()
        if watch is None:
            show(await opened.outbox.status(), rates, opened.place, out)
            return
        async with until_signal():
            while True:
                found = await opened.outbox.status()
                if out.rich:
                    out.stdout.write(_CLEAR)
                show(found, rates, opened.place, out)
                out.stdout.flush()
                await sleep(watch)


class Rates:
    """Rates of relays between their last two heartbeats, or since their start while only one heartbeat is known."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[int, int, float]] = {}

    def of(self, relay: RelayStatus, now_ms: int) -> float:
        """Return the events per second of a relay."""
        # The start is computed from an age, so two queries may differ by a millisecond. Two relays of a slot differ by
        # more.
        key = (relay.slot, round((now_ms - relay.started_age_ms) / 1000))
        seen_at = now_ms - relay.seen_age_ms
        published, then, rate = self._seen.get(key, (relay.published, seen_at, relay.rate))
        if seen_at > then:
            rate = (relay.published - published) * 1000 / (seen_at - then)
        self._seen[key] = relay.published, seen_at, rate
        return rate


# what is shown --------------------------------------------------------------------------------------------------------


def show(found: OutboxStatus, rates: Rates, place: str, out: Output) -> None:
    """Print JSON, or the totals, a table of topics, a table of relays, and remarks."""
    if out.json:
        out.data(found)
        return
    from outbox.status import remarks

    schema = f"{found.schema}." if found.schema else ""
    out.line(f"outbox {schema}{found.name} in {place}")
    for line in _sums(found):
        out.line(f"  {line}")
    if found.topics:
        out.line()
        _table(found.topics, _TOPIC_COLUMNS, out)
    if found.relays:
        out.line()

        def rate(relay: RelayStatus) -> int:
            return round(rates.of(relay, found.now_ms))

        _table(found.relays, {**_RELAY_COLUMNS, "events/s": rate}, out)
    for number, remark in enumerate(remarks(found)):
        if not number:
            out.line()
        out.line(f"! {remark}")


def _sums(found: OutboxStatus) -> Iterable[str]:
    if found.oldest_age_ms is None:
        yield "nothing waits"
    else:
        yield f"{found.waiting:,} waiting, the oldest for {format_duration(found.oldest_age_ms)}"
    if found.next_due_in_ms is not None:
        due = found.next_due_in_ms
        yield f"{found.later:,} later, the first {'in' if due > 0 else 'due since'} {format_duration(abs(due))}"
    if found.failed:
        yield f"{found.failed:,} refused by the log, {found.behind:,} behind them"
    if found.archived is not None:
        yield f"{found.archived:,} in the archive"
    free = f", {found.free_shards} of {found.shard_count} shards have no owner" if found.free_shards else ""
    many = {0: "no relay publishes", 1: "1 relay publishes"}
    yield f"{many.get(found.live_relays, f'{found.live_relays} relays publish')}{free}"


def _age(ms: int | None) -> str:
    return "-" if ms is None else format_duration(ms)


_TOPIC_COLUMNS: dict[str, Callable[[TopicStatus], Any]] = {
    "topic": lambda one: one.topic,
    "waiting": lambda one: one.waiting,
    "oldest": lambda one: _age(one.oldest_age_ms),
    "later": lambda one: one.later,
    "refused": lambda one: one.failed,
    "behind": lambda one: one.behind,
}
_RELAY_COLUMNS: dict[str, Callable[[RelayStatus], Any]] = {
    "relay": lambda one: one.slot,
    "host": lambda one: one.host,
    "seen": lambda one: f"{_age(one.seen_age_ms)} ago{'' if one.is_live else ' (gone)'}",
    "shards": lambda one: len(one.shards),
    "published": lambda one: one.published,
}


def _table(rows: Iterable[Any], columns: dict[str, Callable[[Any], Any]], out: Output) -> None:
    out.table([*columns], [[read(row) for read in columns.values()] for row in rows])
