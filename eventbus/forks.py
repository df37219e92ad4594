"""Mark open objects of a process as dead in its forked children.

A fork copies memory and descriptors, but of all threads only the one that forks. In the child, a running bus therefore
has no event loop, a lock may be held by a thread that does not exist, and sockets and files are shared with the parent.
Each object with such state is registered here and is changed once, in the child, before any user code runs there. So a
later use finds it dead, and nothing is checked per call.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol
from weakref import WeakValueDictionary

from eventbus.errors import ConfigError


class Copied(Protocol):
    """An object that a fork copies and that cannot be used in the child."""

    def after_fork_in_child(self) -> None:
        """Mark it as dead. Must not wait for a lock or a thread, nor rely on the order of these calls."""
        ...


_copied: WeakValueDictionary[int, Copied] = WeakValueDictionary()
"""Keyed by identity, because tables have no hash."""


def watch_forks(thing: Copied) -> None:
    """Have ``thing.after_fork_in_child`` called in each child that this process forks, as long as the object lives."""
    _copied[id(thing)] = thing


class ForkLock:
    """A holder of ``lock``, which is replaced in a forked child: the thread that held it may not exist there."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        self.lock = threading.Lock()


def forked(what: str, owner: str, process: int) -> ConfigError:
    """Return the error for a use in a child. ``process``: the id of the process that has ``owner`` open."""
    return ConfigError(
        f"{what} was used in a forked child. {owner} was started before the fork and runs only in process {process}. "
        "Start it after the fork, in the child (gunicorn: post_fork, Celery: worker_process_init, multiprocessing: in "
        "the target function), or make a new one there."
    )


def never_free(thing: Any) -> None:
    """Keep ``thing`` until the process ends, also while the interpreter shuts down.

    Used for objects that wait, when they are freed, for threads that exist only in the parent; librdkafka aborts the
    process or hangs.
    """
    import ctypes  # only for a forked child

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_held: list[Copied] = []
"""The registered objects, during a fork. In the child, Python drops the state of all other threads before it calls
us, and with it perhaps the last reference to one of these objects."""


def _before_fork() -> None:
    _held[:] = _copied.values()


def _after_fork_in_child() -> None:
    for thing in _held:
        thing.after_fork_in_child()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_held.clear, after_in_child=_after_fork_in_child)
