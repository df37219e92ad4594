"""Two consumers share three partitions: which ones does the first give up when the second joins, leaves and returns?

Eager (``range``): every member gives up all partitions, then they are assigned again. Cooperative: only partitions
that move are given up. Static (``group_instance_id``): a member that returns within its session timeout keeps its
partitions.
"""

from __future__ import annotations

from typing import Any, Literal

import anyio

from eventbus import Consumer, EventBus, TopicPartition, log_url

Strategy = Literal["range", "cooperative-sticky"]
QUICK = {
    "heartbeat_interval_ms": 200
}  # on Kafka a member learns of a rebalance from its heartbeat, every 3 s by default


async def settle(*members: Consumer) -> None:
    """Poll all consumers until they have the three partitions: a rebalance happens during polls."""
    while sum(len(one.assignment()) for one in members) < 3 or any(not one.assignment() for one in members):
        for one in members:
            await one.poll(timeout_ms=10)


async def join_and_leave(strategy: Strategy, instances: tuple[str | None, str | None]) -> list[str]:
    """Return what the first consumer gave up when the second joined, stopped and returned: all, some or nothing."""
    given_up: list[int] = []
    told: list[str] = []

    def revoked(partitions: list[TopicPartition]) -> None:
        given_up.append(len(partitions))

    def tell(held: int) -> None:
        most = max(given_up, default=0)
        told.append("nothing" if not most else "all" if most == held else "some")
        given_up.clear()

    def member(instance: str | None, **listener: Any) -> Consumer:
        config: dict[str, Any] = {**QUICK, **({"group_instance_id": instance} if instance else {}), **listener}
        return bus.new_consumer("clicks", group="watchers", partition_assignment_strategy=strategy, **config)

    async with EventBus(log_url("memory://")) as bus:
        await bus.admin.create_topic("clicks", partitions=3, temporary=True)
        async with member(instances[0], on_revoked=revoked) as first:
            await settle(first)
            async with member(instances[1]) as second:
                await settle(first, second)
            tell(held=3)
            held = len(first.assignment())
            if instances == (None, None):  # a static member that leaves keeps its partitions until its session ends
                await settle(first)
            tell(held)
            async with member(instances[1]) as second:
                await settle(first, second)
                tell(held=3)
        await bus.admin.remove_group_members("watchers")  # the sessions of static members continue
    return told


async def main() -> None:
    print(f"{'what one stops reading when two ...':<36}  comes    stops    is back")
    told: dict[str, list[str]] = {}
    cases: list[tuple[str, Strategy, tuple[str | None, str | None]]] = [
        ("eager (range)", "range", (None, None)),
        ("cooperative-sticky", "cooperative-sticky", (None, None)),
        ("cooperative-sticky, static members", "cooperative-sticky", ("i-1", "i-2")),
    ]
    for name, strategy, instances in cases:
        told[name] = await join_and_leave(strategy, instances)
        print(f"{name:<36}  {'  '.join(f'{what:<7}' for what in told[name])}".rstrip())
    assert list(told.values()) == [["all", "all", "all"], ["some", "nothing", "some"], ["some", "nothing", "nothing"]]


if __name__ == "__main__":
    anyio.run(main)
