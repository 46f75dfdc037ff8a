"""Queue libraries that use Redis, each with some work. Usage: queues.py PROGRAM PORT DATABASE"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

SECONDS_MAX = 60


def huey(port: int, database: int) -> list:
    """huey: its consumers wait in BRPOP, or in BZPOPMIN where tasks have priorities."""
    from huey import PriorityRedisHuey, RedisHuey

    told = []
    for kind in (RedisHuey, PriorityRedisHuey):
        queue = kind("work", host="127.0.0.1", port=port, db=database)

        @queue.task()
        def double(number: int) -> int:
            return 2 * number

        consumer = queue.create_consumer(workers=2, periodic=False)
        consumer.start()
        results = [double(number) for number in range(10)]
        told.append([result.get(blocking=True, timeout=SECONDS_MAX) for result in results])
        told.append(double.schedule((21,), delay=1).get(blocking=True, timeout=SECONDS_MAX))
        chain = double.s(1).then(double).then(double)
        told.append(queue.enqueue(chain).get(blocking=True, timeout=SECONDS_MAX))
        consumer.stop(graceful=True)
        queue.storage.flush_all()
    return told


def dramatiq(port: int, database: int) -> list:
    """dramatiq: all work on its queues is done by scripts, and its results wait in BRPOPLPUSH."""
    import dramatiq as library
    from dramatiq import group, pipeline
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.results import Results
    from dramatiq.results.backends import RedisBackend

    options = {"host": "127.0.0.1", "port": port, "db": database}
    if prefix := os.environ.get("KEY_PREFIX"):
        options["namespace"] = prefix
    broker = RedisBroker(**options)
    broker.add_middleware(Results(backend=RedisBackend(**options)))
    library.set_broker(broker)

    @library.actor(store_results=True)
    def double(number: int) -> int:
        return 2 * number

    worker = library.Worker(broker, worker_threads=2)
    worker.start()
    millis = SECONDS_MAX * 1000
    each = list(group([double.message(number) for number in range(10)]).run().get_results(block=True, timeout=millis))
    chain = pipeline([double.message(1), double.message(), double.message()]).run().get_result(block=True, timeout=millis)
    late = double.send_with_options(args=(21,), delay=300).get_result(block=True, timeout=millis)
    worker.stop()
    broker.close()
    return [each, chain, late]


async def subscribed(url: str, pattern: str) -> None:
    """Waits until the store knows of a subscriber of a channel. The caller sets a timeout."""
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(url)
    while not await client.pubsub_channels(pattern):
        await asyncio.sleep(0.01)
    await client.aclose()


def channels(port: int, database: int, is_pubsub: bool = False) -> list:
    """Django's channel layers: one waits in BZPOPMIN, the other (`is_pubsub`) subscribes."""
    from channels_redis.core import RedisChannelLayer
    from channels_redis.pubsub import RedisPubSubChannelLayer

    url = f"redis://127.0.0.1:{port}/{database}"
    layer = (RedisPubSubChannelLayer if is_pubsub else RedisChannelLayer)(hosts=[url])

    async def work() -> list:
        one, two = await layer.new_channel(), await layer.new_channel()
        waiting = asyncio.ensure_future(layer.receive(two))
        if is_pubsub:
            # The layer does not wait for the reply to SUBSCRIBE, and PUBLISH goes over another connection.
            await subscribed(url, f"*{one}")
            await subscribed(url, f"*{two}")
        await layer.send(one, {"type": "t", "number": 1})
        told = [await layer.receive(one)]
        await layer.send(two, {"type": "t", "number": 2})
        told.append(await waiting)
        await layer.group_add("all", one)
        await layer.group_add("all", two)
        if is_pubsub:
            await subscribed(url, "*group*")
        await layer.group_send("all", {"type": "t", "number": 3})
        told += [await layer.receive(one), await layer.receive(two)]
        await layer.group_discard("all", one)
        return [message["number"] for message in told]

    return asyncio.run(asyncio.wait_for(work(), SECONDS_MAX))


def channels_pubsub(port: int, database: int) -> list:
    return channels(port, database, is_pubsub=True)


PROGRAMS: dict[str, Callable[[int, int], list]] = {
    "huey": huey,
    "dramatiq": dramatiq,
    "channels": channels,
    "channels-pubsub": channels_pubsub,
}

if __name__ == "__main__":
    print(PROGRAMS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3])))
