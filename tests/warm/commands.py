"""Start Python programs as forks of a process that has imported eventbus already.

Most of the CPU of a short program goes into its imports, and the pages and the command line start hundreds of them.
`folder` returns a directory with two commands, ``python`` and ``eventbus``: for the PATH of a shell, or to be started
by their path instead of ``sys.executable``. Each is a process that passes its arguments, directory, environment and
standard files to the server, forwards signals to the fork, and ends as the fork ends.

Three things differ from a process of its own. Output is never buffered. SIGKILL reaches the fork a moment later. The
fork is in a session of its own, where SIGINT goes to all of its processes, as Ctrl-C in a terminal does. Options that
change the interpreter (``python -X dev``) and ``python -m pytest``, which rewrites what it imports, start one of their
own.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from atexit import register
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent


@cache
def folder() -> Path:
    """Return the directory of the commands. The first call of a test process starts the server, which ends with it."""
    directory = Path(tempfile.mkdtemp(prefix="warm-"))
    client = f"#!{sys.executable} -IS\n{(_HERE / 'client.py').read_text('utf-8')}"
    for name in ("python", "eventbus"):
        (directory / name).write_text(client, "utf-8")
        (directory / name).chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "socket"))
        listener.listen(64)  # clients wait here while the server imports
        number = listener.fileno()
        server = subprocess.Popen(
            [sys.executable, "-u", str(_HERE / "server.py"), str(number)],
            stdin=subprocess.PIPE,  # its end tells the server that this process has ended, however it did
            pass_fds=(number,),
            start_new_session=True,  # Ctrl-C in the terminal of the tests is not for it
        )

    @register
    def stop() -> None:
        server.communicate()
        shutil.rmtree(directory, ignore_errors=True)

    return directory


def python() -> str:
    """Return the path of the command to start instead of ``sys.executable``."""
    return str(folder() / "python")
