"""Tests of `weir top`: a weir's state in a terminal, and as text for scripts."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import termios

import pytest

from harness.processes import Storage, Weir, binary
from harness.resp import Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

HOSTILE = b"\x1b[2J\r\n\x07key"


@pytest.fixture
def weir(servers) -> Weir:
    stores = [servers.keep(Storage()).start() for _ in range(2)]
    return servers.weir(*stores, flags=["--shards", "2", "--hot-rate", "10", "--hot-share", "0%"])


def environment(**more: str) -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_") and key != "NO_COLOR"}
    return {**ours, **more}


def top(weir: Weir | str, *flags: str) -> subprocess.CompletedProcess:
    address = weir if isinstance(weir, str) else f"127.0.0.1:{weir.admin_port}"
    words = [str(binary("weir")), "top", "--admin", address, *flags]
    return subprocess.run(words, capture_output=True, env=environment(), timeout=60, stdin=subprocess.DEVNULL)


def ask_for(connection: Connection, key: bytes, times: int = 200) -> None:
    connection.pipeline([("GET", key)] * times)


class Screen:
    """A `weir top` in a terminal of this size."""

    def __init__(self, weir: Weir, *flags: str, columns: int = 100, rows: int = 40, **more: str) -> None:
        self.own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        words = [str(binary("weir")), "top", "--admin", f"127.0.0.1:{weir.admin_port}", *flags]
        self.process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**more))
        self.seen = b""

    def read(self) -> bytes:
        while select.select([self.own], [], [], 0)[0]:
            self.seen += os.read(self.own, 65_536)
        return self.seen

    def waits_for(self, words: bytes) -> None:
        """Waits until the screen shows these words, later than anything seen before."""
        start = len(self.seen)
        until(lambda: words in self.read()[start:], f"{words} is shown")

    def press(self, key: bytes) -> None:
        os.write(self.own, key)

    def ended(self) -> int:
        def code():
            self.read()
            return self.process.poll() is not None

        until(code, "it ends")
        self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.own)
        os.close(self.theirs)


def test_once_is_plain_text_with_stable_columns(weir: Weir):
    with weir.connect() as connection:
        ask_for(connection, HOSTILE)
        done = top(weir, "--once")
    assert done.returncode == 0 and done.stderr == b""
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith(f"weir at 127.0.0.1:{weir.admin_port}  version ") and lines[1] == "● All is well"
    columns = [line for line in lines if line.startswith("STORE ")]
    assert columns[0].split()[:5] == ["STORE", "STATE", "IN-FLIGHT", "WINDOW", "QUEUE"]
    for store in weir.backends:
        row = next(line for line in lines if line.startswith(store.address))
        assert row.split()[1:3] == ["●", "ok"]
    assert "\\x1b[2J\\x0d\\x0a\\x07key" in done.stdout.decode()
    assert not any(byte < 32 and byte != 10 or byte == 127 for byte in done.stdout), "nothing raw"


def test_json_is_the_document(weir: Weir):
    told = json.loads(top(weir, "--json").stdout)
    assert told["period_ms"] >= 900 and told["requests"]["per_second"]["decoded"] == 0
    assert {store["name"] for store in told["stores"]} == {store.address for store in weir.backends}


def test_what_goes_wrong_is_said(weir: Weir, servers):
    weir.kill()
    gone = top(weir, "--once")
    assert gone.returncode == 1 and gone.stdout == b"" and b"no answer from the admin port 127.0.0.1:" in gone.stderr
    store = servers.keep(Storage()).start()
    other = top(store.address, "--once")
    assert other.returncode == 1 and b"the reply is not one of weir's admin port" in other.stderr
    assert b"--once" in top(weir).stderr, "no terminal"
    wrong = top(weir, "--sort", "size")
    assert wrong.returncode == 2 and b"[possible values: store, tenant, key]" in wrong.stderr


def test_a_terminal_is_taken_and_given_back(weir: Weir):
    screen = Screen(weir)
    try:
        screen.waits_for(b"All is well")
        screen.waits_for(b"requests/s")
        assert b"\x1b[?1049h" in screen.seen
        with weir.connect() as connection:
            ask_for(connection, HOSTILE)
            screen.press(b"k")
            until(lambda: ask_for(connection, HOSTILE) or b"\\x1b[2J" in screen.read(), "the key is shown, written out")
        weir.backends[0].kill()
        with weir.connect() as connection:
            until(
                lambda: connection.pipeline([("GET", f"k{n}") for n in range(20)]) and b"Trouble" in screen.read(), "trouble is seen"
            )
        assert b"\x1b[1;31m" in screen.seen
        assert b"\x1b[2J" not in screen.seen and b"\x07" not in screen.seen
        screen.press(b"q")
        assert screen.ended() == 0
        assert screen.seen.endswith(b"\x1b[?25h\x1b[?1049l")
        assert termios.tcgetattr(screen.theirs) == screen.before
    finally:
        screen.close()


@pytest.mark.parametrize("end", [b"\x03", None], ids=["Ctrl-C", "SIGTERM"])
def test_however_it_ends_the_terminal_is_as_it_was(weir: Weir, end: bytes | None):
    screen = Screen(weir, columns=30, rows=8, NO_COLOR="1")
    try:
        screen.waits_for(b"q quits")
        if end:
            screen.press(end)
        else:
            screen.process.terminate()
        assert screen.ended() == 0
        assert screen.seen.endswith(b"\x1b[?1049l") and termios.tcgetattr(screen.theirs) == screen.before
        assert b"\x1b[3" not in screen.seen and b"\x1b[1" not in screen.seen, "no colours"
    finally:
        screen.close()


def test_a_weir_that_is_gone_is_said_while_it_is_looked_at(weir: Weir):
    screen = Screen(weir)
    try:
        screen.waits_for(b"All is well")
        weir.kill()
        screen.waits_for(b"no answer from the admin port")
        weir.admin_port_kept = weir.admin_port
        weir.start()
        screen.waits_for(b"All is well")
    finally:
        screen.close()
