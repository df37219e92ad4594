"""The changes between two documents, and the clients that they break.

If sent data gets *wider*, readers break: there are values now that they do not support. If received data gets
*narrower*, senders break. The other two directions are compatible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

import msgspec

from eventbus.asyncapi.avro_narrowing import avro_differences
from eventbus.asyncapi.narrowing import Difference, json_differences
from eventbus.asyncapi.payloads import AVRO_KEY
from eventbus.asyncapi.reading import JsonObject, resolved
from eventbus.errors import ConfigError

Severity = Literal["breaking", "compatible", "info"]
Direction = Literal["send", "receive"]

_RANK: dict[Severity, int] = {"breaking": 0, "compatible": 1, "info": 2}
_ASKING = "requesters"
_AFFECTED: dict[Direction, str] = {"send": "consumers", "receive": "producers"}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a contract."""

    severity: Severity
    channel: str
    what: str
    """The change in words."""
    whom: str = ""
    """The affected clients: "consumers", "producers", "requesters"; "" if none in particular."""
    message: str = ""
    path: str = ""
    """The field within the message: "amount", "items[].price", "(key)"."""

    @property
    def where(self) -> str:
        return " ".join(part for part in (self.channel, self.message, self.path) if part)


class _Use(msgspec.Struct):
    """The use of a channel in one direction."""

    operations: dict[str, JsonObject]
    messages: dict[str, Any]


def changes_between(old: JsonObject, new: JsonObject) -> list[Change]:
    """Return all changes, breaking ones first. Both documents are AsyncAPI 3, see `read_document`.

    Raises ConfigError for a document whose references point to nothing, or that breaks AsyncAPI's rules.
    """
    try:
        return _changes(old, new)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        # Written manually, perhaps: a number instead of an object, or a schema that refers to itself.
        raise ConfigError(
            f"a document breaks AsyncAPI's rules ({type(error).__name__}: {error}); "
            "to locate the fault, run  asyncapi validate FILE"
        ) from error


def _changes(old: JsonObject, new: JsonObject) -> list[Change]:
    channels = _by_address(old), _by_address(new)
    before, after = _uses(old), _uses(new)
    found = [*_channels(*channels, {channel for channel, _ in before})]
    for channel, direction in sorted({*before, *after}):
        # a channel that was added or removed is reported once, by `_channels`
        if channel in channels[0] and channel in channels[1]:
            nothing = _Use({}, {})
            use = before.get((channel, direction), nothing), after.get((channel, direction), nothing)
            found += _directed(old, new, channel, direction, *use)
    found += _replies(old, new)
    unique = {(one.severity, one.where, one.what, one.whom): one for one in found}
    return sorted(unique.values(), key=lambda one: (_RANK[one.severity], one.where, one.what))


def _channels(before: dict[str, JsonObject], after: dict[str, JsonObject], used: set[str]) -> Iterator[Change]:
    for name in sorted({*before, *after}):
        if name not in after:
            severity: Severity = "breaking" if name in used else "info"
            yield Change(severity=severity, channel=name, what="the channel is gone", whom="everybody who uses it")
        elif name not in before:
            yield Change(severity="compatible", channel=name, what="a new channel")
        else:
            one, other = _settings(before[name]), _settings(after[name])
            for key in sorted(key for key in {*one, *other} if one.get(key) != other.get(key)):
                moves = "; keys may move" if key == "partitions" else ""
                what = f"{key}: {_format_value(one.get(key))} before, {_format_value(other.get(key))} now{moves}"
                yield Change(severity="info", channel=name, what=what)


def _settings(channel: JsonObject) -> JsonObject:
    """Return the settings of a topic."""
    binding = _binding(channel)
    counts = {key: binding[key] for key in ("partitions", "replicas") if key in binding}
    return counts | _object(binding, "topicConfiguration") | _object(_object(channel, "x-eventbus"), "configs")


def _format_value(value: Any) -> str:
    if value is None:
        return "not said"
    return ",".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)


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
    yield from _operations(channel, before, after, direction)
    pairs, gone, left = _paired(old, before.messages, new, after.messages)
    for earlier, name, differences in pairs:
        if earlier != name:  # a class was renamed, which does not change the encoding
            yield _judged(Difference("", f"its class was {earlier} before"), channel, name, direction)
        for one in differences:
            yield _judged(one, channel, name, direction)
    for name in gone:
        yield _judged(Difference("", "the message is gone", narrows=True), channel, name, direction)
    for name in left:
        yield _judged(Difference("", "a new message", widens=True), channel, name, direction)


def _paired(
    old: JsonObject, before: dict[str, Any], new: JsonObject, after: dict[str, Any]
) -> tuple[list[tuple[str, str, list[Difference]]], list[str], list[str]]:
    """Match old and new messages: return pairs with their differences, removed messages, and new ones.

    Messages are matched by name. But of two classes called Order the second is Order_2, so an unchanged message is
    matched whatever its name is.
    """

    def between(name: str, other: str) -> list[Difference]:
        return list(_of_messages(old, before[name], new, after[other]))

    same = {name: between(name, name) for name in before if name in after}
    pairs = [(name, name, found) for name, found in same.items() if not found]
    gone, left = ([name for name in names if same.get(name, True)] for names in (before, after))
    for name in list(gone):
        other = next((one for one in left if not between(name, one)), None)
        if other is not None:
            pairs.append((name, other, []))
            gone.remove(name)
            left.remove(other)
    for name in [one for one in gone if one in left]:
        pairs.append((name, name, same[name]))
        gone.remove(name)
        left.remove(name)
    if len(gone) == len(left) == len(before) == len(after) == 1:
        return [(gone[0], left[0], between(gone[0], left[0]))], [], []
    return pairs, gone, left


