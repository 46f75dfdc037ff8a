// node-redis and ioredis as their users use them: default settings, through whole command families.
// Usage: node clients.mjs PORT. Prints one line per check; ends with 1 when one failed.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [port, modules] = process.argv.slice(2);
// The packages are installed in a build folder, away from this file.
const require = createRequire(pathToFileURL(`${modules}/package.json`));
const { createClient } = require("redis");
const { Redis } = require("ioredis");

const MANY = 300;
const STEP_MS_MAX = 60_000;
let failures = 0;

async function check(name, work) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no end after ${STEP_MS_MAX} ms`)), STEP_MS_MAX);
  });
  try {
    await Promise.race([work(), limit]);
    console.log(`ok ${name}`);
  } catch (error) {
    failures += 1;
    console.log(`FAILED ${name}: ${error.stack}`);
  } finally {
    clearTimeout(timer);
  }
}

const pairs = (prefix) => Object.fromEntries(Array.from({ length: MANY }, (_, i) => [`${prefix}:${i}`, `value-${i}`]));

async function nodeRedis(label, options) {
  const client = createClient({ url: `redis://127.0.0.1:${port}`, ...options });
  client.on("error", (error) => console.log(`# ${label}: ${error}`));
  const k = (name) => `{${label}}${name}`;
  await check(`${label} connect`, () => client.connect());

  await check(`${label} strings`, async () => {
    assert.equal(await client.set(k("s"), "v"), "OK");
    assert.equal(await client.get(k("s")), "v");
    assert.equal(await client.get(k("none")), null);
    assert.equal(await client.incrBy(k("n"), 5), 5);
    assert.equal(await client.append(k("s"), "w"), 2);
    assert.equal(await client.set(k("e"), "v", { EX: 100 }), "OK");
    assert.ok((await client.ttl(k("e"))) > 90);
  });

  await check(`${label} many keys`, async () => {
    const values = pairs(`${label}:many`);
    assert.equal(await client.mSet(values), "OK");
    assert.deepEqual(await client.mGet(Object.keys(values)), Object.values(values));
    assert.equal(await client.exists(Object.keys(values)), MANY);
    assert.equal(await client.del(Object.keys(values)), MANY);
  });

  await check(`${label} hashes`, async () => {
    assert.equal(await client.hSet(k("h"), { a: "1", b: "2" }), 2);
    assert.deepEqual({ ...(await client.hGetAll(k("h"))) }, { a: "1", b: "2" });
    assert.deepEqual(await client.hmGet(k("h"), ["a", "none"]), ["1", null]);
    assert.equal(await client.hIncrBy(k("h"), "a", 2), 3);
  });

  await check(`${label} lists, sets, sorted sets`, async () => {
    assert.equal(await client.rPush(k("l"), ["a", "b", "c"]), 3);
    assert.deepEqual(await client.lRange(k("l"), 0, -1), ["a", "b", "c"]);
    assert.equal(await client.lMove(k("l"), k("l2"), "LEFT", "RIGHT"), "a");
    assert.equal(await client.sAdd(k("s1"), ["1", "2"]), 2);
    assert.deepEqual([...(await client.sMembers(k("s1")))].sort(), ["1", "2"]);
    assert.equal(await client.zAdd(k("z"), [{ score: 1.5, value: "m" }, { score: 2, value: "n" }]), 2);
    assert.equal(await client.zScore(k("z"), "m"), 1.5);
    assert.deepEqual(await client.zRangeWithScores(k("z"), 0, -1), [
      { value: "m", score: 1.5 },
      { value: "n", score: 2 },
    ]);
  });

  await check(`${label} streams`, async () => {
    const id = await client.xAdd(k("x"), "*", { f: "v" });
    assert.equal((await client.xRange(k("x"), "-", "+"))[0].id, id);
    assert.equal(await client.xLen(k("x")), 1);
  });

  await check(`${label} transaction`, async () => {
    const replies = await client.multi().set(k("t"), "1").incr(k("t")).get(k("t")).exec();
    assert.deepEqual(replies, ["OK", 2, "2"]);
  });

  await check(`${label} script`, async () => {
    const reply = await client.eval("return {KEYS[1], ARGV[1]}", { keys: [k("e1")], arguments: ["x"] });
    assert.deepEqual(reply, [k("e1"), "x"]);
  });

  await check(`${label} automatic pipeline`, async () => {
    const replies = await Promise.all(
      Array.from({ length: MANY }, async (_, i) => {
        await client.set(`${label}:pipe:${i}`, `${i}`);
        return client.get(`${label}:pipe:${i}`);
      }),
    );
    assert.deepEqual(replies, Array.from({ length: MANY }, (_, i) => `${i}`));
  });

  await check(`${label} scan`, async () => {
    const found = new Set();
    for await (const keys of client.scanIterator({ MATCH: `${label}:pipe:*`, COUNT: 50 })) {
      for (const key of [].concat(keys)) found.add(key);
    }
    assert.equal(found.size, MANY);
  });

  await check(`${label} errors`, async () => {
    await client.set(k("text"), "text");
    await assert.rejects(client.incr(k("text")), /not an integer/);
    await assert.rejects(client.lPush(k("text"), "x"), /WRONGTYPE/);
    await assert.rejects(client.sendCommand(["NOSUCHCOMMAND"]), /unknown command/);
    assert.equal(await client.ping(), "PONG");
  });

  await check(`${label} close`, () => client.close());
}

