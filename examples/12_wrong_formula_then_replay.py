"""A formula was wrong for a week. The clicks are still in the log, so the figures are computed again.

The fixed handler reads under a separate group, from the beginning, and replaces the table of the faulty handler. The
live group is not affected. From the shell: ``eventbus replay shop:bus revenue --from-beginning``.
"""

from __future__ import annotations

import anyio
import msgspec

from eventbus import EventBus, log_url

URL = log_url("memory://clicks")


class Click(msgspec.Struct):
    page: str
    milliseconds: int


def service(group: str, seconds: dict[str, float], per_second: int) -> EventBus:
    """Compute how long people stay on a page. The first release read milliseconds as hundredths of a second."""
    bus = EventBus(URL)

    @bus.consumer("clicks", group=group)
    async def time_on_page(click: Click) -> None:
        seconds[click.page] = seconds.get(click.page, 0) + click.milliseconds / per_second

    return bus


async def main() -> tuple[dict[str, float], dict[str, float]]:
    async with EventBus(URL) as log:
        await log.admin.create_topic("clicks", partitions=2, temporary=True)
        for number in range(100):
            page = ("home", "cart", "pay")[number % 3]
            await log.send("clicks", Click(page, 1_000 * (1 + number % 3)), key=page)

        wrong: dict[str, float] = {}
        async with service("dashboard", wrong, per_second=100) as bus:
            await bus.drain()
        print("on the dashboard:", dict(sorted(wrong.items())))

        mended: dict[str, float] = {}
        async with service("dashboard-2013-02-01", mended, per_second=1_000) as bus:
            await bus.drain()
        print("after the replay:", dict(sorted(mended.items())))

        live, replay = [
            sum(at.offset for at in (await log.admin.group_offsets(group)).values())
            for group in ("dashboard", "dashboard-2013-02-01")
        ]
        print(f"the live group stands at {live}, the replay reached {replay}")
        assert live == replay == 100
        await log.admin.delete_group("dashboard-2013-02-01")
        return wrong, mended


if __name__ == "__main__":
    wrong, mended = anyio.run(main)
    assert mended == {"home": 34.0, "cart": 66.0, "pay": 99.0}
    assert all(wrong[page] == 10 * mended[page] for page in mended)
