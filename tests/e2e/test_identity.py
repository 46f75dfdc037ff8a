"""Tests of tenants in a quota file: who may connect, as which tenant, to which keys, with which commands."""

from __future__ import annotations

import hashlib
import signal
from pathlib import Path

import pytest

from harness.processes import Redis, Weir
from harness.resp import Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

ACME = """
[tenants.acme]
password = "acme-password"
ru_per_second = 1_000_000
keys = ["acme:", "shared:"]

[tenants.acme.users.loader]
tier = "batch"
"""

OPERATOR = f"""
[tenants.operator]
password_sha256 = "{hashlib.sha256(b"operator-password").hexdigest()}"
admin = true
"""

LATECOMER = """
[tenants.latecomer]
password = "latecomer-password"
"""

DEFAULT = """
[default]
keys = ["public:"]
"""


class Fixture:
    """A weir with a quota file that a test may rewrite."""

    def __init__(self, servers, folder: Path, text: str) -> None:
        self.file = folder / "quotas.toml"
        self.file.write_text(text)
        self.backend: Redis = servers.redis()
        self.weir: Weir = servers.weir(self.backend, flags=["--shards", "2", "--quotas", str(self.file)])

    def connect(self, *login: str, protocol: int = 2) -> Connection:
        connection = self.weir.connect()
        if protocol == 3:
            assert connection.ok("HELLO", "3", "AUTH", *login)
        elif login:
            assert connection.ok("AUTH", *login) == b"OK"
        return connection

    def login_answer(self, *login: str) -> str:
        with self.weir.connect() as connection:
            return connection.call("AUTH", *login).text

    def reload(self, text: str) -> None:
        self.file.write_text(text)
        self.weir.signal(signal.SIGHUP)


@pytest.fixture
def closed(servers, tmp_path: Path) -> Fixture:
    """A weir without a [default] entry: no client is let in without a password."""
    return Fixture(servers, tmp_path, ACME + OPERATOR)


@pytest.fixture
def with_default(servers, tmp_path: Path) -> Fixture:
    """A weir that lets clients without a password use the keys of [default]."""
    return Fixture(servers, tmp_path, ACME + OPERATOR + DEFAULT)


def test_without_a_quota_file_everyone_is_trusted(servers):
    weir = servers.weir(servers.redis())
    with weir.connect() as connection:
        assert connection.ok("SET", "anything", "1") == b"OK"
        assert connection.ok("FLUSHALL") == b"OK"


def test_nothing_goes_without_a_password(closed: Fixture):
    with closed.weir.connect() as connection:
        for request in [
            ("GET", "acme:a"),
            ("SET", "acme:a", "1"),
            ("MGET", "a", "b"),
            ("FLUSHALL",),
            ("INFO",),
            ("MULTI",),
            ("EVAL", "return 1", 0),
            ("SCAN", 0),
            ("QOS", "SET", "TIER", "batch"),
        ]:
            assert connection.call(*request).text.startswith("NOAUTH "), request
        assert connection.call("HELLO", "3").text.startswith("NOAUTH ")
    with closed.backend.connect() as direct:
        assert direct.ok("DBSIZE") == 0


def test_quit_and_unknown_commands_before_a_password(closed: Fixture):
    with closed.weir.connect() as connection:
        assert connection.call("NOSUCHCOMMAND").is_error
        assert connection.call("QUIT").raw == b"+OK\r\n"
        assert connection.read_to_end() == []


@pytest.mark.parametrize(
    "login",
    [
        ("acme", "wrong"),
        ("nobody", "acme-password"),
        ("acme", ""),
        ("", ""),
        ("acme/", "wrong"),
        ("ACME", "acme-password"),
        ("operator", hashlib.sha256(b"operator-password").hexdigest()),
        ("acme\0", "acme-password"),
        ("acme/a/b", "acme-password"),
        ("wrong",),
    ],
)
def test_a_wrong_login_is_refused(closed: Fixture, login: tuple[str, ...]):
    with closed.weir.connect() as connection:
        assert connection.call("AUTH", *login).text.startswith("WRONGPASS "), login
        if len(login) == 2:
            assert connection.call("HELLO", "3", "AUTH", *login).text.startswith("WRONGPASS ")
        assert connection.call("GET", "acme:a").text.startswith("NOAUTH "), "a refused login lets nobody in"


