"""Generate Python source from a schema: a module of msgspec Structs and enums with the same schema.

``schema_of`` of the generated class prints the original text, byte for byte. `marks` express what Python's types
cannot.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from serdes.avro import marks
from serdes.avro.checks import fits
from serdes.avro.codec.conversions import conversion_of
from serdes.avro.limits import inner
from serdes.avro.schema import MISSING, Array, Enum, Field, Fixed, Map, Named, Record, Schema, Union

WIDTH: Final = 120
_HOMES: Final = {
    "enum": ("enum", None),
    "date": ("datetime", "date"),
    "datetime": ("datetime", "datetime"),
    "time": ("datetime", "time"),
    "Decimal": ("decimal", "Decimal"),
    "Annotated": ("typing", "Annotated"),
    "Never": ("typing", "Never"),
    "UUID": ("uuid", "UUID"),
    "msgspec": ("msgspec", None),
    "Duration": ("serdes.avro", "Duration"),
} | {name: ("serdes.avro.marks", name) for name in marks.__all__}
"""The import statement for each name that generated code uses."""
_PLAIN: Final = {
    "null": "None",
    "boolean": "bool",
    "int": "Int32",
    "long": "int",
    "float": "Float32",
    "double": "float",
    "bytes": "bytes",
    "string": "str",
}
_READY: Final = {
    "time-millis": "TimeMillis",
    "time-micros": "time",
    "timestamp-millis": "TimestampMillis",
    "timestamp-micros": "datetime",
    "local-timestamp-millis": "LocalTimestampMillis",
    "local-timestamp-micros": "LocalTimestampMicros",
    "date": "date",
    "uuid": "UUID",
}
"""Logical types that have a name, where nothing else is said of them."""
_TAKEN: Final = frozenset({*_HOMES, *dir(builtins), *keyword.kwlist})
_ENUM_TAKEN: Final = frozenset({"mro", "name", "value", "names", "values", *keyword.kwlist})


def generate(schema: Schema, *, title: str | None = None) -> str:
    """Return the source of a module with a class for each record and enum of ``schema``.

    A schema without a name (an array, a union) is called ``Schema`` in the module.
    """
    return _Module(schema).source(title)


class Code:
    """``name(a, b)``, laid out on one line or, where that is too long, with an argument on each."""

    def __init__(self, start: str, arguments: Sequence[Code | str], end: str) -> None:
        self.start, self.arguments, self.end = start, arguments, end

    def __str__(self) -> str:
        return self.start + ", ".join(map(str, self.arguments)) + self.end

    def lay(self, indent: str, before: str, after: str) -> list[str]:
        line = f"{indent}{before}{self}{after}"
        if len(line) <= WIDTH or not self.arguments:
            return [line]
        lines = [indent + before + self.start]
        for argument in self.arguments:
            if isinstance(argument, Code):
                lines += argument.lay(indent + "    ", "", ",")
            else:
                lines.append(f"{indent}    {argument},")
        return [*lines, indent + self.end + after]


class _Module:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._types: dict[int, tuple[Named, str]] = {}
        self._used: set[str] = {"msgspec"} if isinstance(root, Record) else set()
        self._collect(root)
        self._has_spaces = any(named.namespace for named, _ in self._types.values())

    def source(self, title: str | None) -> str:
        named = list(self._types.values())
        blocks = [self._enum(schema, name) for schema, name in named if isinstance(schema, Enum)]
        fixed = [line for schema, name in named if isinstance(schema, Fixed) for line in self._fixed(schema, name)]
        if fixed:
            blocks.insert(0, fixed)
        blocks += [self._record(schema, name) for schema, name in named if isinstance(schema, Record)]
        if not isinstance(self._root, (Enum, Record)):
            blocks.append(self._layout("", "Schema = ", self._annotation(self._root), ""))
        lines = [f'"""{title or f"Generated from the Avro schema {self._root.fullname}."}"""', ""]
        lines += ["from __future__ import annotations"]
        if imports := self._imports():
            lines += ["", *imports]
        after_class = False
        for block in blocks:
            is_class = block[0].startswith("class ")
            lines += ["", "", *block] if is_class or after_class else ["", *block]
            after_class = is_class
        return "\n".join(lines) + "\n"

    def _imports(self) -> list[str]:
        """Python's own first, then the others; plain imports before ``from`` ones."""
        groups: dict[bool, dict[str, set[str]]] = {False: {}, True: {}}
        for used in self._used:
            module, name = _HOMES[used]
            names = groups[module.partition(".")[0] in ("msgspec", "serdes")].setdefault(module, set())
            if name is not None:
                names.add(name)
        lines: list[str] = []
        for group in groups.values():
            plain = [f"import {module}" for module, names in sorted(group.items()) if not names]
            chosen = [
                line
                for module, names in sorted(group.items())
                if names
                for line in Code(f"from {module} import ", sorted(names), "").lay("", "", "")
            ]
            lines += [*([""] if lines and (plain or chosen) else []), *plain, *chosen]
        return lines

    # Names

    def _collect(self, schema: Schema) -> None:
        """Gives a name to each type, inner ones first."""
        if id(schema) in self._types:
            return
        if isinstance(schema, Named):
            self._types[id(schema)] = (schema, self._free_name(schema.name))
        for child in inner(schema):
            self._collect(child)
        if isinstance(schema, Record):
            self._types[id(schema)] = self._types.pop(id(schema))

    def _free_name(self, name: str) -> str:
        taken = _TAKEN | {"Schema"} | {known for _, known in self._types.values()}
        wanted = name = _identifier(name)
        number = 2
        while wanted in taken:
            wanted = f"{name}_" if number == 2 and name in _TAKEN else f"{name}{number}"
            number += 1
        return wanted

    def _use(self, name: str) -> str:
        if name in _HOMES:
            self._used.add(name)
        return name

    # Types

    def _annotation(self, schema: Schema) -> Code | str:
        match schema:
            case Record() | Enum() | Fixed():
                return self._types[id(schema)][1]
            case Union():
                return self._union(schema)
            case Array():
                return self._marked(f"list[{self._annotation(schema.items)}]", _props_argument(schema.props))
            case Map():
                return self._marked(f"dict[str, {self._annotation(schema.values)}]", _props_argument(schema.props))
            case _:
                return self._primitive(schema)

    def _union(self, schema: Union, *, none_last: bool = False) -> Code | str:
        if not schema.branches:
            return self._marked(self._use("Never"), ['"union"'])
        ordered = sorted(schema.branches, key=_is_null) if none_last else schema.branches
        branches = [self._annotation(branch) for branch in ordered]
        if len(branches) == 1:
            return self._marked(branches[0], ['"union"'])
        return " | ".join(map(str, branches))

    def _primitive(self, schema: Schema) -> Code | str:
        if not schema.props:
            return self._use(_PLAIN[schema.type])
        if schema.logical_type is None:
            kind = _PLAIN[schema.type].replace("Int32", "int").replace("Float32", "float")
            width = [f'"{schema.type}"'] if schema.type in ("int", "long", "float", "double") else []
            return self._marked(kind, [*width, *_props_argument(schema.props)])
        kind, arguments = self._logical(schema)
        return self._marked(kind, arguments)

    def _logical(self, schema: Schema) -> tuple[str, list[str]]:
        """Return the Python type of a logical type, and the marks that it needs."""
        conversion = conversion_of(schema)
        if conversion is None:
            return self._use(_PLAIN[schema.type]), _props_argument(schema.props)
        kind = conversion.kind.__name__
        names = list(schema.props)
        if names == ["logicalType"] and schema.logical_type in _READY:
            return self._use(kind if isinstance(schema, Fixed) else _READY[schema.logical_type]), []
        if schema.logical_type == "decimal" and names in _DECIMALS:
            return self._use(kind), [f"{name}={schema.props[name]}" for name in names[1:]]
        return self._use(kind), _props_argument(schema.props)

    def _marked(self, annotation: Code | str, arguments: Sequence[str], mark: str = "AvroType") -> Code | str:
        if not arguments:
            return annotation
        inside = [annotation]
        if isinstance(annotation, Code) and annotation.start == "Annotated[":
            inside = list(annotation.arguments)
        self._use("Annotated")
        return Code("Annotated[", [*inside, Code(f"{self._use(mark)}(", arguments, ")")], "]")

    # Definitions

    def _own_mark(self, schema: Named, name: str, *, has_docstring: bool = False) -> list[str]:
        """Return the attributes of a named type's mark that do not depend on its kind."""
        arguments: list[str] = []
        if name != schema.name or isinstance(schema, Fixed):
            arguments.append(f"name={_literal(schema.name)}")
        if self._has_spaces:
            arguments.append(f"namespace={_literal(schema.namespace or '')}")
        if schema.aliases:
            aliases = tuple(f".{one}" if schema.namespace and "." not in one else one for one in schema.aliases)
            arguments.append(f"aliases={_literal(aliases)}")
        if schema.doc is not None and not has_docstring:
            arguments.append(f"doc={_literal(schema.doc)}")
        return arguments

    def _fixed(self, schema: Fixed, name: str) -> list[str]:
        kind, arguments = "bytes", _props_argument(schema.props)
        if schema.logical_type is not None:
            kind, arguments = self._logical(schema)
        arguments = [f"size={schema.size}", *self._own_mark(schema, name), *arguments]
        return self._layout("", f"{name} = ", self._marked(kind, arguments), "")

    def _enum(self, schema: Enum, name: str) -> list[str]:
        docstring = _docstring(schema.doc)
        arguments = self._own_mark(schema, name, has_docstring=bool(docstring))
        if schema.default is not None:
            arguments.append(f"default={_literal(schema.default)}")
        body = self._body(docstring, [*arguments, *_props_argument(schema.props)])
        members = [f'    {member} = "{symbol}"' for symbol, member in _members(schema.symbols).items()]
        lines = [*body, *([""] if body and members else []), *members]
        return [f"class {name}({self._use('enum')}.StrEnum):", *(lines or ["    pass"])]

    def _record(self, schema: Record, name: str) -> list[str]:
        docstring = _docstring(schema.doc)
        arguments = ['"error"'] if schema.is_error else []
        arguments += self._own_mark(schema, name, has_docstring=bool(docstring))
        body = self._body(docstring, [*arguments, *_props_argument(schema.props)])
        names = self._attributes(schema)
        fields = [line for field in schema.fields for line in self._field(field, names[field.name])]
        renamed = {attribute: field for field, attribute in names.items() if attribute != field}
        bases = [f"{self._use('msgspec')}.Struct", "kw_only=True"]
        if renamed:
            bases.append(f"rename={_literal(renamed)}")
        lines = [*body, *([""] if body and fields else []), *fields]
        return [*Code(f"class {name}(", bases, "):").lay("", "", ""), *(lines or ["    pass"])]

    def _body(self, docstring: list[str], arguments: Sequence[str]) -> list[str]:
        if not arguments:
            return docstring
        mark = Code(f"{self._use('AvroType')}(", arguments, ")").lay("    ", "__avro__ = ", "")
        return [*docstring, *([""] if docstring else []), *mark]

    def _attributes(self, record: Record) -> dict[str, str]:
        """Return the attribute of each field: its name, where Python and the module's own names allow it."""
        taken = {known for _, known in self._types.values()} | _TAKEN
        found: dict[str, str] = {}
        for field in record.fields:
            name = _identifier(field.name)
            while name in taken:
                name += "_"
            taken.add(name)
            found[field.name] = name
        return found

    def _field(self, field: Field, attribute: str) -> list[str]:
        arguments: list[str] = []
        if field.aliases:
            arguments.append(f"aliases={_literal(field.aliases)}")
        if field.doc is not None:
            arguments.append(f"doc={_literal(field.doc)}")
        if field.order != "ascending":
            arguments.append(f"order={_literal(field.order)}")
        value = None if field.default is MISSING else self._value(field.default, field.schema)
        if field.default is not MISSING and value is None:
            arguments.append(f"default={_literal(field.default)}")
        is_ordered = field.default is None
        if (field.default is MISSING or value is not None) and _is_exact(field):
            names = tuple(branch.fullname for branch in cast("Union", field.schema).branches)
            arguments.append(f"branches={_literal(names)}")
            is_ordered = True
        annotation = self._annotation(field.schema)
        if isinstance(field.schema, Union) and is_ordered:  # not by the annotation
            annotation = self._union(field.schema, none_last=True)
        annotation = self._marked(annotation, [*arguments, *_props_argument(field.props)], "AvroField")
        return self._layout("    ", f"{attribute}: ", annotation, "" if value is None else f" = {value}")

    def _layout(self, indent: str, before: str, code: Code | str, after: str) -> list[str]:
        return code.lay(indent, before, after) if isinstance(code, Code) else [f"{indent}{before}{code}{after}"]

    def _value(self, default: Any, schema: Schema) -> str | None:
        """Return a default as a Python expression; None when it has none that says the same again."""
        if isinstance(schema, Union):
            schema = next(branch for branch in schema.branches if fits(branch, default))
        if schema.logical_type is not None:
            return None
        match schema.type:
            case "null" | "boolean" | "int" | "long" | "string":
                return _literal(default)
            case "float" | "double":
                return _literal(default) if math.isfinite(default) else None
            case "bytes" | "fixed":
                is_whole = not isinstance(schema, Fixed) or len(default) == schema.size
                return _bytes_literal(default) if is_whole and max(default, default="") <= "\xff" else None
            case "enum":
                member = _members(cast("Enum", schema).symbols).get(default)
                return None if member is None else f"{self._types[id(schema)][1]}.{member}"
            case "array" | "map" if not default:
                return _literal(default)
            case _:
                return None


