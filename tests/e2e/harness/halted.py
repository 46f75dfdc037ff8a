"""One thread of a process that does not run for a while, as if something else had its CPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
# A thread of another process is waited for only if one says so (__WALL).
WAIT_ALL = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _ptrace(request: int, thread: int) -> None:
    if libc.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace({request:#x}) of thread {thread}")


def thread_of(pid: int, prefix: str) -> int:
    """The oldest thread whose name begins so."""
    threads = sorted(int(entry) for entry in os.listdir(f"/proc/{pid}/task"))
    return next(thread for thread in threads if open(f"/proc/{pid}/task/{thread}/comm").read().startswith(prefix))


@contextmanager
def halted(thread: int) -> Iterator[None]:
    """The thread stands still inside. To be entered and left by the same thread of ours."""
    _ptrace(SEIZE, thread)
    try:
        _ptrace(INTERRUPT, thread)
        os.waitpid(thread, WAIT_ALL)
        yield
    finally:
        _ptrace(DETACH, thread)
