<?php
// What programs in PHP do by the extension phpredis. Usage: php phpredis.php PROGRAM PORT [WORD]

const SECONDS_MAX = 60;
const VISITORS = 4;
const VISITS = 10;

[, $program, $port] = $argv;

function connect(): Redis
{
    $redis = new Redis();
    $redis->connect('127.0.0.1', (int) $GLOBALS['port'], SECONDS_MAX);
    $redis->setOption(Redis::OPT_READ_TIMEOUT, SECONDS_MAX);
    return $redis;
}

function untilTrue(callable $probe): void
{
    for ($ends = microtime(true) + SECONDS_MAX; !$probe(); usleep(5_000)) {
        if (microtime(true) > $ends) {
            throw new Exception('not within ' . SECONDS_MAX . ' s');
        }
    }
}

// Another process with another program of this file. Its output is what the returned function waits for.
function beside(string $program, string ...$words): callable
{
    $command = [PHP_BINARY, __FILE__, $program, $GLOBALS['port'], ...$words];
    $process = proc_open($command, [1 => ['pipe', 'w']], $pipes);
    return function () use ($process, $pipes) {
        $said = stream_get_contents($pipes[1]);
        proc_close($process);
        return json_decode($said);
    };
}

// The handler of sessions, with a lock that a script opens: of those who visit at the same time none is forgotten.
function sessions(): array
{
    $visitors = array_map(fn () => beside('visitor'), range(1, VISITORS));
    $seen = array_merge(...array_map(fn ($visitor) => $visitor(), $visitors));
    sort($seen);
    openSession();
    $visits = $_SESSION['visits'];
    session_regenerate_id(true);
    $kept = $_SESSION['visits'];
    session_destroy();
    return [$seen === range(1, VISITORS * VISITS), $visits, $kept, connect()->exists('session:visitors')];
}

function visitor(): array
{
    $seen = [];
    for ($visit = 0; $visit < VISITS; $visit++) {
        openSession();
        $seen[] = $_SESSION['visits'] = ($_SESSION['visits'] ?? 0) + 1;
        session_write_close();
    }
    return $seen;
}

function openSession(): void
{
    if (session_id() === '') {
        session_id('visitors');
    }
    $begun = session_start([
        'save_handler' => 'redis',
        'save_path' => "tcp://127.0.0.1:{$GLOBALS['port']}?prefix=session:",
        'use_cookies' => '0',
        'cache_limiter' => '',
    ]);
    assert($begun);
}

// Pipelines, transactions and watches, scripts, cursors, values that the extension serializes and compresses.
function commands(): array
{
    $redis = connect();
    $pipeline = $redis->pipeline();
    for ($n = 0; $n < 100; $n++) {
        $pipeline->set("number:$n", $n, ['EX' => 100]);
    }
    $set = array_filter($pipeline->exec());
    $told[] = [count($set), array_sum($redis->mGet(array_map(fn ($n) => "number:$n", range(0, 99))))];

    $told[] = $redis->multi()->incr('{m}a')->rPush('{m}b', 'x', 'y')->get('{m}a')->lRange('{m}b', 0, -1)->exec();

    $rival = connect();
    $tries = 0;
    do {
        $redis->watch('{m}a');
        $value = (int) $redis->get('{m}a');
        if ($tries++ === 0) {
            $rival->incr('{m}a');
        }
    } while ($redis->multi()->set('{m}a', $value + 10)->exec() === false);
    $told[] = [$tries, $redis->get('{m}a')];

    $script = 'return {KEYS[1], redis.call("incrby", KEYS[1], ARGV[1])}';
    $unknown = $redis->evalSha(sha1($script), ['{m}a', 5], 1);
    $told[] = [$unknown, strtok($redis->getLastError(), ' '), $redis->eval($script, ['{m}a', 5], 1)];
    $redis->clearLastError();
    $told[] = [$redis->evalSha(sha1($script), ['{m}a', 5], 1), $redis->script('load', $script) === sha1($script)];

    $redis->setOption(Redis::OPT_SCAN, Redis::SCAN_RETRY);
    $found = [];
    for ($cursor = null; ($keys = $redis->scan($cursor, 'number:*', 10)) !== false;) {
        array_push($found, ...$keys);
    }
    $told[] = count(array_unique($found));
    $redis->zAdd('scores', 1, 'one', 2, 'two', 3, 'three');
    $cursor = null;
    $told[] = [$redis->zScan('scores', $cursor), $redis->zRangeByScore('scores', '2', '+inf', ['withscores' => true, 'limit' => [0, 1]])];

    $redis->setOption(Redis::OPT_SERIALIZER, Redis::SERIALIZER_IGBINARY);
    $redis->setOption(Redis::OPT_COMPRESSION, Redis::COMPRESSION_LZF);
    $person = ['name' => 'Ann', 'tags' => array_fill(0, 500, 'tag'), 'ratio' => 0.5];
    $redis->hMSet('people', ['ann' => $person, 'bob' => null]);
    $told[] = $redis->hMGet('people', ['ann', 'bob']) === ['ann' => $person, 'bob' => null];
    return $told;
}

