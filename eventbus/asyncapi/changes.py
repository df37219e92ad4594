"""What changed between two documents, and whom it breaks.

What is sent and gets *wider* breaks who reads it: there are values now that they do not know. What is received and gets
*narrower* breaks who sends it. The other two directions are compatible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

import msgspec

from eventbus.asyncapi.avro_narrowing import avro_differences
from eventbus.asyncapi.narrowing import Difference, json_differences
from eventbus.asyncapi.reading import JsonObject, resolved
from eventbus.errors import ConfigError

Severity = Literal["breaking", "compatible", "info"]
Direction = Literal["send", "receive"]

_RANK: dict[Severity, int] = {"breaking": 0, "compatible": 1, "info": 2}
_AFFECTED: dict[Direction, str] = {"send": "consumers", "receive": "producers"}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a contract."""

    severity: Severity
    channel: str
    what: str
    """In words."""
    whom: str = ""
    """Whom it concerns: "consumers", "producers", "requesters"; "" where it is nobody in particular."""
    message: str = ""
    path: str = ""
    """The field within the message: "amount", "items[].price", "(key)"."""

    @property
    def where(self) -> str:
        return " ".join(part for part in (self.channel, self.message, self.path) if part)


class _Use(msgspec.Struct):
    """What a document does with a channel in one direction."""

    operations: set[str]
    messages: dict[str, Any]


def changes_between(old: JsonObject, new: JsonObject) -> list[Change]:
    """Every change, the breaking ones first. Both are AsyncAPI 3, see `read_document`.

    Raises ConfigError for a document whose references point to nothing, or that breaks AsyncAPI's rules.
    """
    try:
        return _changes(old, new)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        # Somebody's file: a number where an object belongs, a schema that is nothing but itself.
        raise ConfigError(
            f"a document breaks AsyncAPI's rules ({type(error).__name__}: {error}); "
            "what is wrong where tells  asyncapi validate FILE"
        ) from error


def _changes(old: JsonObject, new: JsonObject) -> list[Change]:
    found = [*_channels(old, new)]
    before, after = _uses(old), _uses(new)
    for channel, direction in sorted({*before, *after}):
        # a channel that came or went is told of once, by `_channels`
        if (channel in _by_address(old)) and (channel in _by_address(new)):
            nothing = _Use(set(), {})
            use = before.get((channel, direction), nothing), after.get((channel, direction), nothing)
            found += _directed(old, new, channel, direction, *use)
    found += _replies(old, new)
    unique = {(one.severity, one.where, one.what, one.whom): one for one in found}
    return sorted(unique.values(), key=lambda one: (_RANK[one.severity], one.where, one.what))


def _channels(old: JsonObject, new: JsonObject) -> Iterator[Change]:
    before, after = _by_address(old), _by_address(new)
    used = {channel for channel, _ in _uses(old)}
    for name in sorted({*before, *after}):
        if name not in after:
            severity: Severity = "breaking" if name in used else "info"
            yield Change(severity=severity, channel=name, what="the channel is gone", whom="everybody who uses it")
        elif name not in before:
            yield Change(severity="compatible", channel=name, what="a new channel")
        else:
            one, other = _binding(before[name]), _binding(after[name])
            if one.get("partitions") != other.get("partitions"):
                what = f"partitions: {one.get('partitions')} before, {other.get('partitions')} now; keys may move"
                yield Change(severity="info", channel=name, what=what)
            if one.get("topicConfiguration") != other.get("topicConfiguration"):
                yield Change(severity="info", channel=name, what="the topic's settings are others")


def _directed(
    old: JsonObject, new: JsonObject, channel: str, direction: Direction, before: _Use, after: _Use
) -> Iterator[Change]:
    whom = _AFFECTED[direction]
    if before.operations and not after.operations:
        sent = direction == "send"
        what = "nothing is sent to it any more" if sent else "nothing is received from it any more"
        yield Change(severity="breaking", channel=channel, what=what, whom=whom)
        return
    if after.operations and not before.operations:
        what = "it is sent to, which is new" if direction == "send" else "it is received from, which is new"
        yield Change(severity="compatible", channel=channel, what=what, whom=whom)
        return
    yield from _operations(channel, before, after)
    renamed = {*before.messages} != {*after.messages} and len(before.messages) == len(after.messages) == 1
    if renamed:  # a class got another name, which is not on the wire
        (earlier,), (name,) = before.messages, after.messages
        yield _judged(Difference("", f"its class was {earlier} before"), channel, name, direction)
        before = _Use(before.operations, {name: before.messages[earlier]})
    for name in sorted({*before.messages, *after.messages}):
        if name not in after.messages:
            gone = Difference("", "the message is gone", narrows=True)
            yield _judged(gone, channel, name, direction)
        elif name not in before.messages:
            yield _judged(Difference("", "a new message", widens=True), channel, name, direction)
        else:
            for one in _of_messages(old, before.messages[name], new, after.messages[name]):
                yield _judged(one, channel, name, direction)


def _operations(channel: str, before: _Use, after: _Use) -> Iterator[Change]:
    for name in sorted(before.operations - after.operations):
        yield Change(severity="info", channel=channel, what=f"operation {name} is gone; others are left")
    for name in sorted(after.operations - before.operations):
        yield Change(severity="info", channel=channel, what=f"operation {name} is new")


