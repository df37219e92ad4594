"""Small requests that would cost much: each is refused, soon, and the registry goes on."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from schema_registry.http import create_app
from tests.schema_registry.http.asgi import ask
from tests.schema_registry.http.opening import opened

pytestmark = pytest.mark.system


def nested(depth: int, open_: str = '{"type":"array","items":', inner: str = '"int"', close: str = "}") -> str:
    return open_ * depth + inner + close * depth


def record(fields: list[dict[str, Any]], name: str = "A") -> str:
    return json.dumps({"type": "record", "name": name, "fields": fields})


MANY_TYPES = record([{"name": f"f{n}", "type": {"type": "fixed", "name": f"F{n}", "size": 1}} for n in range(1_001)])
DEEP_RECORDS = nested(
    200, '{"type":"record","name":"A","fields":[{"name":"a","type":', '"int"', "}]}"
)  # fmt: skip
BOMBS: dict[str, Any] = {
    "1 MB of a name": record([], "A" * 1_100_000),
    "1 MB of spaces": '"int"'.ljust(1_100_000),
    "1 MB of doc": json.dumps({"type": "record", "name": "A", "doc": "x" * 1_100_000, "fields": []}),
    "deep arrays": nested(5_000),
    "very deep arrays": nested(20_000),
    "deep unions": nested(10_000, "[", '"int"', "]"),
    "deep records": DEEP_RECORDS,
    "deep properties": '{"type":"int","x":' + nested(50_000, "[", "1", "]") + "}",
    "1,001 types": MANY_TYPES,
    "a huge number": '{"type":"fixed","name":"F","size":' + "9" * 100_000 + "}",
    "a huge exponent": '{"type":"record","name":"A","fields":[{"name":"x","type":"long","default":1e999999999}]}',
    "half of a pair": '{"type":"record","name":"A","doc":"\\ud800","fields":[',
    "a backtracking pattern": json.dumps({"type": "record", "name": "A" + "." * 50_000 + "!", "fields": []}),
}


@pytest.mark.parametrize("path", ["/subjects/s/versions", "/subjects/s", "/compatibility/subjects/s/versions/latest"])
@pytest.mark.parametrize("name", BOMBS)
async def test_a_schema_that_is_a_bomb(name: str, path: str) -> None:
    async with opened() as registry:
        app = create_app(registry)
        began = time.process_time()
        answer = await ask(app, "POST", path, {"schema": BOMBS[name]})
        assert time.process_time() - began < 2  # of the processor: how busy the machine is does not matter
        assert answer.status in (404, 422), answer.body[:500]
        assert len(answer.body) < 10_000, "an answer does not repeat the bomb"
        assert (await ask(app, "POST", "/subjects/s/versions", {"schema": '"int"'})).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"schema":' * 50_000,
        b'{"schema":"a","metadata":' + b'{"tags":' * 50_000 + b"1" + b"}" * 50_001,
        b'{"schema":"\xff\xfe"}',
        b'{"schema":"\\ud800"}',
        b'{"schema":"a","id":' + b"9" * 10_000 + b"}",
        b"\x00" * 100_000,
        b"\xef\xbb\xbf{}",
    ],
    ids=["arrays", "objects", "metadata", "no UTF-8", "half a pair", "a huge number", "zeros", "a mark in front"],
)
@pytest.mark.parametrize("path", ["/subjects/s/versions", "/config", "/mode"])
async def test_a_body_that_is_a_bomb(body: bytes, path: str) -> None:
    async with opened() as registry:
        answer = await ask(create_app(registry), "PUT" if path in ("/config", "/mode") else "POST", path, body)
        assert answer.error in ((400, 400), (422, 422), (422, 42201)), answer.body[:500]
        assert len(answer.body) < 10_000


async def test_references_in_a_ring_cannot_be() -> None:
    """A version refers to versions that are there already; so nothing refers to itself, however it is tried."""
    async with opened() as registry:
        app = create_app(registry)
        a = {"schema": '{"type":"record","name":"A","fields":[{"name":"b","type":"B"}]}'}
        b = {"schema": '{"type":"record","name":"B","fields":[]}'}
        assert (await ask(app, "POST", "/subjects/b/versions", b)).status == 200
        to_b = [{"name": "B", "subject": "b", "version": 1}]
        assert (await ask(app, "POST", "/subjects/a/versions", {**a, "references": to_b})).status == 200
        for version in (2, -1):
            to_itself = [{"name": "B", "subject": "a", "version": version}]
            answer = await ask(app, "POST", "/subjects/a/versions", {**a, "references": to_itself})
            assert answer.status in (409, 422)


@pytest.mark.parametrize("form", ["http://127.0.0.1:1/x.json", "file:///etc/passwd", "https://json-schema.org/x"])
async def test_nothing_is_fetched(form: str) -> None:
    """A reference is a subject and a version; a URL in a schema is a name like any other."""
    async with opened() as registry:
        app = create_app(registry)
        schema = json.dumps({"type": "object", "properties": {"a": {"$ref": form}}})
        answer = await ask(app, "POST", "/subjects/s/versions", {"schema": schema, "schemaType": "JSON"})
        assert answer.status == 422 and b"root:" not in answer.body