def _operations(channel: str, before: _Use, after: _Use, direction: Direction) -> Iterator[Change]:
    for name in sorted({*before.operations, *after.operations}):
        if name not in after.operations:
            yield Change(severity="info", channel=channel, what=f"operation {name} is gone; others are left")
        elif name not in before.operations:
            yield Change(severity="info", channel=channel, what=f"operation {name} is new")
        else:
            one, other = before.operations[name], after.operations[name]
            groups = [_binding(operation).get("groupId", {}).get("enum") for operation in (one, other)]
            if groups[0] != groups[1]:
                before_group, after_group = map(_format_value, groups)
                what = f"operation {name}: its group was {before_group} and is {after_group}: it starts over"
                yield Change(severity="info", channel=channel, what=what)
            nulls = [_object(operation, "x-eventbus").get("nulls", False) for operation in (one, other)]
            if nulls[0] != nulls[1]:
                what = f"operation {name}: it takes {'nulls' if nulls[1] else 'no nulls any more'}"
                found = Difference("", what, widens=nulls[1], narrows=nulls[0])
                yield _judged(found, channel, "", direction)


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
    """Yield the differences of a message: its payload, its key, its format."""
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
    elif one and other:  # otherwise one of them is unknown
        avro = [cast(JsonObject, key).get(AVRO_KEY) for key in (one, other)]
        if None not in avro:
            differences = avro_differences(*avro)
        elif avro != [None, None]:
            differences = [Difference("", "it was Avro, or is now", widens=True, narrows=True)]
        else:
            differences = json_differences(old, one, new, other)
        for found in differences:
            yield msgspec.structs.replace(found, path=f"(key) {found.path}".rstrip())


def _replies(old: JsonObject, new: JsonObject) -> Iterator[Change]:
    """Yield changes of replies: they are sent to the requesters, so wider replies break them."""
    before, after = _answers(old), _answers(new)
    received = {channel for channel, direction in _uses(new) if direction == "receive"}
    for where in sorted({*before, *after}):
        name = ", ".join((before.get(where) or after[where]).operations)
        if where not in after:
            if where in received:  # otherwise it is already reported that the request is not received any more
                yield Change(severity="breaking", channel=where, what=f"{name} does not reply any more", whom=_ASKING)
        elif where not in before:
            yield Change(severity="compatible", channel=where, what=f"{name} replies now", whom=_ASKING)
        else:
            names: dict[str, JsonObject] = {name: {}}
            use = _Use(names, before[where].messages), _Use(names, after[where].messages)
            for change in _directed(old, new, where, "send", *use):
                text = change.what.removesuffix(" (sent)") + " (replied)"
                yield msgspec.structs.replace(change, what=text, whom=_ASKING)


def _answers(document: JsonObject) -> dict[str, _Use]:
    """Return the replies by the channel of the request."""
    found: dict[str, _Use] = {}
    for name, node in _object(document, "operations").items():
        operation = cast(JsonObject, resolved(document, node))
        if operation.get("reply"):
            use = found.setdefault(_address(document, operation), _Use({}, {}))
            use.operations[name] = operation
            use.messages |= _messages(document, resolved(document, operation["reply"]))
    return found


def _uses(document: JsonObject) -> dict[tuple[str, Direction], _Use]:
    """Return the uses by the channel's address and the direction."""
    found: dict[tuple[str, Direction], _Use] = {}
    for name, node in _object(document, "operations").items():
        operation = cast(JsonObject, resolved(document, node))
        direction: Direction = "send" if operation.get("action") == "send" else "receive"
        use = found.setdefault((_address(document, operation), direction), _Use({}, {}))
        use.operations[name] = operation
        use.messages |= _messages(document, operation)
    return found


def _messages(document: JsonObject, operation: JsonObject) -> dict[str, Any]:
    """Return the messages of an operation, or of its channel, by their names there."""
    channel: Any = resolved(document, operation.get("channel")) or {}
    chosen: Any = operation.get("messages")
    if chosen is None:
        return {name: resolved(document, one) for name, one in _object(channel, "messages").items()}
    return {_last(one): resolved(document, one) for one in chosen}


def _last(reference: Any) -> str:
    return str(cast(JsonObject, reference).get("$ref", "")).rpartition("/")[2] if isinstance(reference, dict) else ""


def _by_address(document: JsonObject) -> dict[str, JsonObject]:
    """Return all channels except those only for replies, whose address is in the request."""
    used = {
        _last(cast(JsonObject, resolved(document, one)).get("channel", {}))
        for one in _object(document, "operations").values()
    }
    channels = {name: resolved(document, one) for name, one in _object(document, "channels").items()}
    return {
        _called(name, one): one
        for name, one in channels.items()
        if name in used or one.get("address", name) is not None
    }


def _address(document: JsonObject, operation: JsonObject) -> str:
    reference: Any = operation.get("channel", {})
    return _called(_last(reference), resolved(document, reference))


def _called(name: str, channel: JsonObject) -> str:
    """Return the name of a topic, or for a pattern the pattern, which does not depend on the handler's name."""
    pattern = _object(channel, "x-eventbus").get("pattern")
    return channel.get("address") or (f"/{pattern}/" if pattern else name)


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
