"""SaslHandshake (key 17): choose the mechanism by which the peer will authenticate.

It may come again on the same connection (KIP-368). Version 0 is not served: bare tokens without requests follow it, and
no recent client sends it to a server that has SaslAuthenticate.
"""

from __future__ import annotations

from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.security.sasl import AuthenticationFailed

_UNSUPPORTED_SASL_MECHANISM = 33
_ILLEGAL_SASL_STATE = 34


def sasl_handshake(call: Call, request: m.SaslHandshakeRequest) -> None:
    connection, security = call.connection, call.node.security
    if not connection.listener.has_sasl:
        call.reply(m.SaslHandshakeResponse(error_code=_ILLEGAL_SASL_STATE, mechanisms=[]))
        return
    session = connection.session
    if session is None:
        session = connection.session = security.new_session(connection.listener.name)
    if session.has_failed:
        call.close("a request after a failed authentication")
        return
    error_code, reason = 0, ""
    try:
        session.begin(request.mechanism)
    except KeyError:
        error_code, reason = _UNSUPPORTED_SASL_MECHANISM, f"SASL mechanism {request.mechanism!r} is not offered"
    except AuthenticationFailed as error:
        error_code, reason = _ILLEGAL_SASL_STATE, str(error)
    call.reply(m.SaslHandshakeResponse(error_code=error_code, mechanisms=list(session.mechanisms)))
    if reason:
        call.close(reason)


API = Api(17, "SaslHandshake", 1, 1, sasl_handshake, before_authentication=True)
