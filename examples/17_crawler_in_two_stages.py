"""Long work in two stages with a topic between them: fetching waits for the network, parsing needs the processor.

A single handler would hold its partition for both. Each stage has its own concurrency and can be scaled and restarted
alone, and a fixed parser reads the pages again without fetching them. Links go back to the first topic, which is the
work queue.
"""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import msgspec

from eventbus import EventBus, log_url

SITE = {"/": ["/a", "/b"], "/a": ["/", "/a/1"], "/b": ["/a", "/gone"], "/a/1": []}  # the web, for this script


class Page(msgspec.Struct):
    url: str
    status: int
    links: list[str]


bus = EventBus(log_url("memory://"))
bus.topic("urls", partitions=4, temporary=True)
bus.topic("pages", partitions=2, temporary=True)
seen: set[str] = set()
parsed: list[str] = []


@bus.consumer("urls", group="fetcher")  # stage 1: four partitions, four concurrent requests
@bus.producer("pages", key=lambda page: page.url)
async def fetch(url: str) -> Page:
    await anyio.sleep(0.01)  # the network
    return Page(url, 200 if url in SITE else 404, SITE.get(url, []))


@bus.consumer("pages", group="parser")  # stage 2
@bus.producer("urls", key=lambda url: url)
def parse(page: Page) -> Iterator[str]:
    parsed.append(f"{page.url:<6} {page.status}  {' '.join(page.links)}".rstrip())
    for url in page.links:
        if url not in seen:
            seen.add(url)
            yield url  # each yielded value is a record


async def main() -> None:
    async with bus:
        seen.add("/")
        await bus.send("urls", "/", key="/")
        await bus.drain()  # until no new page is found


if __name__ == "__main__":
    anyio.run(main)
    print(*sorted(parsed), sep="\n")
    assert seen == {*SITE, "/gone"} and len(parsed) == len(seen), "every address once"
