"""Tests of commands of operators and test suites: about weir's clients, for every store, and about the connection within
MULTI.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import redis

from harness.processes import Redis, Weir
from harness.waiting import until
from test_neighbours import QUOTAS

pytestmark = pytest.mark.weir_only


@pytest.fixture(params=[1, 2], ids=["one store", "two stores"])
def weir(request, servers, tmp_path) -> Weir:
    path = tmp_path / "quotas.toml"
    path.write_text(QUOTAS)
    stores = [servers.redis() for _ in range(request.param)]
    return servers.weir(*stores, flags=["--quotas", str(path), "--shards", "2"])


def client(weir: Weir, tenant: str) -> redis.Redis:
    return redis.Redis(port=weir.port, username=tenant, password=tenant[0], single_connection_client=True)


def test_clients_are_listed_and_killed(weir: Weir):
    root, acme = client(weir, "root"), client(weir, "acme")
    acme.client_setname("cart")
    listed = {entry["name"]: entry for entry in root.client_list()}
    assert {"id", "addr", "laddr", "age", "idle", "flags", "db", "cmd", "user", "resp"} <= listed["cart"].keys()
    assert listed["cart"]["user"] == "acme" and listed["cart"]["addr"].startswith("127.0.0.1:")
    assert listed["cart"]["laddr"] == f"127.0.0.1:{weir.port}"
    assert {entry["user"] for entry in acme.client_list()} == {"acme"}, "a tenant sees its own"
    assert root.client_list(client_id=[listed["cart"]["id"]])[0]["name"] == "cart"
    assert acme.client_kill_filter(_id=str(root.client_id())) == 0, "nor does it reach others"
    assert root.client_info()["addr"].startswith("127.0.0.1:")
    assert root.client_kill(listed["cart"]["addr"])
    until(lambda: all(entry["name"] != "cart" for entry in root.client_list()), "it is gone")
    with pytest.raises(redis.ResponseError, match="No such client"):
        root.client_kill("1.1.1.1:9999")
    with pytest.raises(redis.DataError):
        root.client_kill_filter()


@pytest.fixture
def short_folder():
    """A folder with a short name: redis-server shows 46 characters of a path."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_client_of_the_unix_socket_has_its_path_for_an_address(servers, short_folder):
    paths = [short_folder / name for name in ("redis.sock", "weir.sock")]
    single = servers.redis("--unixsocket", str(paths[0]))
    weir = servers.weir(servers.redis(), flags=["--shards", "2", "--unix", str(paths[1])])
    for server, path in zip((single, weir), paths):
        near = redis.Redis(unix_socket_path=str(path), single_connection_client=True)
        far = redis.Redis(port=server.port, single_connection_client=True)
        near.client_setname("near")
        listed = lambda far=far: [entry for entry in far.client_list() if entry["name"] == "near"]
        (entry,) = listed()
        assert (entry["addr"], entry["laddr"], entry["flags"]) == (f"{path}:0", f"{path}:0", "U"), (server, entry)
        assert near.client_info()["addr"] == f"{path}:0"
        assert far.client_kill_filter(addr="127.0.0.1:0") == 0
        assert far.client_kill_filter(addr=f"{path}:0") == 1
        until(lambda: not listed(), "it is gone")  # noqa: B023


def blocked(store: Redis) -> int:
    with store.connect() as connection:
        return int(connection.ok("INFO", "clients").split(b"blocked_clients:")[1].split()[0])


