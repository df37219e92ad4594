"""A document as a single HTML page: without scripts or external resources, and with everything escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any, cast

from eventbus.asyncapi.reading import JsonObject, resolved

_STYLE = """
:root { color-scheme: light dark; --edge: #d8dce2; --soft: #f5f6f8; --quiet: #5b6470 }
:root { --send: #0a7d4f; --receive: #1f5fbf }
@media (prefers-color-scheme: dark) {
  :root { --edge: #343a43; --soft: #1d2127; --quiet: #9aa4b1; --send: #4cc38a; --receive: #79a9f5 }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--edge) }
article { border: 1px solid var(--edge); border-radius: 8px; padding: .25rem 1rem 1rem; margin: 1rem 0 }
h3 { margin: .75rem 0 .25rem } h3, code, pre, nav { font-family: ui-monospace, monospace }
.quiet { color: var(--quiet); font-size: .9rem } .send { color: var(--send) } .receive { color: var(--receive) }
.text { white-space: pre-wrap }
pre { background: var(--soft); padding: .75rem; border-radius: 6px; overflow-x: auto; font-size: .85rem }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .5rem 0 }
td, th { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--edge) }
nav a { margin-right: 1rem } a { color: inherit } summary { cursor: pointer }
"""

_REMARKS = (
    "default", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
    "minItems", "maxItems", "pattern",
)  # fmt: skip


def html_page(document: JsonObject) -> str:
    """Return the page of an AsyncAPI 3 document. Raises ConfigError if its references point to nothing."""
    info = _object(document, "info")
    title = escape(str(info.get("title", "")))
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}</style></head><body>",
            f'<h1>{title}</h1><p class="quiet">version {escape(str(info.get("version", "")))}, '
            f"AsyncAPI {escape(str(document.get('asyncapi', '')))}</p>",
            _text(info.get("description")),
            *_servers(document),
            *_channels(document),
            *_schemas(document),
            "</body></html>\n",
        ]
    )


def _servers(document: JsonObject) -> Iterator[str]:
    servers = _object(document, "servers")
    if servers:
        yield "<h2>Servers</h2><ul>"
        for name, node in servers.items():
            one = resolved(document, node)
            text = f"{one.get('protocol', '')}://{one.get('host', '')}"
            logins = [resolved(document, login).get("type", "") for login in one.get("security", ())]
            by = f", login: {', '.join(map(str, logins))}" if logins else ""
            yield f"<li>{escape(name)}: <code>{escape(text)}</code>{escape(by)}</li>"
        yield "</ul>"


def _channels(document: JsonObject) -> Iterator[str]:
    channels = _object(document, "channels")
    operations: dict[str, list[tuple[str, JsonObject]]] = {}
    for name, node in _object(document, "operations").items():
        one = resolved(document, node)
        operations.setdefault(one.get("channel", {}).get("$ref", ""), []).append((name, one))
    yield "<h2>Channels</h2><nav>"
    yield from (f'<a href="#{_id("channel", name)}">{escape(name)}</a>' for name in channels)
    yield "</nav>"
    for name, node in channels.items():
        channel = resolved(document, node)
        yield f'<article id="{_id("channel", name)}"><h3>{escape(channel.get("address") or name)}</h3>'
        yield _text(channel.get("description"))
        kafka = _object(_object(channel, "bindings"), "kafka")
        facts = {key: value for key, value in kafka.items() if key != "bindingVersion"} | _object(channel, "x-eventbus")
        yield _facts(facts)
        for operation_name, one in operations.get(f"#/channels/{name}", ()):
            yield from _operation(document, operation_name, one)
        for message_name, message in _object(channel, "messages").items():
            yield from _message(document, message_name, message)
        yield "</article>"


def _operation(document: JsonObject, name: str, one: JsonObject) -> Iterator[str]:
    action = "send" if one.get("action") == "send" else "receive"
    yield f'<p><strong class="{action}">{action}</strong> <code>{escape(name)}</code></p>'
    yield _text(one.get("description"))
    groups = _object(_object(one, "bindings"), "kafka").get("groupId", {})
    facts = {"group": ", ".join(map(str, groups.get("enum", [])))} if groups else {}
    facts |= _object(one, "x-eventbus")
    if "reply" in one:
        names = [str(message.get("$ref", "")).rpartition("/")[2] for message in one["reply"].get("messages", ())]
        facts["replies"] = ", ".join(names) or "yes"
    yield _facts(facts)


def _message(document: JsonObject, name: str, node: Any) -> Iterator[str]:
    message = resolved(document, node)
    content_type = escape(str(message.get("contentType", "")))
    yield f'<p><strong>{escape(name)}</strong> <span class="quiet">{content_type}</span></p>'
    if "$ref" in node:
        yield f'<p class="quiet">as in {escape(str(node["$ref"]).split("/")[2])}</p>'
        return
    yield _text(message.get("description"))
    key = _object(_object(message, "bindings"), "kafka").get("key")
    if key is not None:
        yield f'<p class="quiet">key: {_kind(key)}</p>'
    payload = message.get("payload")
    if payload is not None:
        yield _fields(resolved(document, payload)) or f"<p>{_kind(payload)}</p>"


def _schemas(document: JsonObject) -> Iterator[str]:
    schemas = _object(_object(document, "components"), "schemas")
    if schemas:
        yield "<h2>Schemas</h2>"
        for name, schema in schemas.items():
            yield f'<article id="{_id("schema", name)}"><h3>{escape(name)}</h3>'
            yield _text(resolved(document, schema).get("description"))
            yield _fields(resolved(document, schema)) or f"<p>{_kind(schema)}</p>"
            yield f"<details><summary>JSON</summary><pre>{escape(_json(schema))}</pre></details></article>"


def _fields(schema: Any) -> str:
    """Return a table of the fields; "" for a schema without fields."""
    if not isinstance(schema, dict):
        return ""
    node = cast(JsonObject, schema)
    if "schema" in node:  # another schema language: shown unchanged
        text = escape(str(node.get("schemaFormat", "")))
        return f'<p class="quiet">{text}</p><pre>{escape(_json(node["schema"]))}</pre>'
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{_kind(field)}</td>"
        f"<td>{'required' if name in node.get('required', ()) else ''}</td>"
        f"<td>{escape(_remarks(field))}</td></tr>"
        for name, field in _object(node, "properties").items()
    ]
    return f"<table><tr><th>field<th>type<th><th></tr>{''.join(rows)}</table>" if rows else ""


def _kind(schema: Any) -> str:
    """Return a schema's type in a word or two, with links to the schemas it names."""
    if not isinstance(schema, dict):
        return "anything"
    node = cast(JsonObject, schema)
    if "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        return f'<a href="#{_id("schema", name)}">{escape(name)}</a>'
    for word in ("anyOf", "oneOf"):
        if isinstance(node.get(word), list):
            return " or ".join(_kind(one) for one in node[word])
    if len(node.get("allOf", ())) == 1:
        return _kind(node["allOf"][0])
    if "enum" in node or "const" in node:
        values = node.get("enum", [node.get("const")])
        return escape(" or ".join(json.dumps(value, ensure_ascii=False) for value in values))
    kind = escape(str(node.get("format") or node.get("type") or "anything"))
    inner = node.get("additionalProperties" if node.get("type") == "object" else "items")
    if isinstance(inner, list):
        return f"{kind} of ({', '.join(map(_kind, cast('list[Any]', inner)))})"
    return f"{kind} of {_kind(inner)}" if isinstance(inner, dict) else kind


def _remarks(field: Any) -> str:
    if not isinstance(field, dict):
        return ""
    node = cast(JsonObject, field)
    remarks = [str(node["description"])] if "description" in node else []
    remarks += [f"{word}: {json.dumps(node[word], ensure_ascii=False)}" for word in _REMARKS if word in node]
    return "; ".join(remarks)


def _facts(facts: JsonObject) -> str:
    lines = [f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in facts.items()]
    return f'<p class="quiet">{escape(" · ".join(lines))}</p>' if lines else ""


def _text(text: Any) -> str:
    return f'<p class="text">{escape(str(text))}</p>' if text else ""


def _id(kind: str, name: str) -> str:
    return escape(f"{kind}-{name}", quote=True)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _object(node: Any, name: str) -> JsonObject:
    found: Any = cast(JsonObject, node).get(name) if isinstance(node, dict) else None
    return cast(JsonObject, found) if isinstance(found, dict) else {}
