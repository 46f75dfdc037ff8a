"""The end of a script of this folder: however it ends, nothing that it has started goes on without it."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
from pathlib import Path

from harness import processes


def take_along(folder: Path) -> None:
    """Has the script that runs, if it is one of the folder, end its servers and all other child processes when it ends: after its
    last line, by a failure, by Ctrl-C, SIGTERM (`timeout`, a CI that cancels) or SIGHUP (a terminal that closes). Those signals are as
    Ctrl-C, so that `finally` runs.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    is_worker = multiprocessing.parent_process() is not None
    if script is None or Path(script).resolve().parent != folder or is_worker:
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        # A script that `nohup` has started goes on.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    atexit.register(end_all, os.getpid())


def end_all(owner: int) -> None:
    """Ends every child process of this one, whose number is `owner` unless it was forked from the script."""
    if os.getpid() != owner:
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for server in reversed(list(processes.alive)):
        server.discard()
    for child in children():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def children() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found
