"""Events as JSON for a receiver of one's own, an alerting service say."""

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
    """The body of a post."""

    events: tuple[FailureEvent, ...]
    left_out: int
    """Events that were not posted since the last post: there was no room for them, or they were refused."""


class PostQueue:
    """What is to be posted, and when: pure, told the time. Not for several threads."""

    def __init__(self, min_interval_ms: int) -> None:
        self._min_interval_ms = min_interval_ms
        self._waiting: deque[FailureEvent] = deque()
        self._left_out = 0
        self._failures = 0
        """Posts in a row that did not arrive."""
        self._not_before_ms = 0

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def add(self, event: FailureEvent) -> None:
        """The oldest one makes room."""
        self._waiting.append(event)
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()
            self._left_out += 1

    def due_ms(self) -> int:
        """When the next post may be made."""
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
        """The receiver does not want these: others may fare better."""
        self._left_out += batch.left_out + len(batch.events)
        self._not_before_ms = now_ms + self._min_interval_ms

    def failed(self, batch: Batch, now_ms: int) -> None:
        """They did not arrive: again, later and later, in their place before what has come since."""
        room = _MOST_WAITING - len(self._waiting)
        kept = batch.events[max(len(batch.events) - room, 0) :]
        self._waiting.extendleft(reversed(kept))
        self._left_out += batch.left_out + len(batch.events) - len(kept)
        pause_ms = min(max(self._min_interval_ms, 1000) << min(self._failures, 10), _LONGEST_PAUSE_MS)
        self._failures += 1
        self._not_before_ms = now_ms + max(pause_ms, self._min_interval_ms)


class Webhook:
    """Posts events to ``url``: ``Retry(on_event=Webhook("https://alerts.example/x"))``. One may serve many handlers.

    ``events``: which, by name; without it dead letters, circuits that open and close, and budgets that are used up.
    A post is ``{"events": [...], "left_out": 0}``, up to 100 of them, and there is one every ``min_interval`` at most.
    ``headers``: sent along, for a token say. ``messages``: what errors say is in the posts too; it may hold what is not
    for the receiver. A post that fails is made again, later and later; meanwhile 1,000 events wait, and older ones make
    room. All of that is a daemon thread's: no handler waits, and nothing of it reaches one. Neither the URL behind its
    host nor headers are logged.
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
        """It has been said."""

    def __repr__(self) -> str:
        return f"Webhook({self._shown!r})"

    def __call__(self, event: FailureEvent) -> None:
        """Returns at once."""
        if type(event).__struct_config__.tag not in self._events:
            return
        with self._changed:
            self._queue.add(event)
            if self._thread is None or not self._thread.is_alive():  # not started, or left behind by a fork
                self._closing = False
                self._thread = threading.Thread(target=self._run, name="dlq-webhook", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, timeout: float = 5.0) -> None:
        """Post what waits, without regard to ``min_interval``, unless the receiver is down; for the end of a service.

        Return when that is done, or after ``timeout`` seconds.
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
                self._went_wrong(batch, type(error).__name__)  # its text may hold the URL
            else:
                self._arrived()

    def _next(self) -> Batch | None:
        """Wait for what is to be posted, and until it may be. None: closed, and there is nothing more."""
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
    """Headers with secrets go to whom they were meant for."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


def _address(url: Any) -> tuple[str, str, dict[str, str]]:
    """The URL without a login, what of it may be shown, and the login as a header. Raises ConfigError."""
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
    """Raises ConfigError, which does not tell what they hold."""
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
