"""The long run of the fuzzer: see ``fuzz.py``."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

RUNS = 500_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed (pip install atheris)")
def test_every_decoder_under_the_fuzzer() -> None:
    script = Path(__file__).with_name("fuzz.py")
    done = subprocess.run([sys.executable, str(script), str(RUNS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {RUNS} runs" in done.stderr
