"""Starts a program with a seccomp profile, as a container runtime does: confined.py PROFILE COMMAND..."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
NO_NEW_PRIVILEGES = 38


def confine(profile: dict) -> None:
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO", "a list of what is allowed"
    seccomp = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(ERRNO | profile["defaultErrnoRet"])))
    assert rules, "no rules"
    for group in profile["syscalls"]:
        assert group["action"] == "SCMP_ACT_ALLOW", group
        for name in group["names"]:
            number = seccomp.seccomp_syscall_resolve_name(name.encode())
            assert number != -1, f"no system call is called {name}"
            # System calls that this architecture lacks have negative numbers.
            if number >= 0:
                assert seccomp.seccomp_rule_add(rules, ctypes.c_uint32(ALLOW), number, 0) == 0, name
    assert ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert seccomp.seccomp_load(rules) == 0, "the kernel takes the profile"


if __name__ == "__main__":
    confine(json.loads(Path(sys.argv[1]).read_text()))
    os.execv(sys.argv[2], sys.argv[2:])
