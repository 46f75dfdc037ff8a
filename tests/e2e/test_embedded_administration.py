"""Tests of commands that operators and test suites send first: the embedded store replies as redis-server does, as far as the
reply is true for it.

SLOWLOG, LATENCY, MEMORY, MODULE, ACL, ROLE and saving. weir answers some of these itself, so the store is asked without it.
"""

from __future__ import annotations

import pytest
import redis

from harness.processes import Storage, Weir

pytestmark = pytest.mark.weir_only

# Requests to which both reply the same bytes.
SAME = [
    "SLOWLOG", "SLOWLOG x", "SLOWLOG GET x", "SLOWLOG GET -2", "SLOWLOG GET 1 2", "SLOWLOG LEN x", "SLOWLOG RESET", "SLOWLOG LEN", "SLOWLOG GET", "SLOWLOG GET -1",
    "LATENCY", "LATENCY x", "LATENCY LATEST", "LATENCY LATEST x", "LATENCY HISTORY command", "LATENCY HISTORY", "LATENCY RESET", "LATENCY RESET x y", "LATENCY GRAPH x", "LATENCY HISTOGRAM nosuch",
    "MEMORY", "MEMORY x", "MEMORY PURGE", "MEMORY PURGE x", "MEMORY DOCTOR x", "MEMORY STATS x", "MODULE LIST", "MODULE", "MODULE LIST x", "MODULE x",
    "ACL", "ACL x", "ACL USERS", "ACL WHOAMI", "ACL WHOAMI x", "ACL GETUSER x", "ACL GETUSER", "ACL CAT", "ACL CAT x", "ACL LOG", "ACL LOG RESET", "ACL LOG x", "ACL LOG 5",
    "ROLE", "ROLE x", "SAVE x", "BGREWRITEAOF x", "CONFIG REWRITE", "CONFIG SET slowlog-max-len x", "CONFIG SET slowlog-max-len", "CONFIG SET slowlog-log-slower-than x", "CONFIG SET slowlog-log-slower-than -2",
    "CONFIG SET nosuch 1", "CONFIG SET hz", "CONFIG SET hz 1 timeout", "CONFIG SET hz x", "CONFIG SET hz -1", "CONFIG SET timeout 3 nosuch 1", "CONFIG GET timeout", "CONFIG SET lua-time-limit 1 busy-reply-threshold 5000", "CONFIG GET lua-time-limit",
    "CONFIG SET appendfsync sometimes", "CONFIG SET maxmemory x", "CONFIG SET maxmemory 1 maxmemory 2", "CONFIG SET repl-backlog-size 3mb", "CONFIG GET repl-backlog-size", "CONFIG SET repl-backlog-size 1mb", "CONFIG SET databases 3",
    "CONFIG SET activerehashing maybe", "CONFIG SET activerehashing NO", "CONFIG GET ACTIVErehashing", "CONFIG SET activerehashing yes", "CONFIG SET maxmemory-clients 200%", "CONFIG SET maxmemory-clients x", "CONFIG GET nosuch",
    "CONFIG SET maxmemory-policy allkeys", "CONFIG SET client-query-buffer-limit 1", "CONFIG SET list-max-ziplist-size 5", "CONFIG GET list-max-listpack-size", "CONFIG SET list-max-listpack-size -2", "CONFIG SET dir x",
    "CONFIG GET hash-max-listpack-entries", "CONFIG GET zset-max-listpack-entries",
    "CONFIG GET set-max-intset-entries",
    "CONFIG SET zset-max-listpack-entries 2", "DEL zset", "ZADD zset 1 a 2 b", "OBJECT ENCODING zset", "ZADD zset 3 c", "OBJECT ENCODING zset", "CONFIG SET zset-max-ziplist-entries 128", "DEL zset",
    "CONFIG SET hll-sparse-max-bytes 100", "DEL hll", "PFADD hll a b c", "PFDEBUG ENCODING hll", "PFDEBUG DECODE hll", "PFDEBUG GETREG hll", "PFDEBUG ENCODING hll", "PFDEBUG TODENSE hll", "PFDEBUG DECODE hll", "PFDEBUG NOSUCH hll", "PFDEBUG ENCODING nothing",
    "PFSELFTEST", "DEL hll", "CONFIG SET hll-sparse-max-bytes 3000",
    "CONFIG SET slowlog-max-len 7 slowlog-log-slower-than 123456", "CONFIG GET slowlog-max-len", "CONFIG GET slowlog-log-slower-than", "CONFIG SET slowlog-max-len 7 slowlog-max-len 8", "CONFIG SET slowlog-max-len 128 slowlog-log-slower-than 10000",
]  # fmt: skip


@pytest.fixture(scope="module")
def store():
    server = Storage("--scriptable=false").start()
    yield server
    server.discard()


@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_are_those_of_redis(store, model, protocol):
    different = []
    with store.connect(protocol=protocol) as ours, model.connect(protocol=protocol) as theirs:
        for line in SAME:
            found, expected = ours.call(*line.split()), theirs.call(*line.split())
            if found.raw != expected.raw:
                different.append(f"{line}\n    ours   {found}\n    theirs {expected}")
    assert not different, "\n".join(different)


