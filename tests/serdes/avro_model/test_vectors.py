"""Against Apache Avro for Java 1.12: the same texts are accepted, and printed and fingerprinted alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serdes.avro.limits import inner
from serdes.avro.parse import Parser
from serdes.avro.schema import AvroSchemaError, Named, Schema
from serdes.avro.text import fingerprint, fingerprint64, to_text
from tests.serdes.avro_model import oracle
from tests.serdes.avro_model.cases import Question, questions
from tests.serdes.avro_model.make_vectors import ask, recorded
from tests.serdes.avro_model.random_schemas import Texts

needs_java = pytest.mark.skipif(oracle.missing() is not None, reason=f"asks Java: {oracle.missing()}")


def ours(question: Question) -> dict[str, Any]:
    """What Java is asked, asked of us."""
    parser = Parser(validate_defaults=question.get("validate_defaults", True), names=question.get("names", "unicode"))
    try:
        references = [parser.parse(text) for text in question.get("references", ())]
        schema = parser.parse(question["text"])
    except AvroSchemaError as error:
        return {"error": str(error)}
    answer = {
        "text": to_text(schema),
        "crc": f"{fingerprint64(schema):x}",
        "md5": fingerprint(schema, "md5").hex(),
    }
    if references:
        answer["known"] = to_text(schema, references)
    if logical := logical_types(schema, set()):
        answer["logical"] = logical
    return answer


def logical_types(schema: Schema, seen: set[str]) -> list[str]:
    if isinstance(schema, Named):
        if schema.fullname in seen:
            return []
        seen.add(schema.fullname)
    kind = schema.type.replace("error", "record")
    own = [f"{kind}:{schema.logical_type}"] if schema.logical_type else []
    return own + [found for child in inner(schema) for found in logical_types(child, seen)]


def differences(pairs: list[tuple[Question, dict[str, Any]]]) -> list[str]:
    found: list[str] = []
    for question, java in pairs:
        mine = ours(question)
        if ("error" in mine) != ("error" in java) or ("error" not in java and mine != java):
            found.append(f"{json.dumps(question)}\n  Java: {java}\n  ours: {mine}")
    return found


def test_the_recorded_verdicts_and_texts_of_java() -> None:
    pairs = recorded()
    refused = sum("error" in java for _, java in pairs)
    assert len(pairs) > 1_500, "the file holds every case"
    assert refused > 500
    assert len(pairs) - refused > 500
    assert differences(pairs) == []


def test_the_file_is_of_today_s_cases() -> None:
    assert [question for question, _ in recorded()] == questions()


@pytest.mark.slow  # starts a compiler and a Java
@needs_java
def test_java_still_says_what_was_recorded() -> None:
    assert ask() == recorded()


@pytest.mark.slow  # 20,000 schemas, and Java
@needs_java
@pytest.mark.parametrize("seed", [20, 21])
def test_random_schemas(seed: int) -> None:
    texts = Texts(seed)
    asked = [texts.question() for _ in range(10_000)]
    answers = oracle.answers(asked)
    assert sum("error" not in answer for answer in answers) > 2_000
    for answer in answers:
        answer.pop("canonical", None)
        if answer.get("logical") == []:
            del answer["logical"]
    assert differences(list(zip(asked, answers, strict=True))) == []
