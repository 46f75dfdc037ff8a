"""Tests of weir-storages that play the nodes of a cluster, with a cluster client that believes them."""

from __future__ import annotations

import subprocess

import pytest
from redis.cluster import RedisCluster
from redis.crc import key_slot

from harness.fake_cluster import FakeCluster
from harness.ports import free_port
from harness.processes import Redis, Storage, binary
from harness.waiting import until

pytestmark = pytest.mark.weir_only


@pytest.fixture
def cluster(servers):
    def start(primaries: int = 3, replicas: int = 0) -> FakeCluster:
        cluster = FakeCluster([servers.keep(Storage()).start() for _ in range(primaries + replicas)], replicas)
        cluster.tell()
        return cluster

    return start


def client(cluster: FakeCluster, **options) -> RedisCluster:
    return RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port, decode_responses=True, socket_timeout=30, **options)


def keys_of(server: Storage) -> set[str]:
    with server.connect() as connection:
        return {key.decode() for key in connection.ok("KEYS", "*")}


@pytest.mark.parametrize("protocol", [2, 3])
def test_keys_are_found_by_the_topology(cluster, protocol):
    fake = cluster()
    with client(fake, protocol=protocol) as r:
        for number in range(200):
            assert r.set(f"k{number}", number)
        assert [r.get(f"k{number}") for number in range(200)] == [str(number) for number in range(200)]
        assert r.mset_nonatomic({f"m{number}": number for number in range(50)})
    for place, server in enumerate(fake.nodes):
        assert (keys := keys_of(server)) and all(fake.owner[key_slot(key.encode())] == place for key in keys)
        assert fake.refusals(place) == 0, "nobody went astray"


def test_moved_is_followed(cluster):
    fake = cluster()
    with client(fake) as r:
        r.set("foo", "old")
        slot, source = key_slot(b"foo"), fake.owner[key_slot(b"foo")]
        target = (source + 1) % 3
        fake.move(slot, target)
        fake.tell()
        assert r.set("foo", "new")
        assert r.get("foo") == "new"
        assert fake.refusals(source) >= 1
        assert "foo" in keys_of(fake.nodes[target])


def test_ask_is_followed_and_the_map_stays(cluster):
    fake = cluster()
    slot, source = key_slot(b"foo"), fake.owner[key_slot(b"foo")]
    target = (source + 1) % 3
    with client(fake) as r:
        r.set("{foo}here", "source")
        fake.open[slot] = (source, target)
        fake.tell()
        with fake.asking(target) as mover:
            assert mover.ok("SET", "foo", "target") == b"OK"
            assert mover.call("GET", "foo").text == f"MOVED {slot} {fake.nodes[source].address}", "ASKING is for one request"
        assert [r.get("{foo}here"), r.get("foo"), r.get("foo")] == ["source", "target", "target"]
        assert fake.refusals(source) == 2, "each time that it is asked for"
        with fake.nodes[source].connect() as connection:
            assert connection.call("MGET", "foo", "{foo}here").text.startswith("TRYAGAIN ")
            assert connection.call("MGET", "foo", "bar").text.startswith("CROSSSLOT ")
        # ASKING before MULTI applies to the whole transaction.
        with fake.asking(target) as mover:
            replies = mover.pipeline([("MULTI",), ("GET", "foo"), ("SET", "foo", "again"), ("EXEC",)])
            assert replies[-1].plain() == [b"target", b"OK"]
            steps = mover.pipeline([("MULTI",), ("GET", "foo"), ("EXEC",)])
            assert [step.text.split(" ")[0] for step in steps] == ["OK", "MOVED", "EXECABORT"]


def test_refusals_by_number_of_request(cluster):
    fake = cluster(2)
    slot, source = key_slot(b"foo"), fake.owner[key_slot(b"foo")]
    elsewhere = fake.nodes[1 - source].address
    fake.refuse(source, "MOVED", elsewhere, "SLOTS", slot, "SKIP", 2, "TIMES", 1)
    fake.refuse(source, "CLUSTERDOWN", "SKIP", 3, "TIMES", 1)
    with fake.nodes[source].connect() as connection:
        replies = connection.pipeline([("SET", "foo", number) for number in range(6)])
        assert [reply.text.split(" ")[0] for reply in replies] == ["OK", "OK", "MOVED", "OK", "CLUSTERDOWN", "OK"]
        assert replies[2].text == f"MOVED {slot} {elsewhere}"
        fake.refuse(source, "READONLY")
        assert connection.ok("GET", "foo") == b"5"
        assert connection.call("SET", "foo", "v").text.startswith("READONLY ")
        fake.refuse(source, "OFF")
        assert connection.ok("SET", "foo", "v") == b"OK"
        # The client sees TRYAGAIN twice and retries until it succeeds.
        fake.refuse(source, "TRYAGAIN", "TIMES", 2)
        with client(fake) as r:
            assert r.get("foo") == "v"
    assert fake.refusals(source) == 5


