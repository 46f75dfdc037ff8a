// ioredis and node-redis over TLS with nothing but the authority's certificate. Usage: node tls.mjs PORT MODULES CA.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [port, modules, ca] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/package.json`));
const { createClient } = require("redis");
const { Redis } = require("ioredis");
const authority = readFileSync(ca);
const large = "x".repeat(1 << 20);

const io = new Redis(`rediss://localhost:${port}`, { tls: { ca: authority } });
await io.set("node:io", large);
assert.equal(await io.get("node:io"), large);
const replies = await io.pipeline(Array.from({ length: 500 }, (_, i) => ["set", `node:${i}`, `${i}`])).exec();
assert.ok(replies.every(([error, reply]) => error === null && reply === "OK"));
await io.quit();

const client = createClient({ url: `rediss://localhost:${port}`, socket: { ca: authority } });
client.on("error", (error) => console.log(`# ${error}`));
await client.connect();
assert.equal(await client.get("node:io"), large);
await client.close();

const refused = new Redis(`rediss://localhost:${port}`, { retryStrategy: null, lazyConnect: true });
refused.on("error", () => {});
await assert.rejects(refused.connect());
refused.disconnect();
console.log("all passed");
