"""``eventbus outbox relay``: publish the events of a database in a separate process."""

from __future__ import annotations

import argparse
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.backends.masking import shown_url
from eventbus.cli.output import Output, printable
from eventbus.cli.parser import Subcommands, UsageError, positive
from eventbus.cli.shell import open_bus
from eventbus.errors import StoppedBySignal
from eventbus.format import format_count, format_duration
from outbox.cli.database import Opened, add_database, open_outbox

if TYPE_CHECKING:
    from eventbus.cli.progress import Bars
    from outbox.relay.relay import Relay
    from outbox.status import Backlog

_EVERY_SECONDS = 5.0
_BAR_SECONDS = 0.25
_QUIET_SECONDS = 60.0
"""Interval between lines while nothing changes."""
_LARGE = 10_000
"""Minimum size of a backlog for which a progress bar is shown."""
_EPILOG = """\
  eventbus outbox relay --database postgresql://me@localhost/shop --url kafka://localhost:9092
  eventbus outbox relay --until-empty            end when everything is published

Any number of them share the work, in services or alone. Ctrl-C or SIGTERM ends it after the batch in flight.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("relay", help="publish what waits, until a signal", epilog=_EPILOG)
    add_database(parser)
    group = parser.add_argument_group("how it publishes")
    group.add_argument(
        "--delivery", choices=("exactly-once", "at-least-once"), default="exactly-once",
        help="in transactions of the log, or without (default: exactly-once)",
    )  # fmt: skip
    group.add_argument("--batch-size", type=positive, default=5_000, metavar="N", help="events at once (default: 5000)")
    group.add_argument(
        "--on-poison", choices=("block", "skip"), default="block",
        help="an event that the log refuses: hold back those of its key, or go on without it (default: block)",
    )  # fmt: skip
    group.add_argument("--until-empty", action="store_true", help="end when nothing is left that it can publish")
    parser.add_argument(
        "--every", type=float, default=_EVERY_SECONDS, metavar="SECONDS",
        help=f"say how it goes so often (default: {_EVERY_SECONDS:g})",
    )  # fmt: skip
    parser.set_defaults(run=relay)


async def relay(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.every <= 0:
        raise UsageError(f"{args.program}: --every takes seconds between two lines, more than 0")
    async with open_outbox(args) as opened:
        part = opened.outbox.relay(
            opened.database.engine, delivery=args.delivery, batch_size=args.batch_size, on_poison=args.on_poison,
            create_tables=False,
        )  # fmt: skip
        bus = open_bus(args)
        bus.include(part)
        try:
            async with bus:
                bus.context.start_soon(Reporter(opened, part, args.every, out).run)
                if args.until_empty:

                    async def until_empty() -> None:
                        await part.drain()
                        if (health := part.health()).status == "degraded":
                            out.note(health.reason)  # some events stay
                        bus.stop()

                    bus.context.start_soon(until_empty)
                if not out.json:
                    out.note(
                        f"publishing outbox {opened.outbox.name!r} of {opened.place} to {shown_url(bus.url)}; Ctrl-C "
                        "stops it"
                    )
                await bus.run()
        except StoppedBySignal as error:
            out.note(str(error))
            return 128 + error.number
        published = part.metrics().published
        if not out.json:
            out.note(f"stopped; {format_count(published, 'event')} published")
        return 0


# how it goes ----------------------------------------------------------------------------------------------------------


class Going(NamedTuple):
    """A snapshot of the progress."""

    published: int
    """Events published since the start."""
    waiting: int
    is_reckoned: bool
    """True if the backlog was estimated instead of counted."""
    rate: float
    """Events per second since the previous snapshot."""
    oldest_age_ms: int | None

    @property
    def left_seconds(self) -> float | None:
        """Seconds until everything is published at this rate, if no events are added."""
        return self.waiting / self.rate if self.rate else None


class Pace:
    """Computes rates and estimates from counts. Pure."""

    def __init__(self, now: float, published: int = 0) -> None:
        self._at = now, published
        self._backlog = 0
        """Number of waiting events at the last count."""

    def waiting(self, published: int) -> int:
        """Estimate the number of waiting events without a query."""
        return max(0, self._backlog - (published - self._at[1]))

    def at(self, now: float, published: int, backlog: Backlog) -> Going:
        """Return a snapshot. ``now`` is in seconds of a monotonic clock."""
        then, before = self._at
        rate = (published - before) / (now - then) if now > then else 0.0
        self._at, self._backlog = (now, published), backlog.count
        return Going(published, backlog.count, not backlog.is_exact, rate, backlog.oldest_age_ms)


class Reporter:
    """Prints a line every few seconds, and on a terminal a progress bar while a backlog is reduced."""

    def __init__(self, opened: Opened, relay: Relay, every_seconds: float, out: Output) -> None:
        self._opened = opened
        self._relay = relay
        self._every = every_seconds
        self._out = out
        self._said: tuple[Any, ...] = ()
        self._said_at = 0.0

    async def run(self) -> None:
        """Report until cancelled. A database that does not answer is reported by the relay."""
        from outbox.database import trouble_of
        from outbox.status import read_backlog

        pace = Pace(time.monotonic(), self._relay.metrics().published)
        with bar_on(self._out) as bar:
            while True:
                try:
                    backlog = await self._opened.database.run(read_backlog, self._opened.outbox.tables)
                except Exception as error:  # the relay reports an outage
                    if trouble_of(error) == "other":
                        raise
                else:
                    now = time.monotonic()
                    self._say(pace.at(now, self._relay.metrics().published, backlog), now, bar)
                await self._wait(pace, bar)

    async def _wait(self, pace: Pace, bar: Backlogged | None) -> None:
        from anyio import sleep

        if bar is None:
            await sleep(self._every)
            return
        end = time.monotonic() + self._every
        while time.monotonic() < end:
            published = self._relay.metrics().published
            bar.move(published, pace.waiting(published))
            await sleep(min(_BAR_SECONDS, self._every))

    def _say(self, going: Going, now: float, bar: Backlogged | None) -> None:
        health = self._relay.health()
        said = (going.published, going.waiting, health.status)
        if said == self._said and now - self._said_at < _QUIET_SECONDS:
            return
        self._said, self._said_at = said, now
        if self._out.json:
            self._out.data(going._asdict() | {"status": health.status, "reason": health.reason})
        else:
            trouble = "" if health.status in ("ok", "starting") else f"; {health.reason}"
            (self._out if bar is None else bar).line(line_of(going) + trouble)
        self._out.stdout.flush()


def line_of(going: Going) -> str:
    """``12,345/s, 678,900 waiting (about 55 s), the oldest for 12 s, 1,234,567 published``."""
    parts = [f"{going.rate:,.0f}/s"]
    if going.waiting:
        about = "about " if going.is_reckoned else ""
        left = "" if going.left_seconds is None else f" (for {format_duration(round(going.left_seconds * 1000))})"
        parts.append(f"{about}{going.waiting:,} waiting{left}")
        if going.oldest_age_ms is not None:
            parts.append(f"the oldest for {format_duration(going.oldest_age_ms)}")
    else:
        parts.append("nothing waits")
    return ", ".join((*parts, f"{going.published:,} published"))


class Backlogged:
    """A bar on stderr while a large backlog is worked off; lines go above it."""

    def __init__(self, out: Output, bars: Bars) -> None:
        self._out = out
        self._bars = bars
        self._began = 0
        self.is_shown = False
        self._bar = bars.bar("published", is_shown=False)

    def move(self, published: int, waiting: int) -> None:
        """Show how many events are published and how many wait."""
        if not self.is_shown and waiting >= _LARGE:
            self._began = published
        self.is_shown = waiting > 0 and (self.is_shown or waiting >= _LARGE)
        self._bar.show(self.is_shown)
        done = published - self._began
        self._bar.update(done, done + waiting)

    def line(self, text: str) -> None:
        if self._out.stdout.isatty():  # on the same terminal, a line printed directly would be mixed with the bar
            self._bars.say(printable(text))
        else:
            self._out.line(text)


@contextmanager
def bar_on(out: Output) -> Generator[Backlogged | None]:
    """None where no bar can be drawn."""
    if not out.draws_on(out.stderr):
        yield None
        return
    from eventbus.cli.drawing import drawn_bars

    with drawn_bars(out.stderr) as bars:
        yield Backlogged(out, bars)
