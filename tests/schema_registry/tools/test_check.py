"""``eventbus schema check module:bus``: against a lock file and a registry, with the exit codes that CI goes by."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from schema_registry.tools import judge
from tests.cli.conftest import Cli, Result

pytestmark = pytest.mark.system

V1 = "order_id: str\n    amount: float"
V2 = f"{V1}\n    note: str | None = None"
BROKEN = f"{V1}\n    customer: str"

SHOP = """
import msgspec
from eventbus import EventBus
from serdes import Avro

class Order(msgspec.Struct):
    {fields}

bus = EventBus("memory://", serde=Avro("log"{options}))

@bus.producer("orders")
async def place(order: Order) -> Order:
    return order

@bus.consumer("orders", group="billing")
async def bill(order: Order) -> None: ...

@bus.consumer("orders", group="raw")
async def keep(order: bytes) -> None: ...
"""

Check = Callable[..., Result]


@pytest.fixture
def write(cli: Cli) -> Iterator[Callable[..., str]]:
    """Writes a program and answers its name: another one each time, because a module is imported once."""
    numbers = itertools.count(1)
    made: list[str] = []

    def write(fields: str = V1, *, options: str = "", more: str = "") -> str:
        name = f"shop_{next(numbers)}"
        Path(f"{name}.py").write_text(SHOP.format(fields=fields, options=options) + more, "utf-8")
        made.append(name)
        return f"{name}:bus"

    yield write
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def check(cli: Cli) -> Check:
    return lambda *args: cli("schema", "check", *args)


@pytest.fixture
def locked(check: Check, write: Callable[..., str]) -> Callable[..., str]:
    """There is a lock file of version 1."""
    assert check(write(), "--update").code == 0
    return write


def test_the_first_time_writes_the_lock_file(check: Check, write: Callable[..., str]) -> None:
    target = write()
    missing = check(target)
    assert (missing.code, missing.out) == (2, "")
    assert missing.err == (
        "error: there is no schemas.lock.json: a check of module:bus writes it with --update, to be committed; "
        "or name a --registry\n"
    )
    first = check(target, "--update")
    assert first.code == 0 and first.lines == [
        "orders-value  BACKWARD  new",
        "1 subject checked against schemas.lock.json: compatible",
        "1 declared use(s) not checked: another format than Avro, or a topic that only the run decides",
    ]
    assert first.err == "schemas.lock.json is written: commit it\n"
    lock = json.loads(Path("schemas.lock.json").read_text("utf-8"))
    assert lock["subjects"]["orders-value"]["readers"] == [{"group": "billing", "handler": "bill", "reads": 1}]
    assert check(target).lines[0] == "orders-value  BACKWARD  unchanged"
    assert check(target, "--update").err == "schemas.lock.json is up to date\n"


def test_a_compatible_change_has_to_be_recorded(check: Check, locked: Callable[..., str]) -> None:
    target = locked(V2)
    told = check(target)
    assert told.code == 1
    assert told.lines[:4] == [
        "orders-value  BACKWARD  changed, compatible",
        f"  warning: {target.partition(':')[0]}.py:6  NOT_RECORDED",
        "    compatible, but schemas.lock.json does not say so yet: version 2 is new",
        f"    fix: eventbus schema check {target} --update, and commit the file",
    ]
    assert check(target, "--update").code == 0
    assert check(target).code == 0


def test_a_change_that_breaks_names_the_line_and_the_consumers(check: Check, locked: Callable[..., str]) -> None:
    target = locked(BROKEN)
    told = check(target)
    assert told.code == 1
    assert told.lines[0] == "orders-value  BACKWARD  NOT COMPATIBLE"
    line = f"  {target.partition(':')[0]}.py:9  Order.customer  READER_FIELD_MISSING_DEFAULT_VALUE  (against version 1)"
    assert told.lines[1] == line
    assert "    breaks: group billing (bill)" in told.lines
    before = Path("schemas.lock.json").read_text("utf-8")
    refused = check(target, "--update")
    assert refused.code == 1 and "is unchanged. Use --force" in refused.err
    assert Path("schemas.lock.json").read_text("utf-8") == before
    forced = check(target, "--update", "--force")
    assert forced.code == 0 and check(target).code == 0
    assert len(json.loads(Path("schemas.lock.json").read_text("utf-8"))["subjects"]["orders-value"]["versions"]) == 2


def test_a_level_in_the_file_holds(check: Check, locked: Callable[..., str]) -> None:
    path = Path("schemas.lock.json")
    path.write_text(path.read_text("utf-8").replace("BACKWARD", "NONE"), "utf-8")
    target = locked(BROKEN)
    assert check(target, "--update").code == 0
    assert '"compatibility": "NONE"' in path.read_text("utf-8")


def test_levels_of_new_subjects_and_another_file(check: Check, write: Callable[..., str]) -> None:
    target = write()
    assert check(target, "--update", "--level", "full", "--lock", "ci.json").lines[0] == "orders-value  FULL  new"
    assert check(target, "--lock", "ci.json").code == 0
    assert not Path("schemas.lock.json").exists()


def test_reports_for_ci(check: Check, locked: Callable[..., str]) -> None:
    target = locked(BROKEN)
    assert check(target, "--junit", "report.xml", "--sarif", "report.sarif").code == 1
    suites = ElementTree.parse("report.xml").getroot()
    assert suites.attrib["failures"] == "1" and suites[0][0].attrib["classname"] == target
    [result] = json.loads(Path("report.sarif").read_text("utf-8"))["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == (f"{target.partition(':')[0]}.py", 9)
    answer = check(target, "--json").json
    assert (answer["compatible"], answer["content"], answer["passed_over"]) == (False, False, 1)
    assert answer["checked"][0]["problems"][0]["field"] == "Order.customer"


def test_the_warehouse_policy(check: Check, locked: Callable[..., str]) -> None:
    target = locked("order_id: str")
    assert "NOT COMPATIBLE" not in check(target).out, "a registry allows it"
    told = check(target, "--policy", "warehouse")
    assert told.code == 1 and "Order.amount  FIELD_DELETED" in told.out
    assert "breaks: tables of spark" in told.out


def test_against_a_registry(check: Check, write: Callable[..., str], cli: Cli, served: str) -> None:
    """An unregistered schema is fine if it is compatible: it is registered when it is deployed."""
    registry = ("--registry", served)
    v1, v2, broken = write(), write(V2), write(BROKEN)
    assert check(v1, *registry).lines[0] == "orders-value  BACKWARD  new"
    assert cli("schema", "register", "orders-value", f"{v1.partition(':')[0]}:Order", *registry).code == 0
    assert check(v1, *registry).lines[0] == "orders-value  BACKWARD  unchanged"
    fine = check(v2, *registry)
    assert (fine.code, fine.lines[0]) == (0, "orders-value  BACKWARD  changed, compatible")
    assert f"1 subject checked against {served}: compatible" in fine.lines
    told = check(broken, *registry)
    assert told.code == 1 and "Order.customer  READER_FIELD_MISSING_DEFAULT_VALUE" in told.out
    assert "breaks: group billing (bill)" in told.out
    assert not Path("schemas.lock.json").exists()
    assert check(v1, *registry, "--update").code == 0
    assert check(v1).code == 0, "the registry's history is in the lock file now"


def test_consumers_of_another_program_count_when_it_is_named_too(check: Check, write: Callable[..., str]) -> None:
    shop = write()
    reader = """
