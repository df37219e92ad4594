"""The commands of `tests.warm.commands.folder`: they run with ``python -IS``, and import only what costs nothing."""

import _signal
import _socket
import marshal
import os
import sys

OWN_INTERPRETER = ("-m", "pytest")
FORWARDED = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2)


def is_warm(arguments: list[str]) -> bool:
    """Whether the server can run the program; an option that it does not know needs an interpreter of its own."""
    while arguments[:1] == ["-W"]:
        arguments = arguments[2:]
    known = bool(arguments) and (not arguments[0].startswith("-") or arguments[0] in ("-c", "-m"))
    return known and tuple(arguments[:2]) != OWN_INTERPRETER


def exactly(connection: _socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += (part := connection.recv(size - len(data)))
        if not part:
            sys.exit("the server of tests/warm has ended")
    return data


def main() -> None:
    path, *arguments = sys.argv
    folder, _, name = path.rpartition("/")
    if name == "python" and not is_warm(arguments):
        os.execv(sys.executable, [sys.executable, *arguments])
    # The fork may have printed, and the test may have answered with a signal, before this process can forward it. The
    # signal waits until there is a handler; Python's own would end this process with -2, whatever the fork returns.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, FORWARDED)
    request = marshal.dumps((name, arguments, os.getcwd(), dict(os.environ)))  # noqa: PTH109 - pathlib takes long to import
    connection = _socket.socket(_socket.AF_UNIX)
    connection.connect(f"{folder}/socket")
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    connection.sendmsg([len(request).to_bytes(4)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    while request:
        request = request[connection.send(request) :]
    fork = int.from_bytes(exactly(connection, 4))

    def forward(number: int, _: object) -> None:
        (os.killpg if number == _signal.SIGINT else os.kill)(fork, number)

    for number in FORWARDED:
        _signal.signal(number, forward)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, FORWARDED)
    for number in (0, 1):
        os.close(number)  # the other end of a pipe sees when the fork has closed it
    status = os.waitstatus_to_exitcode(int.from_bytes(exactly(connection, 4)))
    if status < 0:
        _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
