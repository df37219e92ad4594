"""The language of .proto files, proto2 and proto3, to `proto_model`."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from schema_registry.formats.errors import InvalidSchema
from schema_registry.formats.proto_model import Enum, Extension, Field, File, Message, Option, Reserved, Rpc, Service

TOKEN: Final = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/
    | (?P<name>\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
    | (?P<number>0[xX][0-9a-fA-F]+ | (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<string>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
    | (?P<sign>[;={}\[\]()<>,.:+\-/])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
MAX_DEPTH: Final = 32
MAX_TYPES: Final = 1_000
MAX_NUMBER: Final = (1 << 29) - 1
LABELS: Final = frozenset({"optional", "required", "repeated"})


class Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse_proto(text: str) -> File:
    """Raises `InvalidSchema` with the line and the reason."""
    return _Parser(_tokens(text)).file()


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    at, line = 0, 1
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise _invalid(f"{text[at : at + 20]!r} is no word of the language", line)
        if match.lastgroup is not None:
            found.append(Token(match.lastgroup, match.group(), line))
        line += text.count("\n", at, match.end())
        at = match.end()
    found.append(Token("end", "the end of the text", line))
    return found


def _invalid(reason: str, line: int) -> InvalidSchema:
    return InvalidSchema(reason, f"line {line}", "PROTOBUF")


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.types = 0
        self.syntax = "proto2"

    # Words

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def ahead(self, by: int = 1) -> Token:
        return self.tokens[min(self.at + by, len(self.tokens) - 1)]

    def take(self, kind: str, what: str) -> str:
        token = self.next
        if token.kind != kind:
            raise _invalid(f"{what} is missing before {token.text!r}", token.line)
        self.at += 1
        return token.text

    def sign(self, text: str) -> None:
        if not self.has(text):
            raise _invalid(f"{text!r} is missing before {self.next.text!r}", self.next.line)

    def has(self, text: str) -> bool:
        """Takes a sign or word if it is the next."""
        if self.next.text == text and self.next.kind != "string":
            self.at += 1
            return True
        return False

    def word(self, what: str) -> str:
        text = self.take("name", what)
        if "." in text:
            raise _invalid(f"{what} has a dot: {text!r}", self.next.line)
        return text

    def integer(self, what: str) -> int:
        minus = self.has("-")
        line = self.next.line
        text = self.take("number", what)
        try:
            value = int(text, 8 if text.startswith("0") and text.isdigit() else 0)
        except ValueError:
            raise _invalid(f"{what} is no whole number: {text}", line) from None
        return -value if minus else value

    def string(self, what: str) -> str:
        text = ""
        while self.next.kind == "string" or not text:
            word = self.take("string", what)
            text += word[1:-1] if word[0] == '"' else word[1:-1].replace('"', '\\"')
            if self.next.kind != "string":
                break
        return text

    # Files

    def file(self) -> File:
        file = File()
        if self.has("edition"):
            raise _invalid('editions are not supported: write syntax = "proto3"', self.next.line)
        if self.has("syntax"):
            self.sign("=")
            file.syntax = self.syntax = self.string("the syntax")
            if file.syntax not in ("proto2", "proto3"):
                raise _invalid(f"unknown syntax {file.syntax!r}: proto2 or proto3", self.next.line)
            self.sign(";")
        while self.next.kind != "end":
            self.statement(file)
        return file

    def statement(self, file: File) -> None:
        token = self.next
        if self.has(";"):
            return
        self.at += 1
        match token.text if token.kind == "name" else "":
            case "package":
                if file.package:
                    raise _invalid("a second package", token.line)
                file.package = self.take("name", "the package")
                self.sign(";")
            case "import":
                kind = next((kind for kind in ("public", "weak") if self.has(kind)), "")
                file.imports.append((kind, self.string("the path of the import")))
                self.sign(";")
            case "option":
                file.options.append(self.option())
                self.sign(";")
            case "message":
                file.messages.append(self.message(file.package, 1))
            case "enum":
                file.enums.append(self.enum(file.package))
            case "service":
                file.services.append(self.service())
            case "extend":
                file.extends.append(self.extend(Message("", file.package), 1))
            case _:
                raise _invalid(f"{token.text!r}: expected message, enum, import, option, ...", token.line)

    # Messages

    def message(self, scope: str, depth: int, name: str = "") -> Message:
        name = name or self.word("the name of the message")
        message = Message(name, f"{scope}.{name}" if scope else name)
        self.counted(depth)
        self.sign("{")
        while not self.has("}"):
            self.member(message, depth)
        return message

    def counted(self, depth: int) -> None:
        self.types += 1
        if self.types > MAX_TYPES or depth > MAX_DEPTH:
            limit = f"{MAX_DEPTH} levels of messages" if depth > MAX_DEPTH else f"{MAX_TYPES:,} messages and enums"
            raise _invalid(f"more than {limit}", self.next.line)

    def member(self, message: Message, depth: int) -> None:
        token, following = self.next, self.ahead()
        # A type may be called like a word of the language: "message message = 1;".
        starts = following.kind in ("name", "string", "number") or following.text in ("(", "-")
        match token.text if token.kind == "name" and starts else "":
            case "message" if self.is_block(2):
                self.at += 1
                message.messages.append(self.message(message.fullname, depth + 1))
            case "enum" if self.is_block(2):
                self.at += 1
                message.enums.append(self.enum(message.fullname))
            case "oneof" if self.is_block(2):
                self.at += 1
                self.oneof(message, depth)
            case "extend" if self.is_block(2):
                self.at += 1
                message.extends.append(self.extend(message, depth + 1))
            case "option":
                self.at += 1
                message.options.append(self.option())
                self.sign(";")
            case "reserved":
                self.at += 1
                self.reserved(message.reserved)
            case "extensions":
                self.at += 1
                message.extensions += self.ranges()
                self.field_options()
                self.sign(";")
            case _:
                if not self.has(";"):
                    message.fields.append(self.field(message, depth))

    def is_block(self, ahead: int) -> bool:
        return self.ahead(ahead).text == "{"

    def field(self, message: Message, depth: int, oneof: str = "") -> Field:
        line = self.next.line
        label = next((label for label in LABELS if self.next.text == label), "")
        if label:
            self.at += 1
        if self.next.text == "map" and self.ahead().text == "<":
            return self.map(label or oneof, line)
        type = self.take("name", "the type of a field")
        is_group = type == "group" and self.next.kind == "name"
        name = self.word("the name of a field")
        self.sign("=")
        number = self.integer(f"the number of {name!r}")
        if not 1 <= number <= MAX_NUMBER or 19_000 <= number <= 19_999:
            raise _invalid(
                f"{name!r} has the number {number}: 1 to {MAX_NUMBER}, without 19000 to 19999, are free", line
            )
        field = Field(name, number, type, label, oneof=oneof, options=self.field_options(), is_group=is_group)
        if is_group:
            message.messages.append(self.message(message.fullname, depth + 1, name))
            field.type, field.name = name, name.lower()
        else:
            self.sign(";")
        self.check_label(field, line)
        return field

    def check_label(self, field: Field, line: int) -> None:
        if field.oneof and field.label:
            raise _invalid(f"{field.name!r} is in a oneof and has a label: leave {field.label} out", line)
        if self.syntax == "proto3" and (field.label == "required" or field.is_group):
            raise _invalid(f"{field.name!r}: proto3 has no required fields and no groups", line)
        if self.syntax == "proto2" and not field.label and not field.oneof:
            raise _invalid(f"{field.name!r} has no label: proto2 wants optional, required or repeated", line)

    def map(self, forbidden: str, line: int) -> Field:
        if forbidden:
            raise _invalid("a map has no label and is in no oneof", line)
        self.at += 2
        key = self.word("the type of the map's keys")
        if key not in KEYS:
            raise _invalid(f"{key!r} is no type for the keys of a map: use a whole number, bool or string", line)
        self.sign(",")
        value = self.take("name", "the type of the map's values")
        self.sign(">")
        name = self.word("the name of a field")
        self.sign("=")
        number = self.integer(f"the number of {name!r}")
        field = Field(name, number, value, key=key, options=self.field_options())
        self.sign(";")
        return field

    def oneof(self, message: Message, depth: int) -> None:
        name = self.word("the name of the oneof")
        line = self.next.line
        if name in message.oneofs:
            raise _invalid(f"a second oneof {name!r}", line)
        options = message.oneofs[name] = []
        before = len(message.fields)
        self.sign("{")
        while not self.has("}"):
            if self.next.text == "option" and self.ahead().kind in ("name", "sign"):
                self.at += 1
                options.append(self.option())
                self.sign(";")
            elif not self.has(";"):
                message.fields.append(self.field(message, depth, name))
        if len(message.fields) == before:
            raise _invalid(f"the oneof {name!r} has no fields", line)

    def extend(self, message: Message, depth: int) -> Extension:
        extension = Extension(self.take("name", "the message that is extended"))
        self.sign("{")
        while not self.has("}"):
            if not self.has(";"):
                extension.fields.append(self.field(message, depth))
        return extension

    def reserved(self, reserved: Reserved) -> None:
        if self.next.kind == "string":
            reserved.names.append(self.string("a name"))
            while self.has(","):
                reserved.names.append(self.string("a name"))
        else:
            reserved.ranges += self.ranges()
        self.sign(";")

    def ranges(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while True:
            first = self.integer("a number")
            last = first
            if self.has("to"):
                last = (1 << 31) - 1 if self.has("max") else self.integer("a number")
            if last < first:
                raise _invalid(f"{first} to {last} is empty", self.next.line)
            found.append((first, last))
            if not self.has(","):
                return found

    # Enums and services

    def enum(self, scope: str) -> Enum:
        name = self.word("the name of the enum")
        enum = Enum(name, f"{scope}.{name}" if scope else name)
        self.counted(1)
        line = self.next.line
        self.sign("{")
        while not self.has("}"):
            following = self.ahead()
            if self.next.text == "option" and following.text != "=":
                self.at += 1
                enum.options.append(self.option())
                self.sign(";")
            elif self.next.text == "reserved" and following.text != "=":
                self.at += 1
                self.reserved(enum.reserved)
            elif not self.has(";"):
                value = self.word("the name of a value")
                self.sign("=")
                enum.values.append((value, self.integer(f"the number of {value!r}"), self.field_options()))
                self.sign(";")
        if not enum.values or (self.syntax == "proto3" and enum.values[0][1] != 0):
            raise _invalid(f"the enum {name!r} must begin with a value of number 0", line)
        return enum

    def service(self) -> Service:
        service = Service(self.word("the name of the service"))
        self.sign("{")
        while not self.has("}"):
            if self.has("option"):
                service.options.append(self.option())
                self.sign(";")
            elif self.has("rpc"):
                service.rpcs.append(self.rpc())
            else:
                self.sign(";")
        return service

    def rpc(self) -> Rpc:
        rpc = Rpc(self.word("the name of the rpc"), self.rpc_type(), "")
        if not self.has("returns"):
            raise _invalid(f"the rpc {rpc.name!r} has no returns", self.next.line)
        rpc.response = self.rpc_type()
        if self.has("{"):
            while not self.has("}"):
                if self.has("option"):
                    rpc.options.append(self.option())
                self.sign(";")
        else:
            self.sign(";")
        return rpc

    def rpc_type(self) -> str:
        self.sign("(")
        name = self.take("name", "the type of a message")
        if name == "stream" and self.next.kind == "name":
            name = f"stream {self.take('name', 'the type of a message')}"
        self.sign(")")
        return name

    # Options

    def option(self) -> Option:
        name = ""
        while not self.has("="):
            token = self.next
            if token.kind not in ("name", "sign") or token.text in ";{}[]":
                raise _invalid(f"the name of an option is cut off before {token.text!r}", token.line)
            name += token.text
            self.at += 1
        return Option(name, self.value())

    def field_options(self) -> list[Option]:
        if not self.has("["):
            return []
        found = [self.option()]
        while self.has(","):
            found.append(self.option())
        self.sign("]")
        return found

    def value(self) -> str:
        token = self.next
        if token.text in ("{", "[") and token.kind == "sign":
            return self.aggregate()
        if token.kind == "string":
            return f'"{self.string("a value")}"'
        minus = "-" if self.has("-") else ""
        if self.next.kind not in ("name", "number"):
            raise _invalid(f"a value is missing before {self.next.text!r}", self.next.line)
        self.at += 1
        return minus + self.tokens[self.at - 1].text

    def aggregate(self) -> str:
        """A value in braces, word by word."""
        words: list[str] = []
        depth = 0
        while True:
            token = self.next
            if token.kind == "end":
                raise _invalid("a value in braces has no end", token.line)
            self.at += 1
            words.append(token.text)
            depth += token.kind == "sign" and token.text in ("{", "[", "<")
            depth -= token.kind == "sign" and token.text in ("}", "]", ">")
            if depth == 0:
                return " ".join(words)


KEYS: Final = frozenset(
    [
        *("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "string"),
        *("fixed32", "fixed64", "sfixed32", "sfixed64"),
    ]
)
