"""K9: Avro to Arrow, a column at a time, beside fastavro a record at a time; two schemas in turn; damaged records.

The orders are those of the landing: ten fields, 87 bytes. CPU time of one process, without Spark: the ways take turns.
"""

from __future__ import annotations

import io
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from figures import Figure
from harness import Numbers, case
from spark_landing import SCHEMA, values

DECODING_FIGURES = [
    Figure(
        "K9a", "Avro to columns / fastavro's rows to columns", "spark decoding:one", "spark decoding:fastavro", 12, 20
    ),
    Figure("K9b", "two schemas in turn / one", "spark decoding:two", "spark decoding:one", 0.5, 0.8),
    Figure("K9c", "1 % damaged / none", "spark decoding:damaged", "spark decoding:one", 0.5, 0.8),
]

_NEWER = SCHEMA.replace('"type": "double"}]', '"type": "double"}, {"name": "channel", "type": ["null", "string"]}]')


def _batch(data: list[bytes]) -> Any:
    import pyarrow as pa

    count = len(data)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(data, pa.binary()),
            "topic": pa.array(["orders"] * count, pa.string()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
        }
    )


def _decoder() -> Any:
    """Of schema 1, and of 2, which has a field more."""
    from serdes.avro.parse import parse
    from spark_sinks.decoding.avro.compile import compiled
    from spark_sinks.decoding.avro.decoder import AvroDecoder, Known
    from spark_sinks.decoding.framing import Frame

    roots = [compiled(parse(text)) for text in (SCHEMA, _NEWER)]
    frame = Frame("bytes", tombstones=False)
    names = [tuple(name for name, _ in root.shown) for root in roots]
    schemas: dict[int, Known | str] = {1: Known(SCHEMA, names[0]), 2: Known(_NEWER, names[1])}
    return AvroDecoder(frame.columns(roots[1].fields), len(names[1]), schemas, frame)


@case("spark decoding", n=50_000, quick=2_000)
def decoding(n: int) -> Numbers:
    import fastavro
    import pyarrow as pa

    decoder, schema = _decoder(), fastavro.parse_schema(json.loads(SCHEMA))
    plain = values(n)
    newer = [b"\0\0\0\0\2" + each[5:] + (b"\2\6web" if number % 4 else b"\0") for number, each in enumerate(plain)]
    mixed = [pair[number % 2] for number, pair in enumerate(zip(plain, newer, strict=True))]
    torn = [each[:-3] if number % 100 == 0 else each for number, each in enumerate(plain)]
    batches = {"one": _batch(plain), "two": _batch(mixed), "damaged": _batch(torn)}
    columns = decoder.rows(batches["one"]).rows.select(range(10))

    def per_record() -> Any:
        rows = [fastavro.schemaless_reader(io.BytesIO(each[5:]), schema) for each in plain]
        return pa.RecordBatch.from_pylist(rows, schema=columns.schema)

    assert per_record().equals(columns)
    assert decoder.rows(batches["two"]).rows.num_rows == n
    assert decoder.rows(batches["damaged"]).rejected.num_rows == -(-n // 100)
    ways: dict[str, Callable[[], Any]] = {
        name: lambda batch=batch: decoder.rows(batch) for name, batch in batches.items()
    }
    ways["fastavro"] = per_record
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(4):
        for name, way in ways.items():
            begin = time.process_time()
            way()
            taken[name].append(time.process_time() - begin)
    return {name: n / statistics.median(each) for name, each in taken.items()}
