"""Starts a program as a container runtime does: contained.py '{"root": FOLDER, "command": [...], ...}'

The program gets mount and network namespaces of its own, the folder as its read-only root, no capabilities, no new privileges,
and a seccomp profile. Without root's rights, a user namespace comes first.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
from pathlib import Path

import confined

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
NOBODY = 65534

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def mount(source: str, target: str, flags: int) -> None:
    checked(libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None), f"mount {source} {target}")


def unshare(is_root: bool) -> None:
    user, group = os.getuid(), os.getgid()
    checked(libc.unshare(CLONE_NEWNS | CLONE_NEWNET | (0 if is_root else CLONE_NEWUSER)), "unshare")
    if not is_root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1")


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def enter(root: str) -> None:
    mount("none", "/", MS_REC | MS_PRIVATE)
    mount(root, root, MS_BIND)
    for name in ("proc", "sys", "dev"):
        mount(f"/{name}", f"{root}/{name}", MS_BIND | MS_REC)
    mount("none", root, MS_REMOUNT | MS_BIND | MS_RDONLY)
    os.chroot(root)
    os.chdir("/")


def main() -> None:
    told = json.loads(sys.argv[1])
    profile = json.loads(Path(told["seccomp"]).read_text())
    # The library is loaded before the root changes, while its file can be found.
    ctypes.CDLL("libseccomp.so.2")
    is_root = os.geteuid() == 0
    unshare(is_root)
    loopback_up()
    enter(told["root"])
    if is_root and told["nobody"]:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        # Leaving root's user id drops the capabilities.
        os.setresuid(NOBODY, NOBODY, NOBODY)
    confined.confine(profile)
    os.execve(told["command"][0], told["command"], told["environment"])


if __name__ == "__main__":
    main()