// One waits in BLPOP, one is subscribed to a pattern, and two read a stream as a group.
function waiting(): array
{
    $redis = connect();
    $popped = beside('pop');
    untilTrue(fn () => $redis->info('clients')['blocked_clients'] >= 1);
    $redis->rPush('queue', 'job');
    $told[] = $popped();

    $heard = beside('hear');
    untilTrue(fn () => $redis->pubsub('numpat') === 1);
    for ($n = 0; $n < 10; $n++) {
        $redis->publish($n % 2 ? 'news.odd' : 'news.even', $n);
    }
    // Each channel is in order; the two may be at different stores.
    $said = ['news.even' => [], 'news.odd' => []];
    foreach ($heard() as [$channel, $message]) {
        $said[$channel][] = $message;
    }
    $told[] = array_values($said);

    $redis->xGroup('CREATE', 'stream', 'readers', '0', true);
    $readers = [beside('read', 'one'), beside('read', 'two')];
    for ($n = 0; $n < 20; $n++) {
        $redis->xAdd('stream', '*', ['n' => $n]);
    }
    untilTrue(fn () => $redis->xInfo('GROUPS', 'stream')[0]['lag'] === 0 && $redis->xPending('stream', 'readers')[0] === 0);
    $redis->xAdd('stream', '*', ['n' => 'end']);
    $redis->xAdd('stream', '*', ['n' => 'end']);
    $read = array_merge(...array_map(fn ($reader) => $reader(), $readers));
    sort($read);
    $told[] = $read === array_map('strval', range(0, 19));
    return $told;
}

function pop(): array
{
    return connect()->blPop(['queue'], SECONDS_MAX);
}

// The extension hears until its connection is gone.
function hear(): array
{
    $heard = [];
    try {
        connect()->psubscribe(['news.*'], function (Redis $redis, string $pattern, string $channel, string $message) use (&$heard) {
            $heard[] = [$channel, $message];
            if (count($heard) === 10) {
                $redis->close();
            }
        });
    } catch (RedisException) {
    }
    return $heard;
}

// Every entry is acknowledged; the end comes to each reader once.
function read(): array
{
    $redis = connect();
    for ($read = []; ; ) {
        foreach ($redis->xReadGroup('readers', $GLOBALS['argv'][3], ['stream' => '>'], 1, SECONDS_MAX * 1000)['stream'] as $id => $entry) {
            $redis->xAck('stream', 'readers', [$id]);
            if ($entry['n'] === 'end') {
                return $read;
            }
            $read[] = $entry['n'];
        }
    }
}

ini_set('redis.session.locking_enabled', '1');
// A visitor waits until it is its turn.
ini_set('redis.session.lock_retries', '-1');
echo json_encode($program()), "\n";
