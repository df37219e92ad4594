"""SaslAuthenticate (key 36): one message of the mechanism chosen in the handshake.

A refused peer waits for its answer, and its connection is closed: guessing must be slow. An accepted peer stays
authenticated for ``connections.max.reauth.ms``, which the answer contains (KIP-368).
"""

from __future__ import annotations

import weakref

from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.security.sasl import AuthenticationFailed, SaslSession

_ILLEGAL_SASL_STATE = 34
_SASL_AUTHENTICATION_FAILED = 58


def sasl_authenticate(call: Call, request: m.SaslAuthenticateRequest) -> None:
    connection, security = call.connection, call.node.security
    session = connection.session
    if session is not None and session.has_failed:
        call.close("a request after a failed authentication")
        return
    if session is None or not session.is_under_way:
        text = "SaslAuthenticate request received without a SaslHandshake request before it"
        call.reply(m.SaslAuthenticateResponse(error_code=_ILLEGAL_SASL_STATE, error_message=text))
        if not connection.is_authenticated:
            call.close("SaslAuthenticate without a handshake")
        return
    try:
        answer, is_done = session.evaluate(request.auth_bytes)
    except AuthenticationFailed as error:
        _refuse(call, str(error))
        return
    lifetime_ms = 0
    if is_done:
        lifetime_ms = security.config.connections_max_reauth_ms
        _accept(call, session, lifetime_ms)
    call.reply(m.SaslAuthenticateResponse(error_message=None, auth_bytes=answer, session_lifetime_ms=lifetime_ms))


def _accept(call: Call, session: SaslSession, lifetime_ms: int) -> None:
    connection = call.connection
    connection.principal = session.principal
    connection.is_authenticated = True
    call.node.security.failures.succeeded(connection.peer_host)
    if session.expiry is not None:
        session.expiry.cancel()
        session.expiry = None
    if lifetime_ms:
        peer = weakref.ref(connection)  # the timer may be hours ahead: it must not keep a closed connection alive

        def expire() -> None:
            held = peer()
            if held is not None:
                held.is_authenticated = False

        session.expiry = call.node.after(lifetime_ms, expire)


def _refuse(call: Call, reason: str) -> None:
    connection = call.connection
    connection.is_authenticated = False

    def answer() -> None:
        if call.is_open:
            call.reply(m.SaslAuthenticateResponse(error_code=_SASL_AUTHENTICATION_FAILED, error_message=reason))
            call.close(reason)

    delay_ms = call.node.security.failures.failed(connection.peer_host, call.node.now_ms())
    if delay_ms:
        call.node.after(delay_ms, answer)
    else:
        answer()


API = Api(36, "SaslAuthenticate", 0, 2, sasl_authenticate, before_authentication=True)
