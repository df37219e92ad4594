"""The OpenAPI description, made from the table of endpoints."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from schema_registry.http.endpoints import ENDPOINTS, Endpoint, Query
from schema_registry.http.wire import CONTENT_TYPES

_PARTS = re.compile(r"\{(\w+)\}")
_QUERY_SCHEMAS: dict[str, dict[str, Any]] = {
    "flag": {"type": "boolean"},
    "number": {"type": "integer", "format": "int32"},
    "text": {"type": "string"},
    "texts": {"type": "array", "items": {"type": "string"}},
}
_PART_SCHEMAS: dict[str, dict[str, Any]] = {
    "id": {"type": "integer", "format": "int32", "minimum": 0},
    "version": {"type": "string", "pattern": "^(latest|-1|[1-9][0-9]{0,9})$"},
    "guid": {"type": "string", "format": "uuid"},
}

_SEGMENT = {"type": "string", "minLength": 1}


@cache
def description() -> bytes:
    """Return the document as JSON."""
    types = [body for endpoint in ENDPOINTS for body in (endpoint.body, endpoint.answers) if body is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        body = next(by_type) if endpoint.body is not None else None
        answers = next(by_type) if endpoint.answers is not None else None
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, body, answers)
    components["Error"] = {
        "type": "object",
        "required": ["error_code", "message"],
        "properties": {"error_code": {"type": "integer"}, "message": {"type": "string"}},
    }
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Schema registry",
            "version": "1",
            "description": "Confluent's schema registry API, on the log of an event bus.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {scheme: {"type": "http", "scheme": scheme} for scheme in ("basic", "bearer")},
        },
        "security": [{}, {"basic": []}, {"bearer": []}],
    }  # fmt: skip
    return msgspec.json.encode(whole)


def _operation(endpoint: Endpoint, body: Any, answers: Any) -> dict[str, Any]:
    parts = [
        {"name": part, "in": "path", "required": True, "schema": _PART_SCHEMAS.get(part, _SEGMENT)}
        for part in _PARTS.findall(endpoint.path)
    ]  # fmt: skip
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.method.lower()} {endpoint.path}",
        "summary": endpoint.summary,
        "parameters": [*parts, *map(_query, endpoint.query)],
        "responses": {
            "204" if endpoint.form == "empty" else "200": _content(answers, endpoint),
            "4XX": _error("the request is wrong, or what it asks for is not there"),
            "5XX": _error("the registry cannot answer now"),
        },
    }
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {name.decode(): {"schema": body} for name in CONTENT_TYPES},
        }
    return operation


def _query(query: Query) -> dict[str, Any]:
    return {"name": query.name, "in": "query", "required": False, "schema": _QUERY_SCHEMAS[query.kind]}


def _content(answers: Any, endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.form == "empty":
        return {"description": "done"}
    names = [endpoint.content_type] if endpoint.content_type else CONTENT_TYPES
    return {
        "description": endpoint.summary,
        "content": {name.decode(): {"schema": {} if answers is None else answers} for name in names},
    }


def _error(why: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": why, "content": {name.decode(): {"schema": schema} for name in CONTENT_TYPES}}