def test_clients_are_killed_and_unblocked_in_a_transaction(weir: Weir, servers):
    """The replies in the array are those of redis-server, and who closes itself there is answered first."""
    replies = []
    for server in (servers.redis(), weir):
        open_one = lambda server=server: server.connect()  # noqa: E731
        with open_one() as asker, open_one() as waiter, open_one() as victim, open_one() as other:
            for one in (asker, waiter, victim, other) if server is weir else ():
                one.ok("AUTH", "root", "r")
            numbers = [one.ok("CLIENT", "ID") for one in (asker, waiter, victim, other)]
            waiter.send("BLPOP", "{k}none", "0")
            stores = weir.backends if server is weir else [server]
            until(lambda: sum(map(blocked, stores)) == 1, "the call waits at its store")  # noqa: B023
            address = other.ok("CLIENT", "INFO").split(b" addr=")[1].split()[0]
            blocks = [
                ("MULTI",),
                ("SET", "{k}a", "1"),
                ("CLIENT", "UNBLOCK", numbers[1], "ERROR"),
                ("CLIENT", "KILL", "ID", numbers[2]),
                ("CLIENT", "KILL", "ID", numbers[2], "USER", "nosuch"),
                ("CLIENT", "KILL", "1.1.1.1:1"),
                ("CLIENT", "KILL", address),
                ("CLIENT", "KILL", "SKIPME", "maybe"),
                ("GET", "{k}a"),
                ("CLIENT", "KILL", "ID", numbers[0], "SKIPME", "no"),
                ("EXEC",),
            ]
            told = [reply.raw for reply in asker.pipeline(blocks)]
            assert asker.read_to_end() == []
            told.append(waiter.read().raw)
            assert victim.read_to_end() == [] and other.read_to_end() == []
            replies.append(told)
    assert replies[0] == replies[1]


def test_clients_are_selected_by_type_and_user(weir: Weir):
    root, acme = client(weir, "root"), client(weir, "acme")
    with weir.connect() as subscriber:
        subscriber.ok("AUTH", "acme", "a")
        subscriber.send("SUBSCRIBE", "news")
        assert subscriber.read().plain() == [b"subscribe", b"news", 1]
        users = lambda kind: sorted(entry["user"] for entry in root.client_list(_type=kind))
        assert users("pubsub") == ["acme"] and users("normal") == ["acme", "root"] and users("replica") == []
        for caller, user in [(root, "nobody"), (acme, "nobody"), (acme, "root")]:
            with pytest.raises(redis.ResponseError, match=f"No such user '{user}'"):
                caller.execute_command("CLIENT", "KILL", "USER", user)
        assert root.execute_command("CLIENT", "KILL", "TYPE", "pubsub", "USER", "acme") == 1
        assert subscriber.read_to_end() == []
    assert root.execute_command("CLIENT", "KILL", "USER", "acme") == 1


def test_what_pause_holds_back_is_counted(weir: Weir):
    root, acme = client(weir, "root"), client(weir, "acme")
    acme.pfadd("hll", "a")
    assert root.client_pause(timeout=100_000, all=False)
    blocked = lambda: root.info("clients")["blocked_clients"]
    # A transaction that only reads is not affected.
    assert acme.pipeline().get("k").ping().execute() == [None, True]
    waiters = []
    for words in [("SET", "k", "v"), ("PFCOUNT", "hll"), ("PUBLISH", "news", "x")]:
        waiter = weir.connect()
        waiter.ok("AUTH", "acme", "a")
        waiter.send(*words)
        waiters.append(waiter)
        until(lambda: blocked() == len(waiters), f"{words[0]} waits")
    writer = weir.connect()
    writer.ok("AUTH", "acme", "a")
    writer.ok("MULTI")
    writer.ok("SET", "l", "v")
    writer.send("EXEC")
    waiters.append(writer)
    until(lambda: blocked() == 4, "a transaction that writes waits")
    assert sum("b" in entry["flags"] for entry in root.client_list()) == 4
    assert root.client_unpause()
    assert [waiter.read().plain() for waiter in waiters] == [b"OK", 1, 0, [b"OK"]]
    until(lambda: blocked() == 0, "nobody waits")
    for waiter in waiters:
        waiter.close()


def test_hyperloglogs_are_debugged_by_administrators(weir: Weir):
    root, acme = client(weir, "root"), client(weir, "acme")
    root.pfadd("hll", "a", "b")
    assert root.execute_command("PFDEBUG", "ENCODING", "hll") == b"sparse"
    assert root.execute_command("PFDEBUG", "TODENSE", "hll") == 1
    assert len(root.execute_command("PFDEBUG", "GETREG", "hll")) == 16_384
    for words in [("PFDEBUG", "ENCODING", "hll"), ("PFSELFTEST",)]:
        with pytest.raises(redis.ResponseError, match="may not run"):
            acme.execute_command(*words)


