"""Post events as JSON to an HTTP endpoint, such as an alerting service."""

from __future__ import annotations

import logging
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Mapping
from email.message import Message
from http.client import HTTPException
from typing import IO, Any, cast, get_args
from urllib.parse import unquote, urlsplit

import msgspec

from dlq.events import EventName, FailureEvent
from eventbus.durations import Duration, positive
from eventbus.errors import ConfigError

logger = logging.getLogger("dlq")

ALERTS: tuple[EventName, ...] = ("dead-lettered", "circuit-opened", "circuit-closed", "budget-exhausted")
_MOST_WAITING = 1_000
_MOST_PER_POST = 100
_LONGEST_PAUSE_MS = 60_000
_ANSWERS_THAT_MAY_CHANGE = frozenset({408, 425, 429})


class Batch(msgspec.Struct, frozen=True):
    """The JSON body of a POST."""

    events: tuple[FailureEvent, ...]
    left_out: int
    """Events dropped since the previous POST, because the queue was full or the receiver refused them."""


class PostQueue:
    """Decide what to post and when. Pure: times are arguments. Not thread-safe."""

    def __init__(self, min_interval_ms: int) -> None:
        self._min_interval_ms = min_interval_ms
        self._waiting: deque[FailureEvent] = deque()
        self._left_out = 0
        self._failures = 0
        """Consecutive POSTs that failed."""
        self._not_before_ms = 0

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def add(self, event: FailureEvent) -> None:
        """Append an event; drop the oldest if the queue is full."""
        self._waiting.append(event)
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()
            self._left_out += 1

    def due_ms(self) -> int:
        """Return the earliest time of the next POST."""
        return self._not_before_ms

    def take(self) -> Batch:
        count = min(len(self._waiting), _MOST_PER_POST)
        batch = Batch(tuple(self._waiting.popleft() for _ in range(count)), self._left_out)
        self._left_out = 0
        return batch

    def posted(self, now_ms: int) -> None:
        self._failures = 0
        self._not_before_ms = now_ms + self._min_interval_ms

    def refused(self, batch: Batch, now_ms: int) -> None:
        """Drop a batch that the receiver refused with a final error. Later events are still posted."""
        self._left_out += batch.left_out + len(batch.events)
        self._not_before_ms = now_ms + self._min_interval_ms

    def failed(self, batch: Batch, now_ms: int) -> None:
        """Put a batch that was not delivered back to the front of the queue, and back off exponentially."""
        room = _MOST_WAITING - len(self._waiting)
        kept = batch.events[max(len(batch.events) - room, 0) :]
        self._waiting.extendleft(reversed(kept))
        self._left_out += batch.left_out + len(batch.events) - len(kept)
        pause_ms = min(max(self._min_interval_ms, 1000) << min(self._failures, 10), _LONGEST_PAUSE_MS)
        self._failures += 1
        self._not_before_ms = now_ms + max(pause_ms, self._min_interval_ms)


