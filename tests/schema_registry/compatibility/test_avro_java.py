"""The Avro engine beside Java's: same verdict, finding types, locations and messages on every pair."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schema_registry.compatibility.avro import Unanswerable, incompatibilities
from serdes.avro.parse import parse
from tests.schema_registry.compatibility import java_oracle
from tests.schema_registry.compatibility.avro_pairs import pairs

pytestmark = pytest.mark.system

RECORDED = Path(__file__).parents[2] / "vectors" / "avro_compat.jsonl.gz"
RULES = {
    "NAME_MISMATCH",
    "FIXED_SIZE_MISMATCH",
    "MISSING_ENUM_SYMBOLS",
    "READER_FIELD_MISSING_DEFAULT_VALUE",
    "TYPE_MISMATCH",
    "MISSING_UNION_BRANCH",
}


def ours(reader: str, writer: str) -> Any:
    try:
        return [[one.rule, one.path, one.detail] for one in incompatibilities(parse(reader), parse(writer))]
    except Unanswerable as thrown:
        return str(thrown)


def test_ten_thousand_pairs_as_java_judged_them() -> None:
    judged = [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]
    differing = [(reader, writer, found) for reader, writer, found in judged if ours(reader, writer) != found]

    assert differing == []
    assert len(judged) == 10_000
    verdicts = Counter("exception" if isinstance(found, str) else bool(found) for *_, found in judged)
    assert min(verdicts[False], verdicts[True]) > 3_000, "both verdicts are frequent"
    assert verdicts["exception"] > 100
    seen = Counter[str]()
    for *_, found in judged:
        if not isinstance(found, str):
            seen.update({str(one[0]) for one in found})
    assert set(seen) == RULES
    assert min(seen.values()) > 300


@pytest.mark.slow  # starts Java, which takes longer than all other tests of this folder
@pytest.mark.skipif(bool(java_oracle.missing()), reason=java_oracle.missing() or "Java is here")
@pytest.mark.parametrize("seed", range(100, 104))
def test_fresh_pairs_beside_java(seed: int) -> None:
    asked = list(pairs(seed, 10_000))
    differing = [
        (*pair, found)
        for pair, found in zip(asked, java_oracle.verdicts(asked), strict=True)
        if found is not None and ours(*pair) != found
    ]
    assert differing == []
