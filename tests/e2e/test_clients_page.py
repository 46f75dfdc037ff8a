"""Tests docs/operating/clients.md: its Python, Node, Ruby and PHP snippets run unchanged against a weir with a small quota."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from harness.listener import Listener
from harness.processes import ROOT
from test_clients_node import MODULES

pytestmark = pytest.mark.weir_only

PAGE = (ROOT / "docs" / "operating" / "clients.md").read_text()
PORT = "7379"
# The bytes that mark a request whose connection the cutter may close.
MARK = b"cut-off"
# Longer than the time until the next request.
WAIT_MS_MIN = 150


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


class Cutter(Listener):
    """A relay to weir that closes the client's connection at each of the first `cuts` requests with MARK, and counts these
    requests.
    """

    def __init__(self, port: int, cuts: int) -> None:
        self.weir_port, self.cuts, self.seen = port, cuts, 0
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        weir = socket.create_connection(("127.0.0.1", self.weir_port))
        threading.Thread(target=self._pass, args=(weir, client), daemon=True).start()
        self._to_weir(client, weir)

    def _to_weir(self, client: socket.socket, weir: socket.socket) -> None:
        while chunk := self._receive(client):
            if MARK in chunk:
                self.seen += 1
                if self.seen <= self.cuts:
                    break
            weir.sendall(chunk)
        self._close(client, weir)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        while chunk := self._receive(source):
            try:
                target.sendall(chunk)
            except OSError:
                break
        self._close(source, target)

    @staticmethod
    def _receive(source: socket.socket) -> bytes:
        try:
            return source.recv(65_536)
        except OSError:
            return b""

    @staticmethod
    def _close(*sockets: socket.socket) -> None:
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed by the other direction


def start(servers, folder, ru_per_second: int):
    """Starts a weir with the snippets' tenant. It has one shard, because another one may have quota left, and no hot keys,
    because cached replies cost less.
    """
    quotas = folder / "quotas.toml"
    quotas.write_text(f'[tenants.acme]\npassword = "sesame"\nru_per_second = {ru_per_second}\n')
    return servers.weir(flags=["--shards", "1", "--quotas", str(quotas), "--disable", "hot"])


@pytest.fixture
def weir(servers, tmp_path):
    """A weir with enough quota for a whole test."""
    return start(servers, tmp_path, 10_000)


@pytest.fixture
def tight_weir(servers, tmp_path):
    """A weir with a quota that a few requests use up."""
    return start(servers, tmp_path, 4)


def use_up_quota(weir) -> None:
    """Sends requests as acme until one is refused with a wait so long that the next request is refused too."""
    with redis.Redis(port=weir.port, username="acme", password="sesame") as plain:
        for _ in range(10_000):
            try:
                plain.get("greeting")
            except redis.ResponseError as error:
                refusal = str(error)
                assert refusal.startswith("THROTTLED scope=tenant name=acme "), refusal
                if int(re.search(r"retry_after_ms=(\d+)", refusal)[1]) >= WAIT_MS_MIN:
                    return
    raise AssertionError("the quota is never used up")


def python_snippet(port: int) -> types.SimpleNamespace:
    """Returns the names that the snippet defines, and a record of how long it slept."""
    [text] = snippets("python")
    assert PORT in text
    names: dict = {"__name__": "snippet", "print": lambda *_: None}
    exec(compile(text.replace(PORT, str(port)), "clients.md", "exec"), names)
    slept: list[float] = []
    real = names["time"]
    names["time"] = types.SimpleNamespace(sleep=lambda seconds: (slept.append(seconds), real.sleep(seconds)))
    return types.SimpleNamespace(client=names["client"], slept=slept)


def test_python_repeats_a_throttled_request_and_no_other(tight_weir):
    snippet = python_snippet(tight_weir.port)
    use_up_quota(tight_weir)
    assert snippet.client.get("greeting") == "hello"
    assert snippet.slept and all(0 < seconds < 2 for seconds in snippet.slept), snippet.slept
    snippet.slept.clear()
    with pytest.raises(redis.exceptions.NoPermissionError):
        snippet.client.flushall()
    with pytest.raises(redis.ResponseError, match="not supported by weir"):
        snippet.client.execute_command("REPLICAOF", "NO", "ONE")
    assert snippet.slept == [], "an error that stays is raised at once"


def test_python_repeats_reads_and_not_writes_on_a_lost_connection(weir):
    with Cutter(weir.port, cuts=1) as way:
        snippet = python_snippet(way.port)
        with pytest.raises(redis.ConnectionError):
            snippet.client.set("cut-off", "lost")
        assert way.seen == 1 and snippet.slept == [], "a write is not sent again"
    with Cutter(weir.port, cuts=1) as way:
        snippet = python_snippet(way.port)
        assert snippet.client.get("cut-off") is None
        assert way.seen == 2 and len(snippet.slept) == 1, "a read is"


@dataclass(frozen=True)
class Script:
    """Code that a test adds to a snippet of one language: it uses the snippet's own functions, and prints one line of JSON."""

    command: list[str]
    # A pattern for the line in which the snippet closes its connection, or ends; the test's steps take its place.
    closes: str
    # Code that defines `outcome`: it returns the value or error of a piece of work, and its time in milliseconds.
    prelude: str
    # Uses the quota up with the client directly, and then asks with the snippet's functions. A tenant without `admin` may not
    # call FLUSHALL.
    throttled: str
    lost: str
    read: str
    # Words in the steps that differ by client.
    words: dict[str, str] = field(default_factory=dict)

    def run(self, snippet: str, port: int, steps: str, folder: Path) -> dict:
        assert PORT in snippet
        ends = re.search(self.closes, snippet, re.MULTILINE)
        assert ends, "the snippet closes its connection, or ends"
        for word, text in self.words.items():
            steps = steps.replace(word, text)
        # Node requires this extension; the others do not care.
        script = folder / "script.mjs"
        script.write_text(snippet[: ends.start()].replace(PORT, str(port)) + self.prelude + steps)
        done = subprocess.run([*self.command, script], capture_output=True, text=True, timeout=60, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        hello, told = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
        assert hello == "hello", done.stdout
        return json.loads(told)


def node(flushall: str) -> Script:
    """Returns the script for Node, which ends by itself only when its client is closed."""
    return Script(
        command=[os.environ.get("NODE", "node")],
        closes=r"^await client\.(quit|close)\(\);\n",
        prelude="""
const outcome = async (work) => {
  const begun = performance.now();
  try {
    return { value: await work(), ms: performance.now() - begun };
  } catch (error) {
    return { error: error.message, ms: performance.now() - begun };
  }
};
""",
        throttled="""
let refused;
const isLong = (error) => Number(/retry_after_ms=(\\d+)/.exec(error)?.[1]) >= 150;
for (let i = 0; i < 10_000 && !isLong(refused); i += 1) refused = (await outcome(() => client.get("greeting"))).error;
const repeated = await outcome(() => read(() => client.get("greeting")));
const forbidden = await outcome(() => write(() => FLUSHALL));
console.log(JSON.stringify({ refused, repeated, forbidden }));
process.exit(0);
""",
        lost="""
const written = await outcome(() => write(() => client.set("cut-off", "lost")));
console.log(JSON.stringify({ written }));
process.exit(0);
""",
        read="""
const found = await outcome(() => read(() => client.get("cut-off")));
console.log(JSON.stringify({ found }));
process.exit(0);
""",
        words={"FLUSHALL": flushall},
    )


RUBY = Script(
    command=["ruby"],
    closes=r"^client\.close\n",
    prelude="""
require "json"
def outcome
  begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  told = begin
    { value: yield }
  rescue Redis::BaseError => error
    { error: error.message }
  end
  told.merge(ms: 1000 * (Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun))
end
""",
    throttled="""
refused = nil
10_000.times do
  refused = outcome { client.get("greeting") }[:error]
  break if refused.to_s[/retry_after_ms=(\\d+)/, 1].to_i >= 150
end
repeated = outcome { WeirRetry.read { client.get("greeting") } }
forbidden = outcome { WeirRetry.write { client.flushall } }
puts({ refused: refused, repeated: repeated, forbidden: forbidden }.to_json)
""",
    lost="""
puts({ written: outcome { WeirRetry.write { client.set("cut-off", "lost") } } }.to_json)
""",
    read="""
puts({ found: outcome { WeirRetry.read { client.get("cut-off") } } }.to_json)
""",
)
PHP = Script(
    command=["php"],
    closes=r"\Z",
    prelude="""
function outcome(callable $work): array
{
    $begun = microtime(true);
    try {
        $told = ['value' => $work()];
    } catch (RedisException $error) {
        $told = ['error' => $error->getMessage()];
    }
    return [...$told, 'ms' => 1000 * (microtime(true) - $begun)];
}
""",
    throttled="""
$client = WeirClient::connect();
for ($i = 0, $refused = ''; $i < 10_000; $i++) {
    $refused = outcome(fn () => $client->get('greeting'))['error'] ?? '';
    if (preg_match('/retry_after_ms=(\\d+)/', $refused, $found) && $found[1] >= 150) {
        break;
    }
}
$repeated = outcome(fn () => $weir->read(fn ($redis) => $redis->get('greeting')));
$forbidden = outcome(fn () => $weir->write(fn ($redis) => $redis->flushAll()));
echo json_encode(['refused' => $refused, 'repeated' => $repeated, 'forbidden' => $forbidden]), "\\n";
""",
    lost="""
echo json_encode(['written' => outcome(fn () => $weir->write(fn ($redis) => $redis->set('cut-off', 'lost')))]), "\\n";
""",
    read="""
echo json_encode(['found' => outcome(fn () => $weir->read(fn ($redis) => $redis->get('cut-off')))]), "\\n";
""",
)
SCRIPTS = {
    "ioredis": node('client.call("FLUSHALL")'),
    "node-redis": node('client.sendCommand(["FLUSHALL"])'),
    "redis-rb": RUBY,
    "phpredis": PHP,
}


@pytest.fixture(params=SCRIPTS)
def script(request, tmp_path) -> types.SimpleNamespace:
    """Runs steps behind the snippet of one client."""
    name = request.param
    if name in ("redis-rb", "phpredis"):
        [snippet] = snippets({"redis-rb": "ruby", "phpredis": "php"}[name])
    else:
        assert (MODULES / "node_modules").is_dir(), f"tests/run installs the Node clients under {MODULES}"
        parts = {text.split("\n")[0].removeprefix("// "): text for text in snippets("js")}
        snippet = parts[f"{name}.mjs"]
        (tmp_path / "weir-retry.mjs").write_text(parts["weir-retry.mjs"])
        (tmp_path / "node_modules").symlink_to(MODULES / "node_modules")
    chosen = SCRIPTS[name]

    def run(port: int, steps: str) -> dict:
        return chosen.run(snippet, port, getattr(chosen, steps), tmp_path)

    return types.SimpleNamespace(run=run)


def test_scripts_repeat_a_throttled_request_and_no_other(script, tight_weir):
    told = script.run(tight_weir.port, "throttled")
    assert told["refused"].startswith("THROTTLED scope=tenant name=acme "), told
    after_ms = int(re.search(r"retry_after_ms=(\d+)", told["refused"])[1])
    assert told["repeated"]["value"] == "hello" and told["repeated"]["ms"] >= after_ms / 2, told
    assert told["forbidden"]["error"].startswith("NOPERM "), told


def test_scripts_repeat_reads_and_not_writes_on_a_lost_connection(script, weir):
    with Cutter(weir.port, cuts=1) as way:
        told = script.run(way.port, "lost")
        assert "error" in told["written"] and way.seen == 1, "a write is not sent again"
    with Cutter(weir.port, cuts=1) as way:
        told = script.run(way.port, "read")
        assert told["found"]["value"] in (None, False) and way.seen == 2, "a read is"
