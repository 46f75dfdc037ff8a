"""Tests of the reports about hot keys: QOS HOTKEYS, /hotkeys, metrics, INFO and QOS EXPLAIN."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from harness import metrics
from harness.placement import clients_of_every_shard, keys_by_backend
from harness.processes import Weir
from harness.resp import Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

# Ten requests for a key per second make it hot, whatever other keys get.
EASILY_HOT = ["--hot-rate", "10", "--hot-share", "0%"]
FLAGS = ["--shards", "2", *EASILY_HOT]
QUOTAS = """
[tenants.acme]
password = "acme-password"
keys = ["acme:"]
[tenants.free]
password = "free-password"
[tenants.operator]
password = "operator-password"
admin = true
"""
FIELDS = "key length slot home tenant reads writes ru error share since hits state copies tracked".split()
ODD = b'odd\x00\r\n"\\\xff<\xc3\xa9>'


@pytest.fixture
def weir(servers) -> Weir:
    return servers.weir(flags=FLAGS)


@pytest.fixture
def shared(servers, tmp_path: Path) -> Weir:
    file = tmp_path / "quotas.toml"
    file.write_text(QUOTAS)
    return servers.weir(flags=[*FLAGS, "--quotas", str(file)])


def login(weir: Weir, tenant: str, protocol: int = 3) -> Connection:
    connection = weir.connect()
    assert connection.ok("HELLO", str(protocol), "AUTH", tenant, f"{tenant}-password")
    return connection


def told(connection: Connection, *words: str) -> list[dict]:
    """Returns the reply to QOS HOTKEYS in the same form for RESP2 and RESP3."""
    listed = []
    for entry in connection.ok("QOS", "HOTKEYS", *words):
        pairs = entry if isinstance(entry, dict) else dict(zip(entry[::2], entry[1::2]))
        assert [name.decode() for name in pairs] == FIELDS
        listed.append({name.decode(): value for name, value in pairs.items()})
    return listed


def page(weir: Weir, query: str = "") -> dict:
    status, text, headers = weir.admin_request("GET", f"/hotkeys{query}")
    assert status == 200 and headers["content-type"] == "application/json", text
    return json.loads(text)


def unescaped(text: str) -> bytes:
    """Returns a key, as the page shows it, in its original bytes."""
    parts = re.findall(r"\\\\|\\x[0-9a-f]{2}|[^\\]", text)
    assert "".join(parts) == text, text
    return b"".join(b"\\" if part == "\\\\" else bytes([int(part[2:], 16)]) if part[0] == "\\" else part.encode() for part in parts)


def heat(connection: Connection, *keys: bytes | str, state: bytes = b"kept", hits: float = 0.5) -> dict[bytes, dict]:
    """Reads these keys one after the other until all of them are reported as hot, and returns the reports."""
    wanted = {key if isinstance(key, bytes) else key.encode() for key in keys}

    def read_and_ask() -> dict[bytes, dict] | None:
        for _ in range(20):
            for key in keys:
                connection.ok("GET", key)
        known = {entry["key"]: entry for entry in told(connection)}
        are_hot = wanted <= known.keys() and all(
            known[key]["state"] == state and float(known[key]["hits"]) >= hits for key in wanted
        )
        return known if are_hot else None

    return until(read_and_ask, f"{wanted} are hot")


def test_a_hot_key_is_told_with_its_figures(weir: Weir):
    with weir.connect() as connection:
        assert connection.ok("HELLO", "3")
        connection.ok("SET", "viral", "v")
        entry = heat(connection, "viral")[b"viral"]
        slot = connection.ok("CLUSTER", "KEYSLOT", "viral")
    assert (entry["length"], entry["slot"], entry["tenant"], entry["copies"]) == (5, slot, b"default", 0)
    assert entry["home"] in (0, 1) and entry["reads"] >= 10 and entry["writes"] >= 0
    assert 0 < entry["share"] <= 1 and 0.5 <= entry["hits"] <= 1 and entry["since"] >= 0 and entry["error"] >= 0
    assert all(isinstance(entry[name], float) for name in ("reads", "writes", "ru", "error", "share", "since", "hits"))
    with weir.connect() as connection:
        flat = {entry["key"]: entry for entry in told(connection)}[b"viral"]
    assert isinstance(flat["reads"], bytes) and float(flat["hits"]) >= 0.5 and flat["slot"] == slot


def test_the_hottest_come_first_and_as_many_as_are_wanted(weir: Weir):
    with weir.connect() as connection:
        assert connection.ok("HELLO", "3")

        def most_first() -> bool:
            known = heat(connection, "most", "most", "some", ODD)
            return list(known)[0] == b"most" and [entry["key"] for entry in told(connection, "COUNT", "1")] == [b"most"]

        until(most_first, "it comes first")
        for words in (("COUNT",), ("COUNT", "0"), ("COUNT", "1001"), ("COUNT", "x"), ("LIMIT", "1"), ("COUNT", "1", "x")):
            assert connection.call("QOS", "HOTKEYS", *words).text.startswith("ERR QOS HOTKEYS: "), words
        assert any(line.startswith(b"HOTKEYS") for line in connection.ok("QOS", "HELP"))


def test_operators_are_shown_the_same_and_any_bytes_survive(weir: Weir):
    with weir.connect() as connection:

        def both_show_it() -> tuple[dict, dict, dict] | None:
            entry, shown = heat(connection, ODD, "plain")[ODD], page(weir)
            keys = {unescaped(entry["key"]): entry for entry in shown["keys"]}
            one = page(weir, "?count=1")
            is_whole = keys.keys() == {ODD, b"plain"} and (len(one["keys"]), one["left_out"]) == (1, 1)
            return (entry, shown, keys) if is_whole else None

        entry, shown, keys = until(both_show_it, "the page shows both")
        assert shown.keys() == {"at", "keys", "left_out"} and shown["left_out"] == 0
        assert list(keys[ODD]) == FIELDS
        for name in ("length", "slot", "home", "copies"):
            assert keys[ODD][name] == entry[name], name
        assert keys[ODD]["length"] == len(ODD) and keys[ODD]["state"] == "kept" and keys[ODD]["reads"] > 0
        assert keys[b"plain"]["key"] == "plain"
    for query in ("?count=0", "?count=1001", "?count=x", "?other=1"):
        assert weir.admin(f"/hotkeys{query}")[0] == 400, query
    assert "/hotkeys" in weir.admin("/pages")[1]


def test_a_name_too_long_to_be_kept_is_told_by_how_it_begins(weir: Weir):
    long = "x" * 5_000
    with weir.connect() as connection:
        begun = long[:128].encode()

        def read_and_ask() -> dict | None:
            for _ in range(10):
                connection.ok("GET", long)
            return next((entry for entry in told(connection) if entry["key"] == begun), None)

        entry = until(read_and_ask, "it is hot")
    assert (entry["length"], entry["state"], float(entry["hits"])) == (5_000, b"counted", 0)


def test_metrics_and_info_have_gauges(weir: Weir):
    with weir.connect() as connection:

        def both_are_hot() -> dict | None:
            heat(connection, ODD, "viral")
            samples = metrics.parse(weir.admin("/metrics")[1])
            return samples if sum(samples["weir_hot_keys"].values()) == 2 else None

        samples = until(both_are_hot, "both are counted")
        info = connection.ok("INFO", "weir").decode()
    for name, least in (("keys", 2), ("replies_kept", 1), ("kept_bytes", 1), ("fetches_in_flight", 0), ("waiters", 0), ("open", 0)):
        family = samples[f"weir_hot_{name}"]
        assert family.keys() == {'{shard="0"}', '{shard="1"}'} and sum(family.values()) >= least, (name, family)
        assert re.search(rf"^hot_{name}:\d+\r?$", info, re.MULTILINE), name
    rates = samples["weir_hot_key_requests_per_second"]
    assert len(rates) <= 2 * 20
    shard = {part for label in rates for part in re.findall(r'key="viral",shard="(\d)"', label)}
    assert len(shard) == 1
    (home,) = shard
    assert rates[f'{{key="viral",shard="{home}",access="read"}}'] >= 10
    assert f'{{key="viral",shard="{home}",access="write"}}' in rates
    label = "odd" + r"\\x00\\x0d\\x0a" + r"\"" + r"\\\\" + r"\\xff<\\xc3\\xa9>"
    assert any(f'key="{label}"' in sample for sample in rates), rates
    assert metrics.promtool(weir.admin("/metrics")[1]) in (None, "")


def test_a_tenant_is_told_of_its_own_keys(shared: Weir):
    with login(shared, "operator") as operator, login(shared, "acme") as acme, login(shared, "free") as free:
        every = {b"acme:cart", b"other:cart", b"acme"}

        def all_are_told(connection: Connection) -> dict[bytes, dict] | None:
            heat(operator, *every)
            entries = {entry["key"]: entry for entry in told(connection)}
            return entries if every <= entries.keys() else None

        entries = until(lambda: all_are_told(free), "all are hot")
        assert {entry["tenant"] for entry in entries.values()} == {None}, "who else asks is for administrators"
        entries = until(lambda: all_are_told(operator), "all are hot")
        assert {entry["tenant"] for entry in entries.values()} == {b"operator"}
        entries = heat(acme, "acme:cart")
        assert entries.keys() == {b"acme:cart"}, "no other begins with its prefix"
        assert entries[b"acme:cart"]["tenant"] == b"acme"
        with shared.connect() as stranger:
            assert stranger.call("QOS", "HOTKEYS").text.startswith("NOAUTH ")


def foreseen(connection: Connection, *words: str) -> bytes:
    told = connection.ok("QOS", "EXPLAIN", *words)
    return (told if isinstance(told, dict) else dict(zip(told[::2], told[1::2])))[b"hot"]


def test_it_is_foretold_what_becomes_of_a_request(weir: Weir):
    connections = clients_of_every_shard(weir)
    home = connections[0].ok("QOS", "EXPLAIN", "GET", "viral")
    home = dict(zip(home[::2], home[1::2]))[b"shard"]
    explained = {foreseen(connection, "GET", "viral") for connection in connections}
    assert explained == {b"cold", b"core %d decides: the key is at home there" % home}
    (near,) = [connection for connection in connections if foreseen(connection, "GET", "viral") == b"cold"]

    def is_kept() -> bool:
        heat(near, "viral")
        return foreseen(near, "GET", "viral") == b"hot: answered from memory"

    until(is_kept, "its reply is kept")
    assert foreseen(near, "SET", "viral", "x").startswith(b"hot: goes on (a write")
    assert foreseen(near, "TTL", "viral") == b"hot: goes on (replies to this command are not kept)"
    for connection in connections:
        connection.close()


def test_a_layer_that_is_off_knows_nothing(servers):
    weir = servers.weir(flags=["--shards", "1", *EASILY_HOT, "--disable", "hot"])
    with weir.connect() as connection:
        connection.ok("SET", "viral", "v")
        for _ in range(20):
            connection.pipeline([("GET", "viral")] * 200)
        assert told(connection) == [] and page(weir)["keys"] == []
        assert foreseen(connection, "GET", "viral") == b"off"
    samples = metrics.parse(weir.admin("/metrics")[1])
    assert sum(samples["weir_hot_keys"].values()) == 0 and "weir_hot_key_requests_per_second" not in samples


def test_a_layer_in_shadow_only_watches(servers):
    weir = servers.weir(flags=["--shards", "1", *EASILY_HOT, "--shadow", "hot"])
    with weir.connect() as connection:
        connection.ok("SET", "viral", "v")

        def is_kept() -> bool:
            heat(connection, "viral")
            return foreseen(connection, "GET", "viral") == b"shadow: hot: answered from memory"

        until(is_kept, "its reply would be kept")
    samples = metrics.parse(weir.admin("/metrics")[1])
    assert sum(samples["weir_hot_hits_total"].values()) == 0
    compared = samples["weir_hot_compared_total"]
    assert sum(value for label, value in compared.items() if "different" in label) == 0 < sum(compared.values())


@pytest.fixture
def lenient(servers, tmp_path: Path) -> Weir:
    """A weir in front of one store, with a tenant that accepts old replies while the store is away."""
    file = tmp_path / "quotas.toml"
    file.write_text('[default]\n[tenants.keen]\npassword = "keen-password"\nadmin = true\nstale_on_error = "30s"\n')
    return servers.weir(servers.redis(), flags=[*FLAGS, "--hot-ttl", "200ms", "--quotas", str(file)])


def stale_so_far(weir: Weir) -> float:
    return metrics.total(weir, "weir_hot_stale_on_error_total")


def is_told_what_is_old(weir: Weir, keen: Connection) -> None:
    """Reads a cached key until many of the replies were expired ones."""
    goal = stale_so_far(weir) + 200

    def goes_on() -> bool:
        for _ in range(50):
            assert keen.ok("GET", "viral") == b"v"
        return stale_so_far(weir) >= goal

    until(goes_on, "old replies are told")


def test_a_hot_key_is_told_while_its_store_is_dead_to_whom_wants_that(lenient: Weir):
    (store,) = lenient.backends
    with login(lenient, "keen", 2) as keen, lenient.connect() as other:
        keen.ok("SET", "viral", "v")
        heat(keen, "viral")
        assert other.ok("GET", "viral") == b"v"
        store.kill()
        is_told_what_is_old(lenient, keen)
        assert other.call("GET", "viral").text.startswith("UNAVAILABLE")
        # A failed write does not remove the cached reply.
        assert keen.call("SET", "viral", "w").text.startswith("UNAVAILABLE")
        is_told_what_is_old(lenient, keen)
        (entry,) = [entry for entry in told(keen) if entry["key"] == b"viral"]
        assert entry["state"] == b"stale"
        store.start()
        # The restarted store is empty, and no client that has seen this sees the old value again.
        until(lambda: keen.ok("GET", "viral") is None, "the store is asked again")
        assert [keen.ok("GET", "viral") for _ in range(50)] == [None] * 50


def test_a_part_of_mget_is_told_while_its_store_is_dead(servers, tmp_path: Path):
    file = tmp_path / "quotas.toml"
    file.write_text('[default]\n[tenants.keen]\npassword = "keen-password"\nadmin = true\nstale_on_error = "30s"\n')
    weir = servers.weir(servers.redis(), servers.redis(), flags=[*FLAGS, "--hot-ttl", "200ms", "--quotas", str(file)])
    with login(weir, "keen", 2) as keen, weir.connect() as other:
        (store, (first, second, cold, *_)), (_, (there, *_)) = keys_by_backend(weir, "value").items()
        heat(keen, first, second)
        store.kill()
        mget = ("MGET", first, there, second)
        values = [key.encode() for key in mget[1:]]
        goal = stale_so_far(weir) + 200

        def goes_on() -> bool:
            for _ in range(20):
                assert keen.ok(*mget) == values
            return stale_so_far(weir) >= goal

        until(goes_on, "old values are told")
        for connection, keys in ((other, mget[1:]), (keen, (first, there, cold))):
            told_of = connection.call("MGET", *keys).children
            assert [value.is_error for value in told_of] == [True, False, True], told_of


def test_a_hot_key_is_told_while_its_store_stands_still(lenient: Weir):
    (store,) = lenient.backends
    with login(lenient, "keen", 2) as keen:
        keen.ok("SET", "viral", "v")
        heat(keen, "viral")
        store.signal(signal.SIGSTOP)
        try:
            is_told_what_is_old(lenient, keen)
        finally:
            store.signal(signal.SIGCONT)
        until(lambda: not keen.call("SET", "viral", "w").is_error, "it is written")
        assert [keen.ok("GET", "viral") for _ in range(50)] == [b"w"] * 50
        # A write with an unknown outcome: from then on no expired reply is used.
        heat(keen, "viral")
        store.signal(signal.SIGSTOP)
        try:
            unknown = keen.call("SET", "viral", "x")
            assert unknown.is_error, unknown
            assert keen.call("GET", "viral").is_error
        finally:
            store.signal(signal.SIGCONT)


def test_new_quotas_say_who_is_told_what_is_old(lenient: Weir):
    file = Path(lenient.flags[lenient.flags.index("--quotas") + 1])
    with login(lenient, "keen", 2) as keen:
        keen.ok("SET", "viral", "v")
        heat(keen, "viral")
        lenient.backends[0].kill()
        is_told_what_is_old(lenient, keen)
        file.write_text(file.read_text().replace('"30s"', '"2h"'))
        until(lambda: "stale_on_error" in lenient.output(1 << 20), "what is wrong is said")
        assert 'stale_on_error is "2h": 0, or a duration up to 3600s, in quotes' in lenient.output(1 << 20)
        is_told_what_is_old(lenient, keen)
        file.write_text(file.read_text().replace('"2h"', "0"))
        until(lambda: keen.call("GET", "viral").is_error, "it is taken back")
