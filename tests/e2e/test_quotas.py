"""Tests of changes of quotas: a file that changes, quotas that come over HTTP, and traffic meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from harness import metrics
from harness.load import Load
from harness.processes import Weir, binary
from harness.waiting import until

pytestmark = pytest.mark.weir_only

PAGE = "/config/quotas"
TOKEN = "open-sesame"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
POST_BYTES_MAX = 8 << 20


def tenants(**passwords: str) -> str:
    """Returns the text of a quota file with these tenants and passwords."""
    return "".join(f'[tenants.{name}]\npassword = "{word}"\n' for name, word in passwords.items())


ACME = tenants(acme="sesame-1")
OTHERS = tenants(acme="sesame-2", latecomer="sesame-4")
BAD = '[tenants.acme]\npassword = "sesame-3"\nru_per_second = 0\n'
BAD_SAYS = "tenants.acme.ru_per_second is 0: a whole number from 1 to 1000000000 is expected"


class Operated:
    """A weir with a quota file, and its quotas' versions."""

    def __init__(self, servers, file: Path, *flags: str, text: str = ACME) -> None:
        self.file = file
        if not file.exists():
            file.write_text(text)
        self.weir: Weir = servers.weir(flags=["--shards", "2", "--quotas", str(file), *flags])

    def logs_in(self, name: str, password: str) -> bool:
        """True if the login works. Tried several times, because connections land on different shards and all must know."""
        answers = set()
        for _ in range(8):
            with self.weir.connect() as connection:
                answers.add(connection.call("AUTH", name, password).text.split(" ")[0])
        return answers == {"OK"}

    def page(self) -> dict:
        status, text = self.weir.admin(PAGE)
        assert status == 200
        return json.loads(text)

    def post(self, text: str | bytes, **headers: str) -> tuple[int, dict, dict[str, str]]:
        body = text.encode() if isinstance(text, str) else text
        status, reply, found = self.weir.admin_request("POST", PAGE, body, headers)
        return status, json.loads(reply), found

    def counted(self, name: str, source: str) -> int:
        found = metrics.parse(self.weir.admin("/metrics")[1])
        return int(found[name][f'{{source="{source}"}}'])

    def replace(self, text: str) -> None:
        """Replaces the file as careful editors and deployments do: a new file, then a rename over the old one."""
        new = self.file.with_name("new")
        new.write_text(text)
        new.rename(self.file)


@pytest.fixture
def operated(servers, tmp_path: Path) -> Operated:
    return Operated(servers, tmp_path / "quotas.toml")


@pytest.fixture
def guarded(servers, tmp_path: Path) -> Operated:
    return Operated(servers, tmp_path / "quotas.toml", "--admin-token", TOKEN)


def version_grows_to(operated: Operated, version: int) -> dict:
    return until(lambda: (page := operated.page())["version"] >= version and page, f"version {version} is in force")


# The file.


def test_a_file_that_is_written_is_read(operated: Operated):
    assert operated.page()["source"] == "start"
    operated.file.write_text(OTHERS)
    page = version_grows_to(operated, 1)
    assert (page["version"], page["source"]) == (1, "change")
    assert operated.logs_in("latecomer", "sesame-4") and operated.logs_in("acme", "sesame-2")
    assert not operated.logs_in("acme", "sesame-1")


def test_a_file_that_is_replaced_is_read_each_time(operated: Operated):
    for version in range(1, 5):
        operated.replace(tenants(acme=f"password-{version}"))
        version_grows_to(operated, version)
        assert operated.logs_in("acme", f"password-{version}"), version
    assert operated.page()["version"] == 4, "each change was read once"


def test_links_that_are_swapped_are_followed(servers, tmp_path: Path):
    """Links as Kubernetes mounts configuration: quotas.toml -> ..data/quotas.toml, and ..data -> ..VERSION is swapped."""
    for version in range(4):
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        (folder / "quotas.toml").write_text(tenants(acme=f"password-{version}"))
    (tmp_path / "..data").symlink_to("..0")
    (tmp_path / "quotas.toml").symlink_to("..data/quotas.toml")
    operated = Operated(servers, tmp_path / "quotas.toml")
    for version in range(1, 4):
        (tmp_path / "..new").symlink_to(f"..{version}")
        (tmp_path / "..new").rename(tmp_path / "..data")
        version_grows_to(operated, version)
        assert operated.logs_in("acme", f"password-{version}"), version


