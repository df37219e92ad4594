"""The tables, and what is written from them."""

from __future__ import annotations

import pytest

from eventbus.protocol import API_KEYS
from eventbus.protocol.schema import LATEST, blocks, message
from tests.clients.jars import CACHE, NotAvailableError, class_path
from tests.protocol import schemas, stubs


@pytest.mark.system
def test_the_tables_are_what_kafkas_jars_hold() -> None:
    try:
        class_path(schemas.VERSION)  # they are fetched by whoever asks first
    except NotAvailableError as missing:
        pytest.skip(str(missing))
    for name, text in schemas.tables(schemas.load(CACHE / schemas.VERSION)).items():
        assert (schemas.TABLES / f"{name}.txt").read_text() == text


def test_the_stubs_are_those_of_the_tables() -> None:
    assert stubs.STUBS.read_text() == stubs.stubs()


def test_an_api_has_the_versions_of_its_table() -> None:
    fetch = API_KEYS[1]
    assert fetch == ("Fetch", 1, 4, 18, 12)
    assert API_KEYS[17].first_flexible_version == LATEST
    assert list(API_KEYS) == sorted(API_KEYS)


@pytest.mark.parametrize("api", API_KEYS.values(), ids=lambda api: api.name)
def test_requests_and_responses_have_the_same_versions(api: tuple[str, int, int, int, int]) -> None:
    request, response = message(f"{api[0]}Request"), message(f"{api[0]}Response")
    assert (request.key, request.versions, request.flexible) == (response.key, response.versions, response.flexible)


def test_every_structure_has_fields() -> None:
    for name in blocks():
        for structure in message(name).structures.values():
            assert structure.fields
