"""Events posted to a receiver: what arrives, what is queued, and that a broken receiver affects no other work."""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlq.events
from dlq import CircuitClosed, DeadLettered, FailureEvent, Reject, Retry, RetryScheduled, Webhook
from dlq.events import EventName, RecordEvent
from dlq.webhook import PostQueue
from eventbus.errors import ConfigError
from tests.dlq.policy.failing import Runner, at_work

SECRET = "hunter2"


def dead(offset: int) -> DeadLettered:
    return DeadLettered(
        handler="bill", group="billing", at_ms=1, topic="orders", partition=0, offset=offset, attempts=1,
        error_class="ValueError", message=SECRET, reason="never", dead_letter_topic="dlq.billing",
    )  # fmt: skip


class Post(NamedTuple):
    path: str
    headers: dict[str, str]
    body: Any


class Receiver:
    """Answers with these status codes in turn, then with 200."""

    def __init__(self, *answers: int) -> None:
        self.posts: queue.Queue[Post] = queue.Queue()
        posts, left = self.posts, list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                posts.put(Post(self.path, dict(self.headers), json.loads(self.rfile.read(size))))
                self.send_response(left.pop(0) if left else 200)
                self.send_header("Location", f"/elsewhere?{SECRET}")
                self.end_headers()

            def do_GET(self) -> None:
                posts.put(Post(self.path, dict(self.headers), None))

            def log_message(self, format: str, *args: object) -> None:
                """It is not for the test's output."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receivers are on this machine."""
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def receiver() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def make(*answers: int) -> Receiver:
        made.append(Receiver(*answers))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_what_a_policy_tells_arrives(receiver: Callable[..., Receiver]) -> None:
    there = receiver()
    webhook = Webhook(f"http://user:{SECRET}@{there.host}/x?token=1", headers={"X-Token": "t"})
    list(Runner(at_work(Retry(immediate=0, delays=["5s"], jitter=False, on_event=webhook))).story(ValueError))
    post = there.posts.get(timeout=30)
    webhook.close()
    assert post.path == "/x?token=1"
    assert post.headers["X-Token"] == "t"
    assert post.headers["Authorization"] == "Basic dXNlcjpodW50ZXIy"
    assert post.headers["Content-Type"] == "application/json"
    assert post.body == {
        "events": [
            {
                "event": "dead-lettered", "handler": "bill", "group": "billing", "at_ms": 6_000, "topic": "orders",
                "partition": 3, "offset": 128, "attempts": 2, "error_class": "ValueError", "reason": "exhausted",
                "dead_letter_topic": "dlq.billing",
            }
        ],
        "left_out": 0,
    }  # fmt: skip


def test_only_what_is_asked_for_and_words_only_then(receiver: Callable[..., Receiver]) -> None:
    there = receiver()
    webhook = Webhook(f"http://{there.host}", events=["retry-scheduled"], messages=True)
    policy = Retry(immediate=0, delays=["5s"], on_event=webhook)
    list(Runner(at_work(policy)).story(lambda: ValueError("no such customer")))
    webhook.close()
    [event] = there.posts.get(timeout=30).body["events"]
    assert (event["event"], event["message"]) == ("retry-scheduled", "no such customer")
    assert there.posts.empty()


def test_what_was_not_posted_yet_is_when_it_closes(receiver: Callable[..., Receiver]) -> None:
    there = receiver()
    webhook = Webhook(f"http://{there.host}", min_interval="1h")
    for offset in range(250):
        webhook(dead(offset))
    webhook.close(timeout=30)
    posts = [there.posts.get_nowait().body for _ in range(there.posts.qsize())]
    assert [event["offset"] for post in posts for event in post["events"]] == list(range(250))
    assert all(len(post["events"]) <= 100 for post in posts)


def test_a_receiver_that_refuses_is_not_asked_again(
    receiver: Callable[..., Receiver], caplog: pytest.LogCaptureFixture
) -> None:
    there = receiver(404)
    webhook = Webhook(f"http://{there.host}/{SECRET}", min_interval="1ms")
    with caplog.at_level(logging.DEBUG):
        webhook(dead(1))
        assert [event["offset"] for event in there.posts.get(timeout=30).body["events"]] == [1]
        webhook(dead(2))
        after = there.posts.get(timeout=30).body
        webhook.close()
    assert ([event["offset"] for event in after["events"]], after["left_out"]) == ([2], 1)
    assert f"webhook http://{there.host}: it answered 404; the events are left out" in caplog.text
    assert SECRET not in caplog.text


def test_it_is_not_sent_elsewhere(receiver: Callable[..., Receiver], caplog: pytest.LogCaptureFixture) -> None:
    there = receiver(301, 302, 303, 307)
    with caplog.at_level(logging.DEBUG):
        for _ in range(4):
            webhook = Webhook(f"http://{there.host}/{SECRET}")
            webhook(dead(1))
            webhook.close(timeout=30)
    assert {there.posts.get_nowait().path for _ in range(there.posts.qsize())} == {f"/{SECRET}"}
    assert SECRET not in caplog.text


