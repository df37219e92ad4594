"""What README.md and the pages of docs/ show is run: a page that lies fails here.

Each page is one test with a folder of its own, its blocks run from top to bottom:

- ``python``: a script, top-level ``await`` allowed. If its first line is ``# name.py`` it is saved under that name,
  and run at once unless a later block of the page runs it.
- ``bash`` / ``sh``: the lines are commands. ``console``: lines after ``$ `` are commands, the others what they print.
  Commands that start with ``eventbus``, ``python`` or a small Unix tool are run and must succeed; ``make``, ``pip`` and
  the like are not run; a command of neither kind fails the test. A shown ``^C`` means: wait for the lines before it,
  then interrupt. A command that ends with ``&`` goes on beside the rest of its page, once the shown lines came; it is
  interrupted at the page's end. Ports 9092, 9093 and 8081 stand for free ones.
- Shown output is compared loosely: digits may be others, blanks may differ, ``...`` stands for anything, lines may be
  left out.
- ``js`` and ``properties``: saved under the name in the first line (``// name.cjs``, ``# name.properties``), for the
  command that uses it.
- ``<!-- not run: REASON -->`` on the line before a block leaves it out; ``<!-- continues -->`` puts the previous
  Python block in front of it, and both run once; ``<!-- needs: LIBRARY -->`` leaves it out where that is no base
  dependency, and ``<!-- needs program: NAME -->`` where other people's program is not on the machine (CI has them all).

Programs are forks of a process that has imported eventbus (`tests.warm.commands`).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients import programs
from tests.warm import commands as warm

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parent.parent
LONG_PAGES = {"outgrow.md": "half a minute of mirrors, servers and services, whose promises are in tests/mirror"}
"""In the long tier, and why."""
RUN = {"eventbus", "python", "echo", "printf", "cat", "head", "tail", "ls", "seq", "rm", "mkdir", "wc", "sort", "grep"}
RUN |= {"kcat", "node", "kafka-topics.sh", "kafka-console-consumer.sh", "kafka-consumer-groups.sh"}
NOT_RUN = {"make", "pip", "git", "cd", "apt", "apt-get", "brew", "docker", "uv", "source", "sudo"}
TIMEOUT_S = 60
STANDARD_PORTS = ("9092", "9093", "8081")
NOTHING_KEPT = "PYTHONDONTWRITEBYTECODE"
"""With it, a page's own pytest would rewrite the assertions of all of our modules each time: it takes two seconds."""
SHORT_START = "-p no:schemathesis -p no:hypothesispytest -p no:faker"
"""A page's own pytest leaves out those of our plugins that no page is about: they take it three seconds to import."""

FENCE = re.compile(r"(?:^<!-- *(?P<mark>[^\n]*?) *-->\n)?^```(?P<kind>\w+)[^\n]*\n(?P<body>.*?)^```$", re.M | re.S)
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if FENCE.search(page.read_text("utf-8"))
]
"""Those with blocks."""
RUNNER = """
import ast, asyncio, inspect, sys
path = sys.argv[1]
code = compile(open(path, encoding="utf-8").read(), path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
namespace = {"__name__": "__main__", "__file__": path}
sys.modules["__main__"].__dict__.update(namespace)
result = eval(code, sys.modules["__main__"].__dict__)
if inspect.iscoroutine(result):
    asyncio.run(result)
"""


class Block(NamedTuple):
    line: int
    kind: str
    mark: str
    body: str


class Command(NamedTuple):
    text: str
    shown: list[str]


def blocks_of(text: str) -> list[Block]:
    found = FENCE.finditer(text)
    return [Block(text.count("\n", 0, m.start("kind")) + 1, m["kind"], m["mark"] or "", m["body"]) for m in found]


def commands_of(block: Block) -> Iterator[Command]:
    lines = block.body.replace("\\\n", " ").splitlines()
    if block.kind != "console":
        yield from (Command(line, []) for line in lines if line.strip() and not line.lstrip().startswith("#"))
        return
    shown: list[str] = []
    for line in lines:
        if line.startswith("$ "):
            shown = []
            yield Command(line[2:].partition("  #")[0], shown)
        else:
            shown.append(line)


def is_run(command: str) -> bool:
    """Whether the command is run; raises for one that is neither run nor known to be left out."""
    words = [part.split()[0] for part in re.split(r"\|\|?|&&|;", command) if part.strip()]
    if any(word in NOT_RUN for word in words):
        return False
    unknown = [word for word in words if word not in RUN]
    assert not unknown, f"{command!r}: {unknown} is neither in RUN nor in NOT_RUN of {Path(__file__).name}"
    return True


