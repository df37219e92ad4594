"""Who may do what, and what a stranger learns: nothing."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from eventbus.errors import ConfigError
from schema_registry.entities import SchemaRequest
from schema_registry.http import Access, Credentials, RegistryApp, Users, create_app
from schema_registry.http.auth import credentials_of
from tests.schema_registry.http.asgi import ask
from tests.schema_registry.http.opening import opened

pytestmark = pytest.mark.system

SCHEMA = {"schema": '"int"'}
DIGEST = "sha256:" + "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"  # of "secret"


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


USERS = Users({"alice": "secret", "bob": DIGEST, "": "empty"}, tokens=["t0ken", "reads"], readers={"bob", "reads"})


@pytest.mark.parametrize(
    ("credentials", "access"),
    [
        (Credentials("basic", "alice", "secret"), Access.WRITE),
        (Credentials("basic", "bob", "secret"), Access.READ),
        (Credentials("basic", "bob", DIGEST), Access.NONE),
        (Credentials("basic", "", "empty"), Access.WRITE),
        (Credentials("basic", "alice", ""), Access.NONE),
        (Credentials("basic", "alice", "Secret"), Access.NONE),
        (Credentials("basic", "mallory", "secret"), Access.NONE),
        (Credentials("basic", "mallory", ""), Access.NONE),
        (Credentials("basic", "mallory", "\0" * 32), Access.NONE),
        (Credentials("bearer", secret="t0ken"), Access.WRITE),
        (Credentials("bearer", secret="reads"), Access.READ),
        (Credentials("bearer", secret="secret"), Access.NONE),
        (Credentials("basic", "t0ken", "t0ken"), Access.NONE),
    ],
    ids=repr,
)
def test_users_and_tokens(credentials: Credentials, access: Access) -> None:
    assert USERS(credentials) is access


def test_credentials_do_not_show_the_secret() -> None:
    assert "hidden" not in repr(Credentials("basic", "alice", "hidden"))


@pytest.mark.parametrize(
    "header",
    [b"", b"Basic", b"Basic ", b"Basic !!!", b"Basic YWxpY2U=", b"Basic /////w==", b"Bearer", b"Bearer ", b"Digest a",
     b"Negotiate abc", b"\xff\xfe", b"Basic \xff\xfe"],
)  # fmt: skip
def test_headers_that_say_nothing(header: bytes) -> None:
    assert credentials_of(header) is None


def test_headers_in_any_case() -> None:
    assert credentials_of(b"bAsIc " + b64encode(b"a:b:c")) == Credentials("basic", "a", "b:c")
    assert credentials_of(b"BEARER  t") == Credentials("bearer", secret="t")


def test_a_users_file(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"# who\n\nalice: secret\nbob:{DIGEST}, read\nbearer: t0ken\nbearer: reads, read\n", "utf-8")
    users = Users.from_file(file)
    assert users(Credentials("basic", "alice", "secret")) is Access.WRITE
    assert users(Credentials("basic", "bob", "secret")) is Access.READ
    assert users(Credentials("bearer", secret="t0ken")) is Access.WRITE
    assert users(Credentials("bearer", secret="reads")) is Access.READ


@pytest.mark.parametrize("line", ["alice", "alice:", ": hidden", "alice: hidden, admin", "hidden"])
def test_a_line_that_is_none_is_named_not_shown(tmp_path: Path, line: str) -> None:
    file = tmp_path / "users"
    file.write_text(f"bob: secret\n{line}\n", "utf-8")
    with pytest.raises(ConfigError, match=r"line 2: write 'name: password'") as wrong:
        Users.from_file(file)
    assert "hidden" not in str(wrong.value)


def test_a_users_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"users file .*none"):
        Users.from_file(tmp_path / "none")


def test_a_reader_nobody_knows() -> None:
    with pytest.raises(ConfigError, match="1 of the readers are neither users nor tokens"):
        Users({"alice": "secret"}, readers={"bob"})


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/subjects"), ("GET", "/schemas/ids/1"), ("HEAD", "/schemas/ids/1"), ("GET", "/"), ("GET", "/nothing"),
        ("POST", "/subjects/s/versions"), ("DELETE", "/subjects/s"), ("GET", "/metrics"), ("GET", "/openapi.json"),
        ("GET", "/associations/resources/-/t"), ("PATCH", "/subjects"), ("GET", "/health/live/more"),
    ],
)  # fmt: skip
async def test_a_stranger_learns_nothing(method: str, target: str) -> None:
    async with opened() as registry:
        app = create_app(registry, auth=USERS)
        await registry.register("s", _request())
        await ask(app, "GET", "/schemas/ids/1", headers=basic("alice", "secret"))  # its body is kept from now on
        for headers in ({}, basic("alice", "wrong"), basic("mallory", "secret"), {"Authorization": "Bearer wrong"}):
            answer = await ask(app, method, target, SCHEMA, headers)
            assert answer.status == 401 and answer.headers["www-authenticate"]
            if method != "HEAD":
                assert answer.json == {"error_code": 401, "message": "Unauthorized"}
        assert registry.subjects() == ["s"]


@pytest.mark.parametrize("target", ["/health/live", "/health/ready"])
async def test_health_is_for_everybody(target: str) -> None:
    async with opened() as registry:
        assert (await ask(create_app(registry, auth=USERS), "GET", target)).status == 200


async def test_a_reader_reads_and_asks_and_writes_nothing() -> None:
    async with opened() as registry:
        app = create_app(registry, auth={"alice": "secret"})
        reads = create_app(registry, auth=USERS)
        writer, reader = basic("alice", "secret"), basic("bob", "secret")
        assert (await ask(app, "POST", "/subjects/s/versions", SCHEMA, writer)).status == 200
        assert (await ask(reads, "POST", "/subjects/s", SCHEMA, reader)).status == 200
        assert (await ask(reads, "GET", "/schemas/ids/1", headers=reader)).status == 200
        check = await ask(reads, "POST", "/compatibility/subjects/s/versions/latest", SCHEMA, reader)
        assert check.status == 200
        for method, target, body in WRITES:
            answer = await ask(reads, method, target, body, reader)
            assert answer.error == (403, 40301), target
        assert registry.subjects(deleted=True) == ["s"]


WRITES = [
    ("POST", "/subjects/s/versions", SCHEMA),
    ("DELETE", "/subjects/s", None),
    ("DELETE", "/subjects/s/versions/1", None),
    ("PUT", "/config", {"compatibility": "NONE"}),
    ("PUT", "/config/s", {"compatibility": "NONE"}),
    ("DELETE", "/config", None),
    ("DELETE", "/config/s", None),
    ("PUT", "/mode", {"mode": "READONLY"}),
    ("PUT", "/mode/s", {"mode": "READONLY"}),
    ("DELETE", "/mode", None),
    ("DELETE", "/mode/s", None),
    ("DELETE", "/contexts/.c", None),
    ("POST", "/associations", {}),
    ("DELETE", "/associations/resources/r", None),
]


async def test_a_registry_that_is_read_only() -> None:
    async with opened() as registry:
        app = create_app(registry, read_only=True)
        await registry.register("s", _request())
        for method, target, body in WRITES:
            assert (await ask(app, method, target, body)).error == (422, 42205), target
        assert (await ask(app, "POST", "/subjects/s", SCHEMA)).status == 200
        assert (await ask(app, "GET", "/subjects")).json == ["s"]


async def test_a_function_decides() -> None:
    async with opened() as registry:
        asked: list[Credentials] = []

        async def decide(credentials: Credentials) -> Access:
            asked.append(credentials)
            return Access.READ if credentials.secret == "good" else Access.NONE

        app: RegistryApp = create_app(registry, auth=decide)
        assert (await ask(app, "GET", "/subjects", headers={"Authorization": "Bearer good"})).status == 200
        assert (await ask(app, "GET", "/subjects", headers={"Authorization": "Bearer bad"})).status == 401
        assert (await ask(app, "GET", "/subjects")).status == 401
        assert [credentials.secret for credentials in asked] == ["good", "bad"]


def _request() -> SchemaRequest:
    return SchemaRequest(schema='"int"')