def test_a_wrong_login_takes_nothing_from_who_is_in(closed: Fixture):
    with closed.connect("acme", "acme-password") as connection:
        assert connection.call("AUTH", "operator", "wrong").text.startswith("WRONGPASS ")
        assert connection.ok("SET", "acme:still", "in") == b"OK"
        assert connection.call("FLUSHALL").text.startswith("NOPERM ")


@pytest.mark.parametrize("user", ["acme", "acme/alice", "acme/loader"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_right_login(closed: Fixture, user: str, protocol: int):
    with closed.connect(user, "acme-password", protocol=protocol) as connection:
        assert connection.ok("SET", "acme:a", user) == b"OK"
        assert connection.ok("GET", "acme:a") == user.encode()


def test_a_login_in_the_same_packet_as_what_needs_it(closed: Fixture):
    with closed.weir.connect() as connection:
        replies = connection.pipeline(
            [
                ("GET", "acme:a"),
                ("AUTH", "acme", "acme-password"),
                ("SET", "acme:a", "1"),
                ("GET", "acme:a"),
                ("AUTH", "acme", "wrong"),
                ("GET", "acme:a"),
            ]
        )
        assert [reply.text.split(" ")[0] for reply in replies] == ["NOAUTH", "OK", "OK", "1", "WRONGPASS", "1"]


def test_hello_with_auth_and_name(closed: Fixture):
    with closed.weir.connect() as connection:
        hello = connection.ok("HELLO", "3", "AUTH", "acme", "acme-password", "SETNAME", "me")
        assert hello[b"proto"] == 3
        assert connection.ok("CLIENT", "GETNAME") == b"me"


def test_a_hashed_password(closed: Fixture):
    with closed.connect("operator", "operator-password") as connection:
        assert connection.ok("SET", "anything", "1") == b"OK"


def test_reset_forgets_the_login(closed: Fixture):
    with closed.connect("acme", "acme-password") as connection:
        assert connection.call("RESET").text == "RESET"
        assert connection.call("GET", "acme:a").text.startswith("NOAUTH ")


def test_changing_the_tenant(closed: Fixture):
    with closed.connect("acme", "acme-password") as connection:
        assert connection.call("SET", "other", "1").text.startswith("NOPERM ")
        assert connection.ok("AUTH", "operator", "operator-password") == b"OK"
        assert connection.ok("SET", "other", "1") == b"OK"
        assert connection.ok("AUTH", "acme", "acme-password") == b"OK"
        assert connection.call("GET", "other").text.startswith("NOPERM ")


FOREIGN = [
    ("GET", "other:a"),
    ("SET", "other:a", "1"),
    ("MGET", "acme:a", "other:a"),
    ("MSET", "acme:a", "1", "other:a", "2"),
    ("DEL", "acme:a", "other:a"),
    ("RENAME", "acme:a", "other:a"),
    ("COPY", "other:a", "acme:a"),
    ("SINTERSTORE", "acme:a", "acme:b", "other:a"),
    ("BITOP", "AND", "acme:a", "acme:b", "other:a"),
    ("ZUNIONSTORE", "acme:a", "2", "acme:b", "other:a"),
    ("LMPOP", "2", "acme:a", "other:a", "LEFT"),
    ("XREAD", "STREAMS", "acme:a", "other:a", "0", "0"),
    ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "other:a", ">"),
    ("SORT", "acme:a", "STORE", "other:a"),
    ("GEORADIUS", "acme:a", "1", "1", "1", "km", "STORE", "other:a"),
    ("GEOSEARCHSTORE", "other:a", "acme:a", "FROMLONLAT", "1", "1", "BYRADIUS", "1", "km"),
    ("OBJECT", "ENCODING", "other:a"),
    ("MEMORY", "USAGE", "other:a"),
    ("XINFO", "STREAM", "other:a"),
    ("DUMP", "other:a"),
    ("EXISTS", "acm"),
    ("GET", ""),
    ("GET", "ACME:a"),
    ("QOS", "CALL", "GET", "other:a"),
]


@pytest.mark.parametrize("request_words", FOREIGN, ids=[" ".join(words)[:50] for words in FOREIGN])
def test_keys_of_others_are_refused_and_named(closed: Fixture, request_words: tuple[str, ...]):
    with closed.connect("acme", "acme-password") as connection:
        connection.ok("SET", "acme:a", "mine")
        reply = connection.call(*request_words)
        foreign = "other:a" if "other:a" in request_words else request_words[-1]
        assert reply.text.startswith("NOPERM "), reply
        assert foreign in reply.text, f"{reply} does not name {foreign}"
        assert connection.ok("GET", "acme:a") == b"mine", "a refused request has done nothing"


@pytest.mark.parametrize(
    "request_words",
    [
        ("SORT", "acme:l", "BY", "other:*"),
        ("SORT", "acme:l", "GET", "other:*"),
        ("SORT", "acme:l", "BY", "w_*", "GET", "#"),
    ],
    ids=" ".join,
)
def test_sort_reads_no_keys_of_others_by_pattern(closed: Fixture, request_words: tuple[str, ...]):
    with closed.backend.connect() as direct:
        direct.ok("SET", "other:1", "secret")
    with closed.connect("acme", "acme-password") as connection:
        connection.ok("RPUSH", "acme:l", "1")
        assert connection.call(*request_words).text.startswith("NOPERM ")


@pytest.mark.parametrize(
    "request_words",
    [
        ("EVAL", "return redis.call('GET', 'other:a')", "0"),
        ("EVAL", "return redis.call('GET', 'other:a')", "1", "acme:a"),
        ("EVAL", "return redis.call('GET', KEYS[2])", "2", "acme:a", "other:a"),
        ("EVALSHA", "f" * 40, "1", "acme:a"),
        ("FCALL", "f", "1", "acme:a"),
        ("SCRIPT", "LOAD", "return 1"),
    ],
    ids=lambda words: " ".join(words)[:50],
)
def test_scripts_are_not_for_the_confined(closed: Fixture, request_words: tuple[str, ...]):
    """weir cannot see from outside which keys a script uses, so tenants with limited keys may not run any."""
    with closed.connect("acme", "acme-password") as connection:
        assert connection.call(*request_words).text.startswith("NOPERM ")
    with closed.connect("operator", "operator-password") as operator:
        assert operator.ok("EVAL", "return KEYS[1]", "1", "anything") == b"anything"


def test_scan_is_confined_by_its_pattern(closed: Fixture):
    with closed.connect("operator", "operator-password") as operator:
        operator.ok("MSET", "acme:1", "a", "acme:2", "b", "other:1", "c", "shared:1", "d")
    with closed.connect("acme", "acme-password") as connection:
        for words in [
            ("SCAN", "0"),
            ("SCAN", "0", "MATCH", "*"),
            ("SCAN", "0", "MATCH", "a*"),
            ("SCAN", "0", "MATCH", "[a]cme:*"),
            ("SCAN", "0", "MATCH", "acme:*", "MATCH", "*"),
            ("SCAN", "0", "COUNT", "10"),
        ]:
            assert connection.call(*words).text.startswith("NOPERM "), words
        found, cursor = set(), b"0"
        while True:
            cursor, names = connection.ok("SCAN", cursor, "MATCH", "acme:*", "COUNT", "100")
            found.update(names)
            if cursor == b"0":
                break
        assert found == {b"acme:1", b"acme:2"}


def test_a_transaction_is_no_way_around(closed: Fixture):
    with closed.connect("acme", "acme-password") as connection:
        for words in [("GET", "other:a"), ("SET", "other:a", "1"), ("FLUSHALL",), ("EVAL", "return 1", "1", "acme:a")]:
            replies = connection.pipeline([("MULTI",), ("SET", "acme:t", "1"), words, ("EXEC",)])
            assert replies[2].text.startswith("NOPERM "), replies
            assert replies[3].text.startswith("EXECABORT "), replies
        assert connection.ok("EXISTS", "acme:t") == 0


def test_keys_of_ones_own(closed: Fixture):
    with closed.connect("acme", "acme-password") as connection:
        assert connection.ok("MSET", "acme:a", "1", "shared:b", "2") == b"OK"
        assert connection.ok("MGET", "acme:a", "shared:b") == [b"1", b"2"]
        assert connection.ok("SORT", "acme:none") == []


ADMINISTRATION = [
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("KEYS", "*"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("SCRIPT", "FLUSH"),
    ("SHUTDOWN",),
    ("DEBUG", "SLEEP", "0"),
    ("SCAN", "0"),
    ("RANDOMKEY",),
    ("DBSIZE",),
    ("FUNCTION", "FLUSH"),
    ("SWAPDB", "0", "1"),
    ("REPLICAOF", "NO", "ONE"),
    ("SAVE",),
    ("ACL", "SETUSER", "ann"),
    ("SLOWLOG", "GET"),
]


@pytest.mark.parametrize("request_words", ADMINISTRATION, ids=" ".join)
def test_what_touches_everyone_needs_an_admin(closed: Fixture, request_words: tuple[str, ...]):
    with (
        closed.connect("operator", "operator-password") as operator,
        closed.connect("acme", "acme-password") as connection,
    ):
        operator.ok("SET", "other:a", "1")
        reply = connection.call(*request_words)
        assert reply.is_error, f"{request_words} was answered with {reply}"
        assert b"other:a" not in reply.raw
        if request_words[0] in {"FLUSHALL", "FLUSHDB", "KEYS", "CONFIG", "SCRIPT", "SHUTDOWN"}:
            assert reply.text.startswith("NOPERM "), reply
            assert request_words[0].lower() in reply.text.lower(), f"{reply} does not name the command"
        assert operator.ok("GET", "other:a") == b"1"


ABOUT_USERS = [("ACL", "LIST"), ("ACL", "USERS"), ("ACL", "GETUSER", "default"), ("ACL", "GETUSER", "nosuch"), ("ACL", "LIST", "x")]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("embedded", [False, True], ids=["before a store", "embedded store"])
def test_without_a_quota_file_there_is_one_user_as_in_redis(servers, embedded: bool, protocol: int):
    store = servers.redis()
    weir = servers.weir() if embedded else servers.weir(store)
    with store.connect() as direct, weir.connect() as connection:
        for one in (direct, connection):
            one.call("HELLO", str(protocol))
        for words in ABOUT_USERS:
            assert connection.call(*words).raw == direct.call(*words).raw, words
        for one in (direct, connection):
            one.ok("MULTI")
            one.ok("ACL", "USERS")
        assert connection.call("EXEC").raw == direct.call("EXEC").raw


def test_users_are_listed_without_passwords(with_default: Fixture):
    names = [b"acme", b"acme/loader", b"default", b"operator"]
    with (
        with_default.connect("operator", "operator-password") as operator,
        with_default.connect("acme", "acme-password") as acme,
        with_default.connect() as anyone,
    ):
        assert operator.ok("ACL", "USERS") == names
        assert (acme.ok("ACL", "USERS"), anyone.ok("ACL", "USERS")) == (names[:2], [b"default"])
        listed = operator.ok("ACL", "LIST")
        assert [line.split()[1] for line in listed] == names and listed[3] == b"user operator on ~* &* +@all"
        assert listed[0].startswith(b"user acme on ~acme:* ~shared:* resetchannels &acme:* &shared:* +@all -")
        assert listed[2].startswith(b"user default on nopass ~public:* resetchannels &public:* +@all -")
        assert {b"-flushall", b"-config|set", b"-eval", b"-dbsize"} <= set(listed[0].split())
        assert acme.ok("ACL", "LIST") == listed[:2]
        digests = [hashlib.sha256(f"{tenant}-password".encode()).hexdigest() for tenant in ("acme", "operator")]
        for secret in ["acme-password", "operator-password", *digests]:
            assert secret.encode() not in b"".join(listed)
        user = operator.ok("ACL", "GETUSER", "acme/anyone")
        told = dict(zip(user[::2], user[1::2]))
        assert (told[b"flags"], told[b"passwords"], told[b"keys"]) == ([b"on"], [], b"~acme:* ~shared:*")
        assert acme.ok("ACL", "GETUSER", "acme") == operator.ok("ACL", "GETUSER", "acme")
        assert acme.ok("ACL", "GETUSER", "operator") is None, "it is told of nobody else"


def test_an_admin_may(closed: Fixture):
    with closed.connect("operator", "operator-password") as operator:
        assert operator.ok("SET", "a", "1") == b"OK"
        assert operator.ok("KEYS", "*") == [b"a"]
        assert operator.ok("DBSIZE") == 1
        assert operator.ok("FLUSHALL") == b"OK"
        assert operator.ok("DBSIZE") == 0


def test_the_default_tenant(with_default: Fixture):
    with with_default.weir.connect() as connection:
        assert connection.ok("SET", "public:a", "1") == b"OK"
        assert connection.call("GET", "acme:a").text.startswith("NOPERM ")
        assert connection.call("FLUSHALL").text.startswith("NOPERM ")
        assert connection.ok("AUTH", "acme", "acme-password") == b"OK"
        assert connection.ok("SET", "acme:a", "1") == b"OK"
        assert connection.call("GET", "public:a").text.startswith("NOPERM ")
        assert connection.call("RESET").text == "RESET"
        assert connection.ok("GET", "public:a") == b"1"


def test_a_reload_takes_in_a_new_tenant(closed: Fixture):
    assert closed.login_answer("latecomer", "latecomer-password").startswith("WRONGPASS ")
    with closed.connect("acme", "acme-password") as connected:
        closed.reload(ACME + OPERATOR + LATECOMER)
        until(lambda: closed.login_answer("latecomer", "latecomer-password") == "OK", "the new tenant can log in")
        assert connected.ok("SET", "acme:a", "1") == b"OK", "who was connected stays so"


def test_a_reload_changes_a_password(closed: Fixture):
    closed.reload(ACME.replace("acme-password", "another-password") + OPERATOR)
    until(lambda: closed.login_answer("acme", "another-password") == "OK", "the new password counts")
    assert closed.login_answer("acme", "acme-password").startswith("WRONGPASS ")


def test_a_reload_shuts_out_who_is_no_longer_in_the_file(closed: Fixture):
    with closed.connect("acme", "acme-password") as connected:
        assert connected.ok("SET", "acme:a", "1") == b"OK"
        closed.reload(OPERATOR + LATECOMER)
        until(lambda: closed.login_answer("latecomer", "latecomer-password") == "OK", "the new file counts")
        until(lambda: connected.call("GET", "acme:a").text.startswith("NOAUTH "), "the old tenant is out on every core")


def test_a_reload_takes_keys_away(closed: Fixture):
    with closed.connect("acme", "acme-password") as connected:
        assert connected.ok("SET", "shared:a", "1") == b"OK"
        closed.reload(ACME.replace(', "shared:"', "") + OPERATOR)
        until(lambda: connected.call("GET", "shared:a").text.startswith("NOPERM "), "the new prefixes count")
        assert connected.ok("SET", "acme:a", "1") == b"OK"


@pytest.mark.parametrize(
    "bad",
    [
        "this is not TOML [",
        "[tenants.acme]\npassword = 5\n",
        ACME + '[tenants.acme2]\npasword = "typo"\n',
        '[tenants.acme]\nru_per_second = -5\npassword = "x"\n',
    ],
    ids=["not TOML", "wrong type", "unknown field", "wrong value"],
)
def test_a_bad_file_on_reload_changes_nothing_and_says_where(closed: Fixture, bad: str):
    before = len(closed.weir.output())
    closed.reload(bad)
    until(lambda: "quotas.toml" in closed.weir.output()[before:], "the log names the file")
    assert closed.login_answer("acme", "acme-password") == "OK"
    closed.reload(ACME + OPERATOR + LATECOMER)
    until(lambda: closed.login_answer("latecomer", "latecomer-password") == "OK", "a good file is taken again")


def test_a_missing_file_on_reload_changes_nothing(closed: Fixture):
    before = len(closed.weir.output())
    closed.file.unlink()
    closed.weir.signal(signal.SIGHUP)
    until(lambda: "quotas.toml" in closed.weir.output()[before:], "the log names the file")
    assert closed.login_answer("acme", "acme-password") == "OK"


def test_passwords_are_never_shown(closed: Fixture):
    with closed.connect("operator", "operator-password") as operator:
        said = [
            operator.call("INFO").raw,
            operator.call("CLIENT", "INFO").raw,
            operator.call("CONFIG", "GET", "*").raw,
            operator.call("QOS", "HELP").raw,
            operator.call("AUTH", "acme", "guessed-password").raw,
        ]
    said += [closed.weir.admin("/metrics")[1].encode(), closed.weir.output().encode()]
    for text in said:
        for password in (b"acme-password", b"operator-password", b"guessed-password"):
            assert password not in text, text


def test_qos_help(with_default: Fixture):
    with with_default.weir.connect() as connection:
        lines = connection.ok("QOS", "HELP")
        text = b"\n".join(lines).decode().upper()
        assert all(word in text for word in ("SET", "CALL", "HELP", "TIER", "DEADLINE", "USER")), lines


GOOD_SETTINGS = [
    ("TIER", "batch"),
    ("TIER", "sheddable"),
    ("tier", "standard"),
    ("DEADLINE", "50"),
    ("USER", "alice"),
    ("USER", "alice", "TIER", "batch", "DEADLINE", "1000"),
    ("DEADLINE", "1000", "USER", "alice"),
]
BAD_SETTINGS = [
    ("TIER",),
    ("TIER", "gold"),
    ("DEADLINE", "soon"),
    ("DEADLINE", "-1"),
    ("DEADLINE", "99999999999999999999"),
    ("NOSUCH", "1"),
    ("USER",),
]


@pytest.mark.parametrize("words", GOOD_SETTINGS, ids=" ".join)
def test_qos_settings(with_default: Fixture, words: tuple[str, ...]):
    with with_default.weir.connect() as connection:
        assert connection.ok("QOS", "SET", *words) == b"OK"
        assert connection.ok("SET", "public:a", "1") == b"OK"
        assert connection.ok("QOS", "CALL", *words, "GET", "public:a") == b"1"
        assert connection.ok("QOS", "CALL", *words, "MSET", "public:a", "2", "public:b", "3") == b"OK"
        assert connection.ok("QOS", "CALL", *words, "MGET", "public:a", "public:b") == [b"2", b"3"]
        assert connection.ok("GET", "public:a") == b"2"


@pytest.mark.parametrize("words", BAD_SETTINGS, ids=" ".join)
def test_qos_settings_that_make_no_sense(with_default: Fixture, words: tuple[str, ...]):
    with with_default.weir.connect() as connection:
        reply = connection.call("QOS", "SET", *words)
        assert reply.is_error and reply.text.startswith("ERR "), reply
        assert connection.ok("PING") == b"PONG"


def test_qos_needs_a_command_it_knows(with_default: Fixture):
    with with_default.weir.connect() as connection:
        for words in [("QOS", "NOSUCH"), ("QOS", "CALL"), ("QOS", "CALL", "TIER", "batch"), ("QOS", "SET")]:
            assert connection.call(*words).is_error, words
        assert connection.ok("PING") == b"PONG"


def test_qos_call_in_a_pipeline_and_nested(with_default: Fixture):
    with with_default.weir.connect() as connection:
        requests = [("QOS", "CALL", "USER", f"u{i}", "INCR", "public:n") for i in range(200)]
        assert [int(reply.value) for reply in connection.pipeline(requests)] == list(range(1, 201))
        nested, after = connection.pipeline([("QOS", "CALL", "QOS", "CALL", "GET", "public:n"), ("PING",)])
        assert nested.is_error and after.value == b"PONG"


def test_settings_behind_the_clients_name(with_default: Fixture):
    """Clients that cannot send commands of their own put settings behind their name (CLIENT SETNAME)."""
    with with_default.weir.connect() as connection:
        assert connection.ok("CLIENT", "SETNAME", "worker;tier=batch;deadline=500ms") == b"OK"
        assert connection.ok("SET", "public:a", "1") == b"OK"
        assert connection.ok("HELLO", "3", "SETNAME", "worker;tier=sheddable")


@pytest.mark.parametrize(
    "text",
    [
        '[tenants.acme]\npassword = "a"\nkeys = "not a list"\n',
        '[tenants."a/b"]\npassword = "a"\n',
        "[tenants.acme]\n",
        "nonsense = 1\n",
    ],
    ids=["keys is no list", "slash in a name", "no password", "unknown field"],
)
def test_a_bad_file_at_start_names_file_and_reason(servers, tmp_path: Path, text: str):
    file = tmp_path / "quotas.toml"
    file.write_text(text)
    weir = servers.keep(servers.weir_class(servers.redis(), flags=["--quotas", str(file)]))
    with pytest.raises(AssertionError, match="at start"):
        weir.start()
    assert "quotas.toml" in weir.output()
    assert weir.process.returncode not in (0, 101, -6), weir.output()
