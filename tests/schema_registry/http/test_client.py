"""`RegistryClient` when all goes well, and when it does not. The clock is the client's own: nothing is waited for."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from schema_registry import client as module
from schema_registry.client import OAuth, RegistryClient, open_client, segment
from serdes.errors import SchemaRegistryError
from serdes.registry import Reference, RegisteredSchema, SchemaClient, SchemaText
from tests.client.forked_children import in_child
from tests.schema_registry.http.scripted import Asked, scripted

pytestmark = pytest.mark.system

TEXT = SchemaText('"string"')
NOBODY = "http://127.0.0.1:1"


class Clock:
    """Sleeping takes no time and counts."""

    def __init__(self) -> None:
        self.slept = 0.0

    def monotonic(self) -> float:
        return 1000 + self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    yield clock


def whole(asked: Asked) -> tuple[int, Any]:
    return 200, {"id": 7, "subject": "s", "version": 3, "guid": "g", "schema": '"string"'}


def test_a_forked_child_connects_again_and_waits_for_no_thread_of_the_parent() -> None:
    """A thread of the parent that asks holds its question open, and its connection is the parent's."""
    is_asked, goes_on = threading.Event(), threading.Event()

    def slow(asked: Asked) -> tuple[int, Any]:
        if not is_asked.is_set():
            is_asked.set()
            goes_on.wait()
        return whole(asked)

    with scripted(slow) as server:
        client = RegistryClient(server.url)
        thread = threading.Thread(target=client.by_id, args=(7,))
        thread.start()
        is_asked.wait()
        try:
            assert in_child(lambda: client.by_id(7).id) == "returned 7"
        finally:
            goes_on.set()
            thread.join()
        assert client.by_id(7).id == 7


def test_it_is_a_schema_client() -> None:
    assert isinstance(open_client("http://localhost:8081"), SchemaClient)


