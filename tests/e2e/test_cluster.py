"""Tests of weir in front of a real Redis Cluster: clients use one address, whatever the nodes do among each other."""

from __future__ import annotations

import json
import re
import signal
import threading
from itertools import cycle
from random import Random

import pytest

from harness import metrics
from harness.cluster import SLOTS, Cluster
from harness.resp import Closed, Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

SHARDS = ["--shards", "2"]


@pytest.fixture(scope="module")
def weir(module_servers, cluster: Cluster):
    return module_servers.weir(flags=SHARDS, storage=cluster.storage)


def in_text(plain):
    if isinstance(plain, list):
        return [in_text(each) for each in plain]
    return plain.decode() if isinstance(plain, bytes) else plain


def said(client: Connection, *words):
    return in_text(client.ok(*words))


def slot_of(cluster: Cluster, key: str) -> int:
    return int(cluster.call(cluster.nodes[0], "CLUSTER", "KEYSLOT", key).plain())


def others(cluster: Cluster, slot: int) -> list:
    return [node for node in cluster.primaries if node is not cluster.owner(slot)]


def test_a_cluster_looks_like_one_store(weir):
    with weir.connect() as client:
        names = [f"name:{number}" for number in range(200)]
        for name in names:
            assert said(client, "SET", name, name) == "OK"
        assert said(client, "MGET", *names, "none") == [*names, None]
        assert said(client, "DBSIZE") == 200
        assert sorted(said(client, "KEYS", "*")) == sorted(names)
        found, cursor = [], "0"
        while True:
            cursor, page = said(client, "SCAN", cursor, "COUNT", "10")
            found += page
            if cursor == "0":
                break
        assert sorted(found) == sorted(names)
        assert said(client, "EVAL", "return redis.call('GET', KEYS[1])", 1, names[3]) == names[3]
        assert said(client, "MSET", "{a}1", "x", "b", "y") == "OK"
        assert said(client, "EXISTS", "{a}1", "b", "c") == 2
        assert client.call("RENAME", "name:1", "name:2").text.startswith("CROSSSLOT")
        assert said(client, "RENAME", "{a}1", "{a}2") == "OK"
        assert said(client, "DEL", *names, "b", "{a}2") == 202
        assert said(client, "FLUSHALL") == "OK" and said(client, "DBSIZE") == 0
        replies = client.pipeline([("MULTI",), ("SET", "{t}a", "1"), ("INCR", "{t}a"), ("EXEC",)])
        assert in_text(replies[-1].plain()) == ["OK", 2]
        assert said(client, "PING") == "PONG"


def test_the_page_tells_who_owns_what(weir, cluster: Cluster):
    told = json.loads(weir.admin("/cluster")[1])
    assert told["cluster"] and told["slots_owned"] == SLOTS
    assert {node["name"] for node in told["nodes"]} == {node.address for node in cluster.nodes}


def test_what_is_half_moved_is_found_key_by_key(weir, cluster: Cluster):
    names = [f"{{half}}{number}" for number in range(40)]
    slot = slot_of(cluster, "{half}")
    with weir.connect() as client:
        for name in names[:20]:
            said(client, "SET", name, name)
        target = others(cluster, slot)[0]
        source = cluster.begin_move(slot, target)
        assert cluster.move_keys(slot, source, target, most=10) == 10
        for name in names:
            assert said(client, "GET", name) == (name if name in names[:20] else None)
        # New keys are created at the target of the moving slot.
        for name in names[20:]:
            assert said(client, "APPEND", name, name) == len(name)
        assert said(client, "STRLEN", names[30]) == len(names[30])
        replies = client.pipeline([("MULTI",), ("GET", names[25]), ("APPEND", names[25], "+"), ("EXEC",)])
        assert in_text(replies[-1].plain()) == [names[25], len(names[25]) + 1]
        # Single-key commands on keys that are at either node, and on new ones.
        values = [name if name in names[:20] else {names[25]: name + "+"}.get(name, name) for name in names]
        assert said(client, "MGET", *names, "{half}none", "other") == [*values, None, None]
        assert said(client, "EXISTS", *names, "{half}none", names[0]) == 41
        assert said(client, "MGET", "{half}none", "{half}neither") == [None, None]
        assert said(client, "DEL", "{half}none", names[39], names[1]) == 2
        assert said(client, "SET", names[1], names[1]) == "OK"
        # For commands that need keys of both nodes together, neither a node nor weir has an answer, for longer than a second.
        assert client.call("SUNION", *names[:20]).text.startswith("UNAVAILABLE")
        cluster.end_move(slot, source, target)
        assert said(client, "MGET", *names[:25]) == names[:25]
        assert said(client, "FLUSHALL") == "OK"