def test_a_bad_file_changes_nothing_and_says_where(operated: Operated):
    operated.replace(BAD)
    until(lambda: operated.page()["last_refusal"], "the refusal is told")
    refusal = operated.page()["last_refusal"]
    assert refusal["source"] == "change"
    assert refusal["problem"] == f"{operated.file}:3:17: {BAD_SAYS}"
    assert refusal["problem"] in operated.weir.output()
    assert operated.logs_in("acme", "sesame-1") and operated.page()["version"] == 0
    assert operated.counted("weir_quotas_refused_total", "change") == 1
    operated.replace(OTHERS)
    assert version_grows_to(operated, 1)["last_refusal"] is None
    assert operated.logs_in("acme", "sesame-2")


def test_a_file_that_goes_away_and_comes_back(operated: Operated):
    operated.file.unlink()
    until(lambda: operated.page()["last_refusal"], "its absence is told")
    assert "No such file" in operated.page()["last_refusal"]["problem"]
    assert operated.logs_in("acme", "sesame-1")
    operated.file.write_text(OTHERS)
    version_grows_to(operated, 1)
    assert operated.logs_in("acme", "sesame-2")


def test_sighup_reads_a_file_that_did_not_change(operated: Operated):
    operated.weir.signal(signal.SIGHUP)
    page = version_grows_to(operated, 1)
    assert page["source"] == "signal"
    assert operated.counted("weir_quotas_loaded_total", "signal") == 1


def test_watching_costs_nothing(operated: Operated):
    """weir uses no CPU when a neighbour of the file is written all the time, nor when nothing happens."""
    operated.page()
    before = operated.weir.cpu_ticks()
    neighbour = operated.file.with_name("log")
    with neighbour.open("a") as log:
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            log.write("a line\n")
            log.flush()
    assert operated.weir.cpu_ticks() - before <= 2, "ticks of 10 ms"
    assert operated.page()["version"] == 0


# Over HTTP.


def test_quotas_come_over_http(operated: Operated):
    status, reply, _ = operated.post(OTHERS)
    assert status == 200
    assert (reply["version"], reply["source"], reply["tenants"]) == (1, "post", 2)
    assert str(operated.file) in reply["lasts"]
    assert operated.logs_in("latecomer", "sesame-4")
    page = operated.page()
    assert (page["version"], page["source"], page["file"]) == (1, "post", str(operated.file))
    assert [tenant["name"] for tenant in page["tenants"]] == ["acme", "latecomer"]
    assert operated.counted("weir_quotas_loaded_total", "post") == 1
    assert operated.file.read_text() == ACME, "the file is not written"


def test_what_came_over_http_lasts_until_the_file_is_read(operated: Operated):
    operated.post(OTHERS)
    assert operated.logs_in("latecomer", "sesame-4")
    operated.weir.signal(signal.SIGHUP)
    assert version_grows_to(operated, 2)["source"] == "signal"
    assert not operated.logs_in("latecomer", "sesame-4") and operated.logs_in("acme", "sesame-1")
    operated.post(OTHERS)
    operated.replace(tenants(acme="fourth"))
    assert version_grows_to(operated, 4)["source"] == "change"
    assert operated.logs_in("acme", "fourth")


def test_quotas_come_over_http_where_there_is_no_file(servers):
    weir = servers.weir(flags=["--shards", "2"])
    status, text, _ = weir.admin_request("POST", PAGE, ACME.encode())
    assert status == 200 and "--quotas" in json.loads(text)["lasts"]
    with weir.connect() as connection:
        assert connection.call("GET", "a").text.startswith("NOAUTH ")
        assert connection.ok("AUTH", "acme", "sesame-1") == b"OK"


@pytest.mark.parametrize(
    ("body", "detail", "line", "column"),
    [
        (BAD, f"request body:3:17: {BAD_SAYS}", 3, 17),
        ("", "request body:1:1: no client could use weir", 1, 1),
        ("[tenants.acme]\npassword = ", "request body:2:", 2, None),
        (b"[default]\nkeys = ['\xff']", "request body:2:10: this is not UTF-8", 2, 10),
        ("a = " + "[" * 1_000_000, "request body:1:", 1, None),
        ("a = " + "{a=" * 1_000_000, "request body:1:", 1, None),
        ("a" + ".a" * 1_000_000 + " = 1", "request body:1:", 1, None),
        ("[default]\nkyes = ['a']", "request body:2:1: default.kyes is not known here", 2, 1),
    ],
    ids=["wrong value", "empty", "not TOML", "not UTF-8", "deep lists", "deep tables", "deep names", "unknown key"],
)
def test_a_bad_body_changes_nothing_and_says_where(operated: Operated, body, detail: str, line: int, column: int | None):
    status, problem, headers = operated.post(body)
    assert status == 400 and headers["content-type"] == "application/problem+json"
    assert problem["detail"].startswith(detail), problem
    assert (problem["status"], problem["title"], problem["line"]) == (400, "Bad Request", line)
    assert column in (None, problem["column"])
    assert operated.page()["version"] == 0 and operated.logs_in("acme", "sesame-1")
    assert operated.counted("weir_quotas_refused_total", "post") == 1