LIMITS = [
    "normal 0 0 0", "replica 1mb 2kb 60", "NORMAL 1k 1 0", "normal 1gb 1g 010 pubsub 1kb 1b 7", "normal 0 0 1 normal 5 5 5", "", "normal 0 0", "normal 0 0 0 0", "normal  0 0 0", " normal 0 0 0",
    "normal 0 0 0 ", "master 0 0 0", "foo 0 0 0", "normal 10mb 5mb 60 foo 0 0 0", "normal x 0 0", "normal 0 x 0", "normal 0 0 x", "normal 0 0 -1", "normal -1 0 0", "normal 1.5 0 0", "normal 0 0 1x",
    "slave 256mb 64mb 60 pubsub 32mb 8mb 60 normal 0 0 0",
]  # fmt: skip


def test_limits_of_buffers_are_read_and_shown_by_class(store, model):
    with store.connect() as ours, model.connect() as theirs:
        for text in LIMITS:
            for words in (["CONFIG", "SET", "client-output-buffer-limit", text], ["CONFIG", "GET", "client-output-buffer-limit"]):
                assert ours.call(*words).raw == theirs.call(*words).raw, words


def test_categories_list_the_commands_that_the_store_has(store, model):
    with store.connect() as ours, model.connect() as theirs:
        known = {name for name in ours.call("ACL", "CAT", "fast").plain()} | {name for name in ours.call("ACL", "CAT", "slow").plain()}
        for category in theirs.call("ACL", "CAT").plain():
            # weir lets every client call LASTSAVE and ROLE.
            theirs_all = theirs.call("ACL", "CAT", category).plain()
            expected = {name for name in theirs_all if name in known and name not in (b"lastsave", b"role")}
            found = set(ours.call("ACL", "CAT", category).plain())
            # Later versions of Redis, and weir, have commands that Redis 7.0 lacks.
            assert expected <= found, (category, expected - found)


def test_slow_requests_are_kept(store, model):
    shown = []
    for server in (store, model):
        with server.connect() as connection:
            connection.call("CONFIG", "SET", "slowlog-log-slower-than", "0", "slowlog-max-len", "4")
            connection.call("SLOWLOG", "RESET")
            connection.call("CLIENT", "SETNAME", "operator")
            connection.call("SET", "k", "x" * 500)
            connection.call("MSET", *[f"{word}{number}" for number in range(50) for word in "kv"])
            connection.call("GET", "k")
            entries = connection.call("SLOWLOG", "GET", "3").plain()
            shown.append([(words, name) for _, _, _, words, _, name in entries])
            assert all(micros < 1_000_000 for _, _, micros, *_ in entries)
            assert [entry[0] for entry in entries] == sorted((entry[0] for entry in entries), reverse=True)
            assert connection.call("SLOWLOG", "LEN").raw == b":4\r\n"
            connection.call("CONFIG", "SET", "slowlog-log-slower-than", "1000", "slowlog-max-len", "128")
            connection.call("SLOWLOG", "RESET")
            connection.call("EVAL", "local t = {} for i = 1, 500000 do t[i] = i end return #t", "0")
            # On a busy machine other requests may be as slow.
            slow = [entry for entry in connection.call("SLOWLOG", "GET").plain() if entry[3][0] == b"EVAL"]
            assert len(slow) == 1 and slow[0][2] >= 1_000
            connection.call("CONFIG", "SET", "slowlog-log-slower-than", "10000")
    assert shown[0] == shown[1]


def test_what_would_not_be_true_is_refused(store):
    with store.connect() as connection:
        for line in ("SAVE", "BGSAVE", "BGSAVE SCHEDULE", "BGREWRITEAOF"):
            assert connection.call(*line.split()).text.endswith("is refused: the embedded store keeps nothing on disk")
        for line in ("ACL SETUSER x", "ACL DELUSER x", "ACL SAVE", "ACL LOAD", "ACL GENPASS", "MODULE LOAD x"):
            assert connection.call(*line.split()).is_error, line
        assert b"keys take" in connection.call("MEMORY", "DOCTOR").value
        connection.call("SET", "k", "v" * 1000)
        stats = connection.call("MEMORY", "STATS").plain()
        figures = dict(zip(stats[::2], stats[1::2]))
        assert figures[b"keys.count"] >= 1 and figures[b"total.allocated"] > 1000
        assert connection.call("WAITAOF", "0", "0", "0").plain() == [0, 0]
        assert connection.call("WAITAOF", "0", "1", "20").plain() == [0, 0]


def test_clients_ask_through_weir():
    weir = Weir().start()
    try:
        client = redis.Redis(port=weir.port, single_connection_client=True)
        assert client.config_set("slowlog-log-slower-than", 0)
        assert client.config_get("slowlog-*") == {"slowlog-log-slower-than": "0", "slowlog-max-len": "128"}
        client.set("k", "v")
        assert b"SET k v" in [entry["command"] for entry in client.slowlog_get(20)]
        assert client.slowlog_len() > 0 and client.slowlog_reset()
        assert client.latency_latest() == [] and client.latency_history("command") == []
        assert client.module_list() == [] and client.memory_purge()
        assert client.memory_stats()["keys.count"] == 1
        assert client.lastsave()
        with pytest.raises(redis.ResponseError, match="keeps nothing on disk"):
            client.bgsave()
        assert client.acl_whoami()
    finally:
        weir.discard()