@bus.consumer("orders", group="audit")
async def audit(order: Summary) -> None: ...
"""
    audit = write(V1, more=reader.replace("Summary", "Order"))
    assert check(shop, audit, "--update").code == 0
    readers = json.loads(Path("schemas.lock.json").read_text("utf-8"))["subjects"]["orders-value"]["readers"]
    assert [each["group"] for each in readers] == ["audit", "billing"]
    alone = check(shop)
    assert alone.code == 1 and "its readers have changed" in alone.out


def test_a_deployed_consumer_that_will_not_read_is_a_note(check: Check, locked: Callable[..., str]) -> None:
    """BACKWARD lets a field go; who is deployed with it has to be replaced first."""
    target = locked("order_id: str")
    told = check(target, "--update")
    assert told.code == 0
    assert any(line.startswith("  note: ") and line.endswith("(against group billing (bill))") for line in told.lines)
    assert "    fix: deploy this consumer before the producers" in told.lines


def test_several_events_in_one_topic_have_subjects_of_their_own(check: Check, write: Callable[..., str]) -> None:
    more = """
class Paid(msgspec.Struct):
    order_id: str

@bus.producer("orders")
async def pay(order_id: str) -> Paid:
    return Paid(order_id)

@bus.consumer("orders", group="both")
async def both(event: Order | Paid) -> None: ...
"""
    target = write(options=', subject="topic_record_name"', more=more)
    assert check(target, "--update").code == 0
    subjects = json.loads(Path("schemas.lock.json").read_text("utf-8"))["subjects"]
    assert list(subjects) == ["orders-Order", "orders-Paid"]
    assert [each["group"] for each in subjects["orders-Paid"]["readers"]] == ["both"]


def test_no_bus_is_started_and_no_log_is_opened(check: Check, write: Callable[..., str]) -> None:
    target = write()
    name = target.partition(":")[0]
    text = Path(f"{name}.py").read_text("utf-8").replace("memory://", "file://./somewhere")
    Path(f"{name}.py").write_text(text, "utf-8")
    assert check(target, "--update").code == 0
    assert not Path("somewhere").exists()


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("nowhere:bus",), 2, "there is no module 'nowhere'"),
        (("json:bus",), 2, "module 'json' has no 'bus'; it holds no EventBus"),
        (("shop",), 2, "is not of the form module:bus"),
        ((), 2, "the following arguments are required"),
        (("TARGET", "--force"), 2, "--force goes with --update"),
        (("TARGET", "TARGET", "--subject", "a-value"), 2, "--subject is for one schema"),
        (("order.avsc", "--subject", "a-value", "--reference", "A=b:1"), 2, "order.avsc: No such file"),
        (("TARGET", "--policy", "lake"), 2, "invalid choice: 'lake'"),
        (("TARGET", "--level", "SIDEWAYS"), 2, "invalid choice: 'SIDEWAYS'"),
        (("TARGET", "--junit", "missing/report.xml"), 2, "missing/report.xml: No such file or directory"),
        (("TARGET", "--lock", "broken.json"), 2, "broken.json is no lock file"),
        (("TARGET", "--registry", "host:8081"), 2, "is not the URL of a registry"),
    ],
)
def test_what_cannot_be_judged_has_an_exit_code_of_its_own(
    check: Check, locked: Callable[..., str], args: tuple[str, ...], code: int, told: str
) -> None:
    Path("broken.json").write_text("{", "utf-8")
    target = locked()
    result = check(*(target if word == "TARGET" else word for word in args))
    assert told in result.err
    assert result.code == code
    assert "Traceback" not in result.err


PROTO = 'syntax = "proto3"; message A {{ {} b = 1; }}'


def test_a_bus_without_a_schema_is_not_called_compatible(check: Check, cli: Cli) -> None:
    Path("bare_1.py").write_text("from eventbus import EventBus\nbus = EventBus('memory://')\nbus.topic('orders')\n")
    result = check("bare_1:bus")
    assert (result.code, result.out) == (2, "")
    assert "nothing is checked: bare_1:bus declares no Avro type" in result.err


def test_a_type_that_only_its_topic_declares_is_checked(check: Check, cli: Cli) -> None:
    program = """
