"""Compare two .proto files and find changes that break messages on the wire.

Fields are identified by their numbers. Differences have the names that registries report. Services, options
(``json_name`` and ``packed`` too), extensions, and reuse of reserved numbers are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from schema_registry.compatibility.findings import Finding
from schema_registry.compatibility.proto_shapes import Enum, Field, File, Message, Shapes

BREAKING: Final[dict[str, tuple[str, str]]] = {
    "PACKAGE_CHANGED": ("the full names of all messages changed", "keep the package"),
    "MESSAGE_REMOVED": ("messages of this type cannot be read any more", "keep the message"),
    "FIELD_KIND_CHANGED": ("a scalar, a message and a map are written differently", "use a new number"),
    "FIELD_SCALAR_KIND_CHANGED": ("the two types are written differently", "use a new number"),
    "FIELD_NAMED_TYPE_CHANGED": ("the field holds another message, or one that changed", "use a new number"),
    "FIELD_NUMERIC_LABEL_CHANGED": ("a number alone and a packed list are written differently", "use a new number"),
    "REQUIRED_FIELD_ADDED": ("messages that exist do not have it, and are refused without it", "make it optional"),
    "REQUIRED_FIELD_REMOVED": ("old readers refuse messages without it", "keep it, or make it optional first"),
    "ONEOF_FIELD_REMOVED": ("messages that hold this member lose the whole choice", "keep the member"),
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": ("messages that hold several of them keep the last one only", "move one only"),
    "FIELD_MOVED_TO_EXISTING_ONEOF": ("messages that hold it and another member lose one", "leave the field outside"),
}
"""Rule -> what happens, what to change. All other differences do no harm."""

VARINT: Final = "varint"
MAX_DEPTH: Final = 50
"""Messages of other files in each other; what lies deeper counts as changed."""
GROUPS: Final = {
    **dict.fromkeys(("int32", "uint32", "int64", "uint64", "bool"), VARINT),
    **dict.fromkeys(("sint32", "sint64"), "zigzag"),
    **dict.fromkeys(("string", "bytes"), "text"),
    **dict.fromkeys(("fixed32", "sfixed32"), "fixed32"),
    **dict.fromkeys(("fixed64", "sfixed64"), "fixed64"),
}
"""Scalars that are written alike."""


class Difference(NamedTuple):
    rule: str
    path: str
    old: str = ""
    new: str = ""


def differences(new: Shapes, old: Shapes) -> list[Difference]:
    """All differences that have a name, the harmless ones too."""
    return list(dict.fromkeys(_Comparison(new, old).files()))


class _Comparison:
    def __init__(self, new: Shapes, old: Shapes) -> None:
        self.new = new
        self.old = old
        self.new_messages = new.messages
        self.old_messages = old.messages
        self.done: set[tuple[str, str]] = set()
        self.depth = 0

    def files(self) -> Iterator[Difference]:
        old, new = self.old.file, self.new.file
        if old.package != new.package:
            yield Difference("PACKAGE_CHANGED", "#/", old.package, new.package)
        yield from self.message_lists(old.messages, new.messages, "#")
        yield from _enum_lists(old.enums, new.enums, "#")

    def message_lists(self, old: list[Message], new: list[Message], path: str) -> Iterator[Difference]:
        places = {message.name: place for place, message in enumerate(new)}
        before = {message.name for message in old}
        for place, message in enumerate(old):
            here = f"{path}/{message.name}"
            if message.name not in places:
                yield Difference("MESSAGE_REMOVED", here, message.fullname)
                continue
            if places[message.name] != place:
                yield Difference("MESSAGE_MOVED", here, f"place {place}", f"place {places[message.name]}")
            yield from self.messages(message, new[places[message.name]], here)
        for message in new:
            if message.name not in before:
                yield Difference("MESSAGE_ADDED", f"{path}/{message.name}", "", message.fullname)

    def messages(self, old: Message, new: Message, path: str) -> Iterator[Difference]:
        self.done.add((old.fullname, new.fullname))
        yield from self.message_lists(old.messages, new.messages, path)
        yield from _enum_lists(old.enums, new.enums, path)
        yield from _oneofs(old, new, path)
        before = {field.number: field for field in old.fields}
        after = {field.number: field for field in new.fields}
        for number, field in before.items():
            if number in after:
                inside = f"{after[number].oneof}/" if after[number].oneof else ""
                yield from self.fields(field, after[number], f"{path}/{inside}{number}")
            elif not field.oneof:
                rule = "REQUIRED_FIELD_REMOVED" if field.label == "required" else "FIELD_REMOVED"
                yield Difference(rule, f"{path}/{number}", _said(field))
        for number, field in after.items():
            if number not in before and not field.oneof:
                rule = "REQUIRED_FIELD_ADDED" if field.label == "required" else "FIELD_ADDED"
                yield Difference(rule, f"{path}/{number}", "", _said(field))

    def fields(self, old: Field, new: Field, path: str) -> Iterator[Difference]:
        if old.name != new.name:
            yield Difference("FIELD_NAME_CHANGED", path, old.name, new.name)
        if (old.label == "required") != (new.label == "required"):
            rule = "REQUIRED_FIELD_ADDED" if new.label == "required" else "REQUIRED_FIELD_REMOVED"
            yield Difference(rule, path, _said(old), _said(new))
        if rule := self.type_change(old, new):
            yield Difference(rule, path, _said(old), _said(new))
        elif _is_message(old) and not old.key:
            yield from self.named(old, new, path)
        if (old.label == "repeated") != (new.label == "repeated") and not (_is_message(old) or _is_message(new)):
            is_text = _group(old) == "text" and _group(new) == "text"
            label = "STRING_OR_BYTES" if is_text else "NUMERIC"
            yield Difference(f"FIELD_{label}_LABEL_CHANGED", path, _said(old), _said(new))

    def type_change(self, old: Field, new: Field) -> str:
        if bool(old.key) != bool(new.key) or _is_message(old) != _is_message(new):
            return "FIELD_KIND_CHANGED"
        if old.key and GROUPS.get(old.key, old.key) != GROUPS.get(new.key, new.key):
            return "FIELD_SCALAR_KIND_CHANGED"
        if not _is_message(old):
            return "" if _group(old) == _group(new) else "FIELD_SCALAR_KIND_CHANGED"
        return (
            ""
            if self.local(self.old_messages, old) == self.local(self.new_messages, new)
            else "FIELD_NAMED_TYPE_CHANGED"
        )

    def named(self, old: Field, new: Field, path: str) -> Iterator[Difference]:
        """Messages of other files, which `files` does not meet. A package that changed there does no harm."""
        before, after = self.old_messages.get(old.target), self.new_messages.get(new.target)
        if before is None or after is None or (before[1] is self.old.file and after[1] is self.new.file):
            return
        pair = (before[0].fullname, after[0].fullname)
        if pair in self.done:
            return
        here = "#/" + after[1].local(after[0].fullname).replace(".", "/")
        self.depth += 1
        inner = list(self.messages(before[0], after[0], here)) if self.depth <= MAX_DEPTH else []
        self.depth -= 1
        yield from inner
        if self.depth >= MAX_DEPTH or any(one.rule in BREAKING for one in inner):
            yield Difference("FIELD_NAMED_TYPE_CHANGED", path, _said(old), _said(new))

    def local(self, messages: Mapping[str, tuple[Message, File]], field: Field) -> str:
        found = messages.get(field.target)
        return found[1].local(field.target) if found else field.target


def _enum_lists(old: list[Enum], new: list[Enum], path: str) -> Iterator[Difference]:
    before, after = {enum.name: enum for enum in old}, {enum.name: enum for enum in new}
    for name, enum in before.items():
        here = f"{path}/{name}"
        if name not in after:
            yield Difference("ENUM_REMOVED", here, name)
            continue
        was = {number: value for value, number in enum.values}
        now = {number: value for value, number in after[name].values}
        for number in was | now:
            if was.get(number) != now.get(number):
                change = "ADDED" if number not in was else "REMOVED" if number not in now else "CHANGED"
                yield Difference(f"ENUM_CONST_{change}", f"{here}/{number}", was.get(number, ""), now.get(number, ""))
    for name in after:
        if name not in before:
            yield Difference("ENUM_ADDED", f"{path}/{name}", "", name)


def _oneofs(old: Message, new: Message, path: str) -> Iterator[Difference]:
    before = {field.number: field for field in old.fields}
    after = {field.number: field for field in new.fields}
    for name in old.oneofs:
        if name not in new.oneofs:
            yield Difference("ONEOF_REMOVED", f"{path}/{name}", name)
        yield from _members_gone(name, before, after, path, renamed_to=_heirs(name, before, after, new, old))
    for name in new.oneofs:
        if name not in old.oneofs:
            yield Difference("ONEOF_ADDED", f"{path}/{name}", "", name)
        members = [field for field in new.fields if field.oneof == name]
        for field in members:
            if field.number not in before:
                yield Difference("ONEOF_FIELD_ADDED", f"{path}/{name}/{field.number}", "", _said(field))
        origins = [before[field.number] for field in members if field.number in before]
        if rule := _moved(name, origins, name in old.oneofs):
            said = ", ".join(field.name for field in origins if field.oneof != name)
            yield Difference(rule, f"{path}/{name}", said, name)


def _heirs(name: str, before: Mapping[int, Field], after: Mapping[int, Field], new: Message, old: Message) -> bool:
    """The oneof lives on, under its name or with members in a oneof of another name."""
    if name in new.oneofs:
        return True
    return any(
        field.oneof == name and number in after and after[number].oneof not in ("", *old.oneofs)
        for number, field in before.items()
    )


def _members_gone(
    name: str, before: Mapping[int, Field], after: Mapping[int, Field], path: str, *, renamed_to: bool
) -> Iterator[Difference]:
    for number, field in before.items():
        if field.oneof != name:
            continue
        if number not in after:
            if renamed_to:
                yield Difference("ONEOF_FIELD_REMOVED", f"{path}/{name}/{number}", _said(field))
        elif not after[number].oneof:
            yield Difference("ONEOF_FIELD_MOVED_TO_TOP_LEVEL", f"{path}/{number}", name, _said(after[number]))


def _moved(name: str, origins: Iterable[Field], existed: bool) -> str:
    """Return the rule that is broken if fields moved into one oneof although a message may contain several of them."""
    outside = [field for field in origins if field.oneof != name]
    if existed:
        return "FIELD_MOVED_TO_EXISTING_ONEOF" if outside else ""
    sources = {field.oneof or f"field {field.number}" for field in outside}
    if len(sources) <= 1:
        return ""
    return (
        "FIELD_MOVED_TO_EXISTING_ONEOF" if any(field.oneof for field in outside) else "MULTIPLE_FIELDS_MOVED_TO_ONEOF"
    )


def _is_message(field: Field) -> bool:
    return bool(field.target) and not field.is_enum


def _group(field: Field) -> str:
    return VARINT if field.is_enum else GROUPS.get(field.type, field.type)


def _said(field: Field) -> str:
    kind = f"map<{field.key}, {field.type}>" if field.key else field.type
    return f"{field.label} {kind} {field.name} = {field.number}".strip()


def finding(found: Difference, reader: str) -> Finding:
    """Explain findings in plain words. ``reader``: the schema that reads, "new" or "old"."""
    why, fix = BREAKING[found.rule]
    where = found.path.removeprefix("#/").replace("/", ".") or "the file"
    change = f"{found.old or 'nothing'} became {found.new or 'nothing'}"
    if reader == "old":
        change = f"read with the old schema, new messages go wrong: {change}"
    description = f"{found.rule.replace('_', ' ').lower()} at path '{found.path}', as the {reader} schema reads it"
    old, new = (found.old, found.new) if reader == "new" else (found.new, found.old)
    return Finding(
        rule=found.rule,
        path=found.path,
        where=where,
        reader=reader,
        old=old,
        new=new,
        detail="",
        description=description,
        explanation=f"{where}: {change}: {why}",
        fix=fix,
        message=f'{{errorType:"{found.rule}", description:"{description}"}}',
    )
