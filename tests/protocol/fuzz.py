"""Every decoder under atheris, a fuzzer that is led by coverage: MalformedMessage or a message, nothing else.

    python tests/protocol/fuzz.py [RUNS]         (pip install atheris)

The first byte of an input chooses the decoder; what is decoded is written and decoded again, and must be the same.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

from eventbus.protocol import MalformedMessage, encode, read_request_header, reader, writer
from eventbus.protocol.log_records import decode_metadata_record
from eventbus.protocol.schema import blocks, message
from tests.protocol.instances import instance

DECODERS = [
    (name, version) for name in blocks() for version in range(message(name).versions[0], message(name).versions[1] + 1)
]


def instrumented() -> list[Any]:
    """The generated readers, so that the fuzzer sees which lines an input reaches."""
    return [atheris.instrument_func(reader(name, version)) for name, version in DECODERS]


READERS = instrumented()


def one_input(data: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        read_request_header(data)
    with contextlib.suppress(MalformedMessage):
        decode_metadata_record(data)
    if len(data) < 2:
        return
    at = int.from_bytes(data[:2], "big") % len(DECODERS)
    try:
        value, end = READERS[at](memoryview(bytearray(data[2:])), 0)
    except MalformedMessage:
        return
    assert end <= len(data) - 2
    name, version = DECODERS[at]
    again, _ = reader(name, version)(b"".join(writer(name, version)(value)), 0)
    assert again == value or "float64" in str(blocks()[name])  # a NaN is not itself


def main() -> None:
    runs = sys.argv[1] if len(sys.argv) > 1 else "100000"
    with tempfile.TemporaryDirectory() as corpus:
        chance = random.Random(1)
        for at, (name, version) in enumerate(DECODERS):
            data = at.to_bytes(2, "big") + encode(instance(name, version, chance), version)
            (Path(corpus) / f"{name}-{version}").write_bytes(data)
        atheris.Setup([sys.argv[0], f"-runs={runs}", "-max_len=4096", corpus], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
