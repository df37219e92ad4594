"""A producer and a consumer in one file, and no server.

Other logs, same code, here as in all examples: python examples/01_hello.py --url file://./data (or kafka://host:9092).
"""

from __future__ import annotations

import anyio
import msgspec

from eventbus import ConsumerRecord, EventBus, log_url

bus = EventBus(log_url("memory://"))
greeted: list[str] = []


class Greeting(msgspec.Struct):
    name: str
    text: str = "hello"


@bus.producer("greetings", key=lambda greeting: greeting.name)
async def greet(name: str) -> Greeting:
    return Greeting(name)  # what the function returns is published; the caller gets it too


@bus.consumer("greetings", group="printer")
async def show(greeting: Greeting, record: ConsumerRecord) -> None:
    print(f"{record.topic}-{record.partition} offset {record.offset}: {greeting.text}, {greeting.name}")
    greeted.append(greeting.name)


async def main() -> None:
    async with bus:
        for name in ("Ada", "Grace", "Barbara"):
            await greet(name)
        metadata = await bus.send("greetings", Greeting("world"), key="world", headers={"sent-by": "hand"})
        await bus.drain()  # until the handlers have seen everything
        print(f"the last one is stored at offset {metadata.offset}")


if __name__ == "__main__":
    anyio.run(main)
    assert greeted[-4:] == ["Ada", "Grace", "Barbara", "world"], greeted
