"""One topic of an HR department, two teams: each group receives every record, at its own pace.

Payroll is fast. Badges is down for a while: its lag grows, payroll is not affected, and badges catches up afterwards.
"""

from __future__ import annotations

import anyio
import msgspec

from eventbus import EventBus, TopicPartition, log_url

URL, HIRES = log_url("memory://hr"), TopicPartition("hires", 0)


class Hire(msgspec.Struct):
    name: str
    salary: int


paid: dict[str, int] = {}
badges: list[str] = []


def payroll() -> EventBus:
    bus = EventBus(URL, service="payroll")

    @bus.consumer("hires", group="payroll")
    async def pay(hire: Hire) -> None:
        paid[hire.name] = hire.salary

    return bus


def gate() -> EventBus:
    bus = EventBus(URL, service="gate")

    @bus.consumer("hires", group="badges")
    async def print_badge(hire: Hire) -> None:
        badges.append(hire.name)

    return bus


async def main() -> None:
    async with EventBus(URL) as hr:
        await hr.admin.create_topic("hires", temporary=True)

        async def lag(group: str) -> int:
            committed = (await hr.admin.group_offsets(group))[HIRES].offset
            return (await hr.admin.list_offsets({HIRES: -1}))[HIRES].offset - committed

        async with payroll() as team_one:
            async with gate() as team_two:
                await hr.send("hires", Hire("Ada", 100))
                await team_one.drain()
                await team_two.drain()
            for name in ("Grace", "Barbara", "Frances"):  # the badge system is down
                await hr.send("hires", Hire(name, 90))
            await team_one.drain()
            print(f"the gate is down: paid {list(paid)}, badges {badges}, behind by {await lag('badges')}")
            assert len(paid) == 4 and badges == ["Ada"] and await lag("badges") == 3
            async with gate() as team_two:
                await team_two.drain()
        print(f"it is back:       paid {list(paid)}, badges {badges}, behind by {await lag('badges')}")


if __name__ == "__main__":
    anyio.run(main)
    assert badges == list(paid) == ["Ada", "Grace", "Barbara", "Frances"]