def test_clients_are_paused(weir: Weir):
    root, acme = client(weir, "root"), client(weir, "acme")
    acme.set("k", "before")
    assert root.client_pause(timeout=100_000, all=False)
    assert acme.get("k") == b"before", "reads go on"
    with weir.connect() as writer:
        writer.ok("AUTH", "acme", "a")
        writer.send("SET", "k", "after")
        assert acme.get("k") == b"before"
        assert root.client_unpause()
        assert writer.read().value == b"OK"
    assert acme.get("k") == b"after"
    assert root.client_pause(timeout=1)
    assert acme.get("k") == b"after"
    with pytest.raises(redis.RedisError):
        root.client_pause(timeout="not an integer")


def test_administrators_reach_every_store(weir: Weir):
    root, acme = client(weir, "root"), client(weir, "acme")
    assert root.config_set("slowlog-log-slower-than", 0)
    assert root.config_get("slowlog-log-slower-than") == {"slowlog-log-slower-than": "0"}
    for store in weir.backends:
        with store.connect() as direct:
            assert direct.ok("CONFIG", "GET", "slowlog-log-slower-than")[1] == b"0"
    assert root.slowlog_len() >= len(weir.backends)
    assert root.slowlog_get(10)
    assert root.slowlog_reset() and root.config_resetstat()
    assert root.config_set("slowlog-log-slower-than", 10_000)
    assert root.execute_command("DEBUG", "SLEEP", "0") in (b"OK", True)
    assert root.module_list() == []
    assert root.latency_reset() == 0
    assert root.pubsub_numsub("a", "b") == [(b"a", 0), (b"b", 0)]
    assert root.pubsub_channels() == [] and root.pubsub_numpat() == 0
    doctor = root.execute_command("MEMORY", "DOCTOR")
    if len(weir.backends) > 1:
        assert doctor.keys() == {store.address.encode() for store in weir.backends}, "a list by store"
    else:
        assert isinstance(doctor, bytes), "that store's own answer"
    for command in (("CONFIG", "SET", "maxmemory", "1"), ("SLOWLOG", "RESET"), ("DEBUG", "SLEEP", "1")):
        with pytest.raises(redis.ResponseError, match="NOPERM|No permission|may not run"):
            acme.execute_command(*command)


def test_commands_about_the_connection_stand_in_transactions(weir: Weir):
    with weir.connect() as connection:
        connection.ok("AUTH", "root", "r")
        connection.ok("CLIENT", "SETNAME", "one")
        requests = [
            ("MULTI",),
            ("SELECT", "0"),
            ("SET", "k", "v"),
            ("CLIENT", "GETNAME"),
            ("GET", "k"),
            ("CLIENT", "SETNAME", "two"),
            ("EXEC",),
        ]
        replies = connection.pipeline(requests)
        assert [reply.text for reply in replies[1:-1]] == ["QUEUED"] * 5
        assert replies[-1].plain() == [b"OK", b"OK", b"one", b"v", b"OK"]
        assert connection.ok("CLIENT", "GETNAME") == b"two"
        connection.ok("MULTI")
        assert connection.call("NOSUCH", "k").text.startswith("ERR unknown command 'NOSUCH'")
        assert connection.call("EXEC").text.startswith("EXECABORT ")


def test_exec_says_which_step_a_store_refused(weir: Weir):
    """ZRANK takes WITHSCORE since 7.2. An older store reports that at the step, which weir has answered QUEUED by then; a lack
    of memory is similar.
    """
    with weir.connect() as connection:
        connection.ok("AUTH", "root", "r")
        replies = connection.pipeline([("MULTI",), ("SET", "k", "v"), ("ZRANK", "k", "m", "WITHSCORE"), ("EXEC",), ("GET", "k")])
        abort = "EXECABORT Transaction discarded because of: "
        if replies[3].is_error:
            assert replies[3].text == abort + "ERR wrong number of arguments for 'zrank' command", replies
            assert replies[4].plain() is None, "nothing of it was carried out"
        connection.ok("CONFIG", "SET", "maxmemory", "1")
        replies = connection.pipeline([("MULTI",), ("GET", "k"), ("SET", "k", "v"), ("EXEC",)])
        assert replies[3].text.startswith(abort + "OOM command not allowed"), replies
        connection.ok("CONFIG", "SET", "maxmemory", "0")
        replies = connection.pipeline([("MULTI",), ("SET", "k", "v"), ("EXEC",)])
        assert replies[2].plain() == [b"OK"], "the next transaction is its own"


