"""Compares weir with a redis-server, byte for byte, on random pipelines of right and wrong commands.

The words of the shapes' commands are recombined: dropped, doubled, swapped, with mixed keys. Everything is on one backend, so
that every reply must be that of a single redis-server; weir runs more shards than there are CPUs, so that most requests cross
cores.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from harness import shapes
from harness.processes import Redis, Weir
from harness.resp import Reply, encode, shorten

SEEDS = 12
REQUESTS = 1200
BATCH_MAX = 60
LETTERS = "abcde"

# Commands whose replies depend on chance, on the clock, or on a hash seed beyond sorting; and commands that weir answers in its
# own way.
LEFT_OUT = {
    "COMMAND",
    "SPOP",
    "SRANDMEMBER",
    "HRANDFIELD",
    "ZRANDMEMBER",
    "RANDOMKEY",
    "HSCAN",
    "SSCAN",
    "ZSCAN",
    "TIME",
    "XINFO",
    "XPENDING",
    "XCLAIM",
    "XAUTOCLAIM",
    "TTL",
    "PTTL",
    "EXPIRETIME",
    "PEXPIRETIME",
    "MULTI",
    "EXEC",
    "DISCARD",
    "MEMORY",
    "CLIENT",
    "SELECT",
    "NOSUCHCOMMAND",
    "OBJECT",
    "FCALL",
    "FCALL_RO",
    "DUMP",
    "RESTORE",
}
# Ranges by name among members with different scores, for which the embedded store may reply differently from Redis.
UNSPECIFIED = {"BYLEX", "ZRANGEBYLEX", "ZREVRANGEBYLEX", "ZREMRANGEBYLEX", "ZLEXCOUNT"}
# Commands whose arguments Redis checks since 7.2 even if there is no such key.
CHECKED_FIRST = {"BITCOUNT", "BITPOS"}
EXPIRING = {b"EX", b"PX", b"EXPIRE", b"PEXPIRE", b"SETEX", b"PSETEX"}
# Commands whose keys weir must find before it can route them. In a request with several errors, weir may report another one
# first.
KEYS_TO_BE_FOUND = {
    "EVAL",
    "EVAL_RO",
    "EVALSHA",
    "EVALSHA_RO",
    "XREAD",
    "XREADGROUP",
    "LMPOP",
    "ZMPOP",
    "SINTERCARD",
    "ZINTERCARD",
    "ZUNION",
    "ZINTER",
    "ZDIFF",
    "ZUNIONSTORE",
    "ZINTERSTORE",
    "ZDIFFSTORE",
}
UNORDERED = {"SMEMBERS", "SINTER", "SUNION", "SDIFF", "SORT", "SORT_RO"}
WORDS = [
    "0",
    "1",
    "-1",
    "2",
    "100000",
    "9223372036854775807",
    "-9223372036854775808",
    "1.5",
    "inf",
    "nan",
    "",
    "x",
    "NX",
    "XX",
    "GET",
    "COUNT",
    "LIMIT",
    "STORE",
    "WITHSCORES",
    "LEFT",
    "MATCH",
    "*",
    "[a",
    "(1",
    "+",
    "-",
    "$",
    "EX",
    "\x01",
    "\r\n",
]


def templates() -> list[list[str]]:
    """Returns the words of every compared command, with keys as @name."""
    lines = [
        step.text for shape in shapes.load() for step in shape.steps if step.mark == "" and shape.family != "connection"
    ]
    words = [shapes.split(line) for line in lines]
    return [line for line in words if line[0].upper() not in LEFT_OUT]


class Maker:
    """Makes random requests; the same seed gives the same ones."""

    def __init__(self, seed: int, without: set[str] = frozenset()) -> None:
        self.random = random.Random(seed)
        self.tag = f"random-{seed}"
        self.templates = [line for line in templates() if not without & {word.upper() for word in line}]

    def request(self) -> list[bytes]:
        words = list(self.random.choice(self.templates))
        for _ in range(self.random.choice([0, 0, 0, 1, 1, 2, 4])):
            self.spoil(words)
        made = [self.word(word) for word in words]
        return self.request() if depends_on_the_clock(made) else made

    def spoil(self, words: list[str]) -> None:
        at = self.random.randrange(1, len(words) + 1)
        match self.random.randrange(4):
            case 0:
                words.insert(at, self.random.choice([*WORDS, "@a"]))
            case 1 if at < len(words):
                del words[at]
            case 2 if at < len(words):
                words[at] = self.random.choice([*WORDS, "@a"])
            case 3 if at < len(words):
                other = self.random.randrange(1, len(words))
                words[at], words[other] = words[other], words[at]

    def word(self, word: str) -> bytes:
        if word.startswith("@"):
            return f"{{{self.tag}}}{self.random.choice(LETTERS)}".encode()
        return word.encode("latin-1")


def depends_on_the_clock(words: list[bytes]) -> bool:
    """True for a stream entry named by the time, a key that expires in a moment, or a comparison of times that are a moment
    apart.
    """
    upper = {word.upper() for word in words}
    return (b"XADD" in upper and b"*" in upper) or bool(upper & EXPIRING and upper & {b"1", b"2", b"GT", b"LT"})


@pytest.fixture(scope="module")
def reference(module_servers) -> Redis:
    return module_servers.redis()


@pytest.fixture(scope="module")
def weir(module_servers) -> Weir:
    return module_servers.weir(module_servers.redis(), flags=["--shards", "8"])


@pytest.fixture(scope="module")
def embedded(module_servers) -> Weir:
    return module_servers.weir(flags=["--shards", "8"])


@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_commands(reference: Redis, weir: Weir, seed: int, protocol: int):
    play(Maker(seed), reference, weir, protocol, same)


@pytest.mark.weir_only
@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_commands_on_the_embedded_store(reference: Redis, embedded: Weir, seed: int, protocol: int):
    play(Maker(seed, without=UNSPECIFIED), reference, embedded, protocol, same_but_for_errors)


def play(
    maker: Maker, reference: Redis, weir: Weir, protocol: int, agree: Callable[[list[bytes], Reply, Reply], bool]
) -> None:
    log: list[str] = []
    with reference.connect(protocol=protocol) as direct, weir.connect(protocol=protocol) as through:
        direct.ok("FLUSHALL")
        through.ok("FLUSHALL")
        left = REQUESTS
        while left > 0:
            requests = [maker.request() for _ in range(maker.random.randint(1, BATCH_MAX))]
            left -= len(requests)
            payload = b"".join(encode(*request) for request in requests)
            direct.send_raw(payload)
            through.send_raw(payload)
            for request in requests:
                expected, found = direct.read(), through.read()
                log.append(f"{request!r:.150} -> {shorten(expected.raw, 60)}")
                assert agree(request, expected, found), (
                    f"request {len(log)}: {request}\n    redis: {expected}\n    weir:  {found}\n"
                    "before it:\n    " + "\n    ".join(log[-12:-1])
                )


def same(request: list[bytes], expected: Reply, found: Reply) -> bool:
    if expected.raw == found.raw:
        return True
    name = request[0].decode().upper()
    if name in KEYS_TO_BE_FOUND and expected.is_error and found.is_error:
        return True
    if name in ("SORT", "SORT_RO") and b"LIMIT" in request and any(
        word == b"BY" and b"*" not in pattern for word, pattern in zip(request, request[1:])
    ):
        # Each server has the members of a set in an order of its own, so a part of them may be any part.
        return expected.kind == found.kind and len(expected.children or []) == len(found.children or [])
    return name in UNORDERED and shapes.agree(expected, found, "~")


def same_but_for_errors(request: list[bytes], expected: Reply, found: Reply) -> bool:
    """True if the replies agree or both are errors: the embedded store checks in another order, so with several errors it may
    report another one. Like Redis 7.2 it reports some where Redis 7.0 only looks for the key.
    """
    name = request[0].decode().upper()
    return (found.is_error and (expected.is_error or name in CHECKED_FIRST)) or same(request, expected, found)
