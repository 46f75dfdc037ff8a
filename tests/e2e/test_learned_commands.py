"""Tests of commands that only the stores know (of modules and later versions): weir routes them by the keys that the store
reports.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness import metrics
from harness.fake_store import FakeStore, accommodating
from harness.processes import Redis, Weir
from harness.resp import Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

QUOTAS = """
[tenants.acme]
password = "a"
keys = ["acme:"]

[tenants.zeta]
password = "z"

[tenants.operator]
password = "o"
admin = true
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> Path:
    built = tmp_path_factory.mktemp("modules") / "shelf.so"
    source = Path(__file__).parent / "modules" / "shelf.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-o", str(built), str(source)], check=True)
    return built


@pytest.fixture(scope="module", params=[1, 3], ids=["one store", "three stores"])
def weir(request, module: Path, module_servers, tmp_path_factory) -> Weir:
    quotas = tmp_path_factory.mktemp("quotas") / "quotas.toml"
    quotas.write_text(QUOTAS)
    stores: list[Redis] = [module_servers.redis("--loadmodule", str(module)) for _ in range(request.param)]
    return module_servers.weir(*stores, flags=["--shards", "2", "--quotas", str(quotas), "--hot-rate", "10", "--hot-share", "0%"])


def connected(weir: Weir, tenant: str) -> Connection:
    connection = weir.connect()
    assert connection.ok("AUTH", tenant, tenant[0]) == b"OK"
    return connection


def test_a_command_of_a_module_goes_where_its_keys_are(weir: Weir):
    with connected(weir, "zeta") as client:
        for number in range(50):
            assert client.ok("SHELF.PUT", f"k{number}", str(number)) == b"OK"
            assert client.ok("GET", f"k{number}") == b"%d" % number
            assert client.ok("shelf.look", f"k{number}") == b"%d" % number
        assert client.ok("SHELF.SAME", "x", *[f"{{tag}}{number}" for number in range(10)]) == b"OK"
        assert client.ok("MGET", *[f"{{tag}}{number}" for number in range(10)]) == [b"x"] * 10
        apart = client.call("SHELF.SAME", "x", *[f"k{number}" for number in range(50)])
        if len(weir.backends) > 1:
            assert apart.is_error and apart.text.startswith("CROSSSLOT")
        else:
            assert apart.plain() == b"OK"


def test_it_may_stand_in_a_transaction(weir: Weir):
    with connected(weir, "zeta") as client:
        client.ok("MULTI")
        assert client.ok("SHELF.PUT", "{t}a", "1") == b"QUEUED"
        assert client.ok("SHELF.LOOK", "{t}a") == b"QUEUED"
        assert client.ok("EXEC") == [b"OK", b"1"]


def test_what_it_writes_is_seen_at_once_however_hot_the_key_is(weir: Weir):
    with connected(weir, "zeta") as client:
        client.ok("SET", "hot", "0")

        def is_kept() -> bool:
            replies = [client.ok("GET", "hot") for _ in range(200)]
            return len(set(replies)) == 1 and metrics.total(weir, "weir_hot_hits_total") > before

        before = metrics.total(weir, "weir_hot_hits_total")
        until(is_kept, "the key is hot")
        for number in range(100):
            client.ok("SHELF.PUT", "hot", str(number))
            assert client.ok("GET", "hot") == b"%d" % number


def test_a_tenant_with_key_prefixes_may_not_run_a_modules_code(weir: Weir):
    with connected(weir, "acme") as client:
        refused = client.call("SHELF.LOOK", "acme:a")
        assert refused.text == "NOPERM tenant 'acme' has only keys that begin with 'acme:', and SHELF.LOOK could access any key"


def test_a_command_that_names_no_key_is_the_administrators(weir: Weir):
    with connected(weir, "zeta") as client, connected(weir, "operator") as operator:
        assert client.call("SHELF.NAMES").text.startswith("ERR unknown command 'SHELF.NAMES'")
        assert isinstance(operator.ok("SHELF.NAMES"), list)


def test_clients_are_told_of_it(weir: Weir):
    with connected(weir, "zeta") as client:
        info = client.ok("COMMAND", "INFO", "SHELF.SAME")[0]
        # The store says -1, though the first key is the second argument.
        assert (info[0], info[1], info[3:6]) == (b"shelf.same", -3, [2, -1, 1])
        assert client.call("SHELF.SAME").text.startswith("ERR wrong number of arguments for 'shelf.same'")
        assert client.call("SHELF.SAME", "v").text.startswith("ERR wrong number of arguments for 'shelf.same'")
        assert client.ok("COMMAND", "GETKEYS", "SHELF.SAME", "v", "a", "b") == [b"a", b"b"]
        assert b"shelf.put" in client.ok("COMMAND", "LIST")
        assert client.ok("COMMAND", "COUNT") == len(client.ok("COMMAND"))


def written(value: object) -> bytes:
    """Encodes a reply: numbers as integers, texts as bulk strings, lists as arrays."""
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(written(each) for each in value)
    return b":%d\r\n" % value if isinstance(value, int) else b"$%d\r\n%s\r\n" % (len(value), value.encode())


def of_tomorrow(given: list[bytes]):
    """A store with a made-up command: a word, the number of keys, and then each key with its value."""
    begin = ["type", "keyword", "spec", ["keyword", "PAIRS", "startfrom", 2]]
    find = ["type", "keynum", "spec", ["keynumidx", 0, "firstkey", 1, "keystep", 2]]
    spec = ["flags", ["OW", "update"], "begin_search", begin, "find_keys", find]
    command = ["tomorrow", -3, ["write", "movablekeys"], 0, 0, 0, ["@write"], [], [spec], []]
    requests: list[list[bytes]] = []

    def handler(words: list[bytes]) -> bytes:
        match [word.upper() for word in words[:2]]:
            case [b"INFO", *_]:
                return written("redis_version:9.9.9\r\n")
            case [b"COMMAND", b"COUNT"]:
                return written(1)
            case [b"COMMAND"]:
                return written([command])
            case [b"TOMORROW", *_]:
                requests.append(words)
                return b":1\r\n"
            case _:
                return accommodating(words)

    given.append(requests)
    return FakeStore(handler)


def test_rules_for_keys_are_followed_as_the_store_tells_them(servers):
    told: list[list[list[bytes]]] = []
    with of_tomorrow(told) as one, of_tomorrow(told) as other:
        weir = servers.weir(storage=f"redis://{one.address},{other.address}")
        with weir.connect() as client:
            for number in range(40):
                key = f"{{{number}}}"
                assert client.ok("TOMORROW", "now", "pairs", "2", f"{key}a", "1", f"{key}b", "2") == 1
            assert min(len(requests) for requests in told) > 5, "each store has some of them"
            assert client.ok("COMMAND", "GETKEYS", "TOMORROW", "x", "PAIRS", "2", "a", "1", "b", "2") == [b"a", b"b"]
            words = [word for number in range(20) for word in (f"k{number}", "v")]
            assert client.call("TOMORROW", "now", "PAIRS", "20", *words).text.startswith("CROSSSLOT")
            assert client.call("TOMORROW", "now", "PAIRS", "-1", "a", "b").text.startswith("ERR value is not an integer")
