// Programs of the Node world that keep something on their connection to Redis. Usage: node programs.mjs PROGRAM PORT DATABASE
import { Redis } from "ioredis";
import { createClient } from "redis";

const [program, port, database] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
// Keeps all keys of a queue together, before stores where that is needed.
const prefix = process.env.KEY_PREFIX ? { prefix: process.env.KEY_PREFIX } : {};
const say = (value) => console.log(JSON.stringify(value));

// Jobs with priorities, delays, retries and a flow of children. Its worker waits in BZPOPMIN, its events come by XREAD with BLOCK, and
// every change is a script.
async function bullmq() {
  const { FlowProducer, Queue, QueueEvents, Worker } = await import("bullmq");
  const connection = { host: "127.0.0.1", port, maxRetriesPerRequest: null };
  const options = { connection, ...prefix };
  const queue = new Queue("sums", options);
  const events = new QueueEvents("sums", options);
  const flow = new FlowProducer(options);
  let failures = 0;
  const worker = new Worker("sums", async (job) => {
    if (job.name === "fails once" && failures++ === 0) throw new Error("once");
    if (job.name === "total") return Object.values(await job.getChildrenValues()).reduce((sum, value) => sum + value, 0);
    return job.data.a + job.data.b;
  }, { ...options, concurrency: 4 });
  await events.waitUntilReady();
  const jobs = await queue.addBulk(Array.from({ length: 20 }, (_, n) => ({ name: "add", data: { a: n, b: 1 } })));
  const sums = await Promise.all(jobs.map((job) => job.waitUntilFinished(events, 60_000)));
  const late = await queue.add("add", { a: 1, b: 2 }, { delay: 200, priority: 3 });
  const again = await queue.add("fails once", { a: 3, b: 4 }, { attempts: 3, backoff: 50 });
  const rest = [await late.waitUntilFinished(events, 60_000), await again.waitUntilFinished(events, 60_000)];
  const children = [1, 2, 3].map((n) => ({ name: "add", queueName: "sums", data: { a: n, b: 0 } }));
  const tree = await flow.add({ name: "total", queueName: "sums", children });
  const total = await tree.job.waitUntilFinished(events, 60_000);
  say([sums, rest, total]);
  await Promise.all([worker.close(), events.close(), queue.close(), flow.close()]);
}

// Jobs whose worker waits in BRPOPLPUSH, with results by PUBLISH.
async function beequeue() {
  const { default: Queue } = await import("bee-queue");
  const queue = new Queue("doubles", { redis: { host: "127.0.0.1", port }, ...prefix });
  queue.process(3, async (job) => job.data.a * 2);
  const results = [];
  for (let n = 0; n < 10; n++) {
    const job = queue.createJob({ a: n });
    const done = new Promise((resolve) => job.on("succeeded", resolve));
    await job.save();
    results.push(await done);
  }
  say(results);
  await queue.close();
}

// Two servers and their clients: rooms, acknowledgements of all servers, and the list of all sockets.
async function socketio(adapterOf) {
  const { Server } = await import("socket.io");
  const { io } = await import("socket.io-client");
  const servers = [];
  const closers = [];
  for (let n = 0; n < 2; n++) {
    const server = new Server(0, { adapter: await adapterOf(closers) });
    server.on("connection", (socket) => {
      socket.join("all");
      socket.on("say", (text, done) => { server.to("all").emit("said", text); done(); });
    });
    servers.push(server);
  }
  const clients = servers.map((server) => io(`http://127.0.0.1:${server.httpServer.address().port}`, { transports: ["websocket"] }));
  await Promise.all(clients.map((client) => new Promise((resolve) => client.on("connect", resolve))));
  clients.forEach((client) => client.on("asked", (answer) => answer(client.id.length > 0)));
  const until = async (probe) => { while (!(await probe())) await new Promise((resolve) => setTimeout(resolve, 50)); };
  await until(async () => (await servers[0].fetchSockets()).length === 2 && (await servers[1].fetchSockets()).length === 2);
  const heard = clients.map(() => []);
  clients.forEach((client, n) => client.on("said", (text) => heard[n].push(text)));
  for (let n = 0; n < 10; n++) await clients[n % 2].emitWithAck("say", n);
  await until(() => heard.every((texts) => texts.length === 10));
  const answers = await servers[0].timeout(10_000).emitWithAck("asked");
  say([heard.map((texts) => texts.toSorted((a, b) => a - b)), answers]);
  clients.forEach((client) => client.close());
  await Promise.all(servers.map((server) => server.close()));
  await Promise.all(closers.map((close) => close()));
}

async function pubsub(closers) {
  const { createAdapter } = await import("@socket.io/redis-adapter");
  const publisher = new Redis({ port });
  const subscriber = publisher.duplicate();
  closers.push(() => publisher.quit(), () => subscriber.quit());
  return createAdapter(publisher, subscriber);
}

async function sharded(closers) {
  const { createShardedAdapter } = await import("@socket.io/redis-adapter");
  const publisher = await createClient({ url: `redis://127.0.0.1:${port}` }).connect();
  const subscriber = await publisher.duplicate().connect();
  closers.push(() => publisher.close(), () => subscriber.close());
  return createShardedAdapter(publisher, subscriber);
}

async function streams(closers) {
  const { createAdapter } = await import("@socket.io/redis-streams-adapter");
  const client = await createClient({ url: `redis://127.0.0.1:${port}` }).connect();
  closers.push(() => client.close());
  return createAdapter(client);
}

// Sessions of a web server, with their expiry.
async function sessions() {
  const { RedisStore } = await import("connect-redis");
  const client = await createClient({ url: `redis://127.0.0.1:${port}/${database}` }).connect();
  const store = new RedisStore({ client, ttl: 60 });
  const call = (method, ...words) => new Promise((resolve, reject) => store[method](...words, (error, value) => (error ? reject(error) : resolve(value))));
  for (let n = 0; n < 10; n++) await call("set", `s${n}`, { cookie: {}, n });
  await call("destroy", "s3");
  await call("touch", "s4", { cookie: {} });
  say([(await call("all")).map((session) => session.n).toSorted((a, b) => a - b), await call("length"), (await call("get", "s4")).n]);
  await call("clear");
  await client.close();
}

// A client that keeps values itself, and drops them when the store says that they have changed.
async function cached() {
  const url = `redis://127.0.0.1:${port}`;
  const client = await createClient({ url, RESP: 3, clientSideCache: { ttl: 0, maxEntries: 0 } }).connect();
  const writer = await createClient({ url }).connect();
  const keys = Array.from({ length: 20 }, (_, n) => `kept${n}`);
  for (const key of keys) await writer.set(key, "old");
  const readAll = () => Promise.all(keys.map((key) => client.get(key)));
  for (let n = 0; n < 50; n++) await readAll();
  const hits = client.options.clientSideCache?.stats?.().hitCount ?? client.clientSideCache?.stats?.().hitCount;
  for (const key of keys) await writer.set(key, "new");
  while ((await readAll()).some((value) => value !== "new")) await new Promise((resolve) => setTimeout(resolve, 5));
  say([hits, (await readAll()).every((value) => value === "new")]);
  await client.close();
  await writer.close();
}

const programs = {
  bullmq, beequeue, sessions, cached,
  "socket.io": () => socketio(pubsub),
  "socket.io-sharded": () => socketio(sharded),
  "socket.io-streams": () => socketio(streams),
};
await programs[program]();
process.exit(0);
