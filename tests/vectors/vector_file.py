"""How a golden vector is kept: ``<name>.bin``, the bytes as another implementation wrote them, and ``<name>.json``,
which says how they were made and what they hold, as it was *given to* that implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def record(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]] | None = None,
    timestamp_ms: int = -1,
) -> dict[str, Any]:
    """One record as the sidecar keeps it; bytes in hexadecimal, null as null."""
    return {
        "key": _hex(key),
        "value": _hex(value),
        "headers": [[name, _hex(each)] for name, each in headers or []],
        "timestamp_ms": timestamp_ms,
    }


def save(
    name: str, batch: bytes, made_by: dict[str, str], header: dict[str, Any], records: list[dict[str, Any]]
) -> None:
    """Write a vector. ``header`` holds the fields that were asked for, under Kafka's names."""
    (FOLDER / f"{name}.bin").write_bytes(batch)
    rows = ",\n    ".join(json.dumps(each) for each in records)
    text = (
        "{\n"
        f'  "made_by": {json.dumps(made_by)},\n'
        f'  "header": {json.dumps(header)},\n'
        f'  "records": [\n    {rows}\n  ]\n'
        "}\n"
    )
    (FOLDER / f"{name}.json").write_text(text, encoding="ascii")
    print(f"{name}: {len(batch)} bytes, {len(records)} records")


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()
