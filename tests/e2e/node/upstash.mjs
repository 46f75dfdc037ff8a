// @upstash/redis as its users use it: default settings. Usage: node upstash.mjs URL TOKEN MODULES.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, token, modules] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/package.json`));
const { Redis } = require("@upstash/redis");

const redis = new Redis({ url, token });
assert.equal(await redis.set("s", "wört\u0001"), "OK");
assert.equal(await redis.get("s"), "wört\u0001");
assert.equal(await redis.get("none"), null);
assert.equal(await redis.set("e", "v", { ex: 100 }), "OK");
assert.ok((await redis.ttl("e")) > 90);
assert.equal(await redis.incrby("n", 5), 5);
assert.equal(await redis.hset("h", { a: 1, b: { c: [2] } }), 2);
assert.deepEqual(await redis.hgetall("h"), { a: 1, b: { c: [2] } });
assert.equal(await redis.rpush("l", "x", "y"), 2);
assert.deepEqual(await redis.lrange("l", 0, -1), ["x", "y"]);
assert.equal(await redis.mset({ m1: 1, m2: "two" }), "OK");
assert.deepEqual(await redis.mget("m1", "m2", "none"), [1, "two", null]);
assert.equal(await redis.zadd("z", { score: 1.5, member: "a" }), 1);
assert.equal(await redis.zscore("z", "a"), 1.5);
const pipeline = redis.pipeline();
pipeline.set("p", 1);
pipeline.incr("p");
pipeline.get("p");
assert.deepEqual(await pipeline.exec(), ["OK", 2, 2]);
const block = redis.multi();
block.incr("{t}a");
block.incr("{t}a");
assert.deepEqual(await block.exec(), [1, 2]);
await assert.rejects(redis.lpush("s", "x"), /WRONGTYPE/);
// Many at once, which it sends as pipelines by itself.
const values = await Promise.all(Array.from({ length: 300 }, (_, i) => redis.set(`many:${i}`, i).then(() => redis.get(`many:${i}`))));
assert.deepEqual(values, Array.from({ length: 300 }, (_, i) => i));
assert.equal(await redis.eval("return redis.call('GET', KEYS[1])", ["p"], []), 2);
let cursor = "0";
const found = new Set();
do {
  const [next, keys] = await redis.scan(cursor, { match: "many:*", count: 100 });
  keys.forEach((key) => found.add(key));
  cursor = String(next);
} while (cursor !== "0");
assert.equal(found.size, 300);
await assert.rejects(new Redis({ url, token: "wrong", retry: false }).get("s"), /WRONGPASS/);
console.log("all passed");
