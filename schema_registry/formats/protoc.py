"""Run `protoc`, the Protobuf compiler that grpcio-tools contains, on a schema and its references.

The compiler is C++ and reads what strangers send, so it runs in a separate process, with limits on its time, memory
and output. Some inputs of one megabyte take it minutes: it compares every pair of reserved ranges.

It can open only the files that are written here, next to those of ``google/protobuf/``, ``google/type/`` and
``confluent/``: it refuses absolute paths and ``..`` in imports.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore, Lock
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from schema_registry.formats.errors import InvalidSchema

MAIN: Final = "<schema>"
"""The schema's own file. No import can mean it by accident."""
CPU_SECONDS: Final = 5
SECONDS: Final = 20
"""More than its CPU time: a busy machine runs it slowly."""
MEMORY_BYTES: Final = 1 << 30
OUTPUT_BYTES: Final = 1 << 28
MAX_ERRORS: Final = 5

MAX_RECENT: Final = 32

_AT_ONCE: Final = BoundedSemaphore(4)
_RECENT: Final[OrderedDict[bytes, bytes | InvalidSchema]] = OrderedDict()
_RECENT_LOCK: Final = Lock()
# `python -m grpc_tools.protoc` does the same, but spends 60 ms of CPU time on imports instead of 20 ms.
_PROGRAM: Final = """
import resource, sys
for kind, most in zip((resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE), map(int, sys.argv[2:5])):
    resource.setrlimit(kind, (most, most))
sys.path.append(sys.argv[1])
from grpc_tools import _protoc_compiler
sys.exit(_protoc_compiler.run_main([word.encode() for word in ["protoc", *sys.argv[5:]]]))
"""
_ERROR: Final = re.compile(r"(?P<file>[^:\n]+):(?:(?P<line>\d+):(?P<column>\d+):)? (?!warning:)(?P<text>.+)")


def compiled(schema: str | FileDescriptorProto, references: Mapping[str, str]) -> FileDescriptorSet:
    """Compile a .proto file, or check a descriptor. Return it as the last file, after all files that it imports.

    ``references``: the texts of other .proto files by the path that imports them. Raises `InvalidSchema`. A refusal is
    cached too, because a registry parses a refused schema for several checks.
    """
    text = schema if isinstance(schema, str) else schema.SerializeToString(deterministic=True)
    key = sha256(repr((text, sorted(references.items()))).encode("utf-8", "surrogatepass")).digest()
    with _RECENT_LOCK:
        found = _RECENT.get(key)
    if found is None:
        try:
            found = _compiled(schema, references)
        except InvalidSchema as error:
            found = error
        with _RECENT_LOCK:
            _RECENT[key] = found
            while len(_RECENT) > MAX_RECENT:
                _RECENT.popitem(last=False)
    if isinstance(found, InvalidSchema):
        raise InvalidSchema(found.reason, found.path, found.schema_type)
    return FileDescriptorSet.FromString(found)


def _compiled(schema: str | FileDescriptorProto, references: Mapping[str, str]) -> bytes:
    with TemporaryDirectory(prefix="protoc-") as directory:
        root, result = Path(directory, "files"), Path(directory, "result")
        root.mkdir()
        for name, text in references.items():
            _write(root, name, text)
        words = [*_include_paths(root), "--include_imports", "--retain_options", f"--descriptor_set_out={result}", MAIN]
        if isinstance(schema, str):
            Path(root, MAIN).write_bytes(_utf8(schema, ""))
        else:
            given = Path(directory, "given")
            schema.name = MAIN
            given.write_bytes(FileDescriptorSet(file=[schema]).SerializeToString())
            words.insert(0, f"--descriptor_set_in={given}")
        with _AT_ONCE:
            code, output = _run(words)
        if code != 0:
            raise _refused(code, output.replace(f"{root}/", ""))
        return result.read_bytes()


def descriptor(data: bytes) -> FileDescriptorProto:
    try:
        return FileDescriptorProto.FromString(data)
    except DecodeError:
        raise InvalidSchema("it is neither a .proto file nor a FileDescriptorProto in base64", "", "PROTOBUF") from None


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchema(f"it is not valid Unicode: {error.reason}", name, "PROTOBUF") from None


def _write(root: Path, name: str, text: str) -> None:
    parts = name.split("/")
    if name == MAIN or "\0" in name or "\\" in name or not all(part.strip(".") for part in parts):
        raise InvalidSchema(
            f"a reference's name is the path that imports it, and {name!r} is not a relative path without '.' and '..'",
            "references", "PROTOBUF",
        )  # fmt: skip
    path = root.joinpath(*parts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_utf8(text, name))
    except OSError as error:  # it is too long, or another reference's name is its directory
        raise InvalidSchema(f"{name!r} cannot be a file: {error.strerror}", "references", "PROTOBUF") from None


def _include_paths(root: Path) -> list[str]:
    """Return the options that make files visible. What comes with the compiler takes precedence over references."""
    tools, types = _directory("grpc_tools"), _directory("google.type")
    return [
        f"-I{tools / '_proto'}",
        f"-Igoogle/type={types}",
        f"-I{Path(__file__).parent / 'protos'}",
        f"-I{root}",
    ]


def _directory(package: str) -> Path:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(name=package)
    return Path(found.submodule_search_locations[0])


def _run(words: list[str]) -> tuple[int, str]:
    limits = [str(CPU_SECONDS), str(MEMORY_BYTES), str(OUTPUT_BYTES)]
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_directory("grpc_tools").parent), *limits, *words]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return -1, ""
    return ended.returncode, ended.stderr.decode(errors="replace")


def _refused(code: int, output: str) -> InvalidSchema:
    """Explain with the compiler's own words; the place is the line and column of the first error."""
    if code < 0:
        return InvalidSchema(
            f"the compiler needs more than {CPU_SECONDS} s or {MEMORY_BYTES >> 20} MiB for it", "", "PROTOBUF"
        )
    found = [match for line in output.splitlines() if (match := _ERROR.fullmatch(line)) is not None]
    if not found:
        return InvalidSchema(f"the compiler refuses it: {output.strip()[:1000]}", "", "PROTOBUF")
    located = [one for one in found if one["line"] is not None] or found
    texts = [one["text"] for one in located[:MAX_ERRORS]]
    missing = [one["file"] for one in found if one["text"] == "File not found."]
    if missing:
        texts.append(f"give the imported file as a reference whose name is the path in the import ({missing[0]})")
    first = located[0]
    where = "" if first["line"] is None else f"line {first['line']}, column {first['column']}"
    where = where if first["file"] == MAIN else f"reference {first['file']!r}: {where}"
    return InvalidSchema("; ".join(text.rstrip(".") for text in texts), where, "PROTOBUF")
