"""Fixtures of the end-to-end tests. Servers are real processes, started per session, module or test, and each is ended by its
own process id.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from harness import processes
from harness.cluster import Cluster
from harness.processes import Redis, Server, StandIn, Storage, Weir

FILES_WANTED = 65_536
# The number of characters of a server's output that a failure report shows, by the server's name.
OUTPUT_SHOWN = {"weir": 8000, "weir-storage": 8000}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stand-in",
        action="store_true",
        help="put a plain redis-server in weir's place: proves the tests themselves; leaves out what only weir does",
    )


def pytest_configure(config: pytest.Config) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(hard, FILES_WANTED), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return
        except (ValueError, PermissionError):
            continue  # only root may raise the hard limit


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--stand-in"):
        left_out = [item for item in items if item.get_closest_marker("weir_only")]
        items[:] = [item for item in items if not item.get_closest_marker("weir_only")]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Adds the output of all running servers to the report of a failed test."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for server in list(processes.alive):
            said = server.output(OUTPUT_SHOWN.get(server.name, 500)).strip()
            report.sections.append((f"{server.name} on port {server.port} said", said or "nothing"))


def pytest_sessionfinish() -> None:
    for server in list(processes.alive):
        server.stop()


class Servers:
    """Starts servers and ends them together. `end` fails if a server died or panicked by itself."""

    def __init__(self, weir_class: type) -> None:
        self.weir_class = weir_class
        self.started: list[Server] = []

    def redis(self, *options: str) -> Redis:
        return self.keep(Redis(*options)).start()

    def weir(self, *backends: Redis, flags: list[str] | None = None, storage: str | None = None) -> Weir:
        return self.keep(self.weir_class(*backends, flags=flags, storage=storage)).start()

    def keep(self, server):
        self.started.append(server)
        return server

    def end(self) -> None:
        complaints = []
        for server in reversed(self.started):
            unexpected = server in processes.alive and server.exited()
            if unexpected or "panicked at" in server.output(1 << 20):
                complaints.append(f"{server.name} died or panicked:\n{server.output()}")
            server.discard()
        assert not complaints, "\n".join(complaints)


@pytest.fixture(scope="session")
def weir_class(pytestconfig: pytest.Config) -> type:
    return StandIn if pytestconfig.getoption("--stand-in") else Weir


def _servers(weir_class: type) -> Iterator[Servers]:
    servers = Servers(weir_class)
    try:
        yield servers
    finally:
        servers.end()


@pytest.fixture
def servers(weir_class: type) -> Iterator[Servers]:
    """Servers that end with the test."""
    yield from _servers(weir_class)


@pytest.fixture(scope="module")
def module_servers(weir_class: type) -> Iterator[Servers]:
    """Servers that the tests of one file share."""
    yield from _servers(weir_class)


@pytest.fixture(scope="module")
def cluster(module_servers: Servers) -> Cluster:
    """A cluster of three primaries that the tests of one file share."""
    return Cluster(module_servers)


@pytest.fixture(scope="module", params=["one_redis", "two_redis"])
def weir_over_redis(request: pytest.FixtureRequest, module_servers: Servers) -> Weir:
    """A weir in front of one redis-server; each test runs again with two."""
    count = {"one_redis": 1, "two_redis": 2}[request.param]
    backends = [module_servers.redis() for _ in range(count)]
    return module_servers.weir(*backends, flags=["--shards", "2"])


@pytest.fixture(scope="module")
def model() -> Iterator[Redis]:
    """A redis-server, to compare other servers with."""
    server = Redis().start()
    yield server
    server.discard()


@pytest.fixture(scope="module", params=["store", "weir"])
def subject(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The embedded store: each test runs against it directly, and again behind weir."""
    server = Storage("--scriptable=false").start() if request.param == "store" else Weir().start()
    yield server
    server.discard()
