"""Writes avro_compat.jsonl.gz: what Apache Avro's `SchemaCompatibility` finds in 10,000 random pairs of schemas.

    PYTHONPATH=. .venv/bin/python tests/vectors/make_avro_compat.py

A line is [reader, writer, findings]: texts, and a list of [type, location, message] or the text of an exception.
"""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path

from tests.schema_registry.compatibility.avro_pairs import pairs
from tests.schema_registry.compatibility.java_oracle import verdicts

COUNT = 10_000


def main() -> None:
    asked = list(pairs(seed=7, count=COUNT + COUNT // 50))
    judged = ([*pair, found] for pair, found in zip(asked, verdicts(asked), strict=True) if found is not None)
    lines = [json.dumps(line, separators=(",", ":")) + "\n" for line in islice(judged, COUNT)]
    assert len(lines) == COUNT
    target = Path(__file__).parent / "avro_compat.jsonl.gz"
    target.write_bytes(gzip.compress("".join(lines).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