def loose(line: str) -> str:
    return " ".join(re.sub(r"\d+", "0", line).split())


def missing(shown: list[str], printed: str) -> list[str]:
    """The shown lines that the printed text does not hold."""
    actual = [loose(line) for line in printed.splitlines()]
    wanted = [line for line in shown if line.strip() not in ("", "...", "^C")]
    return [
        line
        for line in wanted
        if not any(re.search(".*".join(map(re.escape, loose(line).split("..."))), text) for text in actual)
    ]


class Page:
    """One page's folder, with its blocks run in it."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.blocks = blocks_of(path.read_text("utf-8"))
        self.folder = folder
        self.previous = ""
        self.ports = {port: str(free_port()) for port in STANDARD_PORTS}
        self.beside: list[tuple[subprocess.Popen[str], str]] = []
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("EVENTBUS_", NOTHING_KEPT))}
        others = programs.environment()
        commands = [str(warm.folder()), str(Path(sys.executable).parent)]
        search = os.pathsep.join([*commands, keep.get("PATH", ""), others.pop("PATH")])
        self.environment = {
            **keep,
            **others,
            "PATH": search,
            "NO_COLOR": "1",
            "COLUMNS": "120",
            "PYTHONUNBUFFERED": "1",
            "PYTEST_ADDOPTS": SHORT_START,
        }

    def run(self) -> None:
        try:
            self.run_blocks()
        finally:
            for process, _ in self.beside:
                os.killpg(process.pid, signal.SIGINT)
            for process, where in self.beside:
                rest = self.rest_of(process)
                assert process.returncode in (0, 130, -signal.SIGINT), f"{where}: {process.returncode}\n{rest}"

    def on_free_ports(self, text: str) -> str:
        return re.sub(rf"\b({'|'.join(self.ports)})\b", lambda found: self.ports[found[0]], text)

    def run_blocks(self) -> None:
        for position, block in enumerate(self.blocks):
            if block.mark.startswith("not run:") or self.lacks_program(block):
                continue
            if block.kind == "python":
                later = self.blocks[position + 1 :]
                continued = bool(later) and later[0].kind == "python" and later[0].mark == "continues"
                self.run_python(block, "".join(each.body for each in later), continued=continued)
            elif block.kind in ("js", "properties"):
                self.save_file(block)
            elif block.kind in ("bash", "sh", "console"):
                for command in list(commands_of(block)):
                    if is_run(command.text):
                        self.run_command(command, f"line {block.line}: $ {command.text}")

    def lacks_program(self, block: Block) -> bool:
        """Whether a program is missing that is no Python package (``<!-- needs program: NAME -->``)."""
        needs = block.mark.startswith("needs program:")
        return needs and programs.missing(block.mark.removeprefix("needs program:").strip()) is not None

    def run_python(self, block: Block, later: str, *, continued: bool) -> None:
        code = self.previous + block.body if block.mark == "continues" else block.body
        self.previous = code
        if continued:  # the next block runs it, with its own lines after it
            return
        code = self.on_free_ports(code)
        named = re.match(r"# ([\w/]+)\.py\n", block.body)
        name = named[1] if named else f"block_line_{block.line}"
        path = self.folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, "utf-8")
        if named and (f"{name}.py" in later or f"{name.replace('/', '.')}:" in later):
            return
        self.check([warm.python(), "-c", RUNNER, path.name], f"line {block.line}: python", [])

    def save_file(self, block: Block) -> None:
        named = re.match(r"(?://|#) ([\w.]+)\n", block.body)
        assert named, f"line {block.line}: a file's first line is its name, as in // name.cjs"
        (self.folder / named[1]).write_text(self.on_free_ports(block.body), "utf-8")

    def run_command(self, command: Command, where: str) -> None:
        text = self.on_free_ports(command.text)
        if text.startswith("eventbus serve") and "--port" not in text and "--listener" not in text:
            text = text.replace("eventbus serve", f"eventbus serve --port {self.ports[STANDARD_PORTS[0]]}", 1)
        command = Command(text.removesuffix("&").rstrip(), command.shown)
        if text.endswith("&"):
            self.leave_beside(command, where)
        elif "^C" in command.shown:
            self.interrupt(command, where)
        else:
            self.check(["bash", "-o", "pipefail", "-c", command.text], where, command.shown)

    def check(self, command: list[str], where: str, shown: list[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}"
        assert missing(shown, done.stdout) == [], f"{where} printed\n{done.stdout}"

    def begin(self, command: Command, shown: list[str], where: str) -> tuple[subprocess.Popen[str], str]:
        """A process in a group of its own, and what it printed until all of ``shown`` was there."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command.text}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        printed = ""
        killer = threading.Timer(TIMEOUT_S, process.kill)  # what is shown never came
        killer.start()
        while missing(shown, printed):
            line = process.stdout.readline()
            if not line:
                process.stdout.close()
                process.wait()
                raise AssertionError(f"{where} ended too early\n{printed}")
            printed += line
        killer.cancel()
        return process, printed

    def rest_of(self, process: subprocess.Popen[str]) -> str:
        """What a process that was interrupted prints until it ends; killed if it does not."""
        try:
            return process.communicate(timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0]

    def leave_beside(self, command: Command, where: str) -> None:
        """Run until everything shown was printed; go on while it runs."""
        process, _ = self.begin(command, command.shown, where)
        self.beside.append((process, where))

    def interrupt(self, command: Command, where: str) -> None:
        """Run until everything shown before ``^C`` was printed, then press Ctrl-C: it must stop by itself."""
        before = command.shown[: command.shown.index("^C")]
        process, printed = self.begin(command, before, where)
        os.killpg(process.pid, signal.SIGINT)
        printed += self.rest_of(process)
        assert process.returncode in (0, 130, -signal.SIGINT), f"{where}: exit code {process.returncode}\n{printed}"
        assert missing(command.shown, printed) == [], f"{where} printed\n{printed}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.timeout(600)  # a page is dozens of processes; each has TIMEOUT_S
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.name in LONG_PAGES else ()) for path in PAGES],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_what_a_page_shows_is_what_happens(path: Path, tmp_path: Path) -> None:
    Page(path, tmp_path).run()


