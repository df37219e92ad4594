"""Writes group_answers.txt: what Apache Kafka 4.3 answers to the questions of tests/server/group_answers.py.

.venv/bin/python tests/vectors/make_group_answers.py
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from eventbus.server import Listener  # noqa: E402 - the path is set above
from eventbus.testing import RealKafka  # noqa: E402
from tests.server.group_answers import play_on  # noqa: E402


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, RealKafka(Path(folder)) as kafka:
        host, port = kafka.bootstrap.split(":")
        lines = asyncio.run(play_on(SimpleNamespace(listeners=(Listener(host=host, port=int(port)),))))
    (HERE / "group_answers.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
