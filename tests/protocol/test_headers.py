"""Request and response headers, against kio."""

from __future__ import annotations

import io
from typing import Any

import pytest
from kio.schema.request_header.v1.header import RequestHeader as Header1
from kio.schema.request_header.v2.header import RequestHeader as Header2
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from eventbus.protocol import MalformedMessage, read_request_header, request_header, response_header

pytestmark = pytest.mark.system


def kio_header(schema: Any, key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    buffer = io.BytesIO()
    header = schema(
        request_api_key=i16(key),
        request_api_version=i16(version),
        correlation_id=i32(correlation_id),
        client_id=client_id,
    )
    entity_writer(schema)(buffer, header)
    return buffer.getvalue()


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "é" * 100])
@pytest.mark.parametrize(("key", "version", "schema"), [(3, 8, Header1), (3, 9, Header2), (18, 3, Header2)])
def test_headers_are_those_of_the_version(client_id: str | None, key: int, version: int, schema: Any) -> None:
    data = kio_header(schema, key, version, 77, client_id)
    assert request_header(key, version, 77, client_id) == data
    assert read_request_header(memoryview(data + b"body")) == (key, version, 77, client_id, len(data))


def test_the_response_header_of_api_versions_never_has_tags() -> None:
    assert response_header(18, 4, 5) == b"\0\0\0\5"
    assert response_header(3, 8, 5) == b"\0\0\0\5"
    assert response_header(3, 9, -1) == b"\xff\xff\xff\xff\0"


def test_tagged_fields_in_a_header_are_passed_over() -> None:
    data = request_header(3, 9, 1, "c")[:-1] + b"\2\0\1x\x09\3abc"
    assert read_request_header(data + b"body").body_offset == len(data)


def test_a_client_id_that_is_no_text_is_no_error() -> None:
    data = b"\0\3\0\0\0\0\0\1\0\2\xff\xfe"
    assert read_request_header(data).client_id == "��"


def test_an_unknown_key_is_read_as_far_as_it_goes() -> None:
    assert read_request_header(b"\x7f\xff\0\1\0\0\0\2\xff\xff") == (32767, 1, 2, None, 10)


@pytest.mark.parametrize("data", [b"", bytes(9), b"\0\3\0\0\0\0\0\1\0\5abcd", request_header(3, 9, 1, "c")[:-1]])
def test_a_header_that_is_cut_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="ends in its header"):
        read_request_header(data)


def test_a_header_of_lying_tags_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        read_request_header(request_header(3, 9, 1, "c")[:-1] + b"\1\0\xff\xff\xff\xff\x0f")
