"""The app as others mount it, its life and its own endpoints."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from urllib.parse import unquote

import msgspec
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from starlette.applications import Starlette
from starlette.routing import Mount

from eventbus import EventBus
from eventbus.errors import ConfigError, EventBusError
from schema_registry import Registry, RegistryRefused
from schema_registry.entities import SchemaRequest
from schema_registry.formats import protoc
from schema_registry.http import RegistryApp, create_app
from schema_registry.http.endpoints import ENDPOINTS, Endpoint
from schema_registry.http.wire import Message
from tests.schema_registry.http.asgi import Answer, ask
from tests.schema_registry.http.opening import opened

pytestmark = pytest.mark.system

INT = {"schema": '"int"'}


@pytest.mark.parametrize("prefix", ["/registry", "/api/v1/registry", "/r%C3%A9"])
async def test_below_any_prefix(prefix: str) -> None:
    async with opened() as registry:
        outer = Starlette(routes=[Mount(unquote(prefix), app=create_app(registry))])
        assert (await ask(outer, "POST", f"{prefix}/subjects/a%2Fb/versions", INT)).json["id"] == 1
        assert (await ask(outer, "GET", f"{prefix}/subjects/")).json == ["a/b"]
        assert (await ask(outer, "GET", f"{prefix}/subjects/a%2Fb/versions")).json == [1]
        assert (await ask(outer, "GET", f"{prefix}/schemas/ids/1")).json["schema"] == '"int"'
        assert (await ask(outer, "GET", f"{prefix}/")).json == {}
        assert (await ask(outer, "GET", f"{prefix}/registry")).status == 404


@pytest.mark.parametrize("path", ["/r/subjects", "/subjects"])
async def test_servers_that_strip_the_prefix_and_servers_that_do_not(path: str) -> None:
    async with opened() as registry:
        assert (await ask(create_app(registry), "GET", path, root_path="/r")).json == []


@pytest.mark.parametrize("size", [999, 1_000, 1_001, 5_000])
async def test_a_body_has_a_longest_length(size: int) -> None:
    async with opened() as registry:
        app = create_app(registry, max_body_bytes=1_000)
        body = json.dumps(INT).encode().ljust(size)
        answer = await ask(app, "POST", "/subjects/s/versions", body)
        assert answer.status == (200 if size <= 1_000 else 413)
        parts = [body[at : at + 100] for at in range(0, size, 100)]
        answer = await ask(app, "POST", "/subjects/s/versions", parts=parts)
        assert answer.status == (200 if size <= 1_000 else 413)


async def test_a_limit_is_above_zero() -> None:
    async with opened() as registry:
        with pytest.raises(ConfigError, match="max_body_bytes=0"):
            create_app(registry, max_body_bytes=0)


async def test_a_peer_that_leaves_in_the_middle_gets_no_answer() -> None:
    async with opened() as registry:
        answer = await ask(create_app(registry), "POST", "/subjects/s/versions", parts=[b'{"schema":', b""])
        assert answer.status == 0
        assert registry.subjects() == []


async def test_two_processes_on_one_log_see_each_other() -> None:
    """What one has written a moment ago the other finds, though it reads when it likes."""
    async with (
        EventBus("memory://two-faces") as one, Registry(one) as writer,
        EventBus("memory://two-faces") as two, Registry(two) as reader,
    ):  # fmt: skip
        await ask(create_app(writer), "POST", "/subjects/s/versions", INT)
        assert (await ask(create_app(reader), "GET", "/schemas/ids/1")).status == 200


async def test_the_first_request_starts_the_registry_of_a_bus() -> None:
    async with EventBus("memory://") as bus:
        app = create_app(bus)
        answers = await asyncio.gather(*(ask(app, "GET", "/subjects") for _ in range(8)))
        assert {answer.status for answer in answers} == {200}
        await app.aclose()


async def test_its_lifespan_starts_and_stops_it() -> None:
    async with EventBus("memory://") as bus:
        app = create_app(bus)
        told: asyncio.Queue[Message] = asyncio.Queue()
        said: asyncio.Queue[Message] = asyncio.Queue()
        life = asyncio.create_task(app({"type": "lifespan"}, told.get, said.put))
        await told.put({"type": "lifespan.startup"})
        assert (await said.get())["type"] == "lifespan.startup.complete"
        assert app.registry.is_ready
        await told.put({"type": "lifespan.shutdown"})
        assert (await said.get())["type"] == "lifespan.shutdown.complete"
        await life
        assert not app.registry.is_ready


async def test_a_registry_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(self: Registry, bus: EventBus | None = None) -> None:
        raise EventBusError("the topic is truncated: restore it")

    monkeypatch.setattr(Registry, "start", start)
    async with EventBus("memory://") as bus:
        app = create_app(bus)
        answer = await ask(app, "GET", "/subjects")
        assert answer.error == (500, 50001) and "truncated" in answer.json["message"]
        ready = await ask(app, "GET", "/health/ready")
        assert ready.status == 503 and "truncated" in ready.json["message"]
        assert (await ask(app, "GET", "/health/live")).status == 200


async def test_a_registry_that_its_owner_has_not_started() -> None:
    async with EventBus("memory://") as bus:
        assert (await ask(create_app(Registry(bus)), "GET", "/subjects")).error == (500, 50004)


async def test_a_bug_is_told_to_the_log_not_to_the_peer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as registry:

        def subjects(self: Registry, **query: object) -> list[str]:
            raise ZeroDivisionError("a secret")

        monkeypatch.setattr(Registry, "subjects", subjects)
        answer = await ask(create_app(registry), "GET", "/subjects")
        assert answer.error == (500, 500) and b"secret" not in answer.body
        assert "a secret" in caplog.text


async def test_metrics() -> None:
    async with opened() as registry:
        app = create_app(registry)
        await ask(app, "GET", "/schemas/ids/7")
        await ask(app, "GET", "/subjects")
        await ask(app, "GET", "/nothing")
        answer = await ask(app, "GET", "/metrics", headers={"Accept": "text/plain"})
        assert answer.headers["content-type"].startswith("text/plain")
        assert answer.body.decode().splitlines()[2:] == [
            'schema_registry_requests_total{endpoint="/schemas/ids/{id}",method="GET",status="404"} 1',
            'schema_registry_requests_total{endpoint="/subjects",method="GET",status="200"} 1',
            'schema_registry_requests_total{endpoint="none",method="GET",status="404"} 1',
            "# HELP schema_registry_ready Whether the registry has read its log and serves it.",
            "# TYPE schema_registry_ready gauge",
            "schema_registry_ready 1",
        ]


async def test_methods_that_nobody_knows_fill_no_memory() -> None:
    async with opened() as registry:
        app = create_app(registry)
        for number in range(100):
            await ask(app, f"M{number}", f"/nothing/{number}")
        assert len(app.answered) == 1


async def test_the_description_is_served() -> None:
    async with opened() as registry:
        answer = await ask(create_app(registry), "GET", "/openapi.json")
        assert answer.json["openapi"] == "3.1.0"
        described = {(method.upper(), path) for path, each in answer.json["paths"].items() for method in each}
        assert described == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}


async def test_websockets_are_sent_away() -> None:
    async with opened() as registry:
        said: list[Message] = []

        async def send(message: Message) -> None:
            said.append(message)

        app: RegistryApp = create_app(registry)
        await app({"type": "websocket"}, None, send)
        assert said == [{"type": "websocket.close", "code": 1000}]


@pytest.mark.parametrize("is_own", [True, False])
async def test_a_registry_that_refuses_to_serve_gives_no_ids(is_own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic was deleted, for instance, while it was running."""
    async with EventBus("memory://") as bus:
        app = create_app(bus) if is_own else create_app(Registry(bus))
        if not is_own:
            await app.registry.start()
        assert (await ask(app, "POST", "/subjects/s/versions", INT)).status == 200
        assert (await ask(app, "GET", "/schemas/ids/1")).status == 200
        with monkeypatch.context() as patch:
            patch.setattr(Registry, "is_ready", False)
            patch.setattr(Registry, "refusal", RegistryRefused("the topic is another one"))
            for method, target in (("GET", "/schemas/ids/1"), ("GET", "/subjects"), ("POST", "/subjects/s/versions")):
                answer = await ask(app, method, target, INT)
                assert answer.error == (500, 50004) and "the topic is another one" in answer.json["message"]
            assert (await ask(app, "GET", "/health/ready")).status == 503
        await app.registry.aclose()


