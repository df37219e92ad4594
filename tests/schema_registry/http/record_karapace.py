"""Ask a Karapace the requests of the stories and write down its status codes: the second opinion of `test_stories`.

    python tests/schema_registry/http/record_karapace.py 127.0.0.1:9092 python -m karapace

Karapace is in no package index: have its repository and what it needs in an environment of its own, and any Kafka (or
``eventbus serve --auto-create``). Every story gets a registry and a topic of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from tests.schema_registry.http.transcript import FOLDER, Story, stories  # noqa: E402 - the path is set above

PORT = 18_082
OPINION = FOLDER / "karapace.json"


def ask(method: str, target: str, body: bytes, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
    given = {"Content-Type": "application/vnd.schemaregistry.v1+json", "Accept": "*/*"} | headers
    try:
        connection.request(method, target, body or None, given)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def tell(story: Story, topic: str, kafka: str, command: list[str]) -> list[int]:
    settings = {
        "BOOTSTRAP_URI": kafka, "PORT": str(PORT), "HOST": "127.0.0.1", "KARAPACE_REGISTRY": "true",
        "KARAPACE_REST": "false", "REPLICATION_FACTOR": "1", "ADVERTISED_HOSTNAME": "127.0.0.1",
        "TOPIC_NAME": topic, "GROUP_ID": topic, "LOG_LEVEL": "ERROR",
    }  # fmt: skip
    environment = os.environ | {f"KARAPACE_{name}": value for name, value in settings.items()}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while ask("PUT", "/config", b'{"compatibility": "BACKWARD"}', {}) != 200:  # it leads its group: it writes
            if time.monotonic() > end:
                raise RuntimeError(f"it did not start: {' '.join(command)}")
            time.sleep(0.2)  # by hand only: another program starts, and tells nobody when it has
        return [
            ask(request.method, request.target, request.body, request.headers)
            for _, requests in story.requests()
            for request in requests
        ]
    finally:
        process.terminate()
        process.wait()


def main(kafka: str, *command: str) -> None:
    opinion: dict[str, list[int]] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for number, story in enumerate(stories(path)):
            opinion[f"{path.stem}: {story.name}"] = tell(
                story, f"{path.stem}-{number}-{int(time.time())}", kafka, list(command)
            )
            print(path.stem, story.name, opinion[f"{path.stem}: {story.name}"], flush=True)
    lines = [f"{json.dumps(name)}: {json.dumps(statuses)}" for name, statuses in opinion.items()]
    OPINION.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