def test_passwords_are_in_no_reply(operated: Operated):
    said = [json.dumps(operated.post(OTHERS)[1]), json.dumps(operated.page())]
    said += [json.dumps(operated.post(text)[1]) for text in (BAD, OTHERS + "[", OTHERS + 'password = "x"')]
    said += [json.dumps(operated.page()), operated.weir.admin("/metrics")[1], operated.weir.output()]
    for text in said:
        assert "sesame-" not in text, text


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}], ids=str
)
def test_without_the_token_nothing_is_taken(guarded: Operated, headers: dict[str, str]):
    status, problem, found = guarded.post(OTHERS, **headers)
    assert status == 401 and found["www-authenticate"].startswith("Bearer")
    assert problem["status"] == 401 and TOKEN not in json.dumps(problem)
    assert guarded.page()["version"] == 0 and guarded.logs_in("acme", "sesame-1")
    found = metrics.parse(guarded.weir.admin("/metrics")[1])
    assert found["weir_admin_denied_total"][""] == 1


def test_with_the_token_quotas_are_taken(guarded: Operated):
    status, reply, _ = guarded.post(OTHERS, **BEARER)
    assert (status, reply["version"]) == (200, 1)
    assert guarded.logs_in("latecomer", "sesame-4")


def test_a_token_from_a_file_is_read_again_on_sighup(servers, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    operated = Operated(servers, tmp_path / "quotas.toml", "--admin-token-file", str(token))
    assert operated.post(OTHERS, **BEARER)[0] == 200
    token.write_text("another\n")
    operated.weir.signal(signal.SIGHUP)
    until(lambda: operated.post(OTHERS, Authorization="Bearer another")[0] == 200, "the new token counts")
    assert operated.post(OTHERS, **BEARER)[0] == 401
    token.write_text("two words\n")
    operated.weir.signal(signal.SIGHUP)
    until(lambda: "the token is unchanged" in operated.weir.output(), "the log tells")
    assert operated.post(OTHERS, Authorization="Bearer another")[0] == 200


def test_web_pages_cannot_post(operated: Operated):
    """A web page that somebody on this machine opens can make the browser send a request here."""
    status, _, _ = operated.post(OTHERS, Origin="http://evil.example", **{"Content-Type": "text/plain"})
    assert status == 403 and operated.page()["version"] == 0


def test_a_body_that_is_too_large_is_refused(operated: Operated):
    """The client can read the refusal although its body is still under way."""
    status, problem, _ = operated.post(b"#" * (POST_BYTES_MAX + 1))
    assert status == 413 and "8MiB" in problem["detail"]
    assert operated.page()["version"] == 0
    body = OTHERS.encode()
    assert operated.post(body + b"#" * (POST_BYTES_MAX - len(body)))[0] == 200


def test_many_tenants_in_one_body(operated: Operated):
    text = "".join(f'[tenants.t{n}]\npassword = "p{n}"\nru_per_second = {n + 1}\n' for n in range(32_768))
    status, reply, _ = operated.post(text)
    assert (status, reply["tenants"]) == (200, 32_768), reply
    assert operated.logs_in("t32767", "p32767")
    names, path = [], PAGE
    while path:
        page = json.loads(operated.weir.admin(path)[1])
        names += [tenant["name"] for tenant in page["tenants"]]
        path = page["next"]
    assert names == sorted(f"t{n}" for n in range(32_768))


def test_the_methods_and_lengths_that_are_taken(operated: Operated):
    for method in ("PUT", "DELETE", "PATCH"):
        status, _, headers = operated.weir.admin_request(method, PAGE, b"")
        assert status == 405 and headers["allow"] == "GET, HEAD, POST", method
    chunked = b"POST /config/quotas HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", operated.weir.admin_port), timeout=30) as connection:
        connection.sendall(chunked)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 411 ")
    assert operated.weir.admin_request("POST", "/metrics", b"")[0] == 405


def test_a_body_in_pieces_and_a_request_behind_it(operated: Operated):
    body = OTHERS.encode()
    head = f"POST {PAGE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", operated.weir.admin_port), timeout=30) as connection:
        reader = connection.makefile("rb")
        connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert reader.readline() == b"HTTP/1.1 100 Continue\r\n" and reader.readline() == b"\r\n"
        for at in range(len(body)):
            connection.sendall(body[at : at + 1])
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        replies = reader.read()
    assert replies.count(b"HTTP/1.1 200 OK") == 2 and replies.endswith(b"ok\n"), replies
    assert operated.page()["version"] == 1


