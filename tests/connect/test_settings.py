"""Properties: right ones are read, wrong ones are named with file, line and the nearest right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventbus.connect import Connectors
from eventbus.connect.settings import Key, Properties, read
from eventbus.errors import ConfigError

pytestmark = pytest.mark.system

FILE = {"name": "lines", "connector.class": "FileStreamSource", "topic": "lines", "file": "x.txt"}
SINK = {"name": "out", "connector.class": "FileStreamSink", "topics": "lines", "file": "y.txt"}
KEYS = (
    Key("file"),
    Key("batch.size", "int", 5, minimum=1),
    Key("on", "bool", False),
    Key("of", choices=("all", "none")),
)


def written(folder: Path, text: str) -> Path:
    path = folder / "a.properties"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "FileStreamSource",
        "FileStreamSourceConnector",
        "filestreamsource",
        "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "eventbus.connect.file_source:FileStreamSource",
        "eventbus.connect.file_source.FileStreamSource",
    ],
)
def test_a_connector_goes_by_all_its_names(name: str) -> None:
    [run] = Connectors({**FILE, "connector.class": name}).runs
    assert run.kind == "source"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"topci": "x"}, "topci.*did you mean 'topic'"),
        ({"connector.class": "FileStreemSource"}, "no connector 'FileStreemSource'; did you mean 'FileStreamSource'"),
        ({"connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector"}, "no connector"),
        ({"connector.class": "nowhere.at:All"}, "cannot be loaded"),
        ({"connector.class": "eventbus.connect:Key"}, "is not a connector"),
        ({"batch.size": "many"}, "batch.size=many: a whole number"),
        ({"batch.size": "0"}, "at least 1"),
        ({"name": "a b"}, "no blanks"),
        ({"transforms": "route"}, "single message transforms are not run here"),
        ({"transforms.route.type": "x"}, "single message transforms are not run here"),
        ({"errors.tolerance": "alll"}, "one of none, all; did you mean 'all'"),
        ({"producer.override.transactional.id": "mine"}, "the connector's own"),
        ({"value.converter": "JsonConvertor"}, "no converter 'JsonConvertor'; did you mean 'JsonConverter'"),
        ({"value.converter": "JsonConverter", "value.converter.schema.enable": "x"}, "did you mean 'schemas.enable'"),
        ({"value.converter": "io.confluent.connect.avro.AvroConverter"}, "For Avro let a handler write a second topic"),
        ({"file": "/"}, "is a directory"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Connectors({**FILE, **change})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"topics": ""}, "a sink needs topics or topics.regex"),
        ({"topics.regex": "l.*"}, "one of the two"),
        ({"topics": "", "topics.regex": "("}, "topics.regex=\\("),
        ({"errors.deadletterqueue.topic.name": "lines", "errors.tolerance": "all"}, "go round for ever"),
        ({"file": "/nowhere/out.txt"}, "there is no directory /nowhere"),
        ({"topic": "lines"}, "no setting 'topic'; did you mean 'topics'"),
        ({"consumer.override.group.id": "mine"}, "the connector's own"),
    ],
)
def test_what_is_wrong_with_a_sink_is_named(change: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Connectors({**SINK, **change})


@pytest.mark.parametrize("missing", ["name", "connector.class", "topic"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"needs {missing}"):
        Connectors({key: value for key, value in FILE.items() if key != missing})


def test_the_line_is_named_behind_comments_and_joined_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "# of ours\n\nname=a,\\\n  b\nfile = x\nbatch.size=-3\n")
    with pytest.raises(ConfigError, match=r"a\.properties, line 6: batch.size=-3: at least 1"):
        read(Properties.of(path), KEYS, "it", [])


def test_values_are_read_by_their_kinds() -> None:
    given: dict[str, Any] = {"file": "x", "batch.size": 7, "on": "TRUE", "of": "ALL"}
    assert read(Properties.of(given), KEYS, "it", []) == {"file": "x", "batch.size": 7, "on": True, "of": "all"}
    assert read(Properties.of({}), KEYS, "it", []) == {"file": None, "batch.size": 5, "on": False, "of": None}


def test_a_stranger_is_noted_and_a_key_that_stands_twice(tmp_path: Path) -> None:
    notes: list[str] = []
    path = written(tmp_path, "quite.another.thing=1\nfile=a\nfile=b\n")
    assert read(Properties.of(path), KEYS, "it", notes)["file"] == "b"
    assert [note.partition("properties, ")[2] for note in notes] == [
        "line 3: file is in the file twice; the last one counts",
        "line 1: it has no setting 'quite.another.thing'; it is ignored",
    ]


def test_secrets_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "s3cret")
    path = written(tmp_path, "file=${env:SHOP_PASSWORD}!\n")
    assert Properties.of(path).get("file") == "s3cret!"
    with pytest.raises(ConfigError, match="line 1: the environment has no variable 'SHOP_PASWORD'"):
        Properties.of(written(tmp_path, "file=${env:SHOP_PASWORD}\n"))


@pytest.mark.parametrize("text", [None, b"\xff\xfe", b"a=\\u12"])
def test_a_file_that_cannot_be_read(tmp_path: Path, text: bytes | None) -> None:
    path = tmp_path / "a.properties"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"a\.properties"):
        Properties.of(path)


def test_names_and_files_are_given_once(tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(f"{key}={value}" for key, value in FILE.items()))
    other = tmp_path / "b.properties"
    other.write_text(path.read_text())
    with pytest.raises(ConfigError, match="is given twice"):
        Connectors(path, str(path))
    with pytest.raises(ConfigError, match=r"a\.properties and .*b\.properties both name their connector 'lines'"):
        Connectors(path, other)
    with pytest.raises(ConfigError, match="no connector"):
        Connectors()


def test_what_is_passed_over_is_noted() -> None:
    worker = {"plugin.path": "/usr", "offset.storage.file.filename": "/tmp/x", "rest.port": "8083"}
    sink = {**SINK, "tasks.max": "3", "errors.deadletterqueue.topic.name": "dead"}
    connectors = Connectors(sink, worker=worker)
    assert [note for note in connectors.notes if "nothing goes to 'dead' unless errors.tolerance=all" in note]
    for key in (*worker, "tasks.max"):
        assert [note for note in connectors.notes if key in note], key