class Webhook:
    """Post events to ``url``: ``Retry(on_event=Webhook("https://alerts.example/x"))``. One Webhook may serve many
    handlers.

    ``events`` are the names of the events to post: by default dead letters, circuits that open and close, and exhausted
    budgets. The body is ``{"events": [...], "left_out": 0}`` with up to 100 events, and POSTs are at least
    ``min_interval`` apart. ``headers`` are sent along, for example with a token. ``messages`` includes error messages,
    which may contain data that the receiver should not see.

    A failed POST is retried with exponential backoff. Up to 1,000 events are queued meanwhile; beyond that the oldest
    are dropped. A daemon thread does all of this, so handlers neither wait for it nor see its errors. Of the URL, only
    scheme and host are logged; headers are never logged.
    """

    def __init__(
        self,
        url: str,
        *,
        events: Iterable[EventName] = ALERTS,
        min_interval: Duration = "10s",
        headers: Mapping[str, str] | None = None,
        timeout: Duration = "10s",
        messages: bool = False,
    ) -> None:
        self._url, self._shown, login = _address(url)
        self._headers = {"Content-Type": "application/json", "User-Agent": "eventbus-dlq", **login, **_headers(headers)}
        self._events = _names(events)
        self._timeout_s = positive(timeout, f"Webhook(timeout={timeout!r})") / 1000
        self._messages = messages
        self._queue = PostQueue(positive(min_interval, f"Webhook(min_interval={min_interval!r})"))
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._is_down = False
        """The failure has been logged."""

    def __repr__(self) -> str:
        return f"Webhook({self._shown!r})"

    def __call__(self, event: FailureEvent) -> None:
        """Queue an event for the daemon thread. Never blocks."""
        if type(event).__struct_config__.tag not in self._events:
            return
        with self._changed:
            self._queue.add(event)
            # Not started, or lost in a fork: threads do not survive one.
            if self._thread is None or not self._thread.is_alive():
                self._closing = False
                self._thread = threading.Thread(target=self._run, name="dlq-webhook", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, timeout: float = 5.0) -> None:
        """Post all queued events without regard to ``min_interval``, unless the receiver is down. Call it when a
        service ends.

        Returns when that is done, or after ``timeout`` seconds.
        """
        with self._changed:
            thread, self._closing = self._thread, True
            self._changed.notify()
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._post(batch)
            except urllib.error.HTTPError as error:
                error.close()
                is_final = error.code < 500 and error.code not in _ANSWERS_THAT_MAY_CHANGE
                self._went_wrong(batch, f"it answered {error.code}", is_final)
            except urllib.error.URLError as error:
                self._went_wrong(batch, str(error.reason))
            except (OSError, HTTPException, ValueError) as error:
                self._went_wrong(batch, type(error).__name__)  # str(error) may contain the URL
            else:
                self._arrived()

    def _next(self) -> Batch | None:
        """Wait until a batch may be posted and return it, or None if the webhook is closed and the queue is empty."""
        with self._changed:
            while True:
                if self._closing and (self._queue.is_empty or self._is_down):
                    return None
                wait_ms = self._queue.due_ms() - _now_ms()
                if not self._queue.is_empty and (wait_ms <= 0 or self._closing):
                    return self._queue.take()
                self._changed.wait(None if self._queue.is_empty else wait_ms / 1000)

    def _post(self, batch: Batch) -> None:
        events = cast("list[dict[str, Any]]", msgspec.to_builtins(batch.events))
        if not self._messages:
            for event in events:
                event.pop("message", None)
        body = msgspec.json.encode({"events": events, "left_out": batch.left_out})
        request = urllib.request.Request(self._url, body, self._headers, method="POST")
        with self._opener.open(request, timeout=self._timeout_s) as answer:
            answer.read(1024)

    def _arrived(self) -> None:
        if self._is_down:
            logger.warning("webhook %s: it takes events again", self._shown)
        with self._changed:
            self._is_down = False
            self._queue.posted(_now_ms())

    def _went_wrong(self, batch: Batch, why: str, is_final: bool = False) -> None:
        if not self._is_down:  # once for each outage
            what = "the events are left out" if is_final else "it is tried again"
            logger.warning("webhook %s: %s; %s", self._shown, why, what)
        with self._changed:
            self._is_down = True
            (self._queue.refused if is_final else self._queue.failed)(batch, _now_ms())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects, so that headers with secrets reach only the configured host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


def _address(url: Any) -> tuple[str, str, dict[str, str]]:
    """Return the URL without credentials, the part of it that may be logged, and the credentials as a header.

    Raises ConfigError.
    """
    problem = ConfigError('Webhook takes a URL with http(s):// and a host: Webhook("https://alerts.example/x")')
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise problem
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise problem from None
    if parts.scheme not in ("http", "https") or not host:
        raise problem
    where = f"{parts.scheme}://" + (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.username is None:
        return where + path, where, {}
    login = b64encode(f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()).decode()
    return where + path, where, {"Authorization": f"Basic {login}"}


def _headers(headers: Any) -> dict[str, str]:
    """Return the headers, validated. Raises ConfigError, whose message does not contain their values."""
    if headers is not None and not isinstance(headers, Mapping):
        raise ConfigError('Webhook(headers=...): names and texts, {"Authorization": "Bearer ..."}')
    result: dict[str, str] = {}
    for name, value in cast("Mapping[Any, Any]", headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str) or not _is_plain(name + value):
            raise ConfigError(f"Webhook(headers=...): {name!r}: a name and a text of one line")
        result[name] = value
    return result


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _names(events: Any) -> frozenset[str]:
    known: tuple[str, ...] = get_args(EventName)
    if isinstance(events, str) or not isinstance(events, Iterable):
        raise ConfigError(f"Webhook(events={events!r}): a list of names, of {', '.join(known)}")
    names = frozenset(cast("Iterable[Any]", events))
    for name in names:
        if name not in known:
            raise ConfigError(f"Webhook(events=...): there is no event {name!r}; there are {', '.join(known)}")
    return names