# format= -------------------------------------------------------------------------------------------------------------

PROTO = """syntax = "proto3";

import "google/protobuf/descriptor.proto";

message M {
  int32 a = 1 [(b) = true];
}

extend google.protobuf.FieldOptions {
  optional bool b = 50001;
}
"""
FORMATTED = [endpoint for endpoint in ENDPOINTS if any(query.name == "format" for query in endpoint.query)]


@pytest.mark.parametrize("endpoint", FORMATTED, ids=lambda one: f"{one.method} {one.path}")
async def test_an_endpoint_with_a_format_honours_it_and_compiles_beside_the_event_loop(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, threads = threading.get_ident(), list[int]()
    run = protoc.subprocess.run
    monkeypatch.setattr(protoc.subprocess, "run", lambda *a, **k: threads.append(threading.get_ident()) or run(*a, **k))
    monkeypatch.setattr(protoc, "MAX_RECENT", 0)
    async with opened() as registry:
        body = {"schemaType": "PROTOBUF", "schema": PROTO, "metadata": {"properties": {"k": "v"}}}
        stored = await registry.register("s", msgspec.convert(body, SchemaRequest))
        path = endpoint.path
        for part, value in (("id", "1"), ("guid", stored.guid), ("subject", "s"), ("version", "1")):
            path = path.replace(f"{{{part}}}", str(value))
        registry._schemas.forget()  # as after a restart

        async def schema(format: str) -> Answer:
            target = f"{path}?format={format}" + ("&key=k&value=v" if endpoint.does == "subject_metadata" else "")
            return await ask(create_app(registry), endpoint.method, target, endpoint.body and body)

        def text(answer: Answer) -> str:
            return answer.body.decode() if endpoint.form == "raw" else answer.json["schema"]

        descriptor = FileDescriptorProto.FromString(base64.b64decode(text(await schema("serialized"))))
        assert [message.name for message in descriptor.message_type] == ["M"]
        assert "50001" not in text(await schema("ignore_extensions"))
        assert text(await schema("resolved")) == text(await schema("")) == PROTO
        refused = await schema("serialised")
        assert refused.status == 422 and "resolved, serialized, and ignore_extensions" in refused.json["message"]
    assert threads and loop not in threads