INCREMENTS_AND_SAYS = "redis.call('INCR', KEYS[1]) return redis.error_reply(ARGV[1])"


def test_a_script_that_says_that_it_was_refused_is_carried_out_once_and_goes_nowhere(weir, cluster: Cluster):
    slot = slot_of(cluster, "{script}")
    owner, target = cluster.owner(slot), others(cluster, slot)[0]
    claims = [
        f"MOVED {slot} {target.address}",
        f"MOVED {slot} {owner.address}",
        # An address where no server is.
        f"MOVED {slot} 127.0.0.1:1",
        f"MOVED {slot + 1} {target.address}",
        f"ASK {slot} {target.address}",
        f"ASK {slot} 127.0.0.1:1",
        "TRYAGAIN so",
        "READONLY so",
        # Errors that do not name an owner of the slot, and errors that are no refusals.
        "CLUSTERDOWN so",
        "MOVED x y",
        "ASK 99999 :",
    ]
    with weir.connect() as client, weir.connect() as other:
        for times, claim in enumerate(claims, 1):
            client.send("EVAL", INCREMENTS_AND_SAYS, 1, "{script}n", claim)
            client.send("APPEND", "{script}log", f"{times},")
            told = client.read()
            assert told.is_error and (told.text == claim or told.text.startswith("UNAVAILABLE ")), told
            assert not re.match(r"(MOVED|ASK) \d+ .*:\d", told.text), told
            # The next request is carried out after the script, and other clients do not wait for long.
            appended = client.read()
            assert not appended.is_error, appended
            assert said(other, "GET", "{script}n") == str(times), claim
        assert said(other, "GET", "{script}log") == "".join(f"{times}," for times in range(1, len(claims) + 1))
        assert said(other, "DEL", "{script}n", "{script}log") == 2


class Load:
    """Clients that increment counters, and append numbers that show their order, until they are stopped."""

    def __init__(self, weir, keys: list[str], clients: int = 4, database: int = 0) -> None:
        self.weir, self.keys, self.database = weir, keys, database
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.done = {key: 0 for key in keys}
        self.unknown = {key: 0 for key in keys}
        self.errors: list[str] = []
        self.appended: dict[str, list[int]] = {}
        self.rounds = 0
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def _run(self, number: int) -> None:
        list_key = f"order:{number}"
        appended: list[int] = []
        count = 0
        with self.weir.connect() as client:
            client.ok("SELECT", self.database)
            while not self.stopping.is_set():
                requests = [("INCR", key) for key in self.keys]
                for _ in range(8):
                    requests.append(("APPEND", list_key, f"{count},"))
                    count += 1
                replies = client.pipeline(requests)
                with self.lock:
                    self.rounds += 1
                    for request, reply in zip(requests, replies, strict=True):
                        if request[0] == "APPEND":
                            if not reply.is_error:
                                appended.append(int(request[2][:-1]))
                        elif not reply.is_error:
                            self.done[request[1]] += 1
                        elif "connection-lost" in reply.text or "may have happened" in reply.text:
                            self.unknown[request[1]] += 1
                        if reply.is_error:
                            self.errors.append(reply.text)
                            assert not reply.text.startswith(("MOVED", "ASK", "TRYAGAIN")), reply.text
        with self.lock:
            self.appended[list_key] = appended

    def go_on(self, rounds: int = 60) -> None:
        goal = self.rounds + rounds
        until(lambda: self.rounds >= goal, "the load goes on", seconds=60)

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        assert len(self.appended) == len(self.threads), "each ended in good order"


def values(weir, keys: list[str], database: int = 0) -> list[str]:
    with weir.connect() as client:
        client.ok("SELECT", database)
        return [said(client, "GET", key) or "" for key in keys]