def test_replicas_answer_those_who_ask_for_it(cluster):
    fake = cluster(2, replicas=2)
    owner = fake.owner[key_slot(b"foo")]
    replica = 2 + owner
    with fake.nodes[replica].connect() as connection:
        assert connection.call("GET", "foo").text == f"MOVED {key_slot(b'foo')} {fake.nodes[owner].address}"
        assert connection.ok("READONLY") == b"OK"
        assert connection.call("GET", "foo").is_null
        assert connection.call("SET", "foo", "v").text.startswith("MOVED ")
    with client(fake) as r:
        assert {node.server_type for node in r.get_nodes()} == {"primary", "replica"}
        assert len(r.get_replicas()) == 2


# Requests, and the node (0 or 1) to which they are sent in one go. `foo` is in slot 12182 of the second node, `bar` in 5061 of
# the first; @0 and @1 stand for the nodes' ids.
TALK = [
    (0, "SET foo x; SET bar 1; MGET foo bar; MGET bar {bar}2; CLUSTER KEYSLOT bar; CLUSTER; CLUSTER SETSLOT x; READONLY x"),
    (0, "MULTI; GET foo; GET bar; EXEC; MULTI; GET bar; DISCARD"),
    (1, "SET foo x; GET bar; MULTI; GET bar; EXEC"),
    (0, "CLUSTER SETSLOT 12182 IMPORTING @0; CLUSTER SETSLOT 5061 IMPORTING @1; CLUSTER SETSLOT 12182 MIGRATING @1"),
    (0, "CLUSTER SETSLOT 5061 NODE zz; CLUSTER SETSLOT 16384 STABLE; CLUSTER SETSLOT 12182 STABLE"),
    (1, "CLUSTER SETSLOT 5061 IMPORTING @0"),
    (0, "CLUSTER SETSLOT 5061 MIGRATING @1"),
    (0, "GET bar; GET {bar}2; MGET bar {bar}2; MGET {bar}3 {bar}2; MGET bar foo"),
    (0, "MULTI; GET bar; EXEC; MULTI; GET {bar}2; EXEC; MULTI; GET bar; DEL bar; EXEC; GET bar"),
    (1, "GET {bar}2; ASKING; GET {bar}2; GET {bar}2; ASKING; SET {bar}2 v; ASKING; MGET {bar}2 {bar}3; ASKING; MGET {bar}2 {bar}2"),
    (1, "ASKING; MSET {bar}8 1 {bar}9 2; ASKING; PING; GET {bar}2; ASKING; GET; GET {bar}2"),
    (1, "ASKING; MULTI; GET {bar}2; SET {bar}2 w; EXEC; GET {bar}2; ASKING; MULTI; SET {bar}2 w; SET {bar}7 w; EXEC"),
    (0, "EXISTS bar {bar}2; DBSIZE"),
    # From here on the real source learns of the move by itself, at an unknown time.
    (1, "READONLY; GET bar; READWRITE; CLUSTER SETSLOT 5061 NODE @1; GET {bar}2"),
    (0, "CLUSTER SETSLOT 5061 NODE @1; GET bar"),
]


