"""Confluent's HTTP dialect: content types, error bodies, query parameters, bodies."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec

from serdes.nesting import shallow

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

V1 = b"application/vnd.schemaregistry.v1+json"
CONTENT_TYPES = (V1, b"application/vnd.schemaregistry+json", b"application/json")
"""Content types of responses, the preferred type first."""
TAKEN = frozenset({*CONTENT_TYPES, b"application/octet-stream", b""})
"""Content types of request bodies."""

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([^`]*)`")
_WILDCARDS = frozenset({b"*/*", b"application/*"})


class HttpError(Exception):
    """An answer that HTTP gives, not the registry: its error code is its status."""

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes], code: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = status if code is None else code
        self.message = message
        self.headers = headers


def not_found() -> HttpError:
    """The path is none, or a number in it or in the query is none: Confluent's server answers both so."""
    return HttpError(404, "HTTP 404 Not Found")


class Disconnected(Exception):
    """Raised if the peer disconnected before its request was complete; no response is sent."""


# -- headers -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def answer_type(accept: bytes | None) -> bytes:
    """Return the content type of the answer to an ``Accept`` header. Raises HttpError 406: it wants nothing we have."""
    if accept is None:
        return V1
    best: tuple[float, bytes] | None = None
    for part in accept.lower().split(b","):
        name, *parameters = (piece.strip() for piece in part.split(b";"))
        quality = _quality(parameters)
        chosen = V1 if name in _WILDCARDS or not name else name
        if chosen in CONTENT_TYPES and quality > 0 and (best is None or quality > best[0]):
            best = (quality, chosen)
    if best is None:
        raise HttpError(406, "HTTP 406 Not Acceptable")
    return best[1]


def _quality(parameters: Iterable[bytes]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def check_body_type(content_type: bytes) -> None:
    """Check the content type. Raises HttpError 415."""
    if content_type.partition(b";")[0].strip().lower() not in TAKEN:
        raise HttpError(415, "HTTP 415 Unsupported Media Type")


# -- path and query ----------------------------------------------------------------------------------------------------


def decoded(text: bytes) -> str:
    """Decode a percent-encoded segment. Raises HttpError 400 if it is not UTF-8."""
    try:
        return unquote_to_bytes(text).decode() if b"%" in text else text.decode()
    except UnicodeDecodeError:
        raise HttpError(400, "the path is no UTF-8") from None


def query_of(query: bytes) -> dict[str, list[str]]:
    """Return the parameters of a query, in order."""
    found: dict[str, list[str]] = {}
    for pair in query.split(b"&"):
        if pair:
            name, _, value = pair.replace(b"+", b" ").partition(b"=")
            try:
                found.setdefault(decoded(name), []).append(decoded(value))
            except HttpError:
                raise HttpError(400, "the query is no UTF-8") from None
    return found


def boolean(text: str) -> bool:
    """Java's: ``true`` in any case is true, everything else is not. Python's clients send ``True`` and ``False``."""
    return text.lower() == "true"


def integer(text: str) -> int:
    """Java's ``int``. Raises HttpError 404, as Confluent's server answers."""
    number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,10}", text, re.ASCII) else 1 << 31
    if not -(1 << 31) <= number < 1 << 31:
        raise not_found()
    return number


# -- bodies ------------------------------------------------------------------------------------------------------------


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the whole body. Raises HttpError 413, Disconnected."""
    first = await receive()
    if first["type"] != "http.request":
        raise Disconnected
    body: bytes = first.get("body", b"")
    if not first.get("more_body") and len(body) <= limit:
        return body
    parts, size, message = [body], len(body), first
    while size <= limit and message.get("more_body"):
        message = await receive()
        if message["type"] != "http.request":
            raise Disconnected
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    if size > limit:
        raise HttpError(413, f"the body is longer than {limit} bytes", (b"connection", b"close"))
    return b"".join(parts)


def decode(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Return a body as what it should be. Raises HttpError: 422 for none and for unknown members, 400 for the rest."""
    if not body.strip():
        raise HttpError(422, "The request body may not be null: send a JSON object")
    try:
        return decoder.decode(shallow(body))
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN_FIELD.match(str(error))
        if unknown:
            raise HttpError(422, f"Unrecognized field: {unknown[1]}") from None
        raise HttpError(400, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HttpError(400, f"the body is no JSON: {error}") from None


class _ErrorBody(msgspec.Struct):
    error_code: int
    message: str


def error_body(code: int, message: str) -> bytes:
    return msgspec.json.encode(_ErrorBody(code, message.encode("utf-8", "replace").decode()))


async def answer(
    send: Send, status: int, body: bytes, content_type: bytes, headers: Iterable[tuple[bytes, bytes]], *, is_head: bool
) -> None:
    """The whole answer. A HEAD learns how long the body would be."""
    own = [*headers]
    if status != 204:
        own += [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": b"" if is_head else body})