async function ioRedis(label, options) {
  const client = new Redis({ port: Number(port), host: "127.0.0.1", lazyConnect: true, ...options });
  client.on("error", (error) => console.log(`# ${label}: ${error}`));
  const k = (name) => `{${label}}${name}`;
  await check(`${label} connect`, () => client.connect());

  await check(`${label} strings`, async () => {
    assert.equal(await client.set(k("s"), "v", "EX", 100), "OK");
    assert.equal(await client.get(k("s")), "v");
    assert.equal(await client.get(k("none")), null);
    assert.equal(await client.incrby(k("n"), 5), 5);
    assert.deepEqual(await client.getBuffer(k("s")), Buffer.from("v"));
  });

  await check(`${label} many keys`, async () => {
    const values = pairs(`${label}:many`);
    assert.equal(await client.mset(values), "OK");
    assert.deepEqual(await client.mget(Object.keys(values)), Object.values(values));
    assert.equal(await client.del(...Object.keys(values)), MANY);
  });

  await check(`${label} hashes`, async () => {
    assert.equal(await client.hset(k("h"), { a: "1", b: "2" }), 2);
    assert.deepEqual(await client.hgetall(k("h")), { a: "1", b: "2" });
    assert.deepEqual(await client.hmget(k("h"), "a", "none"), ["1", null]);
  });

  await check(`${label} lists, sets, sorted sets`, async () => {
    assert.equal(await client.rpush(k("l"), "a", "b", "c"), 3);
    assert.deepEqual(await client.lrange(k("l"), 0, -1), ["a", "b", "c"]);
    assert.equal(await client.sadd(k("s1"), "1", "2"), 2);
    assert.deepEqual([...(await client.smembers(k("s1")))].sort(), ["1", "2"]);
    assert.equal(await client.zadd(k("z"), 1.5, "m"), 1);
    assert.equal(Number(await client.zscore(k("z"), "m")), 1.5);
  });

  await check(`${label} pipeline`, async () => {
    const pipeline = client.pipeline();
    for (let i = 0; i < MANY; i += 1) pipeline.set(`${label}:pipe:${i}`, i).get(`${label}:pipe:${i}`);
    const replies = await pipeline.exec();
    const expected = Array.from({ length: MANY }, (_, i) => [[null, "OK"], [null, `${i}`]]).flat();
    assert.deepEqual(replies, expected);
  });

  await check(`${label} transaction`, async () => {
    const replies = await client.multi().set(k("t"), 1).incr(k("t")).get(k("t")).exec();
    assert.deepEqual(replies, [[null, "OK"], [null, 2], [null, "2"]]);
  });

  await check(`${label} script by digest`, async () => {
    client.defineCommand("echoed", { numberOfKeys: 1, lua: "return {KEYS[1], ARGV[1]}" });
    assert.deepEqual(await client.echoed(k("e1"), "x"), [k("e1"), "x"]);
    assert.deepEqual(await client.echoed(k("e1"), "y"), [k("e1"), "y"]);
  });

  await check(`${label} scan stream`, async () => {
    const found = new Set();
    for await (const keys of client.scanStream({ match: `${label}:pipe:*`, count: 50 })) {
      for (const key of keys) found.add(key);
    }
    assert.equal(found.size, MANY);
  });

  await check(`${label} errors`, async () => {
    await client.set(k("text"), "text");
    await assert.rejects(client.incr(k("text")), /not an integer/);
    await assert.rejects(client.lpush(k("text"), "x"), /WRONGTYPE/);
    assert.equal(await client.ping(), "PONG");
  });

  await check(`${label} quit`, () => client.quit());
}

await nodeRedis("node-redis", {});
await nodeRedis("node-redis-2", { RESP: 2 });
await ioRedis("ioredis", {});
await ioRedis("ioredis-auto", { enableAutoPipelining: true });
console.log(failures === 0 ? "all passed" : `${failures} failed`);
process.exit(failures === 0 ? 0 : 1);
