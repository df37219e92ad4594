"""The commands of ``eventbus schema``, each on the registry of a log and on one behind HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from eventbus import EventBus
from schema_registry import Registry
from schema_registry.client import RegistryClient
from schema_registry.entities import ConfigUpdate
from tests.cli.conftest import Cli, Spawn
from tests.schema_registry.tools.conftest import ORDER, ORDER_2, Schema

pytestmark = pytest.mark.system

GUID = "8b8bd78e-4456-4c99-8d72-64cbe6177dae"
"""Of `ORDER`: MD5 of its text, wherever it is registered."""
in_both = pytest.mark.parametrize("where", ["log", "http"], indirect=True)


@in_both
def test_register_answers_id_and_version_and_twice_is_as_once(schema: Schema) -> None:
    for _ in range(2):
        result = schema("register", "orders-value", "order.avsc", "--json")
        assert result.code == 0, result.err
        answer = result.json
        assert (answer["id"], answer["version"], answer["guid"]) == (1, 1, GUID)


def test_register_takes_stdin_and_types_of_the_program(schema: Schema) -> None:
    assert schema("register", "orders-value", "-", stdin=ORDER.encode()).code == 0
    Path("shop.py").write_text(
        "import msgspec\nclass Order(msgspec.Struct):\n    id: str\n    note: str | None = None\n"
    )
    assert schema("register", "orders-value", "shop:Order").out == "orders-value version 2, id 2\n"


@in_both
def test_what_is_refused_is_explained(orders: Schema) -> None:
    result = orders("register", "orders-value", "broken.avsc")
    assert (result.code, result.out) == (1, "")
    lines = result.err.splitlines()
    assert lines[0] == "error: orders-value does not take this schema (BACKWARD)"
    assert lines[1] == "  Order.amount  READER_FIELD_MISSING_DEFAULT_VALUE  (against version 2)"
    assert "gives it no default" in lines[2] and lines[3].startswith("    fix: give 'amount' a default")
    [problem] = orders("register", "orders-value", "broken.avsc", "--json").json["problems"]
    assert problem["field"] == "Order.amount"


def test_references(schema: Schema) -> None:
    Path("line.avsc").write_text(
        '{"type": "record", "name": "Line", "fields": [{"name": "order", "type": "Order"}]}', "utf-8"
    )
    assert schema("register", "orders-value", "order.avsc").code == 0
    result = schema("register", "lines-value", "line.avsc", "--reference", "Order=orders-value:1")
    assert result.out == "lines-value version 1, id 2\n", result.err
    shown = schema("show", "lines-value")
    assert "refers to Order: orders-value version 1" in shown.err
    [version] = schema("list", "lines-value", "--json").json
    assert version["references"] == "Order=orders-value:1"
    made = schema("codegen", "lines-value")
    assert "class Order(" in made.out and "class Line(" in made.out, made.err


@in_both
def test_list(orders: Schema) -> None:
    assert orders("list").lines == [
        "SUBJECT       VERSIONS  LATEST  ID  TYPE  NAME",
        "orders-value         2       2   2  AVRO  Order",
    ]
    assert orders("list", "orders-value").lines[1].split() == ["1", "1", GUID, "AVRO"]
    assert orders("list", "--prefix", "nothing", "--json").json == []
    assert "the first one: eventbus schema register" in orders("list", "--prefix", "nothing").err


@in_both
def test_show(orders: Schema) -> None:
    shown = orders("show", "orders-value", "1")
    assert shown.err.splitlines() == ["orders-value version 1, id 1, AVRO, BACKWARD", f"guid {GUID}"]
    assert json.loads(shown.out) == json.loads(ORDER)
    assert orders("show", "orders-value", "1", "--raw").out == f"{ORDER}\n"
    assert orders("show", "--id", "1", "--raw").out == f"{ORDER}\n"
    assert orders("show", "orders-value", "--json").json["version"] == 2
    assert '  {"name": "note", "type": ["null", "string"], "default": null}' in orders("show", "orders-value").out


def test_diff(orders: Schema) -> None:
    told = [
        "FIELD       VERSION 1  VERSION 2             CHANGE",
        "Order.note             null | string = null  added",
        "",
        "version 2 reads records of version 1",
        "version 1 reads records of version 2",
    ]
    assert orders("diff", "orders-value").lines == told
    assert orders("diff", "orders-value", "1", "2").lines == told
    assert orders("diff", "orders-value", "1").lines == told
    same = orders("diff", "orders-value", "1", "1")
    assert same.lines[0] == "version 1 and version 1 have the same fields"
    assert orders("diff", "orders-value", "--all").lines[1].split() == ["Order", "record", "Order", "record", "Order"]


def test_diff_with_a_file_says_what_would_break(orders: Schema) -> None:
    told = orders("diff", "orders-value", "broken.avsc").out
    assert "broken.avsc cannot read records of version 2" in told
    assert "READER_FIELD_MISSING_DEFAULT_VALUE: Order.amount" in told
    assert "version 2 reads records of broken.avsc" in told
    answer = orders("diff", "orders-value", "1", "broken.avsc", "--json").json
    assert answer["fields"] == [{"field": "Order.amount", "old": "", "new": "double", "change": "added"}]
    assert [each["can_read"] for each in answer["reads"]] == [False, True]


def test_diff_of_other_formats_is_one_of_lines(schema: Schema) -> None:
    for number in (1, 2):
        Path("a.json").write_text(f'{{"type": "object", "maxProperties": {3 - number}}}', "utf-8")
        assert schema("register", "a-value", "a.json").code in (0, 1)
    Path("b.json").write_text('{"type": "object", "maxProperties": 9}', "utf-8")
    told = schema("diff", "a-value", "latest", "b.json").out
    assert "---" in told and "+++" in told and "maxProperties" in told


def test_delete_and_what_is_left(orders: Schema) -> None:
    assert orders("delete", "orders-value", "--version", "1").out == "orders-value: version 1 deleted\n"
    assert [row.split()[0] for row in orders("list", "orders-value").lines[1:]] == ["2"]
    states = [row["state"] for row in orders("list", "orders-value", "--deleted", "--json").json]
    assert states == ["deleted", ""]
    assert orders("show", "orders-value", "1").code == 1
    assert orders("show", "orders-value", "1", "--deleted").code == 0
    assert orders("delete", "orders-value", "--json").json["versions"] == [2]
    assert [row["state"] for row in orders("list", "orders-value", "--deleted", "--json").json] == ["deleted"] * 2


@in_both
def test_delete_for_ever_asks_first(orders: Schema) -> None:
    assert orders("delete", "orders-value").code == 0
    no = orders("delete", "orders-value", "--permanent", stdin=b"n\n")
    assert (no.code, no.out) == (1, "") and "Nothing was changed" in no.err
    nobody = orders("delete", "orders-value", "--permanent")
    assert "--force skips the question" in nobody.err
    assert orders("delete", "orders-value", "--permanent", stdin=b"y\n").out.endswith("1, 2 deleted for ever\n")
    assert orders("show", "--id", "1").code == 1
    refused = orders("delete", "orders-value", "--permanent", "--force")
    assert refused.code == 1 and "orders-value" in refused.err


@in_both
def test_export_and_import_keep_ids_guids_and_deleted_flags(orders: Schema, cli: Cli) -> None:
    assert orders("delete", "orders-value", "--version", "1").code == 0
    told = orders("export", "schemas.jsonl")
    assert (told.code, told.out) == (0, "") and "2 schemas of" in told.err and "to schemas.jsonl" in told.err
    before = orders("list", "orders-value", "--deleted", "--json").json
    copy = ("--url", "file://./copy")
    assert cli("schema", "import", "schemas.jsonl", *copy).out == "2 schemas are new in file://./copy\n"
    assert cli("schema", "list", "orders-value", "--deleted", "--json", *copy).json == before
    again = cli("schema", "import", "schemas.jsonl", *copy)
    assert again.out == "0 schemas are new in file://./copy, 2 were there\n"
    assert orders("export").out == Path("schemas.jsonl").read_text("utf-8")


def test_texts_of_any_characters_are_shown_printable_and_kept_by_a_backup(schema: Schema, cli: Cli) -> None:
    evil = "\x1b[31m\x9b\u202e\x85a\u2028b\n::error::"
    for number, note in enumerate((evil, f"{evil}!"), 1):
        field = {"name": "id", "type": "string", "default": note, "doc": note}
        text = json.dumps({"type": "record", "name": "Order", "doc": note, "fields": [field]}, ensure_ascii=False)
        Path(f"evil{number}.avsc").write_text(text, "utf-8")
        assert schema("register", "orders-value", f"evil{number}.avsc").code == 0
    Path("page.json").write_text(json.dumps({"title": evil, "properties": {evil: {"type": "string"}}}), "utf-8")
    assert schema("register", "pages-value", "page.json").code == 0
    Path("page2.json").write_text(json.dumps({"properties": {evil: {"type": "integer"}}}), "utf-8")
    for args in (
        ("list",), ("list", "--json"), ("diff", "orders-value"), ("diff", "orders-value", "--json"),
        ("show", "orders-value"), ("show", "pages-value", "--json"), ("show", "\x1b[31m"),
        ("register", "pages-value", "page2.json"), ("diff", "pages-value", "page2.json"),
    ):  # fmt: skip
        result = schema(*args)
        assert all(character.isprintable() or character == "\n" for character in result.out + result.err), args
        assert not any(line.startswith("::error::") for line in (*result.lines, *result.err.splitlines())), args
    schema("export", "schemas.jsonl")
    copy = ("--url", "file://./copy")
    assert cli("schema", "import", "schemas.jsonl", *copy).code == 0
    for subject in ("orders-value", "pages-value"):
        raw = schema("show", subject, "--raw").out
        assert cli("schema", "show", subject, "--raw", *copy).out == raw != ""


def test_an_import_that_would_give_an_id_twice_is_refused(orders: Schema, cli: Cli) -> None:
    orders("export", "schemas.jsonl")
    copy = ("--url", "file://./copy")
    assert cli("schema", "register", "orders-value", "broken.avsc", *copy).code == 0
    result = cli("schema", "import", "schemas.jsonl", *copy)
    assert result.code == 1 and "orders-value" in result.err


def test_codegen(orders: Schema) -> None:
    made = orders("codegen", "orders-value")
    assert "class Order(" in made.out and "note: str | None = None" in made.out
    assert orders("codegen", "orders-value", "--version", "1", "--out", "order.py").code == 0
    assert "note" not in Path("order.py").read_text("utf-8")
    assert orders("codegen", "order2.avsc").out == made.out
    from_stdin = orders("codegen", "-", stdin=ORDER.encode())
    assert "class Order(" in from_stdin.out


def test_codegen_and_back(orders: Schema) -> None:
    """The classes of a schema have that schema."""
    assert orders("codegen", "orders-value", "--out", "made.py").code == 0
    assert orders("register", "orders-value", "made:Order").out == "orders-value version 2, id 2\n"


def test_check_of_a_file(orders: Schema, where: tuple[str, ...]) -> None:
    registry = () if where[0] == "--registry" else ("--registry", "log")
    fine = orders("check", "order2.avsc", "--subject", "orders-value", *registry)
    assert (fine.code, fine.lines[0]) == (0, "orders-value  BACKWARD  unchanged")
    result = orders("check", "broken.avsc", "--subject", "orders-value", *registry)
    assert result.code == 1
    assert result.lines[1] == "  broken.avsc:3  Order.amount  READER_FIELD_MISSING_DEFAULT_VALUE  (against version 2)"


# wrong input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("show",), 2, "which one? Give a subject (and version), or --id"),
        (("show", "orders-value", "--id", "1"), 2, "which one? Give a subject (and version), or --id"),
        (("show", "orders-value", "9"), 1, "Version 9 not found"),
        (("show", "orders-value", "nine"), 1, "not a valid version id"),
        (("show", "nothing"), 1, "Subject 'nothing' not found"),
        (("show", "--id", "77"), 1, "77 not found"),
        (("register", "orders-value", "missing.avsc"), 2, "missing.avsc: No such file or directory"),
        (("register", "orders-value", "empty.avsc"), 2, "empty.avsc is empty. Write a schema into it"),
        (("register", "orders-value", "bytes.avsc"), 2, "bytes.avsc is not UTF-8"),
        (("register", "orders-value", "text.avsc"), 1, "nvalid"),
        (("register", "orders-value", "nowhere:Order"), 1, "there is no module 'nowhere'"),
        (("register", "orders-value", "json:Order"), 2, "module 'json' has no 'Order'"),
        (("register", "orders-value", "json:loads"), 2, "json:loads has no Avro schema"),
        (("register", "orders-value", "order.avsc", "--reference", "Order"), 2, "not of the form NAME=SUBJECT:VERSION"),
        (("register", "orders-value", "order.avsc", "--reference", "A=b:1"), 1, "b"),
        (("register", "orders-value", "order.avsc", "--type", "XML"), 2, "invalid choice: 'XML'"),
        (("diff", "nothing"), 2, "'nothing' is not there, or has no versions"),
        (("delete", "nothing"), 1, "Subject 'nothing' not found"),
        (("delete", "orders-value", "--permanent", "--force"), 1, "was not deleted first"),
        (("import", "missing.jsonl"), 2, "missing.jsonl: No such file or directory"),
        (("import", "text.avsc"), 1, "line 1 of the export cannot be read"),
        (("import", "bytes.avsc"), 2, "bytes.avsc is not UTF-8"),
        (("import", "empty.avsc"), 2, "empty.avsc is empty"),
        (("register", "half-\udc9b", "order.avsc"), 1, r"half-\udc9b"),
        (("codegen", "nothing"), 1, "Subject 'nothing' not found"),
        (("codegen", "text.avsc"), 2, "text.avsc"),
        (("codegen", "orders-value", "--out", "missing/x.py"), 2, "missing/x.py: No such file or directory"),
        (("export", "missing/x"), 2, "missing/x: No such file or directory"),
        (("lst",), 2, "invalid choice: 'lst'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["log"], indirect=True)
def test_wrong_input_says_what_is_wrong(orders: Schema, args: tuple[str, ...], code: int, told: str) -> None:
    Path("empty.avsc").write_text(" \n", "utf-8")
    Path("bytes.avsc").write_bytes(b"\xff\xfe")
    Path("text.avsc").write_text("hello", "utf-8")
    result = orders(*args)
    assert told in result.err
    assert result.code == code
    assert "Traceback" not in result.err and "should not happen" not in result.err


def test_a_log_that_another_process_has_names_the_way_through_it(cli: Cli, spawn: Spawn) -> None:
    serving = spawn("schema", "serve", "--port", "0", "--url", "file://./data", stdout=subprocess.PIPE)
    assert serving.stdout is not None and serving.stdout.readline().startswith(b"serving the schemas of")
    result = cli("schema", "list", "--url", "file://./data")
    assert result.code == 1 and "in use by process" in result.err and "--registry http://localhost:8081" in result.err
    serving.send_signal(signal.SIGINT)
    assert serving.wait(20) == 0


def test_one_version_has_nothing_to_be_compared_with(schema: Schema) -> None:
    schema("register", "orders-value", "order.avsc")
    result = schema("diff", "orders-value")
    assert result.code == 2 and "has one version, 1: name a file or a type to compare it with" in result.err


@pytest.mark.parametrize(
    ("registry", "code", "told"),
    [
        ("localhost:8081", 2, "--registry 'localhost:8081' is not the URL of a registry"),
        ("ftp://localhost", 2, "is not the URL of a registry"),
        ("http://user:secret@127.0.0.1:1", 1, "127.0.0.1:1"),
    ],
)
def test_a_registry_that_is_not_there(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, registry: str, code: int, told: str
) -> None:
    monkeypatch.setattr("schema_registry.client.RegistryClient", partial(RegistryClient, timeout=0.05))
    result = cli("schema", "list", "--registry", registry)
    assert result.code == code and told in result.err
    assert "secret" not in result.err


def test_a_log_that_is_not_there(cli: Cli) -> None:
    result = cli("schema", "list")
    assert result.code == 1 and "there is no log at file://./data" in result.err


def test_who_only_looks_leaves_nothing_behind(cli: Cli) -> None:
    assert cli("topics", "create", "orders").code == 0
    result = cli("schema", "list")
    assert result.code == 1 and "there are no schemas in file://./data (it has no topic _schemas)" in result.err
    assert cli("topics", "list").lines == ["orders"]


def test_the_environment_names_the_registry(cli: Cli, served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("order.avsc").write_text(ORDER, "utf-8")
    monkeypatch.setenv("EVENTBUS_REGISTRY", served)
    assert cli("schema", "register", "orders-value", "order.avsc").code == 0
    assert not Path("data").exists()
    log = ("--registry", "log", "--url", "file://./data")
    assert cli("schema", "register", "orders-value", "order.avsc", *log).code == 0
    assert Path("data").exists()


class Without:
    """An installation without some libraries."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("args", "library", "extra"),
    [(("list", "--registry", "http://h:1"), "urllib3", "avro"), (("serve", "--port", "0"), "starlette", "registry")],
)
def test_a_library_that_is_missing_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], library: str, extra: str
) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] == library or name.startswith(("schema_registry.http.", "schema_registry.client")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "schema_registry.cli.over_http", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Without(library), *sys.meta_path])
    result = cli("schema", *args)
    assert result.code == 1
    assert f"({library})" in result.err and f'pip install "eventbus-log[{extra}]"' in result.err


