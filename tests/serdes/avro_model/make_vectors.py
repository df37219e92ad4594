"""Writes vectors.jsonl: what Apache Avro for Java 1.12 makes of the schema texts of cases.py.

    .venv/bin/python -m tests.serdes.avro_model.make_vectors

Each line is a question with Java's answer: the text that it prints and the fingerprints, or the name of its exception.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.serdes.avro_model import oracle
from tests.serdes.avro_model.cases import Question, questions

VECTORS = Path(__file__).parent / "vectors.jsonl"


def ask() -> list[tuple[Question, dict[str, Any]]]:
    """All questions with Java's answers."""
    asked = questions()
    return list(zip(asked, map(_kept, oracle.answers(asked)), strict=True))


def recorded() -> list[tuple[Question, dict[str, Any]]]:
    """The same, from the file."""
    return [tuple(json.loads(line)) for line in VECTORS.read_text("utf-8").split("\n") if line]


def _kept(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what says nothing more: fingerprints stand for the canonical form."""
    if "error" in answer:
        return {"error": answer["error"].partition(":")[0]}
    return {name: value for name, value in answer.items() if name != "canonical" and value != []}


if __name__ == "__main__":
    VECTORS.write_text("".join(json.dumps(pair) + "\n" for pair in ask()), "utf-8")
