"""A report as SARIF 2.1.0, which code hosts show at the changed line."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from eventbus.version import __version__
from schema_registry.tools.problems import Problem, Report, summary

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_text(report: Report) -> str:
    """Return a SARIF run with a result per problem, at the field's line in the source or else at the lock file."""
    rules = list(dict.fromkeys(problem.rule for problem in report.problems))
    driver = {
        "name": "eventbus schema check",
        "version": __version__,
        "rules": [
            {"id": rule, "shortDescription": {"text": rule.replace("_", " ").lower().capitalize()}} for rule in rules
        ],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(report, problem, rules.index(problem.rule)) for problem in report.problems],
    }
    document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _result(report: Report, problem: Problem, rule: int) -> dict[str, Any]:
    file, line = (problem.place.file, problem.place.line) if problem.place else (report.source, 1)
    return {
        "ruleId": problem.rule,
        "ruleIndex": rule,
        "level": problem.level,  # SARIF has the same three
        "message": {"text": f"{problem.subject}: {summary(problem)}"},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": file}, "region": {"startLine": line}},
                "logicalLocations": [{"fullyQualifiedName": _name(problem), "kind": "member"}],
            }
        ],
        "partialFingerprints": {"schemaProblem/v1": _fingerprint(problem)},
    }


def _name(problem: Problem) -> str:
    return f"{problem.subject}/{problem.field}" if problem.field else problem.subject


def _fingerprint(problem: Problem) -> str:
    """Return a fingerprint of the problem that does not depend on its line."""
    text = "\0".join((problem.rule, problem.subject, problem.field, problem.path, problem.against))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
