"""An ASGI app asked as a server would ask it, without sockets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from schema_registry.http.wire import Message, Scope

Headers = Mapping[str, str]


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body) if self.body else None

    @property
    def error(self) -> tuple[int, int]:
        """Status and error code."""
        return self.status, self.json["error_code"] if isinstance(self.json, dict) else 0


async def ask(
    app: Any,
    method: str,
    target: str,
    body: Any = None,
    headers: Headers | None = None,
    *,
    root_path: str = "",
    parts: Iterable[bytes] | None = None,
) -> Answer:
    """One request. ``target`` is the path, percent-encoded, and the query; ``body`` bytes, or what JSON is made of.

    ``parts``: the body as it comes from a slow peer; it leaves before the end when they end with ``b""``.
    """
    raw, _, query = target.partition("?")
    content = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
    messages: list[Message] = [{"type": "http.request", "body": content}]
    if parts is not None:
        messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        messages.append({"type": "http.disconnect"} if messages[-1]["body"] == b"" else {"type": "http.request"})
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": method,
        "path": unquote(raw), "raw_path": raw.encode(), "query_string": query.encode(), "root_path": root_path,
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    if not sent:
        return Answer(0, {}, b"")
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], names, sent[1].get("body", b""))
