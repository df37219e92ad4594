"""Send records for later: one is delivered, one is cancelled, one is moved; and run a function on a timetable.

Scheduled records are in the log: they survive a restart, and of all instances of the service one delivers each, once.
"""

from __future__ import annotations

from datetime import timedelta

import anyio
import msgspec

from eventbus import EventBus, Firing, log_url


class Reminder(msgspec.Struct):
    to: str
    text: str


got: list[str] = []
beats: list[Firing] = []
done, two_beats = anyio.Event(), anyio.Event()

bus = EventBus(log_url("memory://"), service="reminders")
bus.topic("reminders", temporary=True)
bus.topic("_scheduled.reminders", partitions=1, configs={"cleanup.policy": "compact"}, temporary=True)
bus.topic("_every.reminders.beat", partitions=1, temporary=True)  # otherwise both are created automatically, and stay


@bus.consumer("reminders", group="mail")
async def remind(reminder: Reminder) -> None:
    got.append(f"{reminder.to}: {reminder.text}")
    if reminder.text == "the end":
        done.set()


@bus.every("200ms")  # or @bus.every("0 9 * * MON-FRI", timezone="Europe/Berlin")
async def beat(firing: Firing) -> None:
    beats.append(firing)
    if len(beats) == 2:
        two_beats.set()


async def main() -> None:
    async with bus:
        await bus.send("reminders", Reminder("bob", "tea"), delay=timedelta(milliseconds=300))
        meeting = await bus.send("reminders", Reminder("cyd", "meeting"), delay=3600)
        print("taken back:", await bus.cancel_scheduled(meeting))
        for minutes in (60, 0):  # the same id again replaces the first record
            await bus.send("reminders", Reminder("ada", f"in {minutes}"), delay=minutes * 60, schedule_id="ada-lunch")
        async with bus.transaction("import") as tx:  # scheduled only if the transaction commits
            await tx.send("reminders", Reminder("bob", "imported"), delay=0.1)
        await bus.send("reminders", Reminder("ada", "the end"), delay=1)
        with anyio.fail_after(60):
            await done.wait()
            await two_beats.wait()
    print(*sorted(got), sep="\n")
    assert sorted(got) == ["ada: in 0", "ada: the end", "bob: imported", "bob: tea"], got
    assert got[-1] == "ada: the end"
    assert len({one.scheduled_ms for one in beats}) == len(beats), "each time fires once"


if __name__ == "__main__":
    anyio.run(main)
