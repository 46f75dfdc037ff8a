"""Tests of limits and bad input: the client gets a clear error or is disconnected, memory is bounded, and other clients are
served meanwhile.
"""

from __future__ import annotations

import random
import socket
import subprocess
import time

import pytest

from harness import large_replies, metrics
from harness.processes import CLOCK_TICKS, Redis, Server, Weir, binary, with_files
from harness.resp import Closed, Connection, encode, shorten
from harness.waiting import until

MEBIBYTE = 1 << 20
REQUEST_BYTES_MAX = 16 * MEBIBYTE
# The most memory that one misbehaving client may cost. Wide, because it only tells bounded from unbounded.
GROWTH_MAX = 96 * MEBIBYTE


@pytest.fixture(scope="module")
def weir(module_servers) -> Weir:
    return module_servers.weir(module_servers.redis(), flags=["--shards", "2"])


@pytest.fixture
def neighbour(weir: Weir):
    """A well-behaved client, which is connected before the trouble starts and must be served after it."""
    with weir.connect() as connection:
        assert connection.ok("SET", "neighbour", "fine") == b"OK"
        yield connection
        assert connection.ok("GET", "neighbour") == b"fine"
    assert not weir.exited(), weir.output()


HOSTILE = {
    "endless array": b"*2147483647\r\n",
    "array beyond 64 bits": b"*99999999999999999999999\r\n",
    "array of a negative length": b"*-5\r\n$3\r\nGET\r\n",
    "array length is text": b"*abc\r\n",
    "array length is empty": b"*\r\n$4\r\nPING\r\n",
    "array length with a sign": b"*+1\r\n$4\r\nPING\r\n",
    "negative bulk": b"*2\r\n$3\r\nGET\r\n$-5\r\n",
    "null bulk": b"*2\r\n$3\r\nGET\r\n$-1\r\n",
    "endless bulk": b"*2\r\n$3\r\nGET\r\n$2147483647\r\n",
    "bulk beyond 64 bits": b"*2\r\n$3\r\nGET\r\n$99999999999999999999999\r\n",
    "bulk length is text": b"*2\r\n$3\r\nGET\r\n$abc\r\n",
    "bulk without its mark": b"*2\r\n$3\r\nGET\r\n:5\r\n",
    "nested array": b"*2\r\n*1\r\n$3\r\nGET\r\n$1\r\na\r\n",
    "deep nesting": b"*1\r\n" * 10_000,
    "bulk longer than said": b"*2\r\n$3\r\nGET\r\n$1\r\nabcdef\r\n",
    "bulk shorter than said": b"*2\r\n$3\r\nGET\r\n$6\r\nabc\r\n*1\r\n$4\r\nPING\r\n",
    "inline without end": b"x" * 200_000,
    "inline with an open quote": b'SET a "open\r\n',
    "inline of zeros": b"\0" * 1000 + b"\r\n",
    "length line without end": b"*" + b"1" * 200_000,
    "zeros": b"\0" * 100_000,
    "only line breaks": b"\r\n" * 50_000,
    "HTTP": b"POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: 5\r\n\r\nhello",
    "TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(range(200)),
    "empty arrays": b"*0\r\n" * 20_000,
    "a reply": b"+OK\r\n:5\r\n$3\r\nabc\r\n",
    "RESP3 types": b"%1\r\n+a\r\n+b\r\n~1\r\n:1\r\n_\r\n#t\r\n",
    "an empty command name": b"*1\r\n$0\r\n\r\n",
    "a huge command name": encode(b"X" * MEBIBYTE),
    "a command of zeros": encode(b"\0\0\0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input(weir: Weir, neighbour: Connection, name: str):
    provoke(weir, HOSTILE[name])


@pytest.mark.parametrize("seed", range(30))
def test_garbage(weir: Weir, neighbour: Connection, seed: int):
    """Random bytes, random pieces that look like RESP, and real requests with a changed byte."""
    chooser = random.Random(seed)
    pieces = [
        b"*",
        b"$",
        b"\r\n",
        b"-1",
        b"3",
        b"GET",
        b"SET",
        b"a",
        b"\0",
        b"%",
        b"~",
        b"99999",
        b" ",
        b'"',
        encode("PING"),
    ]
    match seed % 3:
        case 0:
            payload = chooser.randbytes(chooser.randint(1, 50_000))
        case 1:
            payload = b"".join(chooser.choices(pieces, k=3000))
        case _:
            changed = bytearray(
                b"".join(encode("SET", f"garbage:{i}", "v" * chooser.randint(0, 50)) for i in range(200))
            )
            for _ in range(chooser.randint(1, 20)):
                changed[chooser.randrange(len(changed))] = chooser.randrange(256)
            payload = bytes(changed)
    provoke(weir, payload)


def provoke(weir: Weir, payload: bytes) -> None:
    """Sends a payload and closes. Replies must be RESP, and must end."""
    with weir.connect() as connection:
        try:
            connection.send_raw(payload)
            connection.half_close()
        except (Closed, OSError):
            pass  # closed while it was still being sent: an answer as well
        try:
            while True:
                connection.read()
        except Closed:
            assert not connection.parser.pending, shorten(connection.parser.pending)


PROTOCOL_ERRORS = {
    "endless array": b"-ERR Protocol error: invalid multibulk length\r\n",
    "array length is text": b"-ERR Protocol error: invalid multibulk length\r\n",
    "negative bulk": b"-ERR Protocol error: invalid bulk length\r\n",
    "bulk length is text": b"-ERR Protocol error: invalid bulk length\r\n",
    "bulk without its mark": b"-ERR Protocol error: expected '$', got ':'\r\n",
    "inline with an open quote": b"-ERR Protocol error: unbalanced quotes in request\r\n",
    "inline without end": b"-ERR Protocol error: too big inline request\r\n",
    "length line without end": b"-ERR Protocol error: too big mbulk count string\r\n",
}


# A plain redis-server admits arrays of this length.
WEIRS_OWN_LIMIT = pytest.param("endless array", marks=pytest.mark.weir_only)


@pytest.mark.parametrize("name", [WEIRS_OWN_LIMIT, *list(PROTOCOL_ERRORS)[1:]])
def test_malformed_bytes_get_the_words_of_redis_and_a_close(weir: Weir, name: str):
    with weir.connect() as connection:
        connection.send_raw(HOSTILE[name])
        assert connection.read().raw == PROTOCOL_ERRORS[name]
        assert connection.read_to_end() == []


@pytest.mark.parametrize("name", ["array beyond 64 bits", "bulk beyond 64 bits"])
def test_lengths_beyond_all_sense_get_some_words_and_a_close(weir: Weir, name: str):
    with weir.connect() as connection:
        connection.send_raw(HOSTILE[name])
        assert connection.read().text.startswith("ERR Protocol error: ")
        assert connection.read_to_end() == []


def test_what_came_before_malformed_bytes_is_answered(weir: Weir):
    with weir.connect() as connection:
        connection.send_raw(
            encode("SET", "before", "1") + encode("GET", "before") + b"*abc\r\n" + encode("SET", "before", "2")
        )
        assert [reply.text for reply in connection.read_many(2)] == ["OK", "1"]
        assert connection.read().text.startswith("ERR Protocol error")
        assert connection.read_to_end() == []
    with weir.connect() as connection:
        assert connection.ok("GET", "before") == b"1"


@pytest.mark.parametrize(
    "request_bytes",
    [
        encode("SET", "truncated", "x" * 1000),
        encode("MGET", *[f"truncated:{i}" for i in range(20)]),
        b"SET truncated inline\r\n",
    ],
    ids=["bulk", "array", "inline"],
)
def test_truncated_frames(weir: Weir, neighbour: Connection, request_bytes: bytes):
    """A client disconnects in the middle of a request, at every byte of its first hundred: the request is never carried out."""
    neighbour.ok("DEL", "truncated")
    for length in range(1, min(100, len(request_bytes))):
        with weir.connect() as connection:
            connection.send_raw(request_bytes[:length])
            connection.half_close()
            assert connection.read_to_end() == []
    assert neighbour.ok("EXISTS", "truncated") == 0


@pytest.mark.parametrize(
    "size", [0, 1, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 65_536, MEBIBYTE, 5 * MEBIBYTE + 3, 15 * MEBIBYTE]
)
def test_large_values_come_back_as_they_went(weir: Weir, size: int):
    value = random.Random(size).randbytes(size)
    with weir.connect() as connection:
        assert connection.ok("SET", "large", value) == b"OK"
        replies = connection.pipeline([("GET", "large"), ("STRLEN", "large"), ("GET", "large")])
        assert [replies[0].value == value, int(replies[1].value) == size, replies[2].value == value] == [True] * 3
        assert connection.ok("DEL", "large") == 1


@pytest.mark.weir_only
def test_a_value_at_the_limit_and_one_beyond_it(servers):
    weir = servers.weir(servers.redis(), flags=["--max-request-bytes", str(MEBIBYTE)])
    overhead = len(encode("SET", "k", "")) + 10
    with weir.connect() as connection:
        value = b"v" * (MEBIBYTE - overhead)
        assert connection.ok("SET", "k", value) == b"OK"
        assert connection.ok("GET", "k") == value
    with weir.connect() as connection:
        provoke_too_large(connection, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % (MEBIBYTE + 1))
    with weir.connect() as connection:
        assert connection.ok("STRLEN", "k") == len(value)


def provoke_too_large(connection: Connection, head: str) -> None:
    """Sends only the announcement of a large request: the refusal must not wait for the bytes."""
    connection.send_raw(head.encode())
    reply = connection.read()
    assert reply.is_error, reply
    assert connection.read_to_end() == []


@pytest.mark.weir_only
def test_the_default_limit_is_16_mebibytes(weir: Weir):
    with weir.connect() as connection:
        provoke_too_large(connection, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % (REQUEST_BYTES_MAX + 1))


def test_many_arguments(weir: Weir):
    count = 100_000
    words = [word for i in range(count) for word in (f"wide:{i}", i)]
    with weir.connect() as connection:
        assert connection.ok("MSET", *words) == b"OK"
        assert connection.ok("MGET", *words[::2]) == [b"%d" % i for i in range(count)]
        assert connection.ok("DEL", *words[::2]) == count
        assert connection.ok("RPUSH", "wide:list", *range(count)) == count
        assert connection.ok("LRANGE", "wide:list", 0, -1) == [b"%d" % i for i in range(count)]
        assert connection.ok("DEL", "wide:list") == 1


def test_one_byte_at_a_time(weir: Weir, neighbour: Connection):
    payload = encode("SET", "slow", "writer") + encode("GET", "slow") + b"PING\r\n"
    with weir.connect() as connection:
        for i in range(len(payload)):
            connection.send_raw(payload[i : i + 1])
            if i % 10 == 0:
                assert neighbour.ok("GET", "neighbour") == b"fine"
        assert [reply.text for reply in connection.read_many(3)] == ["OK", "writer", "PONG"]


def test_a_half_closed_client_gets_its_replies(weir: Weir):
    count = 500
    with weir.connect() as connection:
        connection.send_raw(b"".join(encode("SET", f"half:{i}", i) + encode("GET", f"half:{i}") for i in range(count)))
        connection.half_close()
        replies = connection.read_to_end()
    assert [reply.text for reply in replies] == [text for i in range(count) for text in ("OK", str(i))]


def test_quit_is_answered_and_closes(weir: Weir):
    with weir.connect() as connection:
        connection.send_raw(encode("SET", "quit", "1") + encode("QUIT") + encode("SET", "quit", "2"))
        assert [reply.text for reply in connection.read_to_end()] == ["OK", "OK"]
    with weir.connect() as connection:
        assert connection.ok("GET", "quit") == b"1"


def test_connections_that_come_and_go(weir: Weir, neighbour: Connection):
    """Clients that disconnect without reading, in every state, leak neither descriptors nor memory."""
    before = weir.descriptors()
    for i in range(500):
        connection = weir.connect()
        match i % 4:
            case 1:
                connection.send("GET", "neighbour")
            case 2:
                connection.send_raw(b"*2\r\n$3\r\nGET\r\n$100\r\nonly a part")
            case 3:
                connection.send_raw(encode("GET", "neighbour") * 50)
        connection.close()
    until(lambda: weir.descriptors() <= before + 2, "the files of all who left are closed")


@pytest.mark.weir_only
def test_a_client_that_does_not_read_costs_bounded_memory_and_is_closed(servers):
    """A client asks for 200 MB of replies and reads none."""
    weir = servers.weir(
        servers.redis(),
        flags=["--shards", "1", "--output-limit", "16MiB", "--max-reply-bytes", "16MiB", "--send-timeout", "3s"],
    )
    with weir.connect() as good:
        good.ok("SET", "megabyte", b"m" * MEBIBYTE)
        good.ok("GET", "megabyte")
        before = weir.resident_bytes()
        with weir.connect(receive_buffer=4096) as slow:
            slow.send_raw(encode("GET", "megabyte") * 200)
            peak = before

            def closed() -> bool:
                nonlocal peak
                peak = max(peak, weir.resident_bytes())
                assert good.ok("PING") == b"PONG", "the neighbours are served meanwhile"
                return is_closed(slow)

            until(closed, "a client that does not read is closed")
        assert peak - before < GROWTH_MAX, f"grew by {(peak - before) // MEBIBYTE} MiB"
        assert good.ok("STRLEN", "megabyte") == MEBIBYTE


@pytest.mark.weir_only
def test_a_client_that_reads_slowly_gets_its_reply_whole(servers):
    """A reply of 16 MiB takes longer to read than the time after which a client that reads nothing is closed."""
    weir = servers.weir(servers.redis(), flags=["--shards", "1", "--send-timeout", "2s"])
    with weir.connect() as good:
        good.ok("SET", "large", b"l" * (16 * MEBIBYTE))
    with weir.connect(receive_buffer=64 * 1024) as slow:
        slow.send_raw(encode("GET", "large"))
        begun, received, whole = time.monotonic(), 0, 16 * MEBIBYTE + len(b"$16777216\r\n\r\n")
        while received < whole:
            part = slow.socket.recv(min(256 * 1024, whole - received))
            assert part, f"closed after {received} bytes"
            received += len(part)
            # A pace of 4 MiB per second, so that the reply takes 4 seconds.
            time.sleep(max(0.0, begun + received / (4 * MEBIBYTE) - time.monotonic()))
        assert time.monotonic() - begun > 3
        assert slow.ok("PING") == b"PONG"


@pytest.mark.weir_only
def test_large_replies_of_many_connections_take_turns(servers):
    large_replies.take_turns(servers.weir(servers.redis(), flags=large_replies.FLAGS))


def is_closed(connection: Connection) -> bool:
    """True if the peer has reset or closed the connection, tested without reading: sending fails."""
    connection.socket.settimeout(0)
    try:
        connection.socket.send(encode("PING"))
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.socket.settimeout(30)
    return False


@pytest.mark.weir_only
def test_a_client_that_sends_without_end_and_does_not_read(servers):
    """Requests are read only as fast as replies are: a client that sends without reading is paused, not buffered."""
    weir = servers.weir(servers.redis(), flags=["--shards", "1"])
    with weir.connect() as good, weir.connect(receive_buffer=4096) as flood:
        good.ok("SET", "k", b"v" * 10_000)
        before = weir.resident_bytes()
        flood.socket.settimeout(1)
        payload, sent, blocked = encode("GET", "k") * 1000, 0, False
        while sent < 64 * MEBIBYTE and not blocked:
            try:
                sent += flood.socket.send(payload)
            except TimeoutError:
                blocked = True
            except OSError:
                break  # closed: just as good
        assert sent < 64 * MEBIBYTE, "64 MiB of requests were taken from a client that reads nothing"
        assert weir.resident_bytes() - before < GROWTH_MAX
        assert good.ok("PING") == b"PONG"


@pytest.mark.weir_only
@pytest.mark.parametrize("store", ["one store", "embedded"])
def test_a_long_pipeline_is_answered_though_it_is_written_whole_before_a_reply_is_read(servers, tmp_path, store: str):
    """Client libraries do so. The requests are more than the buffers of a Unix socket hold, and so are the replies to a part
    of them.
    """
    path = tmp_path / "socket"
    stores = [servers.redis()] if store == "one store" else []
    weir = servers.weir(*stores, flags=["--unix", str(path)])
    value = b"v" * 1_000
    with weir.connect() as other, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        key = "k" * 200
        other.ok("SET", key, value)
        client.settimeout(30)
        client.connect(str(path))
        client.sendall(encode("GET", key) * 30_000)
        reply = b"$1000\r\n" + value + b"\r\n"
        received = bytearray()
        while len(received) < 30_000 * len(reply):
            part = client.recv(MEBIBYTE)
            assert part, f"closed after {len(received)} bytes"
            received += part
        assert received == reply * 30_000
        assert metrics.total(weir, "weir_client_backlogs_total") >= 1


@pytest.mark.weir_only
def test_a_slow_reader_gets_everything(servers):
    """A slow client is not closed: one that keeps reading in small pieces gets every byte."""
    weir = servers.weir(servers.redis(), flags=["--shards", "1"])
    value = random.Random(1).randbytes(MEBIBYTE)
    with weir.connect(receive_buffer=8192) as slow:
        slow.ok("SET", "k", value)
        slow.send_raw(encode("GET", "k") * 20)
        for _ in range(20):
            assert slow.read().value == value


@pytest.mark.weir_only
def test_strangers_do_not_take_the_descriptors_of_connections_to_stores(servers):
    class Limited(Weir):
        def command(self) -> list[str]:
            return with_files(1_024, super().command())

    store = servers.redis()
    weir = servers.keep(Limited(store, flags=["--shards", "2"])).start()
    assert "the limit of open files is 1024" in weir.output()
    strangers = []
    with weir.connect() as client:
        assert client.ok("SET", "key", "1") == b"OK"
        try:
            for _ in range(1_100):
                try:
                    strangers.append(socket.create_connection(("127.0.0.1", weir.port), timeout=5))
                except OSError:
                    break
            # Connections to the store are opened again after they were lost.
            for _ in range(3):
                with store.connect() as direct:
                    direct.ok("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                until(lambda: client.call("GET", "key").plain() == b"1", "the client is served again")
            with weir.connect() as refused:
                assert "reason=clients" in refused.read().text
            assert weir.descriptors() < 1_000
        finally:
            for stranger in strangers:
                stranger.close()
        assert client.ok("GET", "key") == b"1"


def test_max_clients(servers):
    weir = servers.weir(servers.redis(), flags=["--shards", "1", "--max-clients", "10"])
    admitted = [weir.connect() for _ in range(10)]
    for connection in admitted:
        assert connection.ok("PING") == b"PONG"
    for _ in range(5):
        assert turned_away(weir)
    for connection in admitted:
        assert connection.ok("PING") == b"PONG", "who was in stays in"
    admitted.pop().close()
    until(lambda: not turned_away(weir), "a place that became free is given away")
    for connection in admitted:
        connection.close()


def turned_away(weir: Server) -> bool:
    with weir.connect() as connection:
        try:
            reply = connection.call("PING")
        except Closed:
            return True
        return reply.is_error


@pytest.mark.weir_only
@pytest.mark.parametrize(
    "announced",
    [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16000000\r\n", b"*1000000\r\n$3\r\nDEL\r\n$1\r\nk\r\n"],
    ids=["a large value", "many arguments"],
)
def test_what_is_only_announced_costs_nothing(servers, announced: bytes):
    """A thousand clients announce large requests and send nothing of them."""
    weir = servers.weir(servers.redis(), flags=["--shards", "1"])
    with weir.connect() as good:
        good.ok("PING")
        before = weir.resident_bytes()
        clients = [weir.connect() for _ in range(1000)]
        for client in clients:
            client.send_raw(announced)
        good.ok("SET", "k", "v")
        # The same shard has handled everything that was sent before this client's request.
        until(lambda: clients_of(weir) == len(clients) + 1, "all have been accepted")
        assert good.ok("GET", "k") == b"v"
        grown = weir.resident_bytes() - before
        assert grown < GROWTH_MAX, f"grew by {grown // MEBIBYTE} MiB"
        for client in clients:
            client.close()


def clients_of(weir: Weir) -> int:
    with weir.connect() as connection:
        fields = dict(line.split(":", 1) for line in connection.ok("INFO", "clients").decode().split() if ":" in line)
    return int(fields["connected_clients"]) - 1


@pytest.mark.weir_only
def test_a_transaction_that_never_ends_is_bounded(servers):
    weir = servers.weir(servers.redis(), flags=["--shards", "1", "--max-request-bytes", "1MiB"])
    with weir.connect() as connection:
        connection.ok("PING")
        before = weir.resident_bytes()
        connection.ok("MULTI")
        replies = connection.pipeline([("SET", "k", b"v" * 100_000) for _ in range(2000)])
        assert any(reply.is_error for reply in replies), "200 MB were queued"
        assert connection.call("EXEC").text.startswith("EXECABORT ")
        grown = weir.resident_bytes() - before
        assert grown < GROWTH_MAX, f"grew by {grown // MEBIBYTE} MiB"
        assert connection.ok("EXISTS", "k") == 0


@pytest.mark.weir_only
def test_idle_clients_are_closed_when_asked_for(servers):
    weir = servers.weir(servers.redis(), flags=["--shards", "1", "--idle-timeout", "300ms"])
    with weir.connect() as idle, weir.connect() as busy:
        assert idle.ok("PING") == b"PONG"
        idle.socket.settimeout(0.02)

        def closed() -> bool:
            busy.ok("PING")
            try:
                return idle.socket.recv(1) == b""
            except TimeoutError:
                return False

        until(closed, "the idle client is closed")
        assert busy.ok("PING") == b"PONG", "who says something stays"


@pytest.mark.weir_only
def test_an_idle_server_uses_no_cpu(servers):
    """Measures CPU time, not speed, while no requests come."""
    weir = servers.weir(servers.redis(), flags=["--shards", "2"])
    connections = [weir.connect() for _ in range(20)]
    for connection in connections:
        assert connection.ok("PING") == b"PONG"
    start, ticks = time.monotonic(), weir.cpu_ticks()
    until(lambda: time.monotonic() - start > 2.0, "two seconds have passed")
    used = (weir.cpu_ticks() - ticks) / CLOCK_TICKS
    assert used < 0.05 * (time.monotonic() - start), f"{used:.2f} s of CPU in two idle seconds"


@pytest.mark.weir_only
def test_the_embedded_store_refuses_writes_beyond_its_memory(servers):
    limit = 32 * MEBIBYTE
    weir = servers.weir(flags=["--shards", "2", "--embedded-max-bytes", str(limit)])
    refused = None
    with weir.connect() as connection:
        connection.ok("SET", "first", "1")
        for i in range(100):
            reply = connection.call("SET", f"fill:{i}", b"x" * MEBIBYTE)
            if reply.is_error:
                refused = i, reply
                break
        assert refused and refused[1].text.startswith("OOM "), refused
        assert refused[0] >= 8, "refused long before the limit"
        assert connection.ok("GET", "first") == b"1", "reads go on"
        assert connection.ok("DEL", *[f"fill:{i}" for i in range(refused[0])]) == refused[0], "deleting goes on"
        assert connection.ok("SET", "after", "1") == b"OK", "there is room again"
    assert weir.resident_bytes() < limit + GROWTH_MAX


WRONG_FLAGS = [
    (["--shards", "none"], ["--shards", "none"]),
    (["--shards", "0"], ["--shards", "0"]),
    (["--shards", "100000"], ["--shards", "100000"]),
    (["--listen", "nowhere"], ["--listen", "nowhere"]),
    (["--listen", "127.0.0.1:99999"], ["--listen", "127.0.0.1:99999"]),
    (["--storage", "ftp://127.0.0.1"], ["--storage", "ftp://127.0.0.1", "redis://"]),
    (["--storage", "redis://"], ["--storage", "redis://"]),
    (["--storage", "redis://127.0.0.1:notaport"], ["--storage", "notaport"]),
    (["--drain-timeout", "soon"], ["--drain-timeout", "soon"]),
    (["--max-clients", "-1"], ["--max-clients", "-1"]),
    (["--max-request-bytes", "1GiBx"], ["--max-request-bytes", "1GiBx"]),
    (["--quotas", "/nonexistent/quotas.toml"], ["--quotas", "/nonexistent/quotas.toml"]),
    (["--no-such-flag"], ["--no-such-flag"]),
    (["--admin", "127.0.0.1:0x50"], ["--admin", "127.0.0.1:0x50"]),
    (["--cores", "1", "--shards", "2"], ["--shards 2", "--cores 1", "at most 1"]),
    (
        ["--storage", "cluster://127.0.0.1:1", "--shards", "64", "--backend-connections", "8"],
        ["64 shards", "128 stores", "--backend-connections 8"],
    ),
]


def run_weir(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary("weir"), *flags], capture_output=True, text=True, timeout=30)


@pytest.mark.weir_only
@pytest.mark.parametrize(("flags", "named"), WRONG_FLAGS, ids=[" ".join(flags) for flags, _ in WRONG_FLAGS])
def test_wrong_flags_are_named_with_what_was_given(flags: list[str], named: list[str]):
    run = run_weir("--check", *flags)
    said = run.stdout + run.stderr
    assert run.returncode not in (0, 101), said
    assert "panicked" not in said
    for word in named:
        assert word in said, f"{word} is not named in: {said}"


@pytest.mark.weir_only
def test_check_accepts_what_is_right():
    run = run_weir("--check", "--shards", "2", "--storage", "redis://127.0.0.1:1,127.0.0.1:2", "--drain-timeout", "5s")
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.weir_only
def test_help_names_the_usual_flags_and_help_all_the_others_too():
    said, all_flags = run_weir("--help").stdout, run_weir("--help-all").stdout
    assert "--shards" not in said and "--shards" in all_flags
    for flag in (
        "--listen",
        "--admin",
        "--storage",
        "--cores",
        "--quotas",
        "--drain-timeout",
        "--max-clients",
        "--max-request-bytes",
        "--embedded-max-bytes",
        "--check",
    ):
        assert flag in said and flag in all_flags, f"{flag} is not in --help"
    assert run_weir("--version").stdout.startswith("weir ")


@pytest.mark.weir_only
def test_a_port_that_is_taken_is_named(servers):
    taken: Redis = servers.redis()
    run = run_weir("--listen", taken.address, "--admin", "127.0.0.1:0", "--storage", "embedded")
    assert run.returncode not in (0, 101)
    assert taken.address in run.stderr + run.stdout, run.stderr


@pytest.mark.weir_only
def test_too_little_locked_memory_says_what_to_set():
    """Without the locked memory that io_uring and glommio need, the error names the way out. Where it is enough, weir starts."""
    run = subprocess.run(
        ["bash", "-c", 'ulimit -l 64 && exec "$0" --check', binary("weir")],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "panicked" not in run.stderr, run.stderr
    if run.returncode:
        assert "memlock" in run.stderr.lower() or "ulimit -l" in run.stderr, run.stderr