_DECIMALS: Final = (["logicalType", "precision"], ["logicalType", "precision", "scale"])


def _is_exact(field: Field) -> bool:
    """Would `schema_of` order the union another way, or give it a default?"""
    if not isinstance(field.schema, Union):
        return False
    if field.default is MISSING:
        return any(map(_is_null, field.schema.branches))
    return not fits(field.schema.branches[0], field.default)


def _is_null(schema: Schema) -> bool:
    return schema.type == "null" and not schema.props


def _props_argument(props: dict[str, Any]) -> list[str]:
    return [f"props={_literal(props)}"] if props else []


def _identifier(name: str) -> str:
    """Return a name as Python keeps it."""
    name = unicodedata.normalize("NFKC", name)
    return f"_{name.strip('_')}" if name.startswith("__") else name


def _members(symbols: Sequence[str]) -> dict[str, str]:
    """Return the name of each symbol's member: its own, where an enum allows it."""
    found: dict[str, str] = {}
    for symbol in symbols:
        name = unicodedata.normalize("NFKC", symbol)
        if name.startswith("_"):
            name = f"M{name}"
        while name in _ENUM_TAKEN or name in found.values():
            name += "_"
        found[symbol] = name
    return found


def _docstring(doc: str | None) -> list[str]:
    """Return the lines of a docstring that reads as ``doc``; none where it has to be written as a string."""
    if not doc or inspect.cleandoc(doc) != doc or doc == "An enumeration." or '"""' in doc or "\\" in doc:
        return []
    lines = doc.split("\n")
    if doc.endswith('"') or any(
        line != line.rstrip() or not line.isprintable() or len(line) > WIDTH - 10 for line in lines
    ):
        return []
    if len(lines) == 1:
        return [f'    """{doc}"""']
    return [f'    """{lines[0]}', *(f"    {line}" if line else "" for line in lines[1:]), '    """']


def _literal(value: Any) -> str:
    """JSON's values, and tuples of strings, as Python writes them, with double quotes."""
    match value:
        case str():
            text = repr(value)
            if text[0] == '"' or '"' in value:
                return text
            return '"' + text[1:-1].replace("\\'", "'") + '"'
        case float() if not math.isfinite(value):
            return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
        case dict():
            members = cast("dict[str, Any]", value).items()
            return "{" + ", ".join(f"{_literal(name)}: {_literal(item)}" for name, item in members) + "}"
        case list():
            return "[" + ", ".join(map(_literal, cast("list[Any]", value))) + "]"
        case tuple():
            items = list(map(_literal, cast("Iterable[Any]", value)))
            return "(" + ", ".join(items) + (",)" if len(items) == 1 else ")")
        case _:
            return repr(value).replace("e+", "e")


def _bytes_literal(text: str) -> str:
    found = repr(text.encode("latin-1"))
    return found if found[1] == '"' or '"' in found else 'b"' + found[2:-1].replace("\\'", "'") + '"'
