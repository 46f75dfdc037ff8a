"""Programs that use Redis for their queues, messages and sessions, unchanged and each with its own work, behind weir."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import TARGET, Weir

pytestmark = pytest.mark.weir_only

PROGRAMS = Path(__file__).parent / "programs"
NODE_PROGRAMS = Path(__file__).parent / "node" / "programs.mjs"
NODE_MODULES = TARGET / "e2e" / "node" / "node_modules"
SECONDS_MAX = 120


@pytest.fixture(params=["redis", "embedded"])
def weir(request, servers) -> Weir:
    stores = [servers.redis()] if request.param == "redis" else []
    return servers.weir(*stores, flags=["--shards", "2"])


def environment(weir: Weir) -> dict[str, str]:
    return {**os.environ, "REDIS_URL": f"redis://127.0.0.1:{weir.port}/0", "PYTHONPATH": str(PROGRAMS), "PYTHONDONTWRITEBYTECODE": "1"}


def run(weir: Weir, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(weir), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_rq_carries_out_jobs_and_schedules_them(weir: Weir):
    """Its worker waits in BLPOP and BLMOVE, watches keys and is subscribed to its own channel."""
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
    assert run(weir, code) == str([2 * number for number in range(1, 20)])


def test_celery_carries_out_tasks_groups_and_chords(weir: Weir):
    """Its broker waits in BRPOP, its results are published, and its fan-out is a pattern of channels."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--concurrency", "2", "--pool", "threads"],
        env=environment(weir),
        cwd=PROGRAMS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        code = f"""
from celery import chord, group
from celery_app import add, app, total
print(add.delay(2, 3).get(timeout={SECONDS_MAX}))
print(group(add.s(number, number) for number in range(20))().get(timeout={SECONDS_MAX}))
print(chord([add.s(number, 1) for number in range(10)])(total.s()).get(timeout={SECONDS_MAX}))
print(len(app.control.ping(timeout=5)))
"""
        assert run(weir, code).split("\n") == ["5", str([2 * number for number in range(20)]), "55", "1"]
    finally:
        worker.terminate()
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


TEN = list(range(0, 20, 2))
QUEUES = {
    "huey": [TEN, 42, [2, 4, 8]] * 2,
    "dramatiq": [TEN, 8, 42],
    "channels": [[1, 2, 3, 3]] * 2,
}


@pytest.mark.parametrize("stores", [0, 1, 3], ids=["embedded", "one store", "three stores"])
@pytest.mark.parametrize("program", QUEUES)
def test_queues_of_python_carry_out_their_work(servers, program: str, stores: int):
    weir = servers.weir(*[servers.redis() for _ in range(stores)], flags=["--shards", "2"])
    done = subprocess.run(
        [sys.executable, PROGRAMS / "queues.py", program, str(weir.port)],
        env=environment(weir), capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(QUEUES[program])


HEARD = [[list(range(10))] * 2, [True, True]]
NODE = {
    "bullmq": [list(range(1, 21)), [3, 7], 6],
    "beequeue": TEN,
    "sessions": [[0, 1, 2, 4, 5, 6, 7, 8, 9], 9, 4],
    # All reads of 20 keys but the first were answered by what the client keeps.
    "cached": [49 * 20, True],
    "socket.io": HEARD,
    "socket.io-sharded": HEARD,
    "socket.io-streams": HEARD,
}


@pytest.mark.parametrize("stores", [0, 1, 3], ids=["embedded", "one store", "three stores"])
@pytest.mark.parametrize("program", NODE)
def test_programs_of_node_do_their_work(servers, tmp_path: Path, program: str, stores: int):
    weir = servers.weir(*[servers.redis() for _ in range(stores)], flags=["--shards", "2"])
    shutil.copy(NODE_PROGRAMS, tmp_path)
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    done = subprocess.run(
        [os.environ.get("NODE", "node"), "programs.mjs", program, str(weir.port)],
        cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.strip().split("\n")[-1]) == NODE[program]