def test_an_id_is_asked_once_by_however_many_threads() -> None:
    with scripted(whole) as server:
        client = RegistryClient(server.url)
        assert client.known(7) is None
        threads = [threading.Thread(target=client.by_id, args=(7,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.known(7) == client.by_id(7) == RegisteredSchema(7, "g", TEXT)
        assert [asked.target for asked in server.asked] == ["/schemas/ids/7"]


def test_a_failure_is_that_of_all_who_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were each to try for himself, one after the other, the last had his error long after his deadline."""
    waiting = threading.Semaphore(0)

    class Watched(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            waiting.release()
            return super().result(timeout)

    def script(asked: Asked) -> tuple[int, Any]:
        for _ in range(3):
            waiting.acquire(timeout=30)
        return 404, {"error_code": 40403, "message": "Schema 7 not found"}

    monkeypatch.setattr(module, "Future", Watched)
    with scripted(script) as server, ThreadPoolExecutor(4) as threads:
        client = RegistryClient(server.url, timeout=60)
        for one in [threads.submit(client.by_id, 7) for _ in range(4)]:
            with pytest.raises(SchemaRegistryError, match="Schema 7 not found"):
                one.result(60)
        assert len(server.asked) == 1


def test_ids_of_two_contexts_are_two() -> None:
    with scripted(whole) as server:
        client = RegistryClient(server.url)
        client.by_id(7)
        client.by_id(7, ":.eu:orders-value")
        client.by_id(7, ":.eu:other-value")
        assert client.known(7, ":.us:orders-value") is None
        assert [asked.target for asked in server.asked] == [
            "/schemas/ids/7", "/schemas/ids/7?subject=%3A.eu%3Aorders-value",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "target"),
    [
        (lambda client: client.register("a/b", TEXT), "POST /subjects/a%2Fb/versions"),
        (lambda client: client.register("s", TEXT, normalize=True), "POST /subjects/s/versions?normalize=true"),
        (lambda client: client.lookup("s", TEXT), "POST /subjects/s"),
        (lambda client: client.lookup("s", TEXT, deleted=True), "POST /subjects/s?deleted=true"),
        (lambda client: client.latest("s"), "GET /subjects/s/versions/latest"),
        (lambda client: client.version("s", 3), "GET /subjects/s/versions/3"),
        (lambda client: client.version("s", 3, deleted=True), "GET /subjects/s/versions/3?deleted=true"),
    ],
)
def test_what_is_asked(call: Any, target: str) -> None:
    with scripted(whole) as server:
        found = call(RegistryClient(server.url))
        assert (found.id, found.version, found.guid, found.text) == (7, 3, "g", TEXT)
        assert [f"{asked.method} {asked.target}" for asked in server.asked] == [target]


def test_a_registration_says_all_of_the_schema() -> None:
    text = SchemaText("{}", "JSON", (Reference("r", "other", 2),), {"properties": {"a": "b"}}, {"domainRules": []})
    stored = {"schema": "{}", "schemaType": "JSON", "ruleSet": {"domainRules": [{"name": "of the subject"}]}}
    with scripted(lambda asked: (200, {"id": 1} if asked.method == "POST" else stored)) as server:
        client = RegistryClient(server.url)
        for _ in range(2):  # an id alone does not say which rules the registry keeps
            assert client.register("s", text).text.rule_set == stored["ruleSet"]
        asked, then = server.asked
    assert then.target == "/schemas/ids/1?subject=s"
    assert asked.json == {
        "schema": "{}", "schemaType": "JSON", "references": [{"name": "r", "subject": "other", "version": 2}],
        "metadata": {"properties": {"a": "b"}}, "ruleSet": {"domainRules": []},
    }  # fmt: skip


def test_who_registered_a_schema_knows_its_id() -> None:
    with scripted(whole) as server:
        client = RegistryClient(server.url)
        client.register("s", TEXT)
        assert client.known(7) == RegisteredSchema(7, "g", TEXT)


def test_a_check_brings_the_messages() -> None:
    with scripted(lambda asked: (200, {"is_compatible": False, "messages": ["no"]})) as server:
        verdict = RegistryClient(server.url).is_compatible("s", TEXT)
        assert (verdict.is_compatible, verdict.messages) == (False, ("no",))
        assert server.asked[0].target == "/compatibility/subjects/s/versions/latest?verbose=true"


@pytest.mark.parametrize(
    ("status", "body", "code", "said"),
    [
        (404, {"error_code": 40403, "message": "Schema 7 not found"}, 40403, "Schema 7 not found"),
        (409, {"error_code": 409, "message": "incompatible"}, 409, "incompatible"),
        (401, b"<html>who?</html>", 401, "<html>who?</html>"),
        (401, {"error_code": 401, "message": "Unauthorized"}, 401, "it wants a user (http://user:password@host) or"),
        (302, b"", 302, "status 302"),
        (405, b"[]", 405, "[]"),
        (404, b"<p>\n  gone</p>\n", 404, "<p> gone</p> - is it a schema registry?"),
    ],
)
def test_a_refusal_is_not_asked_again(status: int, body: Any, code: int, said: str) -> None:
    with scripted(lambda asked: (status, body)) as server:
        with pytest.raises(SchemaRegistryError) as refused:
            RegistryClient(server.url).by_id(7)
        assert (refused.value.status, refused.value.error_code, len(server.asked)) == (status, code, 1)
        assert said in str(refused.value) and f"GET {server.url}/schemas/ids/7" in str(refused.value)
        assert not refused.value.is_retriable


def test_what_is_no_json_is_no_registry() -> None:
    with (
        scripted(lambda asked: (200, b"<html>hello</html>")) as server,
        pytest.raises(SchemaRegistryError, match="is it a schema registry"),
    ):
        RegistryClient(server.url).by_id(7)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_trouble_passes(clock: Clock, status: int) -> None:
    answers = iter([(status, b""), (status, b"")])
    with scripted(lambda asked: next(answers, whole(asked))) as server:
        assert RegistryClient(server.url).by_id(7).id == 7
        assert len(server.asked) == 3


def test_trouble_that_stays_is_named_in_time(clock: Clock) -> None:
    with scripted(lambda asked: (503, {"error_code": 50004, "message": "no leader"})) as server:
        with pytest.raises(
            SchemaRegistryError, match=r"did not answer within 5 s .*no leader.*is it running"
        ) as failed:
            RegistryClient(server.url).by_id(7)
        assert failed.value.is_retriable and failed.value.error_code == 50004
        assert 4 < clock.slept < 5 and len(server.asked) > 4


def test_nobody_there(clock: Clock) -> None:
    with pytest.raises(SchemaRegistryError, match=r"127.0.0.1:1: .*refused") as failed:
        RegistryClient(NOBODY).by_id(7)
    assert failed.value.is_retriable and failed.value.status == 0 and clock.slept < 5


def test_the_next_server_answers_and_is_asked_first_from_then_on(clock: Clock) -> None:
    with scripted(lambda asked: (503, b"")) as ill, scripted(whole) as well:
        client = RegistryClient([ill.url, NOBODY, well.url])
        assert client.by_id(7).id == client.by_id(8).id - 1 == 7
        assert (len(ill.asked), len(well.asked), clock.slept) == (1, 2, 0)


def test_servers_in_one_string(clock: Clock) -> None:
    with scripted(whole) as server:
        assert RegistryClient(f"{NOBODY}, {server.url}/").by_id(7).id == 7


def test_an_answer_that_trickles_ends_with_the_deadline(clock: Clock) -> None:
    def script(asked: Asked) -> tuple[int, Any]:
        clock.slept += 10  # before the answer is read to its end
        return 200, [b" " * 70_000, b" " * 70_000]

    with scripted(script) as server, pytest.raises(SchemaRegistryError, match="the answer came too slowly"):
        RegistryClient(server.url).by_id(7)


def test_a_byte_of_an_answer_is_enough_to_look_at_the_clock(clock: Clock) -> None:
    done = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                clock.slept += 10
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
                done.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(SchemaRegistryError, match="the answer came too slowly"):
            RegistryClient(f"http://127.0.0.1:{server.getsockname()[1]}").by_id(7)
        done.set()
        thread.join()


def test_an_answer_without_end(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER", 1000)
    with (
        scripted(lambda asked: (200, b" " * 2000)) as server,
        pytest.raises(SchemaRegistryError, match="longer than 1,000 bytes"),
    ):
        RegistryClient(server.url).by_id(7)


def test_basic_from_the_url_or_the_argument() -> None:
    with scripted(whole) as server:
        RegistryClient(server.url.replace("//", "//al%40ice:se%3Acret@")).by_id(7)
        RegistryClient(server.url, auth=("al@ice", "se:cret")).by_id(7)
        assert [asked.headers["Authorization"] for asked in server.asked] == ["Basic YWxAaWNlOnNlOmNyZXQ="] * 2


def test_tokens() -> None:
    turn = iter("ab")
    with scripted(whole) as server:
        RegistryClient(server.url, token="fixed").by_id(7)
        client = RegistryClient(server.url, token=lambda: next(turn), headers={"target-sr-cluster": "lsrc-1"})
        client.by_id(7)
        client.by_id(8)
        assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer fixed", "Bearer a", "Bearer b"]
        assert server.asked[-1].headers["target-sr-cluster"] == "lsrc-1"


def test_oauth(clock: Clock) -> None:
    """A token is used until 80 % of its life, or until the registry does not take it any more."""
    revoked: set[str] = set()
    given = iter(range(1, 9))

    def issue(asked: Asked) -> tuple[int, Any]:
        return 200, {"access_token": f"t{next(given)}", "expires_in": 100, "token_type": "Bearer"}

    def registry(asked: Asked) -> tuple[int, Any]:
        return (401, b"") if asked.headers["Authorization"][7:] in revoked else whole(asked)

    with scripted(issue) as issuer, scripted(registry) as server:
        oauth = OAuth(token_url=f"{issuer.url}/t", client_id="me", client_secret="s&c", scope="read")
        client = RegistryClient(server.url, oauth=oauth)
        client.by_id(1)
        clock.slept += 79
        client.by_id(2)
        clock.slept += 2
        client.by_id(3)
        revoked.add("t2")
        client.by_id(4)
        tokens = [asked.headers["Authorization"][7:] for asked in server.asked]
        assert tokens == ["t1", "t1", "t2", "t2", "t3"]
        assert issuer.asked[0].body == b"grant_type=client_credentials&scope=read"
        assert issuer.asked[0].headers["Authorization"] == "Basic bWU6cyUyNmM="
        revoked.update(f"t{number}" for number in range(9))
        with pytest.raises(SchemaRegistryError) as refused:
            client.by_id(5)
        assert refused.value.status == 401


def test_oauth_without_a_token() -> None:
    with scripted(lambda asked: (400, {"error": "invalid_client"})) as issuer:
        oauth = OAuth(token_url=issuer.url, client_id="me", client_secret="hidden")
        with pytest.raises(SchemaRegistryError, match="gave no token for client 'me'") as refused:
            RegistryClient(NOBODY, oauth=oauth).by_id(1)
        assert "hidden" not in str(refused.value) + repr(oauth)


def test_passwords_are_not_shown(clock: Clock) -> None:
    client = RegistryClient("http://alice:hidden@127.0.0.1:1")
    assert repr(client) == "RegistryClient('http://127.0.0.1:1')"
    with pytest.raises(SchemaRegistryError) as failed:
        client.by_id(7)
    assert "hidden" not in str(failed.value)


@pytest.mark.parametrize(
    "url", ["", "localhost:8081", "ftp://host", "http://", "kafka://host:9092", "//alice:hidden@h"]
)
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a registry: write http://host:8081") as wrong:
        RegistryClient(url)
    assert "hidden" not in str(wrong.value)


def test_one_way_to_say_who_one_is() -> None:
    with pytest.raises(ValueError, match="one way"):
        RegistryClient(NOBODY, auth=("a", "b"), token="c")


def test_a_certificate_that_is_none(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=r"TLS with .*PEM files are needed"):
        RegistryClient("https://localhost:8081", ca_file=str(tmp_path / "none.pem"))


def test_old_answers_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHED", 2)
    with scripted(whole) as server:
        client = RegistryClient(server.url)
        for schema_id in (1, 2, 3, 1):
            client.by_id(schema_id)
        assert [asked.target for asked in server.asked] == [f"/schemas/ids/{number}" for number in (1, 2, 3, 1)]


def test_a_failure_is_not_kept() -> None:
    answers = iter([(404, {"error_code": 40403, "message": "Schema 7 not found"})])
    with scripted(lambda asked: next(answers, whole(asked))) as server:
        client = RegistryClient(server.url)
        with pytest.raises(SchemaRegistryError):
            client.by_id(7)
        assert client.by_id(7).id == 7


def test_segments_of_a_path() -> None:
    texts = ["a/b", "ü%2F", ":.ctx:s", "?#&", "".join(map(chr, random.Random(1).choices(range(33, 0x3000), k=50)))]
    for text in texts:
        assert "/" not in segment(text) and "?" not in segment(text)
