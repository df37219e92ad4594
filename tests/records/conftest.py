"""Golden vectors as test parameters, and the few builders every test here needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventbus.records import BatchBuilder, patch_offsets
from eventbus.types import Compression, Record

VECTORS = Path(__file__).parent.parent / "vectors"


class Vector(NamedTuple):
    """One batch as another implementation wrote it, and what that implementation was given."""

    name: str
    data: bytes
    header: dict[str, Any]
    records: list[Record]
    offsets: list[int]


def load(path: Path) -> Vector:
    sidecar = json.loads(path.read_text(encoding="ascii"))
    records = [
        Record(
            _bytes(row["key"]),
            _bytes(row["value"]),
            tuple((name, _bytes(value)) for name, value in row["headers"]),
            row["timestamp_ms"],
        )
        for row in sidecar["records"]
    ]
    offsets = sidecar["header"].pop("offsets", list(range(len(records))))
    return Vector(path.stem, path.with_suffix(".bin").read_bytes(), sidecar["header"], records, offsets)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


ALL_VECTORS = [load(path.with_suffix(".json")) for path in sorted(VECTORS.glob("*.bin"))]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "vector" in metafunc.fixturenames:
        metafunc.parametrize("vector", ALL_VECTORS, ids=lambda vector: vector.name)


@pytest.fixture
def vectors() -> list[Vector]:
    return ALL_VECTORS


def build_batch(
    records: Iterable[Record], base_offset: int = 0, compression: Compression = Compression.NONE, **kwargs: Any
) -> bytearray:
    builder = BatchBuilder(compression)
    for record in records:
        builder.append(record.key, record.value, record.headers, record.timestamp_ms)
    batch = builder.build(**kwargs)
    patch_offsets(batch, base_offset, 0)
    return batch


@pytest.fixture(scope="session")
def build() -> Callable[..., bytearray]:
    """``build(records, base_offset=0, compression=NONE, **producer_state)``: a whole batch."""
    return build_batch
