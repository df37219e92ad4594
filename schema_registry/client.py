"""A schema registry over HTTP: Confluent's, Karapace, Redpanda's, or ours. Needs urllib3.

Synchronous and thread-safe, for worker threads. What a registry can never change (the schema of an id) is asked once.
"""

from __future__ import annotations

import random
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

import msgspec
import urllib3

from eventbus.durations import Duration, seconds
from eventbus.forks import ForkLock, watch_forks
from serdes.errors import SchemaRegistryError
from serdes.nesting import shallow
from serdes.registry import Compatibility, Reference, RegisteredSchema, SchemaText

JSON = "application/vnd.schemaregistry.v1+json"
MAX_ANSWER = 64 << 20
"""Bytes of one answer: a list of every schema may be long, an answer without end is not read to its end."""

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 1.0
_SHORTEST_TRY_S = 0.1
"""Do not try again with less time left: a timeout would hide the reason of the earlier failures."""
_CACHED = 10_000
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})

T = TypeVar("T")


def segment(text: str) -> str:
    """Quote a subject, version or context as a single segment of a path, even if it contains a slash.

    Raises SchemaRegistryError for a name that no path can hold.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        reason = f"The subject {text!a} is not UTF-8. Give another name."
        raise SchemaRegistryError(reason, status=422, error_code=42208) from None
    # Clients and proxies resolve . and .. in a path, so these two subjects are written in full.
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


class OAuth(msgspec.Struct, frozen=True, kw_only=True):
    """OAuth 2.0 client credentials: the token endpoint, and the identity of the client."""

    token_url: str
    client_id: str
    client_secret: str
    scope: str = ""
    parameters: Mapping[str, str] = {}
    """More form fields, say ``{"audience": ...}``."""

    def __repr__(self) -> str:
        return f"OAuth(token_url={self.token_url!r}, client_id={self.client_id!r}, client_secret='***')"


class RegistryClient:
    """A client of a schema registry over HTTP (`serdes.registry.SchemaClient`).

    ``url`` is one URL, several URLs separated by commas, or a sequence; if a registry fails, the next one is used. A
    user and password may be part of the URL (``http://user:password@host:8081``) or in ``auth``; ``token`` is a bearer
    token or a function that returns one; ``oauth`` fetches tokens. ``ca_file`` has the trusted certificates (default:
    the system's); ``certificate_file`` and ``key_file`` are the client's certificate. A request and all its retries
    take no longer than ``timeout``. Raises ValueError for an invalid URL.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        auth: tuple[str, str] | None = None,
        token: str | Callable[[], str] | None = None,
        oauth: OAuth | None = None,
        ca_file: str | None = None,
        certificate_file: str | None = None,
        key_file: str | None = None,
        key_password: str | None = None,
        timeout: Duration = 5.0,
        connections: int = 8,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if sum(given is not None for given in (auth, token, oauth)) > 1:
            raise ValueError("a client has one way to say who it is: auth=, token= or oauth=")
        urls = [part.strip() for part in url.split(",")] if isinstance(url, str) else list(url)
        self._servers = [_server(each, auth) for each in urls]
        self._first = 0
        self._timeout_s = seconds(timeout, f"timeout={timeout!r}")
        self._token = _Tokens(oauth, self) if oauth else token
        self._headers = {
            "Accept": f"{JSON}, application/json;q=0.5",
            "User-Agent": "eventbus-schema-registry",
            **(headers or {}),
        }
        context = _tls(ca_file, certificate_file, key_file, key_password)
        self._new_pool = partial(urllib3.PoolManager, maxsize=connections, ssl_context=context, retries=False)
        self._pool = self._new_pool()
        self._ids = _Cache()
        self._answers = _Cache()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Open new connections: parent and child would read each other's answers from a shared one."""
        self._pool = self._new_pool()

    def __repr__(self) -> str:
        return f"RegistryClient({','.join(server.shown for server in self._servers)!r})"

    # -- SchemaClient --------------------------------------------------------------------------------------------------

    def known(self, schema_id: int, subject: str | None = None) -> RegisteredSchema | None:
        return self._ids.get((schema_id, _context(subject)))

    def by_id(self, schema_id: int, subject: str | None = None) -> RegisteredSchema:
        def ask() -> RegisteredSchema:
            answer = self.request("GET", f"/schemas/ids/{schema_id}", query={"subject": subject})
            return RegisteredSchema(schema_id, answer.get("guid"), _text(answer))

        return self._ids.get_or((schema_id, _context(subject)), ask)

    def by_guid(self, guid: str) -> RegisteredSchema:
        def ask() -> RegisteredSchema:
            answer = self.request("GET", f"/schemas/guids/{segment(guid)}")
            return RegisteredSchema(answer.get("id") or -1, guid, _text(answer))

        return self._answers.get_or(("guid", guid), ask)

    def register(self, subject: str, text: SchemaText, *, normalize: bool = False) -> RegisteredSchema:
        def ask() -> RegisteredSchema:
            path = f"/subjects/{segment(subject)}/versions"
            answer = self.request("POST", path, query={"normalize": normalize or None}, body=_body(text))
            if "schema" not in answer:  # an older registry: its rules for the schema are in another response
                return msgspec.structs.replace(self.by_id(answer["id"], subject), subject=subject)
            return self._remembered(_registered(answer, text, subject), True)

        return self._answers.get_or(("register", subject, _key(text), normalize), ask)

    def lookup(
        self, subject: str, text: SchemaText, *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema:
        def ask() -> RegisteredSchema:
            query = {"normalize": normalize or None, "deleted": deleted or None}
            answer = self.request("POST", f"/subjects/{segment(subject)}", query=query, body=_body(text))
            return self._remembered(_registered(answer, text, subject), "schema" in answer)

        return self._answers.get_or(("lookup", subject, _key(text), normalize, deleted), ask)

    def latest(self, subject: str) -> RegisteredSchema:
        return _registered(self.request("GET", f"/subjects/{segment(subject)}/versions/latest"), None, subject)

    def version(self, subject: str, version: int, *, deleted: bool = False) -> RegisteredSchema:
        path = f"/subjects/{segment(subject)}/versions/{version}"
        return _registered(self.request("GET", path, query={"deleted": deleted or None}), None, subject)

    def is_compatible(self, subject: str, text: SchemaText, version: int | str = "latest") -> Compatibility:
        path = f"/compatibility/subjects/{segment(subject)}/versions/{version}"
        answer = self.request("POST", path, query={"verbose": True}, body=_body(text))
        return Compatibility(bool(answer.get("is_compatible")), tuple(map(str, answer.get("messages") or ())))

    def close(self) -> None:
        self._pool.clear()

    def _remembered(self, found: RegisteredSchema, is_whole: bool) -> RegisteredSchema:
        """Cache the id of a registered schema, if the response contained the registry's own text of it."""
        if is_whole:
            bare = RegisteredSchema(found.id, found.guid, found.text)
            self._ids.get_or((found.id, _context(found.subject)), lambda: bare)
        return found

    # -- any endpoint --------------------------------------------------------------------------------------------------

    def request(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """Return the decoded answer of any endpoint. ``query``: what is None is left out. Raises SchemaRegistryError.

        When an answer is lost, what was asked is asked again, though the registry may have done it the first time.
        """
        pairs = [(name, _parameter(value)) for name, value in (query or {}).items() if value is not None]
        target = path + (f"?{urlencode(pairs)}" if pairs else "")
        content = None if body is None else msgspec.json.encode(body)
        deadline = time.monotonic() + self._timeout_s
        wait, tries, renewed = _FIRST_WAIT_S, 0, False
        failure = SchemaRegistryError("nobody was asked")
        while True:
            for turn in range(len(self._servers)):
                place = (self._first + turn) % len(self._servers)
                server = self._servers[place]
                tries += 1
                try:
                    status, data = self._try(server, method, target, content, deadline)
                except (urllib3.exceptions.HTTPError, OSError) as error:
                    failure = SchemaRegistryError(f"{server.shown}: {_why(error)}")
                else:
                    if status < 300:  # a redirection is followed nowhere: passwords go to whom they were meant for
                        self._first = place
                        return _decoded(data, server, target)
                    failure = _refusal(status, data, f"{method} {server.shown}{path}")
                    if status == 401 and isinstance(self._token, _Tokens) and not renewed:
                        renewed = True
                        self._token.forget()
                        break
                    if status not in _RETRIED:
                        raise failure
                if time.monotonic() >= deadline:
                    raise _unavailable(failure, tries, self._timeout_s)
            else:
                pause = random.uniform(0, wait)  # full jitter: clients that failed together do not return together
                if time.monotonic() + pause + _SHORTEST_TRY_S >= deadline:
                    raise _unavailable(failure, tries, self._timeout_s)
                time.sleep(pause)  # in the thread that asks: a serde's fetch, never an event loop
                wait = min(2 * wait, _LONGEST_WAIT_S)

    def _try(
        self, server: _Server, method: str, target: str, content: bytes | None, deadline: float
    ) -> tuple[int, bytes]:
        headers = dict(self._headers)
        if content is not None:
            headers["Content-Type"] = JSON
        token = self._token() if callable(self._token) else self._token
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        elif server.authorization:
            headers["Authorization"] = server.authorization
        return self.send(method, server.url + target, headers, content, deadline)

    def send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None, deadline: float
    ) -> tuple[int, bytes]:
        """Send the request once, and return status and body. The deadline applies to the whole body."""
        left = max(deadline - time.monotonic(), 0.001)
        answer = self._pool.request(
            method, url, body=content, headers=headers, timeout=urllib3.Timeout(total=left), preload_content=False,
            redirect=False,
        )  # fmt: skip
        try:
            parts: list[bytes] = []
            size = 0
            while part := answer.read1(1 << 16):  # what is there: `stream` waits until all of it is
                parts.append(part)
                size += len(part)
                if size > MAX_ANSWER:
                    raise urllib3.exceptions.HTTPError(f"the answer is longer than {MAX_ANSWER:,} bytes")
                if time.monotonic() > deadline:
                    raise urllib3.exceptions.HTTPError("the answer came too slowly")
        except BaseException:
            answer.close()  # a connection in the middle of an answer is of no further use
            raise
        answer.release_conn()
        return answer.status, b"".join(parts)


# -- parts -------------------------------------------------------------------------------------------------------------


class _Server(msgspec.Struct, frozen=True):
    url: str
    authorization: str | None
    shown: str
    """The URL without its password."""


def _server(url: str, auth: tuple[str, str] | None) -> _Server:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{_masked(url)!r} is not the URL of a registry: write http://host:8081 or https://host:8081")
    host = parts.netloc.rpartition("@")[2]
    if auth is None and parts.username is not None:
        auth = unquote(parts.username), unquote(parts.password or "")
    base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
    basic = None if auth is None else "Basic " + b64encode(f"{auth[0]}:{auth[1]}".encode()).decode()
    return _Server(base, basic, base)


def _masked(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.rpartition('://')[0]}://***@{tail}" if at else url


def _tls(
    ca_file: str | None, certificate_file: str | None, key_file: str | None, key_password: str | None
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if certificate_file:
            context.load_cert_chain(certificate_file, key_file, key_password)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(file for file in (ca_file, certificate_file, key_file) if file)
        raise ValueError(f"TLS with {files}: {error}; PEM files are needed") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class _Cache:
    """Answers that cannot change, each asked for once however many threads want it. The oldest go first."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}
        self._asking: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        self._asking, self._lock = {}, threading.Lock()  # the threads that ask are the parent's

    def get(self, key: Hashable) -> Any:
        return self._found.get(key)

    def get_or(self, key: Hashable, ask: Callable[[], T]) -> T:
        found = self._found.get(key)
        if found is not None:
            return found
        with self._lock:
            answer = self._asking.get(key)
            mine = answer is None
            if answer is None:
                answer = self._asking[key] = Future()
        if not mine:
            return answer.result()  # a failure too: who asked for all has tried until his deadline
        try:
            found = ask()
        except BaseException as error:
            answer.set_exception(error)
            raise
        else:
            self._keep(key, found)
            answer.set_result(found)
            return found
        finally:
            with self._lock:
                self._asking.pop(key, None)

    def _keep(self, key: Hashable, found: Any) -> None:
        with self._lock:
            while len(self._found) >= _CACHED:
                del self._found[next(iter(self._found))]
            self._found[key] = found


class _Tokens:
    """Tokens of an OAuth server, each used until shortly before it ends."""

    def __init__(self, oauth: OAuth, client: RegistryClient) -> None:
        self._oauth = oauth
        self._client = client
        self._fetching = ForkLock()
        self._token = ""
        self._until = 0.0

    def forget(self) -> None:
        self._until = 0.0

    def __call__(self) -> str:
        with self._fetching.lock:
            if time.monotonic() >= self._until:
                self._token, lifetime = self._fetch()
                self._until = time.monotonic() + 0.8 * lifetime
            return self._token

    def _fetch(self) -> tuple[str, float]:
        oauth = self._oauth
        form = {"grant_type": "client_credentials", **oauth.parameters}
        if oauth.scope:
            form["scope"] = oauth.scope
        who = b64encode(f"{quote(oauth.client_id, safe='')}:{quote(oauth.client_secret, safe='')}".encode()).decode()
        headers = {
            "Authorization": f"Basic {who}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        deadline = time.monotonic() + self._client._timeout_s  # pyright: ignore[reportPrivateUsage] - its own part
        status, data = self._client.send("POST", oauth.token_url, headers, urlencode(form).encode(), deadline)
        try:
            answer = msgspec.json.decode(shallow(data), type=dict[str, Any])
            return str(answer["access_token"]), float(answer.get("expires_in", 60))
        except (msgspec.DecodeError, KeyError, ValueError):
            raise SchemaRegistryError(
                f"{oauth.token_url} gave no token for client {oauth.client_id!r} (status {status}): "
                "check the client's id, secret and scope",
                status=status if status >= 400 else 401,
            ) from None


def _context(subject: str | None) -> str:
    """Ids count within a context, which is the part between the colons of ``:.context:subject``."""
    return subject.split(":", 2)[1] if subject and subject.startswith(":.") and subject.count(":") > 1 else "."


def _parameter(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _key(text: SchemaText) -> Hashable:
    return msgspec.json.encode(text)


def _body(text: SchemaText) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": text.schema}
    if text.schema_type != "AVRO":
        body["schemaType"] = text.schema_type
    if text.references:
        body["references"] = text.references
    if text.metadata is not None:
        body["metadata"] = text.metadata
    if text.rule_set is not None:
        body["ruleSet"] = text.rule_set
    return body


def _text(answer: Mapping[str, Any]) -> SchemaText:
    return SchemaText(
        answer["schema"],
        answer.get("schemaType") or "AVRO",
        tuple(msgspec.convert(answer.get("references") or [], list[Reference])),
        answer.get("metadata"),
        answer.get("ruleSet"),
    )


def _registered(answer: Mapping[str, Any], text: SchemaText | None, subject: str) -> RegisteredSchema:
    """``text``: what was asked with, where the answer may be an id alone."""
    return RegisteredSchema(
        answer["id"],
        answer.get("guid"),
        _text(answer) if text is None or "schema" in answer else text,
        answer.get("subject", subject),
        answer.get("version"),
        bool(answer.get("deleted")),
    )


def _decoded(data: bytes, server: _Server, target: str) -> Any:
    try:
        return msgspec.json.decode(shallow(data)) if data else None
    except msgspec.DecodeError as error:
        raise SchemaRegistryError(
            f"{server.shown}{target} answered what is not JSON ({error}): is it a schema registry?", status=200
        ) from None


def _refusal(status: int, data: bytes, where: str) -> SchemaRegistryError:
    try:
        answer = msgspec.json.decode(shallow(data), type=dict[str, Any])
        code, said = int(answer.get("error_code", status)), str(answer.get("message", ""))
    except (msgspec.DecodeError, TypeError, ValueError):
        text = " ".join(data[:200].decode("utf-8", "replace").split())
        code, said = status, f"{text or 'no answer'} - is it a schema registry?"
    if status == 401:
        said += " - it wants a user (http://user:password@host) or a token, and not this one"
    return SchemaRegistryError(f"{where}: {said} (status {status}, error code {code})", status=status, error_code=code)


def _unavailable(last: SchemaRegistryError, tries: int, timeout_s: float) -> SchemaRegistryError:
    return SchemaRegistryError(
        f"the schema registry did not answer within {timeout_s:g} s ({tries} tries; the last: {last.message}): "
        "is it running, and is its address right?",
        status=last.status,
        error_code=last.error_code,
    )


def _why(error: Exception) -> str:
    """Return the readable part of an exception that names objects and wraps other exceptions."""
    reason: Any = getattr(error, "reason", None) or error
    _, found, plain = str(reason).partition("): ")
    return plain if found else str(reason) or type(error).__name__


def open_client(registry: str) -> RegistryClient:
    """Open a client for ``http`` and ``https``, as in a serde's ``registry="http://user:password@host:8081"``."""
    return RegistryClient(registry)