@pytest.mark.parametrize("stores", [1, 2], ids=["one store", "two stores"])
def test_a_script_that_does_not_end_is_killed_through_weir(servers, stores: int):
    """A store that is busy with a script reads nothing more from the script's connection, so SCRIPT KILL needs another one."""
    redises = [servers.redis("--lua-time-limit", "20") for _ in range(stores)]
    weir = servers.weir(*redises, flags=["--shards", "2"])
    library = "#!lua name=l\nredis.register_function('spin', function() while true do end end)"
    with weir.connect() as root, weir.connect() as busy:
        root.call("FUNCTION", "LOAD", library)
        for request, kill, other in [
            (("EVAL", "while true do end", "0"), "SCRIPT", "FUNCTION"),
            (("FCALL", "spin", "0"), "FUNCTION", "SCRIPT"),
        ]:
            busy.send(*request)
            until(lambda: any(is_busy(store) for store in redises), "a store is busy")
            if stores == 1:
                until(lambda: root.call("PING").text.startswith("BUSY "), "weir's clients learn it")
                # FUNCTION STATS describes a running function; for a script the store replies that it is busy.
                running = root.call("FUNCTION", "STATS")
                assert running.is_error == (kill == "SCRIPT"), running
            assert root.call(other, "KILL").is_error
            assert root.call(kill, "KILL").text == "OK"
            assert busy.read().is_error
            until(lambda: root.call("SET", "k", "v").text == "OK", "all is well again")
            until(lambda: root.call("PING").text == "PONG", "the cores have told each other")
            assert root.call(kill, "KILL").text.startswith("NOTBUSY ")


def is_busy(store) -> bool:
    with store.connect() as direct:
        return direct.call("GET", "k").text.startswith("BUSY ")


def test_what_cannot_stand_in_a_transaction_ends_it(weir: Weir):
    with weir.connect() as connection:
        connection.ok("AUTH", "root", "r")
        for words in [("SAVE",), ("SHUTDOWN", "NOSAVE"), ("PSYNC", "?", "-1")]:
            assert connection.call("MULTI").text == "OK"
            assert connection.call("SET", "k", "v").text == "QUEUED"
            assert connection.call(*words).text == "ERR Command not allowed inside a transaction"
            assert connection.call("EXEC").text.startswith("EXECABORT ")
        assert connection.call("EXISTS", "k").plain() == 0


@pytest.mark.parametrize(
    "settings",
    [["requirepass", "x"], ["maxmemory", "0", "RequirePass", ""], ["port", "0"], ["bind", "127.0.0.9"], ["protected-mode", "yes"]],
    ids=" ".join,
)
def test_nobody_locks_weir_out_of_its_stores(weir: Weir, settings: list[str]):
    """weir logs in to its stores with the credentials that it was started with, so a new password there would end the service
    for all clients.
    """
    root = client(weir, "root")
    with pytest.raises(redis.ResponseError, match=r"CONFIG SET is not supported by weir: it would change how the store is reached .* ask that store itself"):
        root.execute_command("CONFIG", "SET", *settings)
    pipeline = root.pipeline(transaction=True)
    pipeline.execute_command("CONFIG", "SET", *settings)
    with pytest.raises(redis.ResponseError, match="would change how the store is reached"):
        pipeline.execute()
    root.config_set("maxmemory-samples", "7")
    # A client that subscribes gets a new connection to the store, which must log in.
    listener = root.pubsub()
    listener.subscribe("news")
    assert listener.get_message(timeout=5)["type"] == "subscribe"
    listener.close()


def test_what_stores_know_of_categories_and_passwords_is_told(weir: Weir):
    root = client(weir, "root")
    assert {"read", "write", "dangerous"} <= set(root.acl_cat())
    assert "get" in root.acl_cat("read")
    assert len(root.acl_genpass()) == 64
    with pytest.raises(redis.ResponseError, match="manages users, and weir takes them from its quota file"):
        root.acl_setuser("ann", enabled=True)
    assert "Redis ver. 7" in str(root.lolwut())