def _judged(one: Difference, channel: str, message: str, direction: Direction) -> Change:
    breaks = one.widens if direction == "send" else one.narrows
    severity: Severity = "breaking" if breaks else "compatible" if one.widens or one.narrows else "info"
    verb = "sent" if direction == "send" else "received"
    return Change(
        severity=severity,
        channel=channel,
        message=message,
        path=one.path,
        what=f"{one.what} ({verb})",
        whom=_AFFECTED[direction],
    )


def _of_messages(old: JsonObject, before: JsonObject, new: JsonObject, after: JsonObject) -> Iterator[Difference]:
    """Of one message: its payload, its key, how it is written."""
    formats = [_format(old, before), _format(new, after)]
    if formats[0] != formats[1]:
        yield Difference("", f"it was written as {formats[0]} and is {formats[1]}", widens=True, narrows=True)
        return
    one, other = (resolved(document, message.get("payload")) for document, message in ((old, before), (new, after)))
    if _is_multi_format(one) and _is_multi_format(other):
        if "avro" in one.get("schemaFormat", ""):
            yield from avro_differences(resolved(old, one["schema"]), resolved(new, other["schema"]))
        elif one["schema"] != other["schema"]:
            yield Difference("", f"its schema ({one.get('schemaFormat')}) is another", widens=True, narrows=True)
    else:
        yield from json_differences(old, before.get("payload", True), new, after.get("payload", True))
    yield from _keys(old, before, new, after)


def _keys(old: JsonObject, before: JsonObject, new: JsonObject, after: JsonObject) -> Iterator[Difference]:
    one, other = _binding(before).get("key"), _binding(after).get("key")
    if (one is None) != (other is None):
        what = "records have a key now" if one is None else "records have no key any more: no order of a key's records"
        yield Difference("(key)", what, widens=other is None)
    elif one is not None:
        for found in json_differences(old, one, new, other):
            yield msgspec.structs.replace(found, path=f"(key) {found.path}".rstrip())


def _replies(old: JsonObject, new: JsonObject) -> Iterator[Change]:
    """What who asks gets: it is sent to them, so that wider breaks."""
    for name, operation in sorted(_object(new, "operations").items()):
        if name not in _object(old, "operations"):
            continue
        one: Any = resolved(old, _object(old, "operations")[name]).get("reply")
        other: Any = resolved(new, operation).get("reply")
        where = _address(new, resolved(new, operation))
        if one and not other:
            yield Change(severity="breaking", channel=where, what=f"{name} does not reply any more", whom="requesters")
        elif other and not one:
            yield Change(severity="compatible", channel=where, what=f"{name} replies now", whom="requesters")
        elif one and other:
            before, after = _messages(old, resolved(old, one)), _messages(new, resolved(new, other))
            for change in _directed(old, new, where, "send", _Use({name}, before), _Use({name}, after)):
                told = change.what.removesuffix(" (sent)") + " (replied)"
                yield msgspec.structs.replace(change, what=told, whom="requesters")


def _uses(document: JsonObject) -> dict[tuple[str, Direction], _Use]:
    """By the channel's address and the direction."""
    found: dict[tuple[str, Direction], _Use] = {}
    for name, node in _object(document, "operations").items():
        operation = cast(JsonObject, resolved(document, node))
        direction: Direction = "send" if operation.get("action") == "send" else "receive"
        use = found.setdefault((_address(document, operation), direction), _Use(set(), {}))
        use.operations.add(name)
        use.messages |= _messages(document, operation)
    return found


def _messages(document: JsonObject, operation: JsonObject) -> dict[str, Any]:
    """An operation's, or all of its channel, by their names there."""
    channel: Any = resolved(document, operation.get("channel")) or {}
    chosen: Any = operation.get("messages")
    if chosen is None:
        return {name: resolved(document, one) for name, one in _object(channel, "messages").items()}
    return {_last(one): resolved(document, one) for one in chosen}


def _last(reference: Any) -> str:
    return str(cast(JsonObject, reference).get("$ref", "")).rpartition("/")[2] if isinstance(reference, dict) else ""


def _by_address(document: JsonObject) -> dict[str, JsonObject]:
    channels = {name: resolved(document, one) for name, one in _object(document, "channels").items()}
    return {one.get("address") or name: one for name, one in channels.items()}


def _address(document: JsonObject, operation: JsonObject) -> str:
    reference: Any = operation.get("channel", {})
    channel: Any = resolved(document, reference)
    return channel.get("address") or _last(reference)


def _format(document: JsonObject, message: JsonObject) -> str:
    payload: Any = resolved(document, message.get("payload"))
    schema_format = payload.get("schemaFormat", "").partition(";")[0] if _is_multi_format(payload) else ""
    return schema_format or message.get("contentType") or "application/json"


def _is_multi_format(payload: Any) -> bool:
    return isinstance(payload, dict) and "schema" in payload


def _binding(node: JsonObject) -> JsonObject:
    return _object(_object(node, "bindings"), "kafka")


def _object(node: JsonObject, name: str) -> JsonObject:
    found: Any = node.get(name)
    return cast(JsonObject, found) if isinstance(found, dict) else {}