def test_slots_move_to_and_fro_under_load_and_every_request_is_carried_out_once_and_in_order(weir, cluster: Cluster):
    keys = [f"count:{number}" for number in range(12)]
    load = Load(weir, keys)
    slots = [slot_of(cluster, key) for key in [*keys, *(f"order:{number}" for number in range(4))]]
    for turn in range(3):
        for slot in slots:
            cluster.move(slot, others(cluster, slot)[turn % 2])
            load.go_on(2)
    load.stop()
    assert load.errors == []
    assert values(weir, keys) == [str(load.done[key]) for key in keys]
    for name, appended in load.appended.items():
        assert values(weir, [name]) == ["".join(f"{number}," for number in appended)]
    samples = weir.admin("/metrics")[1]
    assert "weir_cluster_redirections_total" in samples


def times_asked(cluster: Cluster, node, command: str) -> int:
    told = re.search(rf"cmdstat_{command}:calls=(\d+)", cluster.call(node, "INFO", "commandstats").text)
    return int(told[1]) if told else 0


def test_a_primary_hands_over_and_another_one_dies(servers):
    cluster = Cluster(servers, primaries=3, replicas=3)
    weir = servers.weir(flags=SHARDS, storage=cluster.storage)
    keys = [f"count:{number}" for number in range(12)]
    load = Load(weir, keys)
    load.go_on()
    replica = cluster.nodes[3]
    cluster.call(replica, "CLUSTER", "FAILOVER")
    until(lambda: "role:master" in cluster.call(replica, "INFO", "replication").text, "it has taken over")
    load.go_on()
    handed_over = list(load.errors)
    victim, heir = cluster.nodes[1], cluster.nodes[4]
    cluster.call(heir, "CONFIG", "SET", "cluster-replica-no-failover", "yes")
    victim.kill()
    until(lambda: times_asked(cluster, heir, "role") >= 3, "its replica is looked at")
    cluster.call(heir, "CONFIG", "SET", "cluster-replica-no-failover", "no")

    def has_taken_over() -> bool:
        return "role:master" in cluster.call(heir, "INFO", "replication").text

    until(has_taken_over, "its replica has taken over")

    def serves_all() -> bool:
        with weir.connect() as client:
            try:
                return all(not client.call("INCRBY", key, 0).is_error for key in keys)
            except Closed:
                return False

    until(serves_all, "all slots are served again")
    before = len(load.errors)
    load.go_on()
    assert load.errors[before:] == [], load.errors[before:][:5]
    load.stop()
    # For some milliseconds nodes themselves may report that the slots have no owner.
    refused = [text for text in handed_over if not text.startswith("CLUSTERDOWN")]
    assert refused == [], refused[:5]
    for key, value in zip(keys, values(weir, keys), strict=True):
        # A write that was acknowledged but not replicated is lost with its node; nothing is carried out twice.
        assert int(value) <= load.done[key] + load.unknown[key]
    for appended in load.appended.values():
        assert appended == sorted(appended)
    assert "cluster: map" in weir.output(1 << 20)


def test_a_primary_that_hangs_is_replaced_long_before_it_is_given_up(servers):
    cluster = Cluster(servers, primaries=3, replicas=3)
    weir = servers.weir(flags=[*SHARDS, "--backend-timeout", "10m"], storage=cluster.storage)
    key = next(name for name in map(str, range(100)) if cluster.owner(slot_of(cluster, name)) is cluster.nodes[1])
    with weir.connect(timeout=60) as client, weir.connect(timeout=60) as reader:
        assert said(client, "SET", key, "before") == "OK"
        cluster.nodes[1].signal(signal.SIGSTOP)
        reader.send("GET", key)
        told = client.call("SET", key, "after").text
        assert "reason=node-failed" in told or "reason=stalled" in told, told
        until(lambda: client.call("SET", key, "later").text == "OK", "another has its slots")
        read = reader.read()
        assert "reason=stalled" in read.text or in_text(read.plain()) in ("before", "later"), read
    cluster.nodes[1].signal(signal.SIGCONT)