def test_head_and_body_at_once(operated: Operated):
    """Requests work if their bytes arrive together, one request behind the other."""
    body = OTHERS.encode() + b"# a comment\n" * 5_000
    request = f"POST {PAGE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", operated.weir.admin_port), timeout=30) as connection:
        connection.sendall(request * 3 + last)
        replies = connection.makefile("rb").read()
    assert replies.count(b"HTTP/1.1 200 OK") == 4 and replies.endswith(b"ok\n"), replies
    assert operated.page()["version"] == 3


def test_a_body_that_stops_halfway(operated: Operated):
    """A request whose body stops is refused when the client closes or its time is over, and delays no other until then."""
    head = f"POST {PAGE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n[default]\n".encode()
    with (
        socket.create_connection(("127.0.0.1", operated.weir.admin_port), timeout=60) as silent,
        socket.create_connection(("127.0.0.1", operated.weir.admin_port), timeout=60) as ended,
    ):
        silent.sendall(head)
        ended.sendall(head)
        ended.shutdown(socket.SHUT_WR)
        assert ended.recv(65_536).startswith(b"HTTP/1.1 400 ")
        assert operated.post(OTHERS)[0] == 200
        assert silent.recv(65_536).startswith(b"HTTP/1.1 408 ")
    assert operated.page()["version"] == 1


def test_bodies_on_their_way_are_bounded(operated: Operated):
    head = f"POST {PAGE} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {POST_BYTES_MAX}\r\n\r\n"
    address = ("127.0.0.1", operated.weir.admin_port)
    waiting = [socket.create_connection(address, timeout=30) for _ in range(4)]
    try:
        for connection in waiting:
            connection.sendall(head.encode())
            assert connection.recv(65_536).startswith(b"HTTP/1.1 100 ")
        assert operated.post(OTHERS)[0] == 503
        waiting.pop().close()
        until(lambda: operated.post(OTHERS)[0] == 200, "there is room again")
    finally:
        for connection in waiting:
            connection.close()


# Under traffic.


def test_no_request_fails_while_quotas_change(servers, tmp_path: Path):
    """Clients of a tenant that stays are served throughout all changes."""
    file = tmp_path / "quotas.toml"
    text = "[default]\nru_per_second = 1_000_000\n"
    operated = Operated(servers, file, text=text)
    with Load(operated.weir) as load:
        until(load.more("served"), "requests are served")
        for number in range(10):
            others = "".join(tenants(**{f"t{number}-{other}": "x"}) for other in range(100))
            operated.replace(text + others)
            until(lambda number=number: operated.logs_in(f"t{number}-0", "x"), "the file is in force")
            assert operated.post(text + OTHERS)[0] == 200
            assert operated.post(BAD)[0] == 400
            operated.weir.signal(signal.SIGHUP)
            until(load.more("served"), "requests are served")
        outcomes = load.finish()
    assert set(outcomes) == {"served"}, outcomes


# Before the start.


def check(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    command = [str(binary("weir")), "--check", "--shards", "1", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env={**clean, **environment})


def test_check_looks_at_the_quota_file(tmp_path: Path):
    file = tmp_path / "quotas.toml"
    file.write_text(OTHERS)
    run = check("--quotas", str(file))
    assert run.returncode == 0 and f"2 tenants from {file}" in run.stdout, run
    file.write_text(BAD)
    run = check("--quotas", str(file))
    assert run.returncode == 1 and f"--quotas {file}:3:17: {BAD_SAYS}" in run.stderr, run


def test_check_tells_of_an_admin_port_that_nothing_protects():
    """Requests to such a port are tested in the code, because a test must not open a port to everybody."""
    warning = "POST /config/quotas is refused without --admin-token"
    for address, is_open in [("0.0.0.0:7381", True), ("10.0.0.1:7381", True), ("127.0.0.1:7381", False), ("[::1]:0", False)]:
        run = check("--admin", address)
        assert run.returncode == 0 and (warning in run.stdout) == is_open, run
    assert warning not in check("--admin", "0.0.0.0:7381", "--admin-token", TOKEN).stdout


def test_check_looks_at_the_token(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    assert check("--admin-token-file", str(token)).returncode == 0
    assert check(WEIR_ADMIN_TOKEN=TOKEN).returncode == 0
    token.write_text("two words")
    for run, flag in [
        (check("--admin-token-file", str(token)), f"--admin-token-file {token}:"),
        (check("--admin-token-file", str(tmp_path / "none")), f"{tmp_path / 'none'}: No such file"),
        (check("--admin-token", "two words"), "--admin-token:"),
        (check(WEIR_ADMIN_TOKEN="two words"), "--admin-token:"),
        (check("--admin-token", TOKEN, "--admin-token-file", str(token)), "cannot be used with"),
    ]:
        assert run.returncode not in (0, 101) and flag in run.stderr, run
        assert "two words" not in run.stderr and TOKEN not in run.stderr, run
