"""When a function fires: a cron expression in a time zone, or an interval."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import msgspec

from eventbus.client.scheduling import cron
from eventbus.delays.delay_queue import CLOCKS_DIFFER_MS
from eventbus.durations import LONGEST_MS, exact_ms, read_duration
from eventbus.errors import ConfigError

Missed = Literal["once", "skip", "all"]
"""How missed firings are made up for after a downtime: once for the latest, not at all, or each of them."""

GRACE_MS = 60_000
"""Delay after which a firing counts as missed with "skip"."""
_LEAST_MS = 100
_MOST_AT_ONCE = 500
"""Maximum number of missed firings in one step."""
_EXAMPLE = '@bus.every("*/5 * * * *"), @bus.every("0 9 * * MON-FRI", timezone="Europe/Berlin") or @bus.every("30s")'
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = "minute hour day-of-month month day-of-week"


class Turn(NamedTuple):
    """The firings that are due, and the next time."""

    firings_ms: list[int]
    """The scheduled times that fire now, earliest first. Empty if they were missed."""
    next_ms: int


class Timetable(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``cron`` in ``timezone``, or ``interval_ms``. Times are milliseconds since the epoch."""

    cron: str = ""
    timezone: str = "UTC"
    interval_ms: int = 0
    missed: Missed = "once"

    def after(self, ms: int) -> int:
        """Return the first time after ``ms``; an interval is added to it."""
        return ms + self.interval_ms if self.interval_ms else cron.after(self.cron, self.timezone, ms)

    def too_far(self, due_ms: int, now_ms: int) -> bool:
        """True if ``due_ms`` is further away than this timetable allows: a clock was wrong when it was computed.

        Differences between the clocks of the machines of a service are allowed. Without that allowance a machine whose
        clock is a little behind would fire a time again that another machine has just fired.
        """
        if self.interval_ms:
            return due_ms - now_ms > self.interval_ms + min(self.interval_ms, CLOCKS_DIFFER_MS)
        return due_ms > now_ms + CLOCKS_DIFFER_MS and due_ms > self.after(now_ms + CLOCKS_DIFFER_MS)

    def next(self, due_ms: int, now_ms: int) -> int:
        """Return the first time after ``now_ms`` in the sequence that starts at ``due_ms``."""
        if self.interval_ms:
            return due_ms + max((now_ms - due_ms) // self.interval_ms + 1, 1) * self.interval_ms
        return self.after(max(due_ms, now_ms))

    def latest(self, due_ms: int, now_ms: int) -> int:
        """Return the last time up to ``now_ms``, but at least ``due_ms``."""
        if now_ms <= due_ms:
            return due_ms
        if self.interval_ms:
            return due_ms + (now_ms - due_ms) // self.interval_ms * self.interval_ms
        return cron.latest(self.cron, self.timezone, due_ms, now_ms)

    def turn(self, due_ms: int, now_ms: int) -> Turn:
        """Return what fires now that ``due_ms`` has come, and the next time."""
        if self.missed == "all":
            firings = [due_ms]
            while (following := self.after(firings[-1])) <= now_ms and len(firings) < _MOST_AT_ONCE:
                firings.append(following)
            return Turn(firings, following)
        latest = self.latest(due_ms, now_ms)
        fires = self.missed == "once" or now_ms - latest <= GRACE_MS
        return Turn([latest] if fires else [], self.next(due_ms, now_ms))

    def is_over(self, scheduled_ms: int, next_ms: int, now_ms: int) -> bool:
        """True if a firing reaches its function too late to be useful: the next one is due, or it was missed."""
        if self.missed == "all":
            return False
        return now_ms >= next_ms or (self.missed == "skip" and now_ms - scheduled_ms > GRACE_MS)

    def __str__(self) -> str:
        return f"every {self.interval_ms / 1000:g} s" if self.interval_ms else f"{self.cron} {self.timezone}"


def timetable(when: Any, timezone: Any, missed: Any) -> Timetable:
    """Validate the arguments of ``@bus.every``. Raises ConfigError with an example."""
    if missed not in get_args(Missed):
        raise ConfigError(f"@bus.every(missed={missed!r}): 'once', 'skip' or 'all'")
    if when is None:
        raise ConfigError(f"@bus.every takes a cron expression, or an interval: {_EXAMPLE}")
    if isinstance(when, str) and read_duration(when) is None:
        zone = "UTC" if timezone is None else timezone
        _check_zone(zone)
        found = Timetable(_five_fields(when), zone, 0, missed)
        _check_cron(found)
        return found
    if timezone is not None:
        raise ConfigError(f"@bus.every: timezone={timezone!r} only applies to a cron expression, not to an interval")
    return Timetable(interval_ms=_interval_ms(when), missed=missed)


def _interval_ms(interval: Any) -> int:
    exact = exact_ms(interval)
    if exact is None:
        raise ConfigError(f"@bus.every({interval!r}): {_EXAMPLE}")
    if not _LEAST_MS <= exact <= LONGEST_MS:
        raise ConfigError(f"@bus.every({interval!r}): an interval of {_LEAST_MS / 1000:g} s to 366 days")
    return round(exact)


def _five_fields(when: str) -> str:
    """Normalize spaces, and expand a nickname such as ``@daily``."""
    text = " ".join(when.split())
    if not text.startswith("@"):
        return text
    if text.lower() not in NICKNAMES:
        hint = " For a call at every start, use @bus.on_startup." if text.lower() == "@reboot" else ""
        raise ConfigError(f'@bus.every("{when}") is not a known nickname. Use one of {", ".join(NICKNAMES)}.{hint}')
    return NICKNAMES[text.lower()]


def _check_zone(name: Any) -> None:
    try:
        cron.zone_of(name)
    except Exception as error:  # depending on the problem, zoneinfo raises KeyError, ValueError, OSError or TypeError
        raise ConfigError(
            f'@bus.every(timezone={name!r}): the name of a time zone, as "Europe/Berlin" or "UTC"; a machine without '
            "a list of them needs pip install tzdata"
        ) from error


def _check_cron(table: Timetable) -> None:
    from cronsim import CronSimError

    fields = table.cron.split()
    try:
        if len(fields) != 5:
            hint = f"; did you mean @{table.cron}?" if f"@{table.cron.lower()}" in NICKNAMES else ""
            raise CronSimError(f"it has {len(fields)} fields{hint}")
        table.after(0)
    except CronSimError as error:
        if len(fields) == 5 and cron.never_fires(table.cron):
            raise ConfigError(
                f'@bus.every("{table.cron}") never fires. No date matches its day-of-month, month and day-of-week '
                "fields. Change one of them."
            ) from None
        raise ConfigError(
            f'@bus.every("{table.cron}") is not a cron expression: {error}; it is five fields, "{_FIELDS}": {_EXAMPLE}'
        ) from None
