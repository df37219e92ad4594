"""Any good schema: printing and parsing undo each other, and others read what we print."""

from __future__ import annotations

import json

import fastavro.schema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serdes.avro.codegen import generate
from serdes.avro.normal import normalized
from serdes.avro.parse import parse
from serdes.avro.schema import AvroSchemaError
from serdes.avro.text import canonical_form, fingerprint64, to_text
from tests.serdes.avro_model.generated import schema_of_source
from tests.serdes.avro_model.random_schemas import Texts
from tests.serdes.avro_model.strategies import texts, texts_in_namespaces
from tests.support import examples

pytestmark = pytest.mark.system


@given(texts)
@settings(max_examples=examples(50, 150), deadline=None)
def test_a_printed_schema_parses_as_itself(text: str) -> None:
    schema = parse(text)
    printed = to_text(schema)
    again = parse(printed)
    assert to_text(again) == printed
    assert canonical_form(again) == canonical_form(schema)
    assert json.loads(printed) is not None


@given(texts_in_namespaces)
@settings(max_examples=examples(40, 100), deadline=None)
def test_the_normalized_form_reads_the_same_data(text: str) -> None:
    schema = parse(text)
    simple = normalized(schema)
    assert normalized(parse(simple)) == simple
    assert fingerprint64(parse(simple)) == fingerprint64(schema)


@given(texts_in_namespaces)
@settings(max_examples=examples(40, 100), deadline=None)
def test_fastavro_reads_what_is_printed(text: str) -> None:
    schema = parse(text)
    fastavro.schema.parse_schema(json.loads(to_text(schema)))
    assert (
        fastavro.schema.fingerprint(canonical_form(schema), "CRC-64-AVRO")
        == fingerprint64(schema).to_bytes(8, "little").hex()
    )


@given(texts)
@settings(max_examples=examples(40, 100), deadline=None)
def test_generated_python_says_the_same_schema(text: str) -> None:
    schema = parse(text)
    assert to_text(schema_of_source(generate(schema))) == to_text(schema)


@given(st.integers())
@settings(max_examples=examples(50, 150), deadline=None)
def test_a_spoiled_text_is_refused_with_its_own_error(seed: int) -> None:
    try:
        to_text(parse(Texts(seed).text()))
    except AvroSchemaError as error:
        assert error.path.startswith("$")


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_any_text_at_all(text: str) -> None:
    try:
        parse(text)
    except AvroSchemaError as error:
        assert error.reason