def walk(client: Connection, count: int = 10, between=lambda: None) -> tuple[set[str], int]:
    """Returns all keys that SCAN shows, and the number of steps."""
    found: set[str] = set()
    cursor, steps = "0", 0
    while True:
        cursor, page = said(client, "SCAN", cursor, "COUNT", str(count))
        found.update(page)
        steps += 1
        if cursor == "0":
            return found, steps
        assert steps < 100_000
        between()


def test_a_walk_misses_nothing_while_slots_move(weir, cluster: Cluster):
    names = {f"walk:{number}" for number in range(1_500)}
    random = Random(7)
    with weir.connect() as client:
        assert said(client, "FLUSHALL") == "OK"
        client.pipeline([("SET", name, "v") for name in sorted(names)])
        slots = sorted({slot_of(cluster, name) for name in list(names)[:100]})
        stopping = threading.Event()
        moved: list[int] = []

        def go_on_moving() -> None:
            # Slots move one after the other, because nobody hears of keys that leave and return while their node is visited.
            for slot in cycle(slots):
                if stopping.is_set():
                    return
                target = random.choice(others(cluster, slot))
                source = cluster.begin_move(slot, target)
                # Sometimes a slot stays half moved for a while.
                for _ in range(random.randrange(3)):
                    cluster.move_keys(slot, source, target, most=1)
                    stopping.wait(random.random() / 20)
                cluster.end_move(slot, source, target)
                moved.append(slot)

        mover = threading.Thread(target=go_on_moving)
        mover.start()
        try:
            for count in [5, 20, 100, 10, 50, 1_000]:
                before = len(moved)
                found, steps = walk(client, count)
                assert names <= found, (count, steps, len(moved) - before, sorted(names - found)[:5])
        finally:
            stopping.set()
            mover.join(60)
        assert len(moved) > 5
        assert walk(client, 100)[0] == names
        assert client.call("SCAN", "12345678901234567").raw.startswith(b"*2")
        assert client.call("SCAN", "no cursor").text == "ERR invalid cursor"
        assert said(client, "FLUSHALL") == "OK"


def test_no_stale_copy_contributes_while_replicas_take_over(servers):
    cluster = Cluster(servers, primaries=3, replicas=3)
    weir = servers.weir(flags=SHARDS, storage=cluster.storage)
    names = {f"copy:{number}" for number in range(300)}
    pairs = [(cluster.nodes[place], cluster.nodes[place + 3]) for place in range(3)]
    answers: list[str] = []

    def hand_over(place: int) -> None:
        pairs[place] = pairs[place][::-1]
        # The node may not know yet that it is a replica now.
        with pairs[place][0].connect() as heir:
            until(lambda: not heir.call("CLUSTER", "FAILOVER").is_error, "it is asked to take over")

    def has_taken_over(place: int) -> bool:
        heir = pairs[place][0]
        if "role:master" in cluster.call(heir, "INFO", "replication").text:
            return True
        # Primaries vote only once in a while, so the failover is asked for again.
        with heir.connect() as operator:
            operator.call("CLUSTER", "FAILOVER")
        return False

    with weir.connect() as client:
        client.pipeline([("SET", name, "v") for name in sorted(names)])
        until(lambda: all(cluster.is_whole(node) for node in cluster.nodes), "replicas are in step")
        for turn in range(4):
            place = turn % 3
            hand_over(place)
            for _ in range(30):
                for words in [("DBSIZE",), ("KEYS", "*"), ("RANDOMKEY",)]:
                    reply = client.call(*words)
                    if reply.is_error:
                        answers.append(reply.text)
                    elif words[0] == "DBSIZE":
                        assert reply.plain() == len(names)
                    elif words[0] == "KEYS":
                        assert set(in_text(reply.plain())) == names
                    else:
                        assert in_text(reply.plain()) in names
            until(lambda: has_taken_over(place), "it has taken over")  # noqa: B023
            if turn == 3:
                # A replica that was a primary until now has a copy of all keys.
                until(lambda: client.call("FLUSHALL").text == "OK", "all is gone", seconds=10)
                assert said(client, "DBSIZE") == 0
                continue
            steps = iter(range(100_000))

            def once() -> None:
                if next(steps) == 3:
                    hand_over((turn + 1) % 3)  # noqa: B023

            assert walk(client, 10, once)[0] == names
            until(lambda: has_taken_over((turn + 1) % 3), "it has taken over")  # noqa: B023
            until(lambda: all(cluster.is_whole(node) for node in cluster.nodes), "replicas are in step")
        assert all(text.startswith("UNAVAILABLE") for text in answers), answers[:3]
    for node in cluster.nodes:
        until(lambda: cluster.call(node, "DBSIZE").plain() == 0, "nothing is left")  # noqa: B023


