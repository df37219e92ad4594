"""The registry as an ASGI app, to serve alone or to mount anywhere, under any prefix.

What clients ask for on their hot path (the schema of an id, a registration, a lookup) is found and answered by hand;
every other endpoint goes through Starlette's router. Both end in the same table of operations.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import anyio
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route, Router

from eventbus.errors import ConfigError, EventBusError, RegistryRefused
from schema_registry.errors import RegistryError, association_not_found, no_leader, not_permitted
from schema_registry.http.auth import Access, Authenticate, Users, credentials_of
from schema_registry.http.endpoints import ENDPOINTS
from schema_registry.http.metrics import render
from schema_registry.http.operations import Operation
from schema_registry.http.wire import (
    V1,
    Disconnected,
    HttpError,
    Message,
    Receive,
    Scope,
    Send,
    answer,
    answer_type,
    check_body_type,
    error_body,
    not_found,
    read_body,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventbus import EventBus
    from schema_registry.registry import Registry

_logger = logging.getLogger("schema_registry.http")

MAX_BODY_BYTES = 8 << 20
_READS = ("GET", "HEAD")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
_OPEN = frozenset({b"/health/live", b"/health/ready"})
"""Asked by what has no password."""
_CHALLENGES = ((b"www-authenticate", b'Basic realm="schema registry"'), (b"www-authenticate", b"Bearer"))


def create_app(
    registry: Registry | EventBus,
    *,
    auth: Authenticate | Mapping[str, str] | None = None,
    read_only: bool = False,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> RegistryApp:
    """Return an ASGI app for a `Registry`, or for the log of a bus.

    ``auth`` is `Users`, a mapping of users to passwords, or a function from `Credentials` to `Access`; None allows
    every client. ``read_only`` refuses every write. A request with a longer body than ``max_body_bytes`` is refused.

    The server's lifespan starts the registry of a bus, or the first request does if the app is mounted in another app
    that does not forward the lifespan; the bus must be running then.
    """
    from schema_registry.registry import Registry

    if isinstance(registry, Registry):
        return RegistryApp(registry, auth=auth, read_only=read_only, max_body_bytes=max_body_bytes)
    return RegistryApp(Registry(registry), is_own=True, auth=auth, read_only=read_only, max_body_bytes=max_body_bytes)


class RegistryApp:
    """The ASGI app that `create_app` returns."""

    def __init__(
        self,
        registry: Registry,
        *,
        is_own: bool = False,
        auth: Authenticate | Mapping[str, str] | None = None,
        read_only: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        if max_body_bytes <= 0:
            raise ConfigError(f"max_body_bytes={max_body_bytes!r}: a limit is a number above 0")
        self.registry = registry
        self.answered: Counter[tuple[str, str, int]] = Counter()
        """Request counts by method, endpoint and status."""
        self._is_own = is_own
        self._is_started = False
        self._starting = anyio.Lock()
        self._auth: Authenticate | None = auth if auth is None or callable(auth) else Users(auth)
        self._read_only = read_only
        self._max_body_bytes = max_body_bytes
        own = {
            "_nothing": dict[str, Any], "_metadata_id": self._metadata_id, "_metadata_version": _metadata_version,
            "_metadata_deployment": dict[str, Any], "_live": _live, "_ready": self._ready, "_openapi": _openapi,
            "_metrics": lambda: render(self), "_no_association": _no_association,
        }  # fmt: skip
        operations = {(each.method, each.path): Operation(each, own) for each in ENDPOINTS}
        self._by_id = operations["GET", "/schemas/ids/{id}"]
        self._register = operations["POST", "/subjects/{subject}/versions"]
        self._lookup = operations["POST", "/subjects/{subject}"]
        self._router = Router(_routes(operations), default=_nowhere, redirect_slashes=False)

    @property
    def asks_who(self) -> bool:
        return self._auth is not None

    # -- ASGI ----------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._lifespan(receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1000})
        request = Request(scope, receive)
        try:
            status, body = await self._answer(request)
        except Disconnected:
            return
        except HttpError as error:
            status, body = error.status, error_body(error.code, error.message)
            request.headers = error.headers
        except RegistryError as error:
            status, body = error.status, error_body(error.error_code, error.message)
        except RegistryRefused as error:
            refused = no_leader(str(error))
            status, body = refused.status, error_body(refused.error_code, refused.message)
        except EventBusError as error:
            status, body = 500, error_body(50001, f"the registry's log: {error}")
        except Exception:  # a bug in the registry: the client gets a 500, and the log has the traceback
            _logger.exception("%s %s", request.method, scope["path"])
            status, body = 500, error_body(500, "Internal Server Error: the server's log says more")
        method = request.method if request.method in _METHODS else "other"
        self.answered[method, request.endpoint, status] += 1
        await answer(send, status, body, request.type, request.headers, is_head=request.method == "HEAD")

    async def _answer(self, request: Request) -> tuple[int, bytes]:
        if self._auth is not None:
            request.access = await self._access(request)
        operation, parts = self._hot(request)
        if operation is None:
            return await self._route(request)
        return await self.run(operation, request, parts)

    def _hot(self, request: Request) -> tuple[Operation | None, Mapping[str, bytes]]:
        """Serve the most frequent requests without the router."""
        match request.path.split(b"/"):
            case [b"", b"schemas", b"ids", number] if request.method in _READS:
                return self._by_id, {"id": number}
            case [b"", b"subjects", subject, b"versions"] if request.method == "POST" and subject:
                return self._register, {"subject": subject}
            case [b"", b"subjects", subject] if request.method == "POST" and subject:
                return self._lookup, {"subject": subject}
            case _:
                return None, {}

    async def _route(self, request: Request) -> tuple[int, bytes]:
        scope: Scope = {
            "type": "http", "method": request.method, "path": request.path.decode("latin-1"), "root_path": "",
            "headers": [], "app": self, "request": request,
        }  # fmt: skip
        try:
            await self._router(scope, request.receive, _no_send)
        except HTTPException as error:
            allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
            headers = ((b"allow", allowed.encode()),) if allowed else ()
            if request.method == "OPTIONS" and allowed:
                request.headers = headers
                return 200, b"{}"
            raise HttpError(error.status_code, f"HTTP {error.status_code} {error.detail}", *headers) from None
        return request.result

    async def run(self, operation: Operation, request: Request, parts: Mapping[str, bytes]) -> tuple[int, bytes]:
        """One operation, if it may be done."""
        endpoint = operation.endpoint
        request.endpoint = endpoint.path
        request.type = endpoint.content_type or answer_type(request.accept)
        if endpoint.writes and request.access < Access.WRITE:
            raise HttpError(403, "Forbidden: this user may only read", code=40301)
        if endpoint.writes and self._read_only:
            raise not_permitted("the registry is in read-only mode: it is served so")
        body = b""
        if endpoint.body is not None:
            check_body_type(request.content_type)
            body = await read_body(request.receive, self._max_body_bytes)
        if not self.registry.is_ready and not endpoint.does.startswith("_"):
            await self.start()
        return await operation.call(self.registry, parts, request.query, body, lenient=request.lenient)

    async def _access(self, request: Request) -> Access:
        """Raises HttpError 401, for paths that there are not too."""
        assert self._auth is not None
        credentials = credentials_of(request.authorization) if request.authorization else None
        if credentials is not None:
            access = self._auth(credentials)
            access = await access if inspect.isawaitable(access) else access
            if access:
                return access
        if request.path in _OPEN:
            return Access.READ
        raise HttpError(401, "Unauthorized", *_CHALLENGES)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the registry, if it is the app's own. Raises RegistryError 50004 where it does not serve."""
        async with self._starting:
            if self._is_own and not self._is_started:
                await self.registry.start()
                self._is_started = True
        if not self.registry.is_ready:
            refusal = self.registry.refusal
            raise no_leader(str(refusal or "The registry is not running. Start it together with its bus"))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        message: Message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                if self._is_own:
                    await self.start()
            except Exception as error:
                return await send({"type": "lifespan.startup.failed", "message": str(error)})
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def aclose(self) -> None:
        """Stop the registry, if it is the app's own."""
        if self._is_started:
            self._is_started = False
            await self.registry.aclose()

    # -- answers that need no schema -----------------------------------------------------------------------------------

    async def _ready(self) -> dict[str, Any]:
        if not self.registry.is_ready:
            try:
                await self.start()
            except EventBusError as error:
                raise HttpError(503, f"not ready: {error}") from None
        return {"status": "ready"}

    async def _metadata_id(self) -> dict[str, Any]:
        clusters = {"kafka-cluster": self.registry.cluster_id, "schema-registry-cluster": "schema-registry"}
        return {"id": "", "scope": {"path": [], "clusters": clusters}}


