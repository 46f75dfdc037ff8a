"""Stops one thread of a process for a while, as if another program had its CPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
# waitpid reports threads of another process only with this flag (__WALL).
WAIT_ALL = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _ptrace(request: int, thread: int) -> None:
    if libc.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace({request:#x}) of thread {thread}")


def thread_of(pid: int, prefix: str) -> int:
    """Returns the oldest thread of the process whose name begins with `prefix`."""
    threads = sorted(int(entry) for entry in os.listdir(f"/proc/{pid}/task"))
    return next(thread for thread in threads if open(f"/proc/{pid}/task/{thread}/comm").read().startswith(prefix))


@contextmanager
def halted(thread: int) -> Iterator[None]:
    """Keeps a thread stopped within the `with` block. The same thread of this process must enter and leave the block."""
    _ptrace(SEIZE, thread)
    try:
        _ptrace(INTERRUPT, thread)
        os.waitpid(thread, WAIT_ALL)
        yield
    finally:
        _ptrace(DETACH, thread)
