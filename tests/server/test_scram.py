"""The SCRAM exchange: RFC 5802's and RFC 7677's own examples, and everything a peer may get wrong."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.coordinator.credentials import ScramCredential, ScramMechanism, from_password, salt_password
from eventbus.server.security.scram import AuthenticationFailed, ScramServer

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = from_password(SHA_256, "pencil", SALT, 4096)
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
NONCE = CLIENT_NONCE + SERVER_NONCE


def server(mechanism: ScramMechanism = SHA_256, **users: ScramCredential) -> ScramServer:
    return ScramServer(mechanism, (users or {"user": PENCIL}).get, lambda: SERVER_NONCE, b"secret")


def prove(mechanism: ScramMechanism, password: str, first: bytes, challenge: bytes, final: str | None = None) -> bytes:
    """What a client that knows the password says last. ``final``: instead of what it ought to say before the proof."""
    fields = dict(field.split("=", 1) for field in challenge.decode().split(","))
    salted = salt_password(mechanism, password, base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    stored = hashlib.new(mechanism.hash_name, client_key).digest()
    gs2, bare = first.decode().split("n=", 1)
    unproved = final or f"c={base64.b64encode(gs2.encode()).decode()},r={fields['r']}"
    signature = hmac.digest(stored, f"n={bare},{challenge.decode()},{unproved}".encode(), mechanism.hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{unproved},p={base64.b64encode(proof).decode()}".encode()


def test_the_example_of_rfc_7677() -> None:
    exchange = server()
    assert exchange.evaluate(FIRST) == f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert exchange.user is None
    final = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.evaluate(final.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.user == "user"


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_the_server_proves_that_it_knows_the_credential_too(mechanism: ScramMechanism) -> None:
    credential = from_password(mechanism, "pä$$,word=", b"salt", 5_000)
    exchange = server(mechanism, user=credential)
    challenge = exchange.evaluate(FIRST)
    final = prove(mechanism, "pä$$,word=", FIRST, challenge)
    unproved = final.rpartition(b",p=")[0]
    message = FIRST[3:] + b"," + challenge + b"," + unproved
    expected = base64.b64encode(hmac.digest(credential.server_key, message, mechanism.hash_name))
    assert exchange.evaluate(final) == b"v=" + expected


def test_a_wrong_password_is_refused_and_nobody_is_authenticated() -> None:
    exchange = server()
    final = prove(SHA_256, "pencils", FIRST, exchange.evaluate(FIRST))
    with pytest.raises(AuthenticationFailed, match="invalid credentials"):
        exchange.evaluate(final)
    assert exchange.user is None


def test_a_failed_exchange_cannot_go_on() -> None:
    exchange = server()
    challenge = exchange.evaluate(FIRST)
    with pytest.raises(AuthenticationFailed):
        exchange.evaluate(prove(SHA_256, "wrong", FIRST, challenge))
    with pytest.raises(AuthenticationFailed, match="after the end"):
        exchange.evaluate(prove(SHA_256, "pencil", FIRST, challenge))
    assert exchange.user is None


def test_a_finished_exchange_takes_no_further_message() -> None:
    exchange = server()
    exchange.evaluate(prove(SHA_256, "pencil", FIRST, exchange.evaluate(FIRST)))
    with pytest.raises(AuthenticationFailed, match="after the end"):
        exchange.evaluate(FIRST)


def test_the_proof_alone_without_a_first_message_is_nothing() -> None:
    with pytest.raises(AuthenticationFailed, match="first message"):
        server().evaluate(f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode())


@pytest.mark.parametrize("nonce", [CLIENT_NONCE, SERVER_NONCE, NONCE[:-1], NONCE + "0", "x" + NONCE[1:]])
def test_the_nonce_must_be_the_one_of_this_exchange(nonce: str) -> None:
    """CVE-2024-56128: a server that does not look takes a recorded proof again."""
    exchange = server()
    final = prove(SHA_256, "pencil", FIRST, exchange.evaluate(FIRST), final=f"c=biws,r={nonce}")
    with pytest.raises(AuthenticationFailed, match="nonce"):
        exchange.evaluate(final)


def test_the_channel_binding_must_be_the_one_of_the_first_message() -> None:
    exchange = server()
    other = base64.b64encode(b"y,,").decode()
    final = prove(SHA_256, "pencil", FIRST, exchange.evaluate(FIRST), final=f"c={other},r={NONCE}")
    with pytest.raises(AuthenticationFailed, match="channel binding"):
        exchange.evaluate(final)


def test_a_user_that_does_not_exist_meets_the_same_questions() -> None:
    nobody = FIRST.replace(b"n=user", b"n=nobody")
    challenges = [server().evaluate(nobody) for _ in range(2)]
    assert challenges[0] == challenges[1], "another salt each time would tell that the user is made up"
    assert b",i=4096" in challenges[0]
    exchange = server()
    final = prove(SHA_256, "", nobody, exchange.evaluate(nobody))
    with pytest.raises(AuthenticationFailed) as unknown:
        exchange.evaluate(final)
    known = server()
    with pytest.raises(AuthenticationFailed) as wrong:
        known.evaluate(prove(SHA_256, "", FIRST, known.evaluate(FIRST)))
    assert str(unknown.value) == str(wrong.value)


def test_an_unknown_user_takes_the_steps_of_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    digest, compare = hmac.digest, hmac.compare_digest
    steps: list[str] = []
    monkeypatch.setattr(hmac, "digest", lambda *args: steps.append("digest") or digest(*args))
    monkeypatch.setattr(hmac, "compare_digest", lambda *args: steps.append("compare") or compare(*args))
    taken: list[list[str]] = []
    for name in (b"user", b"nobody"):
        exchange = server()
        first = FIRST.replace(b"user", name)
        final = prove(SHA_256, "wrong", first, exchange.evaluate(first))
        steps.clear()
        with pytest.raises(AuthenticationFailed, match="invalid credentials"):
            exchange.evaluate(final)
        taken.append([*steps])
    assert taken[0] == taken[1] and "digest" in taken[0]


def test_names_with_commas_and_equals_signs_are_escaped() -> None:
    exchange = server(**{"a,b=c": PENCIL})
    first = f"n,,n=a=2Cb=3Dc,r={CLIENT_NONCE}".encode()
    exchange.evaluate(prove(SHA_256, "pencil", first, exchange.evaluate(first)))
    assert exchange.user == "a,b=c"


def test_acting_as_somebody_else_is_refused_as_oneself_is_fine() -> None:
    with pytest.raises(AuthenticationFailed, match="another user"):
        server().evaluate(f"n,a=root,n=user,r={CLIENT_NONCE}".encode())
    exchange = server()
    first = f"n,a=user,n=user,r={CLIENT_NONCE}".encode()
    exchange.evaluate(prove(SHA_256, "pencil", first, exchange.evaluate(first)))
    assert exchange.user == "user"


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff\xfe",
        b"n,,",
        b"n,,n=,r=x",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,,r=x,n=user",
        b"n,,n=us=er,r=x",
        b"n,,n=us\0er,r=x",
        b"n,,m=must,n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"n,,n=user,r=x\n",
        b"n,,n=user,r=x y",
        b"n,,n=user,r=x,",
        b"n,,n=user,r=x,tokenauth=true",
    ],
)
def test_a_first_message_that_is_none(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        server().evaluate(first)


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"\xff",
        f"c=biws,r={NONCE}".encode(),
        f"c=biws,r={NONCE},p=".encode(),
        f"c=biws,r={NONCE},p=====".encode(),
        f"c=biws,r={NONCE},p=AAAA".encode(),
        f"c=b!ws,r={NONCE},p=AAAA".encode(),
        f"r={NONCE},c=biws,p=AAAA".encode(),
    ],
)
def test_a_final_message_that_is_none(final: bytes) -> None:
    exchange = server()
    exchange.evaluate(FIRST)
    with pytest.raises(AuthenticationFailed):
        exchange.evaluate(final)
    assert exchange.user is None


@pytest.mark.system
@given(st.lists(st.binary(max_size=80), max_size=4), st.booleans())
def test_no_bytes_authenticate_or_break_the_exchange(messages: list[bytes], begun: bool) -> None:
    exchange = server()
    for message in ([FIRST] if begun else []) + messages:
        try:
            exchange.evaluate(message)
        except AuthenticationFailed:
            continue
    assert exchange.user is None


def test_nothing_of_a_credential_is_shown() -> None:
    shown = repr(PENCIL) + str(PENCIL)
    for secret in (PENCIL.salt, PENCIL.stored_key, PENCIL.server_key):
        assert repr(secret)[2:-1] not in shown