def test_a_store_that_is_no_cluster_is_waited_for(servers):
    store = servers.redis()
    weir = servers.weir_class(storage=f"cluster://{store.address}", flags=SHARDS)
    weir.ready_path = "/healthz"
    servers.keep(weir).start()
    with weir.connect() as client:
        assert "reason=no-owner" in client.call("GET", "key").text
        # Requests for all nodes are answered too.
        for words in (("DBSIZE",), ("KEYS", "*"), ("SCRIPT", "EXISTS", "a"), ("PUBSUB", "NUMPAT"), ("FLUSHALL",)):
            assert "reason=no-owner" in client.call(*words).text, words
        assert said(client, "PING") == "PONG"


def test_a_cluster_that_is_set_up_anew_at_the_same_addresses_is_found(servers):
    cluster = Cluster(servers)
    weir = servers.weir(flags=SHARDS, storage=cluster.storage)
    with weir.connect() as client:
        assert said(client, "SET", "before", "1") == "OK"
        ids = {cluster.id_of(node) for node in cluster.nodes}
        cluster.set_up_anew()
        anew = {cluster.id_of(node) for node in cluster.nodes}
        assert not ids & anew
        known = lambda: {node["id"] for node in json.loads(weir.admin("/cluster")[1])["nodes"]}  # noqa: E731
        until(lambda: known() == anew, "its nodes are known", seconds=60)
        until(lambda: client.call("SET", "after", "2").text == "OK", "it is served again")
        assert said(client, "MGET", "before", "after", "other") == [None, "2", None]
    assert "weir uses that one" in weir.output(1 << 20)


def lose_what_is_under_way(weir, node, requests: list[tuple]) -> list[str]:
    """Sends requests to a node that is stopped, and that closes all connections when it continues. Returns the replies."""

    def sleep() -> None:
        with node.connect() as operator:
            blocks = [("MULTI",), ("DEBUG", "SLEEP", "1"), ("CLIENT", "KILL", "TYPE", "normal"), ("EXEC",)]
            assert operator.pipeline(blocks)[-1].plain()[1] >= 1, "there was a connection of weir's"

    def is_asleep() -> bool:
        try:
            with Connection(node.port, timeout=0.05) as connection:
                return connection.call("PING").text != "PONG"
        except OSError:
            return True

    with weir.connect() as client:
        client.pipeline(requests)
        sleeper = threading.Thread(target=sleep)
        sleeper.start()
        try:
            until(is_asleep, "the node sleeps")
            return [reply.text if reply.is_error else in_text(reply.plain()) for reply in client.pipeline(requests)]
        finally:
            sleeper.join()


@pytest.mark.parametrize("flags", [[], ["--disable", "retries"]], ids=["on", "off"])
def test_reads_that_are_lost_are_asked_for_again(servers, cluster: Cluster, flags):
    weir = servers.weir(flags=[*SHARDS, *flags], storage=cluster.storage)
    node = cluster.owner(slot_of(cluster, "{again}"))
    reads = [("GET", "{again}a"), ("STRLEN", "{again}a"), ("GETRANGE", "{again}a", 0, 1), ("HLEN", "{again}none")]
    cluster.call(node, "SET", "{again}a", "value")
    told = lose_what_is_under_way(weir, node, reads)
    if flags:
        assert all("reason=connection-lost" in each for each in told), told
        return
    assert told == ["value", 5, "va", 0]
    # A write is not retried, nor is a request before one.
    told = lose_what_is_under_way(weir, node, [("GET", "{again}a"), ("SET", "{again}a", "value"), ("GET", "{again}a")])
    assert ["reason=connection-lost" in str(each) for each in told] == [True, True, False] and told[2] == "value", told
    figures = metrics.parse(weir.admin("/metrics")[1])["weir_backend_retries_total"]
    assert sum(value for labels, value in figures.items() if 'outcome="sent"' in labels) == len(reads) + 1
