"""Copy a file to a topic and the topic to another file with two connectors, configured as in Kafka Connect.

From a shell, with the same properties: eventbus connect standalone worker.properties source.properties sink.properties
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio

from eventbus import EventBus, log_url
from eventbus.connect import Connectors

SOURCE = """
name=33-source
connector.class=org.apache.kafka.connect.file.FileStreamSourceConnector
tasks.max=1
file={folder}/visitors.txt
topic=visitors
"""
SINK = """
name=33-sink
connector.class=FileStreamSink
topics=visitors
file={folder}/greeted.txt
"""
WORKER = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.storage.topic": "33-offsets",
}


async def run(folder: Path) -> list[str]:
    """Run the connectors until they have nothing left to copy. Return the content of the second file."""
    bus = EventBus(log_url("memory://"))
    bus.topic("visitors", temporary=True)
    bus.topic("33-offsets", configs={"cleanup.policy": "compact"}, temporary=True)
    for name, text in (("source", SOURCE), ("sink", SINK)):
        (folder / f"{name}.properties").write_text(text.format(folder=folder))
    bus.include(Connectors(folder / "source.properties", folder / "sink.properties", worker=WORKER))
    async with bus:
        await bus.drain()
        with (folder / "visitors.txt").open("a") as file:
            file.write("bara\n")  # the rest of an incomplete line, and another line
            file.write("Katherine\n")
        await bus.drain()
    return (folder / "greeted.txt").read_text().splitlines()


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "visitors.txt").write_text("Ada\nGrace\nBar")
        lines = await run(folder)
    print("in the other file:", ", ".join(lines))
    assert lines == ["Ada", "Grace", "Barbara", "Katherine"]


if __name__ == "__main__":
    anyio.run(main)