def test_serve_answers_confluents_http(spawn: Spawn) -> None:
    process = spawn("schema", "serve", "--port", "0", "--json")
    assert process.stdout is not None
    url: str = json.loads(process.stdout.readline())["registry"]
    client = RegistryClient(url)
    assert client.request("GET", "/subjects") == []
    client.close()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0 and b"stopped" in err


CHECKOUT = """{"type": "record", "name": "Checkout", "namespace": "library", "doc": "A book is taken home.", "fields": [
  {"name": "checkout_id", "type": "string"},
  {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["BOOK", "MAP"]}, "default": "BOOK"},
  {"name": "due", "type": {"type": "int", "logicalType": "date"}},
  {"name": "days", "type": "int", "default": DAYS}
]}"""


@pytest.mark.parametrize("where", ["log"], indirect=True)
def test_a_default_of_the_wrong_type_is_refused_with_its_place(schema: Schema) -> None:
    """A schema as it stands in a book: with a string for the default of a number."""
    refused = schema("register", "checkouts-value", "-", stdin=CHECKOUT.replace("DAYS", '"28"').encode())
    assert refused.code == 1
    assert "days" in refused.err and "default" in refused.err and "int" in refused.err
    assert schema("register", "checkouts-value", "-", stdin=CHECKOUT.replace("DAYS", "28").encode()).code == 0
    assert schema("list").lines[1].split()[-1] == "library.Checkout"