def test_as_real_nodes_answer(servers, cluster):
    """Compares with two real nodes, byte for byte, while a slot moves from one to the other."""
    options = [("--cluster-enabled", "yes", "--cluster-port", str(free_port())) for _ in range(2)]
    real = [servers.redis(*option) for option in options]
    for place, (node, slots) in enumerate(zip(real, [(0, 8191), (8192, 16383)])):
        with node.connect() as operator:
            operator.ok("CLUSTER", "ADDSLOTSRANGE", *slots)
            operator.ok("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
    with real[0].connect() as operator:
        operator.ok("CLUSTER", "MEET", "127.0.0.1", real[1].port, options[1][3])
    ids = []
    for node in real:
        with node.connect() as operator:
            until(lambda: b"cluster_state:ok" in operator.ok("CLUSTER", "INFO"), "the nodes know each other")
            ids.append(operator.ok("CLUSTER", "MYID").decode())

    def talk(nodes: list[Redis], ids: list[str]) -> list[tuple[str, str]]:
        heard = []
        for place, lines in TALK:
            commands = [line.strip() for line in lines.split(";")]
            sent = [line.replace("@0", ids[0]).replace("@1", ids[1]).split(" ") for line in commands]
            with nodes[place].connect() as connection:
                for line, reply in zip(commands, connection.pipeline(sent)):
                    text = reply.raw.decode()
                    for number in range(2):
                        text = text.replace(nodes[number].address, f"node-{number}").replace(ids[number], f"id-{number}")
                    heard.append((line, text))
        return heard

    fake = cluster(2)
    assert talk(fake.nodes, [fake.id(0), fake.id(1)]) == talk(real, ids)


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_walk_of_a_dispatcher_comes_to_its_end(servers, cluster, count):
    fake = cluster()
    names = {f"walk:{number}" for number in range(300 if count == 1 else 3000)}
    weir = servers.weir(storage=f"cluster://{','.join(node.address for node in fake.nodes)}")
    with weir.connect() as client:
        client.pipeline([("SET", name, "v") for name in sorted(names)])
        found: list[str] = []
        cursor = "0"
        for _ in range(20 * len(names)):
            following, page = client.ok("SCAN", cursor, "COUNT", count)
            cursor = following.decode()
            found += [name.decode() for name in page]
            if cursor == "0":
                break
        assert cursor == "0" and set(found) == names
        assert len(found) == len(names), "nothing changed, so nothing is shown twice"


def test_a_cluster_from_files(servers, tmp_path):
    """All nodes may share one file: each finds its own line by its address."""
    ports = [free_port(), free_port()]
    file = tmp_path / "nodes"
    file.write_text(
        f"aaa 127.0.0.1:{ports[0]}@1 master - 0 0 1 connected 0-8191\n"
        f"bbb 127.0.0.1:{ports[1]}@1,b.example master - 0 0 2 connected 8192-16383\n"
    )
    nodes = [Storage("--cluster", str(file)) for _ in ports]
    for node, port in zip(nodes, ports):
        node.port = port
        servers.keep(node).start()
    with nodes[1].connect() as connection:
        assert connection.ok("CLUSTER", "MYID") == b"bbb"
        assert connection.ok("CLUSTER", "SLOTS") == [
            [0, 8191, [b"127.0.0.1", ports[0], b"aaa", []]],
            [8192, 16383, [b"127.0.0.1", ports[1], b"bbb", [b"hostname", b"b.example"]]],
        ]
        assert connection.ok("CLUSTER", "NODES").decode().splitlines()[1] == (
            f"bbb 127.0.0.1:{ports[1]}@1,b.example myself,master - 0 0 2 connected 8192-16383"
        )
        assert len(connection.ok("CLUSTER", "SHARDS")) == 2
        connection.ok("STORAGE", "CLUSTER", "ENDPOINTS", "HOSTNAME")
        assert connection.ok("CLUSTER", "SLOTS")[0][2][:2] == [b"?", ports[0]]
        connection.ok("STORAGE", "CLUSTER", "ENDPOINTS", "UNKNOWN")
        assert connection.ok("CLUSTER", "SLOTS")[0][2][:2] == [None, ports[0]]
        assert connection.call("GET", "bar").text == f"MOVED 5061 :{ports[0]}"
        # The same move with the commands that real tools send.
        connection.ok("CLUSTER", "SETSLOT", "5061", "NODE", "bbb")
        assert connection.call("GET", "bar").is_null
        connection.ok("STORAGE", "RESET")
        assert connection.call("GET", "bar").text == f"MOVED 5061 127.0.0.1:{ports[0]}"
        connection.ok("STORAGE", "CLUSTER", "NODES", "OFF")
        assert connection.call("GET", "bar").is_null
    run = subprocess.run([binary("weir-storage"), "--cluster", file], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "(--cluster): which node is this?" in run.stderr