def test_a_receiver_that_is_down_is_said_once_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # not listening
        webhook = Webhook(f"http://user:{SECRET}@127.0.0.1:{nobody.getsockname()[1]}/{SECRET}")
        with caplog.at_level(logging.DEBUG):
            for offset in range(50):
                webhook(dead(offset))
            began = time.perf_counter()
            webhook.close(timeout=60)
            assert time.perf_counter() - began < 30  # it does not wait for a receiver that is down
    assert caplog.text.count("Connection refused; it is tried again") == 1
    assert SECRET not in caplog.text + repr(webhook)


@pytest.mark.system
def test_a_receiver_that_hangs_holds_nobody_up(receiver: Callable[..., Receiver]) -> None:
    with socket.socket() as hangs:
        hangs.bind(("127.0.0.1", 0))
        hangs.listen()  # and never answers
        webhook = Webhook(f"http://127.0.0.1:{hangs.getsockname()[1]}", timeout="60s")
        working = at_work(Retry(immediate=0, delays=None, on_event=webhook))
        began = time.perf_counter()
        for _ in range(3_000):
            list(Runner(working).story(Reject))
        webhook.close(timeout=0)
        assert time.perf_counter() - began < 20  # less than a timeout, although 3,000 events and a close were waiting
        connection, _ = hangs.accept()
        connection.close()
    webhook.close(timeout=30)


def test_every_event_has_its_name() -> None:
    found = [one for one in vars(dlq.events).values() if isinstance(one, type) and issubclass(one, FailureEvent)]
    names = {one.__struct_config__.tag for one in found if one not in (FailureEvent, RecordEvent)}
    assert names == set(get_args(EventName))
    assert RetryScheduled.__struct_config__.tag == "retry-scheduled"


@pytest.mark.parametrize(
    "url",
    [
        "", "alerts.example/x", "ftp://alerts.example", "file:///etc/passwd", "http://", "http://:80/x", "https://[::1",
        "http://alerts.example:port/", "http://alerts.example/a b", "http://alerts.example/\r\nX-Evil: 1",
        "http://älerts.example", None, b"http://alerts.example", 7,
    ],
)  # fmt: skip
def test_an_address_that_is_none(url: Any) -> None:
    with pytest.raises(ConfigError, match=r"^Webhook takes a URL with http\(s\):// and a host"):
        Webhook(url)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"events": "dead-lettered"}, "a list of names"),
        ({"events": ["dead_lettered"]}, "there is no event 'dead_lettered'; there are retry-scheduled"),
        ({"events": 7}, "a list of names"),
        ({"min_interval": 0}, "Webhook(min_interval=0): more than 0"),
        ({"timeout": "soon"}, "Webhook(timeout='soon'): seconds"),
        ({"headers": [("a", "b")]}, "names and texts"),
        ({"headers": {"Authorization": f"Bearer\n{SECRET}"}}, "'Authorization': a name and a text of one line"),
        ({"headers": {"Authorization": f"Bearer {SECRET}ä"}}, "'Authorization': a name and a text of one line"),
        ({"headers": {"Authorization": SECRET.encode()}}, "'Authorization': a name and a text of one line"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Webhook("https://alerts.example", **options)
    assert words in str(raised.value)
    assert SECRET not in str(raised.value)


# the queue, with the time as an argument ------------------------------------------------------------------------------


def events(count: int) -> list[CircuitClosed]:
    return [CircuitClosed(handler="h", group="g", at_ms=number) for number in range(count)]


def test_there_is_one_post_in_an_interval() -> None:
    posts = PostQueue(10_000)
    posts.add(events(1)[0])
    assert posts.due_ms() <= 0
    assert len(posts.take().events) == 1
    posts.posted(500)
    assert posts.due_ms() == 10_500


def test_posts_that_fail_are_made_again_later_and_later() -> None:
    posts, now_ms, pauses = PostQueue(1), 0, list[int]()
    for event in events(3):
        posts.add(event)
    for _ in range(9):
        posts.failed(posts.take(), now_ms)
        pauses.append(posts.due_ms() - now_ms)
        now_ms = posts.due_ms()
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    batch = posts.take()
    assert [event.at_ms for event in batch.events] == [0, 1, 2]
    posts.posted(now_ms)
    assert posts.due_ms() == now_ms + 1
    posts.add(events(1)[0])
    posts.failed(posts.take(), now_ms)
    assert posts.due_ms() == now_ms + 1_000


@pytest.mark.system
@given(st.lists(st.tuples(st.sampled_from(["posted", "refused", "failed"]), st.integers(0, 400)), max_size=40))
def test_every_event_arrives_once_in_order_or_is_counted(sequence: list[tuple[str, int]]) -> None:
    posts, made, arrived, told = PostQueue(1), 0, list[int](), 0
    for outcome, count in [*sequence, *[("posted", 0)] * 11]:
        for _ in range(count):
            posts.add(CircuitClosed(handler="h", group="g", at_ms=made))
            made += 1
        if posts.is_empty:
            continue
        batch = posts.take()
        if outcome == "posted":
            arrived += [event.at_ms for event in batch.events]
            told += batch.left_out
            posts.posted(0)
        elif outcome == "refused":
            posts.refused(batch, 0)
        else:
            posts.failed(batch, 0)
    assert posts.is_empty
    assert arrived == sorted(set(arrived))
    posts.add(CircuitClosed(handler="h", group="g", at_ms=made))
    assert len(arrived) + told + posts.take().left_out == made