def test_a_registry_behind_http_is_filled_from_an_export(cli: Cli, served: str) -> None:
    """Ids, versions, deleted flags, levels and modes, by nothing but Confluent's endpoints; references first."""
    Path("line.avsc").write_text(
        '{"type": "record", "name": "Line", "fields": [{"name": "order", "type": "Order"}]}', "utf-8"
    )
    for name, text in (("order", ORDER), ("order2", ORDER_2)):
        Path(f"{name}.avsc").write_text(text, "utf-8")
    log, http = ("--url", "file://./data"), ("--registry", served)
    for subject, file, *more in (
        ("orders-value", "order.avsc"),
        ("a-lines-value", "line.avsc", "--reference", "Order=orders-value:1"),
        ("orders-value", "order2.avsc"),
        ("gone-value", "order.avsc"),
    ):
        assert cli("schema", "register", subject, file, *more, *log).code == 0
    assert cli("schema", "delete", "gone-value", *log).code == 0
    anyio.run(configure)
    before = cli("schema", "export", *log).out
    Path("schemas.jsonl").write_text(before, "utf-8")

    client = RegistryClient(served)
    client.request("PUT", "/mode/a-lines-value", body={"mode": "READWRITE"})  # its own, though it is everybody's
    told = cli("schema", "import", "schemas.jsonl", *http)
    assert client.request("GET", "/mode/a-lines-value") == {"mode": "READWRITE"}
    client.close()
    assert (told.code, told.out) == (0, f"4 schemas are new in {served}\n"), told.err
    assert cli("schema", "import", "schemas.jsonl", *http).out == f"0 schemas are new in {served}, 4 were there\n"
    for subject in ("orders-value", "a-lines-value", "gone-value"):
        listed = ("schema", "list", subject, "--deleted", "--json")
        assert cli(*listed, *http).json == cli(*listed, *log).json
    assert "BACKWARD" not in cli("schema", "show", "orders-value", *http).err
    assert facts(cli("schema", "export", *http).out) >= facts(before)

    other = ("--url", "file://./other")
    assert cli("schema", "register", "orders-value", "order2.avsc", *other).code == 0
    Path("other.jsonl").write_text(cli("schema", "export", *other).out, "utf-8")
    clash = cli("schema", "import", "other.jsonl", *http)
    assert clash.code == 1 and "version 1 of 'orders-value' is there already, as another schema" in clash.err


async def configure() -> None:
    async with EventBus("file://./data") as bus, Registry(bus) as registry:
        await registry.update_config("orders-value", ConfigUpdate(compatibility="FULL"))
        await registry.update_mode("orders-value", "READONLY")


def facts(export: str) -> set[str]:
    """The lines, but for the record of ids given, which only a registry of ours tells."""
    return {json.dumps(json.loads(line), sort_keys=True) for line in export.splitlines() if "maxIds" not in line}