import msgspec
from eventbus import EventBus
from serdes import Avro

class Order(msgspec.Struct):
    {fields}

bus = EventBus("memory://", serde=Avro("log"))
bus.topic("orders", value=Order)
"""
    Path("bare_2.py").write_text(program.format(fields=V1))
    assert check("bare_2:bus", "--update").code == 0
    Path("bare_3.py").write_text(program.format(fields=BROKEN))
    result = check("bare_3:bus")
    assert result.code == 1
    assert "NOT COMPATIBLE" in result.out


def test_protobuf_and_json_files_get_a_verdict(check: Check, cli: Cli, served: str) -> None:
    for name, texts in {
        "a.proto": (PROTO.format("int32"), PROTO.format("int64"), PROTO.format("string")),
        "a.json": ('{"type":"integer"}', '{"type":"number"}', '{"type":"string"}'),
    }.items():
        file = Path(name)
        for text, code in zip(texts, (0, 0, 1), strict=True):
            file.write_text(text, "utf-8")
            for options in ((), ("--json",)):
                assert check(name, "--subject", name, "--registry", served, *options).code == code
            assert cli("schema", "register", name, name, "--registry", served).code == (0 if code == 0 else 1)


def test_a_crash_is_not_a_verdict(check: Check, locked: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(judge, "judge", crash)
    result = check(locked())
    assert result.code == 2 and "error: ZeroDivisionError: division by zero" in result.err


def test_a_type_without_a_schema_says_which(check: Check, write: Callable[..., str]) -> None:
    result = check(write("order_id: complex"), "--update")
    assert result.code == 2 and "complex" in result.err
    assert not Path("schemas.lock.json").exists()


@pytest.mark.parametrize("status", ["", "0"])
def test_a_module_that_ends_the_program_is_not_judged(check: Check, write: Callable[..., str], status: str) -> None:
    """CI would be green, and nothing checked."""
    result = check(write(more=f"raise SystemExit({status})\n"), "--update")
    assert result.code == 2 and not Path("schemas.lock.json").exists()
    assert "shop_1.py, line 21: it ends the program when it is imported" in result.err