class Request:
    """The parts of an ASGI scope that determine the response."""

    __slots__ = (
        "accept", "access", "authorization", "content_type", "endpoint", "headers", "lenient", "method", "path",
        "query", "receive", "result", "type",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path = _path(scope)
        self.query: bytes = scope["query_string"]
        self.receive = receive
        self.accept: bytes | None = None
        self.authorization = b""
        self.content_type = b""
        self.lenient = False
        self.type = V1
        self.endpoint = "none"
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.access = Access.WRITE
        self.result: tuple[int, bytes] = (500, b"")
        for name, value in scope["headers"]:
            if name == b"accept":
                self.accept = value if self.accept is None else b"%b,%b" % (self.accept, value)
            elif name == b"authorization":
                self.authorization = value
            elif name == b"content-type":
                self.content_type = value
            elif name == b"confluent-accept-unknown-properties":
                self.lenient = value.lower() == b"true"


def _path(scope: Scope) -> bytes:
    """The path below the app's prefix, still percent-encoded: a subject may have slashes. No slash at its end."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    root: str = scope.get("root_path", "").rstrip("/")
    if root and scope["path"].startswith(root):
        path = b"/" + b"".join(path.split(b"/", root.count("/") + 1)[root.count("/") + 1 :])
    return path.rstrip(b"/") or b"/"


# -- Starlette's part --------------------------------------------------------------------------------------------------


class _ByMethod:
    """All endpoints of one path."""

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: RegistryApp = scope["app"]
        request: Request = scope["request"]
        method = "GET" if request.method == "HEAD" else request.method
        parts = {name: value.encode("latin-1") for name, value in scope["path_params"].items()}
        request.result = await app.run(self._operations[method], request, parts)


def _routes(operations: Mapping[tuple[str, str], Operation]) -> list[BaseRoute]:
    by_path: dict[str, dict[str, Operation]] = {}
    for (method, path), operation in operations.items():
        by_path.setdefault(path, {})[method] = operation
    return [Route(path, cast("Any", _ByMethod(each)), methods=list(each)) for path, each in by_path.items()]


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise not_found()


async def _no_send(message: Message) -> None:
    raise AssertionError("operations return their answers")


def _metadata_version() -> dict[str, str]:
    from eventbus.version import __version__

    return {"version": __version__, "commitId": ""}


def _live() -> dict[str, str]:
    return {"status": "live"}


def _openapi() -> bytes:
    from schema_registry.http.openapi import description

    return description()


def _no_association(resource_id: str) -> None:
    raise association_not_found(resource_id)
