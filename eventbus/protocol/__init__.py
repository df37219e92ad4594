"""Kafka's wire protocol: messages and their encoding in every version, without networking.

Everything is generated on first use from one text table (`schema`): classes (`messages`), readers and writers.

- ``schema``, ``tables``: the table of messages, and its text
- ``messages``, ``structs``, ``reading``, ``writing``, ``source``: what is generated from it
- ``headers``, ``uuids``, ``log_records``: request headers, ids, and the records of internal topics
"""

from eventbus.protocol.headers import RequestHeader, read_request_header, request_header, response_header
from eventbus.protocol.reading import decode, reader
from eventbus.protocol.schema import API_KEYS, ZERO_UUID, ApiSchema
from eventbus.protocol.source import Buffer, MalformedMessage
from eventbus.protocol.uuids import random_uuid, uuid_bytes, uuid_text
from eventbus.protocol.writing import encode, writer

__all__ = [
    "API_KEYS",
    "ZERO_UUID",
    "ApiSchema",
    "Buffer",
    "MalformedMessage",
    "RequestHeader",
    "decode",
    "encode",
    "random_uuid",
    "read_request_header",
    "reader",
    "request_header",
    "response_header",
    "uuid_bytes",
    "uuid_text",
    "writer",
]
