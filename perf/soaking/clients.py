"""Clients that know what must come of their requests: each gets exactly one reply, and values are those that earlier replies promise.

Every client is a thread with a connection of its own. A client that weir may not close (all but those whose state lies at a store) counts a
close as wrong; the others write down when they were closed, and the script knows what it did to weir at that time.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

from harness.resp import Closed, Connection, Malformed, Reply, encode

TENANT, PASSWORD = "soak", "secret"
# Codes of errors that a disturbed store, or a quota, may cause. Any other error is wrong.
KNOWN_CODES = {"THROTTLED", "OVERLOADED", "UNAVAILABLE", "EXECABORT", "CLUSTERDOWN", "LOADING", "UNBLOCKED"}
# A write that got one of these may have been carried out nevertheless.
UNSURE = ("may have happened", "connection-lost", "reply-timeout", "node-failed", "node-gone", "redirects", "not-primary", "topology")
REPLY_SECONDS = 30.0
PAUSE_SECONDS = (0.02, 0.06)
KEYS = 2_000
# Keys that everybody reads, so that weir answers some reads from memory.
HOT_KEYS = 3
HOT_VALUE = "h" * 300
# Commands that weir answers itself: a client whose other requests are all refused gets these replies nevertheless.
WITHOUT_STORE = ("AUTH", "PING", "ECHO", "QUIT", "MULTI", "UNWATCH", "SUBSCRIBE", "UNSUBSCRIBE")
QUEUED = "QUEUED"
WRONG_SHOWN = 20


@dataclass
class Tally:
    """What a client has seen."""

    kind: str
    asked: int = 0
    values: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    # Requests whose connection was closed before their reply.
    unanswered: int = 0
    # Messages of channels, which come without a request.
    messages: int = 0
    # When the last message came, or the last reply that is no error and needs a store; 0 if there was none.
    last_value: float = 0.0
    # When the run began, and when weir closed a connection.
    began: float = 0.0
    closes: list[float] = field(default_factory=list)
    # Clients that left with a reset.
    died: int = 0
    wrong: list[str] = field(default_factory=list)
    # Counters and queues, for the check at the end: key -> what is sure, and what may be beyond.
    sure: dict[str, int] = field(default_factory=dict)
    unsure: dict[str, int] = field(default_factory=dict)
    pushed: set[str] = field(default_factory=set)
    pushed_perhaps: set[str] = field(default_factory=set)
    popped: list[str] = field(default_factory=list)
    # Calls that may have taken an element, and ended with an error.
    popped_perhaps: int = 0

    @property
    def answered(self) -> int:
        return self.values + sum(self.errors.values())

    def complain(self, text: str) -> None:
        if len(self.wrong) < WRONG_SHOWN:
            self.wrong.append(f"{self.kind}, at {time.monotonic() - self.began:.1f} s: {text}")

    def count(self, command: str, reply: Reply) -> None:
        if reply.is_error:
            code = reply.text.split(" ", 1)[0]
            self.errors[code] = self.errors.get(code, 0) + 1
        else:
            self.values += 1
            # A call that waited in vain has no reply but null.
            waited_in_vain = command == "BLPOP" and reply.is_null
            if command not in WITHOUT_STORE and reply.text != QUEUED and not waited_in_vain:
                self.last_value = time.monotonic()
        for each in [reply, *(reply.children or [])]:
            if each.is_error and each.text.split(" ", 1)[0] not in KNOWN_CODES:
                self.complain(f"an error of an unknown kind: {each.text[:200]}")

    def count_message(self) -> None:
        self.messages += 1
        self.last_value = time.monotonic()


def is_message(reply: Reply) -> bool:
    return bool(reply.children) and reply.children[0].text == "message"


def may_have_happened(reply: Reply) -> bool:
    return any(text in reply.text for text in UNSURE)


class Client(threading.Thread):
    """One connection at a time, until it is over."""

    kind = "client"
    # True where the client's state lies at a store, so that weir may close it when the store or weir itself goes.
    may_be_closed = False

    def __init__(self, port: int, name: str, seed: int, began: float, over, tenant: bool) -> None:
        super().__init__(daemon=True, name=f"{self.kind} {name}")
        self.port, self.label, self.over, self.tenant = port, name, over, tenant
        self.random = random.Random(f"{self.kind} {name} {seed}")
        self.tally = Tally(self.kind, began=began)
        self.owed = 0
        # The last requests, and when they were sent.
        self.sent: tuple[float, tuple] = (began, ())

    def run(self) -> None:
        while not self.over.is_set():
            self.owed = 0
            try:
                with Connection(self.port, timeout=REPLY_SECONDS) as connection:
                    self.log_in(connection)
                    self.session(connection)
            except TimeoutError:
                self.tally.unanswered += self.owed
                at, requests = self.sent
                self.tally.complain(f"not answered within {REPLY_SECONDS:g} s: {requests!r:.200}, sent at {at - self.tally.began:.1f} s")
            except (Closed, OSError) as error:
                self.closed(error)
            except Malformed as error:
                self.tally.complain(f"malformed: {error}")
            except Exception as error:
                self.tally.complain(f"{error!r}")
                raise

    def closed(self, error: Exception) -> None:
        self.tally.unanswered += self.owed
        self.tally.closes.append(time.monotonic())
        if not self.may_be_closed:
            self.tally.complain(f"closed, with {self.owed} requests unanswered: {error}")
        self.pause()

    def log_in(self, connection: Connection) -> None:
        if self.tenant:
            self.ask(connection, ("AUTH", TENANT, PASSWORD))

    def session(self, connection: Connection) -> None:
        while not self.over.is_set():
            self.turn(connection)
            self.pause()
        self.check_number(connection)

    def check_number(self, connection: Connection) -> None:
        """Complains if there was a reply too many: an ECHO then gets the reply to an earlier request."""
        words = f"{self.label}:{self.tally.asked}"
        reply = self.ask(connection, ("ECHO", words))[0]
        if not reply.is_error and reply.text != words:
            self.tally.complain(f"the last reply is {reply!r:.200} where {words} was due")

    def turn(self, connection: Connection) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        time.sleep(self.random.uniform(*PAUSE_SECONDS))

    def ask(self, connection: Connection, *requests: tuple) -> list[Reply]:
        """Sends everything, and reads as many replies."""
        self.tally.asked += len(requests)
        self.owed = len(requests)
        self.sent = (time.monotonic(), requests)
        connection.send_raw(b"".join(encode(*request) for request in requests))
        replies = []
        for request in requests:
            reply = connection.read()
            self.owed -= 1
            self.tally.count(request[0], reply)
            replies.append(reply)
        return replies

    def incremented(self, key: str, reply: Reply) -> None:
        """The client alone increments this key."""
        sure, unsure = self.tally.sure.get(key, 0), self.tally.unsure.get(key, 0)
        if reply.is_error:
            self.tally.unsure[key] = unsure + may_have_happened(reply)
            return
        value = int(reply.text)
        if not sure < value <= sure + unsure + 1:
            self.tally.complain(f"INCR {key} is {value} after {sure} acknowledged and {unsure} that may have happened")
        self.tally.sure[key], self.tally.unsure[key] = value, max(0, sure + unsure + 1 - value)


class Pipeliner(Client):
    """Reads and writes of all sorts, several at once; what it writes to its own keys it reads."""

    kind = "pipeline"

    def turn(self, connection: Connection) -> None:
        written = str(self.random.random())
        mine, counter = f"own:{self.label}", f"count:{self.label}"
        requests = [("SET", mine, written), ("GET", mine), ("INCR", counter)]
        requests += [self.other() for _ in range(self.random.randrange(8))]
        replies = self.ask(connection, *requests)
        if not replies[0].is_error and not replies[1].is_error and replies[1].text != written:
            self.tally.complain(f"GET {mine} is {replies[1]} after SET {written}")
        self.incremented(counter, replies[2])

    def other(self) -> tuple:
        key = lambda: f"key:{self.random.randrange(KEYS)}"  # noqa: E731
        match self.random.randrange(8):
            case 0:
                return ("SET", key(), "v" * self.random.choice((10, 100, 2_000)), "EX", 100)
            case 1:
                return ("MGET", key(), key(), key())
            case 2:
                return ("HSET", f"hash:{self.random.randrange(KEYS)}", f"f{self.random.randrange(20)}", "v")
            case 3:
                return ("DEL", key(), key())
            case 4:
                return ("SET", f"hot:{self.random.randrange(HOT_KEYS)}", HOT_VALUE)
            case 5:
                return ("GET", key())
            case _:
                return ("GET", f"hot:{self.random.randrange(HOT_KEYS)}")


class Reader(Client):
    """Reads a few keys as fast as it may, so that they are hot."""

    kind = "hot reads"

    def turn(self, connection: Connection) -> None:
        for reply in self.ask(connection, *[("GET", f"hot:{self.random.randrange(HOT_KEYS)}") for _ in range(10)]):
            if not reply.is_error and not reply.is_null and reply.text != HOT_VALUE:
                self.tally.complain(f"GET of a hot key: {reply!r:.200}")


class Transactor(Client):
    """MULTI blocks about two counters that are always equal."""

    kind = "transactions"

    def turn(self, connection: Connection) -> None:
        keys = [f"{{pair:{self.label}}}{name}" for name in "ab"]
        last = self.ask(connection, ("MULTI",), *(("INCR", key) for key in keys), ("EXEC",))[-1]
        if last.is_error:
            for key in keys:
                self.incremented(key, last)
        elif last.children is None or len(last.children) != 2 or last.children[0].text != last.children[1].text:
            self.tally.complain(f"EXEC: {last}")
        else:
            for key, reply in zip(keys, last.children):
                self.incremented(key, reply)


class Watcher(Client):
    """Increments a counter by WATCH, GET, MULTI, SET, EXEC, one after the other."""

    kind = "watches"
    may_be_closed = True

    def turn(self, connection: Connection) -> None:
        key = f"watched:{self.label}"
        if self.ask(connection, ("WATCH", key))[0].is_error:
            return
        found = self.ask(connection, ("GET", key))[0]
        if found.is_error:
            self.ask(connection, ("UNWATCH",))
            return
        value = int(found.text or 0)
        self.found(key, value)
        for request in (("MULTI",), ("SET", key, value + 1)):
            self.ask(connection, request)
        # A connection that is closed before the reply leaves this as it is.
        unsure = self.tally.unsure[key]
        self.tally.unsure[key] = unsure + 1
        last = self.ask(connection, ("EXEC",))[0]
        if last.is_error:
            self.tally.unsure[key] = unsure + may_have_happened(last)
        elif last.is_null:
            self.tally.unsure[key] = unsure
        else:
            # Blocks that are still under way find the key changed.
            self.tally.sure[key], self.tally.unsure[key] = value + 1, 0

    def found(self, key: str, value: int) -> None:
        """The client alone writes this key: it holds what was acknowledged, and perhaps what may have happened."""
        sure, unsure = self.tally.sure.get(key, 0), self.tally.unsure.get(key, 0)
        if not sure <= value <= sure + unsure:
            self.tally.complain(f"GET {key} is {value} after {sure} acknowledged and {unsure} that may have happened")
        self.tally.sure[key], self.tally.unsure[key] = value, max(0, sure + unsure - value)


class Pusher(Client):
    """Elements of which each has a name of its own, for the poppers."""

    kind = "pushes"

    def turn(self, connection: Connection) -> None:
        name = f"{self.label}:{self.tally.asked}"
        reply = self.ask(connection, ("RPUSH", f"queue:{self.label}", name))[0]
        if not reply.is_error:
            self.tally.pushed.add(name)
        elif may_have_happened(reply):
            self.tally.pushed_perhaps.add(name)


class Popper(Client):
    """Waits for elements."""

    kind = "pops"
    may_be_closed = True

    def turn(self, connection: Connection) -> None:
        reply = self.ask(connection, ("BLPOP", f"queue:{self.label}", 1))[0]
        if reply.is_error:
            self.tally.popped_perhaps += may_have_happened(reply)
        elif not reply.is_null:
            self.tally.popped.append(reply.children[1].text)

    def pause(self) -> None:
        """A waiting call is a pause by itself; after an error or a close there is a short one."""
        time.sleep(0.002)


class Publisher(Client):
    kind = "publishes"

    def turn(self, connection: Connection) -> None:
        self.ask(connection, ("PUBLISH", f"channel:{self.label}", self.tally.asked))


class Subscriber(Client):
    """Messages of one publisher, whose numbers only grow."""

    kind = "subscriptions"
    may_be_closed = True
    POLL_SECONDS = 0.2

    def session(self, connection: Connection) -> None:
        channel = f"channel:{self.label}"
        while not self.over.is_set():
            if self.ask(connection, ("SUBSCRIBE", channel))[0].is_error:
                self.pause()
                continue
            newest, left = -1, self.random.randrange(20, 200)
            connection.socket.settimeout(self.POLL_SECONDS)
            while left and not self.over.is_set():
                try:
                    told = connection.read()
                except TimeoutError:
                    continue
                if not is_message(told) or int(told.children[2].text) <= newest:
                    self.tally.complain(f"{told} where a message after {newest} was due")
                    return
                newest, left = int(told.children[2].text), left - 1
                self.tally.count_message()
            connection.socket.settimeout(REPLY_SECONDS)
            while self.leave(connection, channel).is_error and not self.over.is_set():
                self.pause()

    def leave(self, connection: Connection, channel: str) -> Reply:
        """Messages may come before the reply. A refusal leaves the client subscribed."""
        self.tally.asked += 1
        self.owed = 1
        self.sent = (time.monotonic(), ("UNSUBSCRIBE", channel))
        connection.send("UNSUBSCRIBE", channel)
        while is_message(reply := connection.read()):
            self.tally.count_message()
            if time.monotonic() > self.sent[0] + REPLY_SECONDS:
                raise TimeoutError
        self.owed = 0
        self.tally.count("UNSUBSCRIBE", reply)
        return reply


class Newcomer(Client):
    """Connects, asks three things and leaves."""

    kind = "newcomers"

    def session(self, connection: Connection) -> None:
        ping, value, bye = self.ask(connection, ("PING",), ("GET", f"key:{self.random.randrange(KEYS)}"), ("QUIT",))
        if ping.text != "PONG" or bye.text != "OK" or not (value.is_error or value.is_null or set(value.text) == {"v"}):
            self.tally.complain(f"PING: {ping!r:.200}, GET: {value!r:.200}, QUIT: {bye!r:.200}")
        self.pause()


class Dying(Client):
    """Leaves with a reset in the middle of something; what it asks is counted apart, because nobody reads the replies."""

    kind = "dying"

    def session(self, connection: Connection) -> None:
        before = self.random.choice(((), ("MULTI",), ("WATCH", "key:1"), ("SUBSCRIBE", "channel:none"), ("BLPOP", "queue:none", 0)))
        requests = [("GET", f"key:{self.random.randrange(KEYS)}") for _ in range(self.random.randrange(20))]
        whole = b"".join(encode(*request) for request in ([before] if before else []) + requests)
        half = encode("SET", "key:1", "v" * 50_000)
        connection.send_raw(whole + half[: self.random.randrange(len(half))])
        if self.random.random() < 0.5:
            self.pause()
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        self.tally.died += 1
        self.pause()


# Processes of a crew, and the kinds of clients in each.
PROCESSES = (
    (Pipeliner, Pipeliner, Pipeliner, Transactor, Transactor, Reader),
    (Watcher, Watcher, Pusher, Popper, Pusher, Popper, Publisher, Subscriber, Subscriber, Newcomer, Dying),
)


def labels(run: str, kinds: tuple) -> list[str]:
    """A label for each client of a process in this run: pushers and poppers, and publishers and subscribers, share theirs."""
    shared = {Popper: Pusher, Subscriber: Publisher}
    counts: dict[type, int] = {}
    publishers = kinds.count(Publisher)
    found = []
    for kind in kinds:
        number = counts.get(kind, 0)
        counts[kind] = number + 1
        name = shared.get(kind, kind).kind
        found.append(f"{run}:{name.replace(' ', '-')}:{number % publishers if kind is Subscriber else number}")
    return found


def work(port: int, run: str, kinds: tuple, seed: int, began: float, tenant: bool, over, results) -> None:
    """A process with its clients; their tallies go to the queue when it is over, which the script says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    clients = [kind(port, label, seed, began, over, tenant) for kind, label in zip(kinds, labels(run, kinds))]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    results.put([client.tally for client in clients])


class Crew:
    """All clients of one weir, in processes."""

    ENDS_SECONDS = REPLY_SECONDS * 2

    def __init__(self, port: int, run: str, seed: int, began: float, tenant: bool) -> None:
        # A forked child could wait for a lock that another thread of the script holds.
        context = multiprocessing.get_context("spawn")
        self.over, self.results = context.Event(), context.Queue()
        common = (seed, began, tenant, self.over, self.results)
        self.processes = [context.Process(target=work, args=(port, run, kinds, *common), daemon=True) for kinds in PROCESSES]
        for process in self.processes:
            process.start()

    def end(self) -> list[Tally]:
        self.over.set()
        found = [tally for _ in self.processes for tally in self.results.get(timeout=self.ENDS_SECONDS)]
        for process in self.processes:
            process.join(self.ENDS_SECONDS)
        return found

    def discard(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
