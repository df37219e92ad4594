"""Keep large payloads outside the log: the video is in a store, and a small record refers to it (claim check).

A log is made for records of kilobytes: a video exceeds ``max.message.bytes``, and every reader would receive it. The
record holds a pointer, the size and a checksum, so that a reader can check the bytes.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import anyio
import msgspec

from eventbus import EventBus, log_url
from eventbus.errors import RecordTooLarge


class Video(msgspec.Struct):
    title: str
    path: str
    size_bytes: int
    sha256: str


bus = EventBus(log_url("memory://"))
bus.topic("uploads", temporary=True)
transcoded: list[str] = []


def check_in(store: Path, title: str, data: bytes) -> Video:
    """Store the bytes, then send the record, so that a record never refers to missing bytes."""
    digest = hashlib.sha256(data).hexdigest()
    path = store / digest  # named by its content: a repeated upload is the same file
    path.write_bytes(data)
    return Video(title, str(path), len(data), digest)


@bus.consumer("uploads", group="transcoder")
def transcode(video: Video) -> None:  # a plain function: it reads files, in a thread
    data = Path(video.path).read_bytes()
    assert hashlib.sha256(data).hexdigest() == video.sha256, "not what was uploaded"
    print(f"transcoding {video.title}: {video.size_bytes:,} bytes from the store")
    transcoded.append(video.title)


async def main(store: Path) -> None:
    holiday = b"frame" * 1_000_000
    async with bus:
        try:
            await bus.send("uploads", holiday)
        except RecordTooLarge as error:
            print(f"the video itself: {type(error).__name__}")
        metadata = await bus.send("uploads", check_in(store, "holiday", holiday), key="holiday")
        print(f"its claim check: offset {metadata.offset}")
        await bus.drain()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, Path(folder))
    assert transcoded == ["holiday"]