# The checker itself must be able to fail.


def page(tmp_path: Path, text: str) -> Page:
    source = tmp_path / "page.md"
    source.write_text(text, "utf-8")
    return Page(source, tmp_path)


def test_a_python_block_that_raises_fails_its_page(tmp_path: Path) -> None:
    good = "```python\nimport asyncio\nawait asyncio.sleep(0)\n```\n"
    page(tmp_path, good).run()
    with pytest.raises(AssertionError, match="line 6: python: exit code 1"):
        page(tmp_path, good + "\n```python\nraise ValueError\n```\n").run()


def test_shown_output_is_compared_loosely_but_compared(tmp_path: Path) -> None:
    page(tmp_path, "```console\n$ echo 12 flights in 3.4 s\n99  flights ... 7.8 s\n```\n").run()
    with pytest.raises(AssertionError, match="12 flights"):
        page(tmp_path, "```console\n$ echo 12 flights\n12 birds\n```\n").run()


def test_a_failing_or_unknown_command_fails_its_page(tmp_path: Path) -> None:
    page(tmp_path, "```bash\nmake demo\n# a remark\necho fine | cat\n```\n").run()
    with pytest.raises(AssertionError, match="exit code"):
        page(tmp_path, "```bash\ncat nowhere\n```\n").run()
    with pytest.raises(AssertionError, match="neither"):
        page(tmp_path, "```bash\nevent-bus topics list\n```\n").run()


def test_a_named_block_is_saved_for_the_command_that_runs_it(tmp_path: Path) -> None:
    script = "```python\n# app.py\nimport sys\nprint('hello', len(sys.argv))\n```\n"
    page(tmp_path, script + "```console\n$ python app.py x\nhello 2\n```\n").run()


def test_an_interrupted_command_must_stop(tmp_path: Path) -> None:
    # The print is inside: the interrupt may come before it has returned.
    body = (
        "import time\ntry:\n    print('ready')\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('drained')\n"
    )
    text = f"```python\n# app.py\n{body}```\n```console\n$ python app.py\nready\n^C\ndrained\n```\n"
    page(tmp_path, text).run()
    with pytest.raises(AssertionError):
        page(tmp_path, text.replace("\ndrained\n", "\nnothing lost\n")).run()


def test_a_command_may_go_on_beside_the_rest_of_its_page(tmp_path: Path) -> None:
    body = (
        "import pathlib, time\ntry:\n    print('ready')\n    time.sleep(60)\nexcept KeyboardInterrupt:\n"
        "    pathlib.Path('ended').touch()\n"
    )
    text = f"```python\n# app.py\n{body}```\n```console\n$ python app.py &\nready\n$ ls\napp.py\n```\n"
    page(tmp_path, text).run()
    assert (tmp_path / "ended").exists()
    with pytest.raises(AssertionError, match="ended too early"):
        page(tmp_path, text.replace("\nready\n", "\nsteady\n").replace("sleep(60)", "sleep(0)")).run()


def test_a_block_may_be_left_out_with_a_reason(tmp_path: Path) -> None:
    page(tmp_path, "<!-- not run: needs a cluster -->\n```python\nraise ValueError\n```\n").run()
