"""Tests of programs that use Redis for queues, messages and sessions: each runs unchanged behind weir, with some work."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.processes import TARGET, Weir

pytestmark = pytest.mark.weir_only

PROGRAMS = Path(__file__).parent / "programs"
NODE_PROGRAMS = Path(__file__).parent / "node" / "programs.mjs"
NODE_MODULES = TARGET / "e2e" / "node" / "node_modules"
# The Python environment of arq, which needs an older redis-py than the other programs, and hiredis.
ARQ_PYTHON = TARGET / "e2e" / "venv-arq" / "bin" / "python"
SECONDS_MAX = 120
SECONDS_TO_END_MAX = 30

STORES = {"embedded": 0, "one store": 1, "three stores": 3}
EVERYWHERE = [*STORES, "cluster"]


@pytest.fixture
def weir(request, servers) -> Weir:
    """A weir in front of the stores that the test's parameter names."""
    flags = ["--shards", "2"]
    if request.param in STORES:
        return servers.weir(*[servers.redis() for _ in range(STORES[request.param])], flags=flags)
    cluster = request.getfixturevalue("cluster")
    for node in cluster.primaries:
        cluster.call(node, "FLUSHALL")
    return servers.weir(storage=cluster.storage, flags=flags)


def before(*stores: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("weir", stores, indirect=True)


def programs_before(expected: dict, but: set[tuple[str, str]]) -> pytest.MarkDecorator:
    """Runs a test for each program with all kinds of stores, except for the given pairs of both."""
    pairs = [(program, stores) for stores in EVERYWHERE for program in expected if (program, stores) not in but]
    return pytest.mark.parametrize(("program", "weir"), pairs, indirect=["weir"])


def has_one_key_space(weir: Weir) -> bool:
    """True if one command, transaction or script may use any keys."""
    return len(weir.backends) <= 1 and not weir.storage.startswith("cluster")


def environment(weir: Weir) -> dict[str, str]:
    """Returns environment variables with a key prefix that keeps a program's keys in one slot, where that is needed."""
    prefix = {} if has_one_key_space(weir) else {"KEY_PREFIX": "{work}"}
    return {
        **os.environ,
        **prefix,
        "REDIS_URL": f"redis://127.0.0.1:{weir.port}/0",
        "PYTHONPATH": str(PROGRAMS),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def database(weir: Weir) -> str:
    """Returns the database for programs that use one; a cluster has only 0."""
    return "0" if weir.storage.startswith("cluster") else "2"


def run(weir: Weir, *command: str | Path, cwd: Path = PROGRAMS) -> str:
    """Runs a program to its end, and returns its output."""
    done = subprocess.run(
        command, env=environment(weir), cwd=cwd, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@contextlib.contextmanager
def worker(weir: Weir, log: Path, *command: str | Path) -> Iterator[None]:
    """Runs a worker beside the test, and ends it with SIGTERM: its exit code must be 0."""
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env=environment(weir), cwd=PROGRAMS, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
        process.terminate()
        code = process.wait(SECONDS_TO_END_MAX)
        assert code == 0, log.read_text()
    except BaseException:
        print(log.read_text())
        raise
    finally:
        process.kill()
        process.wait()


@before("embedded", "one store")
def test_rq_carries_out_jobs_and_schedules_them(weir: Weir):
    """RQ's worker waits in BLPOP and BLMOVE, watches keys, and subscribes to its own channel."""
    code = """
import os
from redis import Redis
from rq import Queue, SimpleWorker
from rq_jobs import double
connection = Redis.from_url(os.environ["REDIS_URL"])
queue = Queue(connection=connection)
first = queue.enqueue(double, 1)
jobs = [first, *(queue.enqueue(double, number, depends_on=first) for number in range(2, 20))]
SimpleWorker([queue], connection=connection).work(burst=True, logging_level="WARNING")
print([job.return_value() for job in jobs])
"""
    assert run(weir, sys.executable, "-c", code) == str([2 * number for number in range(1, 20)])


@before(*EVERYWHERE)
def test_celery_carries_out_tasks_groups_and_chords(weir: Weir, tmp_path: Path):
    """Celery's broker waits in BRPOP, its results are published, and its fan-out uses a pattern of channels."""
    options = ["--concurrency", "2", "--pool", "threads"]
    with worker(weir, tmp_path / "log", sys.executable, "-m", "celery", "-A", "celery_app", "worker", *options):
        code = f"""
from celery import chord, group
from celery_app import add, app, total
print(add.delay(2, 3).get(timeout={SECONDS_MAX}))
print(group(add.s(number, number) for number in range(20))().get(timeout={SECONDS_MAX}))
print(chord([add.s(number, 1) for number in range(10)])(total.s()).get(timeout={SECONDS_MAX}))
print(len(app.control.ping(timeout={SECONDS_MAX}, limit=1)))
"""
        told = run(weir, sys.executable, "-c", code).split("\n")
        assert told == ["5", str([2 * number for number in range(20)]), "55", "1"]


TEN = list(range(0, 20, 2))
QUEUES = {
    "huey": [TEN, 42, [2, 4, 8]] * 2,
    "dramatiq": [TEN, 8, 42],
    "channels": [1, 2, 3, 3],
    "channels-pubsub": [1, 2, 3, 3],
}


# The scripts of this layer do not declare their keys.
@programs_before(QUEUES, but={("channels", "cluster")})
def test_queues_of_python_carry_out_their_work(weir: Weir, program: str):
    told = run(weir, sys.executable, "queues.py", program, str(weir.port), database(weir))
    assert told == str(QUEUES[program])


@before("embedded", "one store")
def test_arq_carries_out_jobs_late_again_and_not_at_all(weir: Weir, tmp_path: Path):
    """arq makes each change in a transaction with a watch."""
    with worker(weir, tmp_path / "log", ARQ_PYTHON, "-m", "arq", "arq_jobs.WorkerSettings"):
        told = run(weir, ARQ_PYTHON, "arq_jobs.py")
        assert told == str([list(range(1, 21)), [21, None, 42], True, True, 0, 23])


@before(*EVERYWHERE)
def test_hiredis_reads_every_type_of_reply(weir: Weir):
    pairs = [["half", 0.5], ["one", 1.0]]
    expected = [True, "WRONGTYPE", True, 1000, ["a", "b"], [1, None, pairs], [1, ["two", ["three"]], None, "FINE"]]
    told = [json.loads(line) for line in run(weir, ARQ_PYTHON, "hiredis_replies.py", str(weir.port)).split("\n")]
    assert told == [[*expected, ["subscribe", "message"]]] * 2


@before(*EVERYWHERE)
def test_sidekiq_does_each_job_once_and_gives_back_what_it_cannot_end(weir: Weir, tmp_path: Path):
    """Sidekiq's worker waits in BRPOP for several queues, its heartbeats are transactions, and a script takes due jobs."""
    options = ["--require", "./sidekiq_jobs.rb", "--concurrency", "4", "--queue", "default", "--queue", "low"]
    with worker(weir, tmp_path / "log", "sidekiq", *options, "--timeout", "1"):
        told = json.loads(run(weir, "ruby", "sidekiq_client.rb", "work"))
        assert told == [True, ["default", "low"], [4]]
    left = json.loads(run(weir, "ruby", "sidekiq_client.rb", "ended"))
    assert left == [True, ["Endless"] * 4, 0, 0, 0]


TRANSACTION = [1, 2, "1", ["x", "y"]]
SCRIPTS = [[False, "NOSCRIPT", ["{m}a", 17]], [["{m}a", 22], True]]
PHP = {
    "sessions": [True, 40, 40, 0],
    "commands": [
        [100, 4950], TRANSACTION, [2, "12"], *SCRIPTS, 100, [{"one": 1, "two": 2, "three": 3}, {"two": 2}], True
    ],
    "waiting": [["queue", "job"], [list("02468"), list("13579")], True],
}


@programs_before(PHP, but=set())
def test_programs_of_php_do_their_work(weir: Weir, program: str):
    assert json.loads(run(weir, "php", "phpredis.php", program, str(weir.port))) == PHP[program]


HEARD = [[list(range(10))] * 2, [True, True]]
NODE = {
    "bullmq": [list(range(1, 21)), [3, 7], 6],
    "beequeue": TEN,
    "sessions": [[0, 1, 2, 4, 5, 6, 7, 8, 9], 9, 4],
    # Of 50 rounds of reads of 20 keys, all but the first were answered from the client's cache.
    "cached": [49 * 20, True],
    "socket.io": HEARD,
    "socket.io-sharded": HEARD,
    "socket.io-streams": HEARD,
}


@programs_before(NODE, but=set())
def test_programs_of_node_do_their_work(weir: Weir, tmp_path: Path, program: str):
    shutil.copy(NODE_PROGRAMS, tmp_path)
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    node = os.environ.get("NODE", "node")
    told = run(weir, node, "programs.mjs", program, str(weir.port), database(weir), cwd=tmp_path)
    assert json.loads(told.split("\n")[-1]) == NODE[program]
