"""Reads replies of every type with hiredis's parser under redis-py. Usage: hiredis_replies.py PORT"""

from __future__ import annotations

import json
import sys

import redis
from redis._parsers import _HiredisParser

BULK = b"x" * 300_000


def replies(client: redis.Redis) -> list:
    client.set("bulk", BULK)
    client.hset("hash", mapping={str(n): n for n in range(1_000)})
    client.sadd("set", "a", "b")
    client.zadd("{t}sorted", {"one": 1, "half": 0.5})
    with client.pipeline(transaction=False) as pipeline:
        for n in range(1_000):
            pipeline.hget("hash", str(n))
        pipeline.lpush("hash", "x")
        pipeline.get("bulk")
        *read, refused, bulk = pipeline.execute(raise_on_error=False)
    with client.pipeline() as pipeline:
        pipeline.incr("{t}number").get("{t}nothing").zrange("{t}sorted", 0, -1, withscores=True)
        transaction = pipeline.execute()
    script = client.register_script("return {1, {'two', {'three'}}, false, redis.status_reply('FINE')}")
    subscription = client.pubsub()
    subscription.subscribe("channel")
    told = [subscription.get_message(timeout=60)["type"]]
    client.publish("channel", "message")
    told.append(subscription.get_message(timeout=60)["data"])
    subscription.close()
    return [
        [int(value) for value in read] == list(range(1_000)),
        str(refused).partition(" ")[0] if type(refused) is redis.ResponseError else refused,
        bulk == BULK,
        len(client.hgetall("hash")),
        sorted(client.smembers("set")),
        [transaction[0], transaction[1], [list(pair) for pair in transaction[2]]],
        script(),
        told,
    ]


if __name__ == "__main__":
    for protocol in (2, 3):
        with redis.Redis(port=int(sys.argv[1]), protocol=protocol) as client:
            client.delete("{t}number")
            assert isinstance(client.connection_pool.get_connection()._parser, _HiredisParser)
            print(json.dumps(replies(client), default=bytes.decode))
