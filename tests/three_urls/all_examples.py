"""Runs every example that goes where ``--url`` says, one after the other in one process: imports are paid once.

``python tests/three_urls/all_examples.py URL [NAME ...]`` prints a line of JSON for each, or for those that are named:
its name, what it printed, what it took.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import runpy
import sys
import time
import traceback
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "examples"


def follows_url(path: Path) -> bool:
    """Spark's example goes there too, and is tried in the session of Spark's tests."""
    text = path.read_text("utf-8")
    return "log_url(" in text and "from spark_sinks import" not in text


def run(path: Path, url: str) -> dict[str, object]:
    """Run the example as ``python path --url url`` would."""
    printed, error = io.StringIO(), ""
    sys.argv = [str(path), "--url", url]
    began = time.monotonic()
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception:  # whatever it is, it is this example's result, and the others are run all the same
            error = traceback.format_exc()
    logging.disable(logging.NOTSET)  # as some of them do, who make failures on purpose
    return {"name": path.stem, "printed": printed.getvalue(), "error": error, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    log, *names = sys.argv[1:]
    for example in sorted(FOLDER.glob("*.py")):
        if example.stem in names if names else follows_url(example):
            print(json.dumps(run(example, log)), flush=True)
