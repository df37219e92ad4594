"""Requests made up from the OpenAPI description: none is answered 5xx, none takes long, every error has its body."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import schemathesis
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.core import NOT_SET

from schema_registry.http import create_app
from schema_registry.http.openapi import description
from schema_registry.http.wire import CONTENT_TYPES
from tests.schema_registry.http.asgi import Answer, ask
from tests.schema_registry.http.opening import opened

pytestmark = pytest.mark.system

SUBJECTS = ["a", "b", ":.ctx:c", "a/b"]
SCHEMAS = [
    '"int"', '"long"', "null", "{}", '["null","int"]', '{"type":"record","name":"A","fields":[]}',
    '{"type":"record","name":"A","fields":[{"name":"x","type":"int","default":0}]}',
    '{"type":"record","name":"A","fields":[{"name":"x","type":"B"}]}', '{"type":"object"}',
    '{"type":"enum","name":"E","symbols":["a"]}', 'syntax = "proto3"; message A { string a = 1; }',
]  # fmt: skip
OPERATIONS = [found.ok() for found in schemathesis.openapi.from_dict(json.loads(description())).get_all_operations()]


@st.composite
def requests(draw: Callable[[Any], Any]) -> tuple[str, str, bytes | None, dict[str, str]]:
    """Method, target, body, headers: as described, half of them about subjects and schemas that there may be."""
    case = draw(st.sampled_from(OPERATIONS).flatmap(lambda operation: operation.as_strategy()))
    parts = dict(case.path_parameters or {})
    body = case.body
    if draw(st.booleans()):
        if "subject" in parts:
            parts["subject"] = quote(draw(st.sampled_from(SUBJECTS)), safe="")
        if "id" in parts:
            parts["id"] = draw(st.integers(0, 5))
        if "version" in parts:
            parts["version"] = draw(st.sampled_from(["1", "2", "latest", "-1"]))
        if isinstance(body, dict) and "/config" not in case.path and "/mode" not in case.path:
            body = {**body, "schema": draw(st.sampled_from(SCHEMAS)), "references": [], "schemaType": draw(TYPES)}
    target = case.path.format(**{name: str(value) for name, value in parts.items()})
    query = urlencode(case.query or {}, doseq=True, errors="surrogatepass")
    headers = {"Content-Type": case.media_type} if case.media_type else {}
    content = None if body is NOT_SET else json.dumps(body).encode()
    return case.method, f"{target}?{query}" if query else target, content, headers


TYPES = st.sampled_from(["AVRO", "AVRO", "JSON", "PROTOBUF", None])


def play(examples: int) -> None:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened()) as registry:
        app = create_app(registry)

        def timed(request: tuple[str, str, bytes | None, dict[str, str]]) -> tuple[Answer, float]:
            """In seconds of the processor: how busy the machine is does not matter."""
            began = time.process_time()
            return portal.call(lambda: ask(app, *request)), time.process_time() - began

        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(requests())
        def check(request: tuple[str, str, bytes | None, dict[str, str]]) -> None:
            answer, took = timed(request)
            assert answer.status < 500, answer
            if took > 1:  # a full collection of what hypothesis remembers takes a second: nobody has two in a row
                assert timed(request)[1] < 1
            if answer.status >= 400:
                assert set(answer.json) == {"error_code", "message"}
                assert answer.json["error_code"] // 100 in (answer.status, answer.status // 100)
            if answer.body and request[1] != "/metrics":
                json.loads(answer.body) if "/schema" not in request[1].partition("?")[0][-7:] else None
                assert answer.headers["content-type"].encode() in CONTENT_TYPES

        check()


def test_no_request_is_answered_with_a_failure() -> None:
    play(100)


@pytest.mark.slow
def test_no_request_of_many_is_answered_with_a_failure() -> None:
    """Slow: 20,000 requests take minutes, most of it in making them up."""
    play(20_000)
