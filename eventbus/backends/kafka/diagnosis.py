"""Find out why a cluster cannot be used with the settings: the listeners' protocols, and the advertised addresses.

Uses our own connections, which report the fault; librdkafka only reports that no broker answers. Everything here
blocks, and runs in threads.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Literal

import msgspec

from eventbus.backends.kafka.settings import ClientSettings
from eventbus.backends.kafka.wire import Address, Wire, exchange
from eventbus.errors import ConfigError, EventBusError
from eventbus.protocol import MalformedMessage
from eventbus.protocol import messages as m

_SECONDS = 2.0
_ILLEGAL_SASL_STATE = 34
_NO_MECHANISM = "which-do-you-have"
_MOST_ADDRESSES = 5


class Speaks(msgspec.Struct, frozen=True):
    """The protocol and mechanisms that a listener accepts."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    mechanisms: tuple[str, ...] = ()


def check_security(settings: ClientSettings) -> None:
    """Raise ConfigError for a ``security.protocol`` or mechanism that the listener does not have."""
    for address in settings.addresses:
        speaks = what_is_spoken(address)
        if speaks is None:
            continue
        where = f"{address[0]}:{address[1]}"
        chosen = settings.security_protocol
        if speaks.protocol != chosen:
            mechanisms = f", sasl.mechanism={' or '.join(speaks.mechanisms)}" if speaks.mechanisms else ""
            more = mechanisms and f"{mechanisms}, sasl.username and sasl.password"
            raise ConfigError(
                f"the listener at {where} speaks {speaks.protocol}, and security.protocol is {chosen}: set "
                f"security.protocol={speaks.protocol}{more}"
            )
        if speaks.mechanisms and settings.mechanism not in speaks.mechanisms:
            raise ConfigError(
                f"the listener at {where} takes sasl.mechanism={' or '.join(speaks.mechanisms)}, and it is "
                f"{settings.mechanism or 'not set'}"
            )
        return


def check_advertised(settings: ClientSettings) -> None:
    """Raise ConfigError if a cluster answers, but advertises addresses that cannot be reached."""
    wire = Wire(settings, _SECONDS)
    try:
        answer = wire.call(m.MetadataRequest(topics=[], allow_auto_topic_creation=False))
    except EventBusError:  # librdkafka will report this error
        return
    finally:
        wire.close()
    advertised: list[Address] = [(broker.host, broker.port) for broker in answer.brokers]
    if not advertised or set(advertised) & set(settings.addresses):
        return
    first_error = ""
    for address in advertised[:_MOST_ADDRESSES]:
        try:
            socket.create_connection(address, _SECONDS).close()
        except OSError as error:
            first_error = first_error or str(error)
        else:
            return
    listed = ", ".join(f"{host}:{port}" for host, port in advertised[:_MOST_ADDRESSES])
    raise ConfigError(
        f"kafka://{settings.bootstrap} answers, and sends its clients to {listed}, where nobody can be reached from "
        f"here ({first_error}): the brokers' advertised.listeners must name addresses that this machine reaches"
    )


def what_is_spoken(address: Address) -> Speaks | None:
    """Return None if nothing listens on the port or the peer does not speak Kafka's protocol."""
    with contextlib.suppress(OSError, MalformedMessage):
        mechanisms = _sasl(address, is_tls=False)
        return Speaks("SASL_PLAINTEXT" if mechanisms else "PLAINTEXT", mechanisms)
    with contextlib.suppress(OSError, MalformedMessage):
        mechanisms = _sasl(address, is_tls=True)
        return Speaks("SASL_SSL" if mechanisms else "SSL", mechanisms)
    with contextlib.suppress(OSError):
        _connect(address, is_tls=True).close()
        return Speaks("SSL")  # it requires our certificate first
    return None


def _sasl(address: Address, *, is_tls: bool) -> tuple[str, ...]:
    """Return the mechanisms of a listener; none if it does not authenticate."""
    with contextlib.closing(_connect(address, is_tls=is_tls)) as connection:
        answer = exchange(connection, m.SaslHandshakeRequest(mechanism=_NO_MECHANISM), 1)
        if answer.error_code == _ILLEGAL_SASL_STATE:
            return ()
        return tuple(answer.mechanisms)


def _connect(address: Address, *, is_tls: bool) -> socket.socket:
    plain = socket.create_connection(address, _SECONDS)
    if not is_tls:
        return plain
    context = ssl.create_default_context()  # only a greeting is sent, so the peer need not be verified
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return context.wrap_socket(plain, server_hostname=address[0])
    except BaseException:
        plain.close()
        raise
