"""Two consumers, three partitions: what stops when the second one comes, and when it restarts.

Eager (``range``): everybody gives everything up, then all is dealt anew. Cooperative: only what moves stops.
Static (``group_instance_id``): a member that is back within its session finds its partitions where it left them.
"""

from __future__ import annotations

from typing import Any

import anyio

from eventbus import Consumer, EventBus, TopicPartition

Event = tuple[str, str, list[int]]


def member(bus: EventBus, events: list[Event], name: str, **config: Any) -> Consumer:
    def note(what: str) -> Any:
        def listen(partitions: list[TopicPartition]) -> None:
            numbers = sorted(partition.partition for partition in partitions)
            events.append((name, what, numbers))
            print(f"  {name} {what:<8} {numbers}")

        return listen

    hears = {f"on_{what}": note(what) for what in ("assigned", "revoked", "lost")}
    return bus.new_consumer("clicks", group="watchers", **hears, **config)


async def settle(*members: Consumer) -> None:
    """Poll all of them until the group is at rest: a rebalance happens inside of polls."""
    while sum(len(one.assignment()) for one in members) < 3 or any(not one.assignment() for one in members):
        for one in members:
            await one.poll(timeout_ms=0)


async def join_and_leave(name: str, config: dict[str, Any], instances: tuple[str | None, str | None]) -> list[Event]:
    print(name)
    events: list[Event] = []
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("clicks", partitions=3)
        one, two = ({**config, "group_instance_id": instance} if instance else config for instance in instances)
        async with member(bus, events, "one", **one) as first:
            await settle(first)
            async with member(bus, events, "two", **two) as second:
                await settle(first, second)
                print("  -- two stops")
                events.append(("two", "stops", []))
            for _ in range(3):
                await first.poll(timeout_ms=0)
            print("  -- two is back")
            async with member(bus, events, "two", **two) as second:
                await settle(first, second)
                await first.poll(timeout_ms=0)
                told = events.copy()
                print("  -- end")
    return told


async def main() -> None:
    eager = await join_and_leave("eager: range", {"partition_assignment_strategy": "range"}, (None, None))
    cooperative = {"partition_assignment_strategy": "cooperative-sticky"}
    moved = await join_and_leave("cooperative-sticky", cooperative, (None, None))
    static = await join_and_leave("cooperative-sticky, static members", cooperative, ("i-1", "i-2"))

    assert ("one", "revoked", [0, 1, 2]) in eager, "all three stood still"
    assert all(len(numbers) < 3 for _, what, numbers in moved if what == "revoked"), "only what moved stood still"
    after = static[static.index(("two", "stops", [])) + 1 :]
    assert not any(name == "one" for name, *_ in after), "the first one heard nothing of the restart"


if __name__ == "__main__":
    anyio.run(main)
