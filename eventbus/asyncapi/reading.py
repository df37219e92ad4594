"""Load a document from a file, and resolve its references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from eventbus.errors import ConfigError
from serdes.nesting import shallow

JsonObject = dict[str, Any]

MAX_BYTES = 64 * 1024 * 1024
"""The limit for a document; larger ones are refused before they are read."""


def read_document(path: str) -> JsonObject:
    """Return the AsyncAPI 3 document in a JSON file. Raises ConfigError for anything else."""
    file = Path(path)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_BYTES // 1024 // 1024} MB: that is no AsyncAPI document")
        found: Any = json.loads(shallow(file.read_bytes()))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; build one: eventbus docs build app:bus -o {path}") from None
    except ValueError as error:
        hint = "; convert YAML to JSON first" if file.suffix in (".yaml", ".yml") else ""
        raise ConfigError(f"{path} is no JSON: {error}{hint}") from None
    document = cast(JsonObject, found) if isinstance(found, dict) else {}
    version: Any = document.get("asyncapi")
    if not isinstance(version, str):
        raise ConfigError(f"{path} is not an AsyncAPI document: it has no member 'asyncapi'; see: eventbus docs build")
    if not version.startswith("3."):
        raise ConfigError(f"{path} is AsyncAPI {version}, not 3: convert it first, as with  asyncapi convert {path}")
    for member in ("channels", "operations"):
        if not isinstance(document.get(member, {}), dict):
            raise ConfigError(f"{path}: {member!r} is not an object, so this is not an AsyncAPI 3 document")
    return document


def resolved(document: JsonObject, node: Any) -> Any:
    """Resolve the references of ``node`` within the document.

    Raises ConfigError for a reference that points nowhere, elsewhere, or in a circle.
    """
    for _ in range(100):
        reference: Any = cast(JsonObject, node).get("$ref") if isinstance(node, dict) else None
        if not isinstance(reference, str):
            return cast(Any, node)
        node = _at(document, reference)
    raise ConfigError("the document's references go in a circle: no schema stands at their end")


def _at(document: JsonObject, reference: str) -> Any:
    if not reference.startswith("#/"):
        raise ConfigError(f"the reference {reference!r} leads outside of the document: bundle it first")
    found: Any = document
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise ConfigError(f"the reference {reference!r} points to nothing in the document")
        found = cast(JsonObject, found)[name]
    return found
