"""Jobs for arq, and the program that enqueues them. Usage: arq_jobs.py, beside `arq arq_jobs.WorkerSettings`"""

from __future__ import annotations

import asyncio
import os

from arq import Retry, create_pool
from arq.connections import RedisSettings
from arq.jobs import Job

SECONDS_MAX = 60
SETTINGS = RedisSettings.from_dsn(os.environ["REDIS_URL"])


async def add(context: dict, one: int, other: int) -> int:
    await context["redis"].hincrby("done", f"{one}+{other}", 1)
    return one + other


async def fails_twice(context: dict, number: int) -> int:
    if context["job_try"] < 3:
        raise Retry(defer=0.1)
    return number * context["job_try"]


async def endless(context: dict) -> None:
    await context["redis"].set("endless", "begun")
    await asyncio.sleep(SECONDS_MAX)


class WorkerSettings:
    functions = [add, fails_twice, endless]
    redis_settings = SETTINGS
    poll_delay = 0.1
    allow_abort_jobs = True


async def work() -> list:
    pool = await create_pool(SETTINGS)
    jobs: list[Job] = [await pool.enqueue_job("add", number, 1) for number in range(20)]
    sums = [await job.result(timeout=SECONDS_MAX) for job in jobs]
    late = await pool.enqueue_job("add", 20, 1, _defer_by=0.5, _job_id="late")
    # Two jobs with the same id are one job.
    twice = await pool.enqueue_job("add", 20, 1, _job_id="late")
    again = await pool.enqueue_job("fails_twice", 14)
    rest = [await late.result(timeout=SECONDS_MAX), twice, await again.result(timeout=SECONDS_MAX)]
    job = await pool.enqueue_job("endless")
    while await pool.get("endless") is None:
        await asyncio.sleep(0.01)
    aborted = await job.abort(timeout=SECONDS_MAX)
    done = await pool.hvals("done")
    told = [sums, rest, aborted, done == [b"1"] * 21, await pool.zcard("arq:queue"), len(await pool.all_job_results())]
    await pool.aclose()
    return told


if __name__ == "__main__":
    print(asyncio.run(asyncio.wait_for(work(), SECONDS_MAX)))
