"""The ASGI app: ``/health/live``, ``/health/ready``, ``/health/startup`` and ``/metrics``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.errors import RequestTimedOut
from eventbus.telemetry.prometheus import CONTENT_TYPE, exposition
from eventbus.web.probes import Probe, answer
from eventbus.web.sources import OfBus, Source

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_PROBES: dict[str, Probe] = {"/health/live": "live", "/health/ready": "ready", "/health/startup": "startup"}
_METRICS = "/metrics"
_JSON = "application/json"
_METHODS = "GET, HEAD"


class _Response(msgspec.Struct, frozen=True):
    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def health_app(bus: EventBus) -> App:
    """Return an app with the probes and metrics of a bus: ``app.mount("/bus", health_app(bus))``.

    ``/health/live`` fails when only a restart helps, ``/health/ready`` unless the handlers process records,
    ``/health/startup`` until the bus has started: 200 or 503, and JSON with the reason, handler by handler.
    ``/metrics`` is Prometheus's text. The app may be served in another thread or event loop than the bus's.
    """
    return app_of(OfBus(bus))


def app_of(source: Source) -> App:
    """Return an app for any source of health and metrics."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live_through(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            await _send(await _respond(scope, source), scope["method"], send)

    return app


async def _live_through(receive: Receive, send: Send) -> None:
    """Answer the lifespan protocol, for a server whose only app this is: there is nothing to start or stop."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _respond(scope: Scope, source: Source) -> _Response:
    path = _path_of(scope)
    probe = _PROBES.get(path)
    if probe is None and path != _METRICS:
        known = ", ".join((*_PROBES, _METRICS))
        return _json(404, {"error": f"there is no {path or '/'} here; there are {known}"})
    if scope["method"] not in ("GET", "HEAD"):
        refusal = _json(405, {"error": f"{scope['method']} is not taken here: GET or HEAD"})
        return msgspec.structs.replace(refusal, headers=((b"allow", _METHODS.encode()),))
    if probe is not None:
        said = answer(probe, await source.standing())
        return _json(200 if said.passed else 503, said)
    try:
        return _Response(200, CONTENT_TYPE, exposition(await source.samples()).encode())
    except RequestTimedOut as error:
        return _json(503, {"error": f"the bus does not tell its metrics: {error}"})


def _path_of(scope: Scope) -> str:
    """Return the path relative to the mount point: some servers leave the prefix in the path, some do not."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "").rstrip("/")
    if prefix and (path == prefix or path.startswith(f"{prefix}/")):
        path = path[len(prefix) :]
    return path.rstrip("/")


def _json(status: int, value: Any) -> _Response:
    return _Response(status, _JSON, msgspec.json.encode(value))


async def _send(response: _Response, method: str, send: Send) -> None:
    headers = [
        (b"content-type", response.content_type.encode()),
        (b"content-length", str(len(response.body)).encode()),
        (b"cache-control", b"no-store"),
        *response.headers,
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else response.body})
