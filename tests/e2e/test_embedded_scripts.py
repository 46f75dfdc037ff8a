"""Compares the scripts (EVAL) of the embedded store with a redis-server's, byte for byte, through weir and directly.

One table of scripts, in RESP2 and RESP3; random values through cjson, cmsgpack, struct and bit; and the limits that protect other
clients: effort, memory and the script cache.
"""

from __future__ import annotations

import random
import time

import pytest

from harness.processes import Storage, Weir
from harness.resp import Connection

pytestmark = pytest.mark.weir_only

SEEDS = 4
ROUNDS = 150

Words = list[str | bytes]

# Scripts without keys and arguments; a list stands for a whole request.
TABLE: list[str | Words] = [
    # Values as replies.
    "return 1", "return -1.9", "return 3.99", "return 2^53", "return 'text'", "return ''", "return nil", "return", "return true", "return false",
    "return {}", "return {1, 2, {3, 'four', {}}}", "return {1, nil, 3}", "return {1, false, true, 'x'}", "return {ok = 'fine'}", "return {err = 'MINE words'}",
    "return {err = 'oneword'}", "return {ok = 'two\\r\\nlines'}", "return {err = 'E two\\r\\nlines\\r\\n'}", "return {double = 3.5}", "return {double = 1e300}",
    "return {map = {a = 1}}", "return {set = {a = true}}", "return {big_number = '12345678901234567890'}",
    "return {verbatim_string = {format = 'txt', string = 'hello'}}", "return {verbatim_string = {format = 'x', string = 'hello'}}",
    "return {verbatim_string = {}}", "return {map = 1, 5}", "return {1, {err = 'E inside'}, {ok = 'fine'}}", "return function() end", "return print", "return cjson.null",
    "return {cjson.null, 1}", "return 1, 2, 3", "return 0/0", "return 1/0", "return tostring(0/0)", "return -1/0", "return {true}", "return redis",
    "redis.setresp(3) return true", "redis.setresp(3) return false", "redis.setresp(3) return nil", "redis.setresp(3) return {double = 1}",
    "redis.setresp(3) return {true, false}", "return '\\0binary\\255'", "return {KEYS, ARGV}", "return KEYS", "return #ARGV", "return 'a' .. 1 .. 1.5",
    "return {double = 'x'}", "return {ok = 1}", "return {err = 1}", "return {err = {}}", "return {ok = 'a', err = 'E b'}",
    # Commands and their replies.
    ["SET", "text", "value"], ["RPUSH", "list", "a", "b", "c"], ["HSET", "hash", "f", "1"], ["SADD", "set", "m"], ["ZADD", "zset", "1.5", "m"],
    "return redis.call('GET', 'text')", "return redis.call('GET', 'nothing')", "return redis.call('LRANGE', 'list', 0, -1)", "return redis.call('HGETALL', 'hash')",
    "return redis.call('ZSCORE', 'zset', 'm')", "return redis.call('ZRANGE', 'zset', 0, -1, 'WITHSCORES')", "return redis.call('SMEMBERS', 'set')",
    "return type(redis.call('GET', 'nothing'))", "return type(redis.call('LPOP', 'nothing'))", "return redis.call('PING')", "return redis.call('PING').ok",
    "return redis.call('INCR', 'number')", "return redis.call('INCRBYFLOAT', 'float', 0.1)", "return redis.call('SET', 'float', 3.3)", "return redis.call('GET', 'float')",
    "return redis.call('SET', 'n', 12345678901234567890)", "return redis.call('GET', 'n')", "return redis.call('SET', 'n', -0)", "return redis.call('GET', 'n')",
    "return redis.call('SET', 'n', 1e300) and redis.call('GET', 'n')", "return redis.call('SET', 'n', 1e-20) and redis.call('GET', 'n')",
    "return redis.call('ECHO', 'hi')", "return redis.call('EXISTS', 'text', 'list')", "return redis.call('TYPE', 'text')", "return redis.call('DBSIZE') > 0",
    "redis.setresp(3) return redis.call('HGETALL', 'hash')", "redis.setresp(3) return redis.call('SMEMBERS', 'set')", "redis.setresp(3) return redis.call('ZSCORE', 'zset', 'm')",
    "redis.setresp(3) return redis.call('GET', 'nothing')", "redis.setresp(3) return type(redis.call('GET', 'nothing'))",
    "redis.setresp(3) return redis.call('HGETALL', 'hash').map.f", "redis.setresp(3) return tostring(redis.call('ZSCORE', 'zset', 'm').double)",
    "redis.setresp(3) return redis.call('SMEMBERS', 'set').set.m", "redis.setresp(3) redis.setresp(2) return redis.call('HGETALL', 'hash')",
    "return redis.call('MGET', 'text', 'nothing', 'text')", "local r = redis.call('MGET', 'text', 'nothing', 'text') return {#r, type(r[2])}",
    "return redis.call('SET', 'k', 'v', 'NX', 'GET')", "return redis.call('OBJECT', 'ENCODING', 'text')", "return redis.call('set', 'K', 'v', 'EX', 100)",
    "redis.call('SELECT', 5) redis.call('SET', 'five', 1) return redis.call('DBSIZE')", ["DBSIZE"], ["EXISTS", "five"],
    "return redis.call('BLPOP', 'nothing', 1)", "return redis.call('XADD', 'stream', '1-1', 'a', 'b')", "return redis.call('XRANGE', 'stream', '-', '+')",
    "return redis.call('XREAD', 'COUNT', 1, 'STREAMS', 'stream', 0)", "return redis.call('XREAD', 'BLOCK', 1, 'STREAMS', 'stream', 5)",
    "return redis.call('PUBLISH', 'channel', 'message')", "return redis.call('SORT', 'list', 'ALPHA')", "return redis.call('PFADD', 'hll', 'a')",
    # Errors of commands.
    "return redis.call('INCR', 'text')", "return redis.pcall('INCR', 'text')", "return redis.call('LPUSH', 'text', 1)", "return redis.pcall('LPUSH', 'text', 1)",
    "return redis.call('nosuch')", "return redis.pcall('nosuch')", "return redis.call('GET')", "return redis.pcall('GET')", "return redis.call()", "return redis.pcall()",
    "return redis.call({})", "return redis.call('GET', {})", "return redis.call('GET', nil)", "return redis.call('GET', true)", "return redis.call('MULTI')",
    "return redis.call('SUBSCRIBE', 'x')", "return redis.call('WATCH', 'x')", "return redis.call('EVAL', 'return 1', 0)", "return redis.call('SCRIPT', 'FLUSH')",
    "return redis.call('AUTH', 'x')", "return redis.call('HELLO')", "return redis.call('CLIENT', 'ID')", "return redis.call('CLIENT', 'NOSUCH')", "return redis.call('CLIENT')",
    "return redis.call('OBJECT', 'NOSUCH', 'x')", "return redis.call('CONFIG', 'GET', 'x')", "return redis.call('BLPOP', 'list', 0)", "return redis.call('XPENDING')",
    "return {redis.pcall('INCR', 'text'), 1}", "local e = redis.pcall('INCR', 'text') return e.err", "local e = redis.pcall('INCR', 'text') return tostring(e.ignore_error_stats_update)",
    "local ok, e = pcall(redis.call, 'INCR', 'text') return {ok, e, type(e)}", "local ok, e = pcall(function() redis.call('INCR', 'text') end) return {ok, e}",
    "local r = {} xpcall(function() redis.call('INCR', 'text') end, function(e) for k, v in pairs(e) do r[#r + 1] = k .. tostring(v) end end) table.sort(r) return r",
    "\n\nreturn redis.call('INCR', 'text')", "local function f()\n redis.call('INCR', 'text')\nend\nf()", "local t = {}\nfor i = 1, 3 do\n t[i] = redis.call('nosuch')\nend",
    # Errors of scripts.
    "return (", "return 'unfinished", "x x", "error('mine')", "error('mine', 0)", "error('mine', 2)", "error({err = 'MINE words'})", "error({err = 'mine'})", "error()", "error(nil)",
    "error(1)", "error(true)", "local a = nil return a.b", "local a = {} return a.b.c", "return 1 + {}", "return 1 + 'x'", "return {} .. 'x'", "return #1", "return nil > 1", "return {} < {}", "foo()",
    "local f = nil f()", "return x", "x = 1", "x.y = 1", "function f() end", "return _G.x", "_G.x = 1", "redis.x = 1", "redis.call = 1", "string.x = 1", "cjson.encode = 1", "KEYS = 1", "ARGV[1] = 'a' return ARGV",
    "return assert(false)", "return assert(nil, 'mine')", "assert(false, {err = 'MINE x'})", "error('two\\r\\nlines')", "return tostring(nil) .. nil", "local function f() return f() + 1 end return f()",
    "return pcall(error, 'x')", "return {pcall(error, 'x')}", "return {pcall(error)}", "return {pcall(error, {err = 'E x'})}", "return {pcall(error, {1, 2})}", "return {pcall(nosuch)}",
    "return {xpcall(function() error('x') end, function(e) return 'handled ' .. e end)}", "return {pcall(function(...) return ... end, 1, 2)}", "return pcall()", "local t = {} for i = 1, 60 do t[i] = i end return {pcall(unpack, t)}", "local t = {} for i = 1, 60 do t[i] = i end return {xpcall(function() return unpack(t) end, error)}",
    "return {pcall(pcall)}", "return {select('#', pcall(function() end))}", "return {pcall(function() return x end)}", "return {pcall(function() y = 1 end)}",
    "return setmetatable(_G, {})", "return rawset(_G, 'x', 1)", "return getmetatable(_G).__index ~= nil", "getmetatable(_G).__index = nil", "return getmetatable(redis)",
    "getmetatable('').__index = nil", "return type(getmetatable('').__index)", "return rawget(_G, 'x')", "return type(rawget(_G, 'redis'))", "return rawset(redis, 'x', 1)",
    "return table.insert(redis, 1)", "return table.sort(redis)", "return next(cjson) ~= nil",
    # Globals.
    "local r = {} for k, v in pairs(_G) do r[#r + 1] = k .. type(v) end table.sort(r) return r",
    *[f"local r = {{}} for k, v in pairs({name}) do r[#r + 1] = k .. type(v) end table.sort(r) return r" for name in ("string", "table", "math", "coroutine", "cjson", "cmsgpack", "bit", "struct", "redis")],
    *[f"return {name}" for name in ("print", "dofile", "loadfile", "require", "module", "io", "os", "debug", "package", "setfenv", "getfenv", "newproxy")],
    "return _VERSION", "return type(_G)", "return _G == _G._G", "return redis.REDIS_VERSION", "return redis.REDIS_VERSION_NUM", "return type(gcinfo())",
    "return {redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING, redis.REPL_ALL, redis.REPL_AOF, redis.REPL_SLAVE, redis.REPL_REPLICA, redis.REPL_NONE}",
    # The library redis.
    "return redis.error_reply('MINE words')", "return redis.error_reply('word')", "return redis.error_reply('-CODE words')", "return redis.error_reply('-CODE')", "return redis.error_reply()",
    "return redis.error_reply({})", "return redis.error_reply('a', 'b')", "return redis.error_reply(1)", "return redis.error_reply('')", "return redis.status_reply('fine')", "return redis.status_reply()", "return redis.status_reply(1)",
    "return redis.error_reply('E two\\r\\nlines')", "return redis.status_reply('two\\r\\nlines')", "return redis.sha1hex('')", "return redis.sha1hex('abc')", "return redis.sha1hex(1.5)", "return redis.sha1hex()", "return redis.sha1hex({})",
    "return redis.log(redis.LOG_DEBUG, 'x')", "return redis.log()", "return redis.log('x', 'y')", "return redis.log(9, 'y')", "return redis.log(-1, 'y')", "return redis.setresp()", "return redis.setresp(1)",
    "return redis.setresp(4)", "return redis.setresp('3')", "return redis.setresp({})", "return redis.setresp(2, 3)", "return redis.set_repl()", "return redis.set_repl(redis.REPL_ALL)", "return redis.set_repl(9)", "return redis.set_repl('x')",
    "return redis.replicate_commands()", "return redis.breakpoint()", "return redis.debug('x')", "return redis.acl_check_cmd('GET', 'x')", "return redis.acl_check_cmd()",
    "return redis.acl_check_cmd('nosuch')", "return redis.acl_check_cmd('GET')", "return redis.acl_check_cmd({})",
    # Texts.
    "return {string.find('hello world', 'o w')}", "return {string.find('hello', 'l', 1, true)}", "return {string.find('a.b', '.', 1, true)}", "return {('hello'):find('(l)(l)')}",
    "return {('hello'):find('')}", "return {('hello'):find('', 10)}", "return {('hello'):find('l', -2)}", "return {('a(b'):find('%(')}", "return {('key:1:x'):match('(%w+):(%d+)')}", "return {('abc'):match('()b()')}",
    "return {('hello'):match('^h')}", "return {('hello'):match('^e')}", "return {('  trim  '):match('^%s*(.-)%s*$')}", "return {('f(a(b)c)'):match('%b()')}", "return {('THE (q) fox'):find('%((%a+)%)')}",
    "return {('THE fox'):gsub('%f[%a]%a+', '<%0>')}", "return {('hello'):gsub('l', 'L')}", "return {('hello'):gsub('l', 'L', 1)}", "return {('hello'):gsub('', '-')}", "return {('abc'):gsub('%w', '%0%0')}",
    "return {('abc'):gsub('(a)(b)', '%2%1')}", "return {('abc'):gsub('b', {b = 'X'})}", "return {('abc'):gsub('b', {})}", "return {('abc'):gsub('%w', function(c) if c == 'b' then return 'X' end end)}",
    "return {('abc'):gsub('(a)(b)', function(x, y) return y .. x end)}", "return {('abc'):gsub('^a', function() return 'z' end)}", "return {('aaa'):gsub('a', function() return 'z' end, 2)}", "return {('abc'):gsub('x*', '-')}",
    "return {('abc'):gsub('x*', function() return '-' end)}", "local r = {} for w in ('one two'):gmatch('%a+') do r[#r + 1] = w end return r", "local r = {} for k, v in ('a=1,b=2'):gmatch('(%w+)=(%w+)') do r[#r + 1] = k .. v end return r",
    "local r = {} for p in ('abc'):gmatch('()') do r[#r + 1] = p end return r", "return {('x'):rep(3), ('x'):rep(0), ('x'):rep(-1)}", "return ('a,b'):rep(2)", "return {('abc'):byte(1, -1)}", "return string.char(72, 105)", "return ('abc'):upper():lower():reverse()",
    "return {('abc'):sub(2), ('abc'):sub(-2, -2), ('abc'):sub(0)}", "return string.format('%d %5.2f %s %q %x %c %i %o %e %g', 42, 3.14159, 'x', 'a\"b\\n', 255, 65, 1, 8, 12345.678, 0.1)", "return string.format('%5s|%-5s|%05d', 'a', 'b', 42)",
    "return string.format('%d', 'x')", "return string.format('%d')", "return string.format('%y', 1)", "return string.format('%s', nil)", "return string.find()", "return string.find('a')", "return string.find('a', '[a')", "return string.find('a', '%')", "return ('a'):find({})",
    "return string.gsub('a', '(', 'x')", "local r = ('abc'):gsub('a', '%9') return r", "local r = ('abc'):gsub('(a)', '%2') return r", "return string.rep()", "return string.rep('x')", "return ('x'):rep({})", "return ('x'):rep('3')", "return ('\\0a'):find('a')", "return ('a\\0b'):match('%z')",
    "return ('abc'):find('b', nil, true)", "return string.len('abc\\0d')", "return ('%d'):format(3.7)", "return ('abc').len", "return ('abc'):nosuch()", "return tostring(12345678901234)", "return tostring(1e15)", "return tostring(0.1)", "return tonumber('0x10')", "return tonumber('ff', 16)",
    "return tonumber('z')", "return tonumber('  12  ')", "return tonumber('1e2')", "return tostring(-0)", "return 10 % 3", "return -10 % 3", "return 7 / 2 * 2", "return 2 ^ 10", "return '10' + 5",
    "return string.gmatch('a', 'b')()", "return {('a.b.c'):gsub('%.', '/')}", "return {('hello world from'):find('(o)(.)', 6)}", "return {('[test]'):gsub('[%[%]]', '')}", "return {('a-b'):gsub('[a%-]', 'x')}", "return {('x^2'):find('^', 1, true)}", "return ('abc'):find('[a-]')",
    # Tables.
    "local t = {3, 1, 2} table.sort(t) return t", "local t = {3, 1, 2} table.sort(t, function(a, b) return a > b end) return t", "local t = {1, 2} table.insert(t, 3) table.insert(t, 1, 0) return t", "local t = {1, 2, 3} return {table.remove(t), table.remove(t, 1), #t}",
    "return table.concat({1, 2, 3}, ',')", "return table.concat({1, 2, 3}, ',', 2, 3)", "return table.concat({})", "return table.concat({1, {}, 3})", "return table.concat(nil)", "return table.concat({1.5, 'x', 1e15}, '-')", "return table.insert(nil, 1)", "return table.insert({}, 1, 2, 3)",
    "return table.insert({})", "local t = {} table.insert(t, 5, 'x') return t[5]", "local t = {1} table.insert(t, 'x', 'y') return t", "return table.remove({})", "return {table.remove({1, 2}, 5)}", "return table.remove(nil)", "return table.getn({1, 2})", "return table.maxn({1, [5] = 2})", "local s = 0 table.foreach({1, 2}, function(k, v) s = s + v end) return s",
    "local s = 0 table.foreachi({1, 2}, function(k, v) s = s + v end) return s", "return {unpack({1, 2, 3})}", "return {unpack({1, 2, 3}, 2)}", "return {unpack({1, 2, 3}, 2, 3)}", "return {unpack({}, 1, 3)}", "return unpack()", "return unpack({}, 1, 9000)", "return {unpack({}, -2147483647, 2147483647)}",
    "return {unpack({}, 0, 2147483647)}", "return pairs(nil)", "return ipairs()", "return ipairs(nil)", "return next({})", "return {next({5})}", "local r = {} for k, v in pairs({a = 1}) do r[#r + 1] = k .. v end return r", "local r = {} for i, v in ipairs({5, 6, nil, 7}) do r[i] = v end return r", "for k in pairs(nil) do end",
    "local t = setmetatable({}, {__index = function(_, k) return k .. '!' end}) return t.x", "local t = setmetatable({}, {__call = function(_, x) return x * 2 end}) return t(21)", "local t = setmetatable({1}, {__len = function() return 9 end}) return #t", "return getmetatable(setmetatable({}, {__metatable = 'mine'}))",
    "return setmetatable(setmetatable({}, {__metatable = 'mine'}), {})", "return setmetatable(1, {})", "return setmetatable({})", "return setmetatable({}, 1)", "return tostring(setmetatable({}, {__tostring = function() return 'mine' end}))", "return rawequal('a', 'a')", "return rawget({5}, 1)", "return rawset({}, 1, 5)", "return rawset({}, nil, 5)", "local t = {} t[nil] = 1",
    "return select('#', 1, nil, 3)", "return {select(2, 'a', 'b', 'c')}", "return select(-1, 'a', 'b')", "return select(0)", "return type()", "return type(nil)", "return {type(1), type('x'), type({}), type(print or 1), type(cjson.null)}",
    # Numbers at random.
    "math.randomseed(7) return {tostring(math.random()), math.random(100), math.random(5, 9)}", "return math.random(0)", "return math.random(2, 1)", "return math.random(1, 2, 3)", "return math.random('x')", "math.randomseed(5) return tostring(math.random())", "math.randomseed(-5) return math.random(1000000)", "return math.randomseed()",
    "math.randomseed(1) local r = {} for i = 1, 50 do r[i] = math.random(1, 1000000) end return r", "return {math.floor(-1.5), math.ceil(1.2), math.abs(-3), math.max(1, 5, 3), math.min(4, 2), math.fmod(7, 3), math.sqrt(16)}", "return tostring(math.pi)", "return tostring(math.huge)", "return {math.modf(3.7)}", "return math.floor('x')",
    # Chunks and coroutines.
    "return loadstring('return 1 + 1')()", "return {loadstring('x x')}", "local f, e = loadstring('x x') return e", "local f, e = loadstring('x x', 'mine') return e", "local f, e = loadstring('x x', '@mine') return e", "return loadstring('return x')()", "return loadstring('return redis.call(\"PING\")')()",
    "return type(loadstring(string.dump(function() end)))", "local p = {'return ', '42'} local i = 0 return load(function() i = i + 1 return p[i] end)()", "local r = load('x') return r", "return load(function() return {} end)",
    "local c = coroutine.create(function(a) local b = coroutine.yield(a + 1) return b * 2 end) return {coroutine.resume(c, 1), select(2, coroutine.resume(c, 5)), coroutine.status(c)}", "local c = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end) return {c(), c(), c()}",
    "local c = coroutine.create(function() error('x') end) return {coroutine.resume(c)}", "local c = coroutine.create(function() error({err = 'E x'}) end) local ok, e = coroutine.resume(c) return {ok, type(e), e.err}", "local r = coroutine.resume(1) return r", "return coroutine.yield(1)", "local c = coroutine.create(function() return redis.call('GET', 'text') end) return {coroutine.resume(c)}",
    "return type(coroutine.running())", "return collectgarbage()", "return collectgarbage('count') > 0", "return collectgarbage('nosuch')", "return {collectgarbage('stop'), collectgarbage('restart')}", "return type(__redis__err__handler)",
    # Numbers of bits.
    "return {bit.tobit(0xffffffff), bit.tobit(1.5), bit.tobit(2.5), bit.tobit(-1), bit.tobit(1e15), bit.tobit(2^40 + 5)}", "return {bit.bnot(0), bit.band(12, 10), bit.bor(12, 10), bit.bxor(12, 10), bit.band(7), bit.bor(1, 2, 4)}", "return {bit.lshift(1, 31), bit.rshift(-1, 28), bit.arshift(-8, 1), bit.rol(0x12345678, 8), bit.ror(0x12345678, 8), bit.bswap(0x12345678), bit.lshift(1, 33)}",
    "return {bit.tohex(255), bit.tohex(255, 4), bit.tohex(-1, -4), bit.tohex(1, 0), bit.tohex(1, 99), bit.tohex(1, -2147483648)}", "return bit.tobit()", "return bit.tobit('x')", "return bit.tobit('0x10')", "return bit.band()", "return bit.lshift(1)", "return bit.tobit({})",
    # Formats of C.
    "return struct.pack('i', 1)", "return struct.pack('>I2', 258)", "return struct.pack('<bBhHlLT', -1, 255, -2, 65535, -3, 3, 4)", "return struct.pack('>fd', 1.5, -2.5)", "return struct.pack('s', 'text')", "return struct.pack('c3', 'text')", "return struct.pack('c0', 'text')", "return struct.pack('!4 bi', 1, 2)", "return struct.pack('!bxd', 1, 2)",
    "return struct.pack('c9', 'text')", "return struct.pack('y', 1)", "return struct.pack('i33', 1)", "return struct.pack('!3', 1)", "return struct.pack('i99999999999', 1)", "return struct.pack('i')", "return struct.pack('i', 'x')", "return struct.pack('')", "return struct.pack()", "return struct.pack('i16', -1)", "return struct.pack('>i3', -2)", "return struct.pack('b', 300)",
    "return {struct.unpack('<i', '\\1\\0\\0\\0')}", "return {struct.unpack('>I2I2', '\\1\\2\\3\\4')}", "return {struct.unpack('bB', '\\255\\255')}", "return {struct.unpack('s', 'text\\0more')}", "return {struct.unpack('s', 'text')}", "return {struct.unpack('bc0', '\\3abcd')}", "return {struct.unpack('c0', 'x')}", "return {struct.unpack('i', 'x')}", "return {struct.unpack('b', 'ab', 2)}",
    "return {struct.unpack('b', 'ab', 0)}", "return {struct.unpack('b', 'ab', 9)}", "return {struct.unpack('b', 'ab', -5)}", "return {tostring(struct.unpack('d', struct.pack('d', 0.1)))}", "return {tostring(struct.unpack('f', struct.pack('f', 0.1)))}", "return {struct.unpack('>i3', struct.pack('>i3', -2))}", "return {struct.unpack('i16', struct.pack('i16', -7))}", "return {struct.unpack('c2x', 'abc')}",
    "return struct.size('bhilT')", "return struct.size('!8 bd')", "return struct.size('s')", "return struct.size('c0')", "return struct.size('c5')", "return struct.size('y')", "return struct.size()", "return struct.size('i0')", "return struct.size('c99999999999')", "return {struct.unpack('c2147483647', 'x')}",
    # JSON.
    "return cjson.encode({})", "return cjson.encode({1, 2, {3}})", "return cjson.encode({a = {b = {c = 1}}})", "return cjson.encode('a/b\\\\c\"d\\n\\t\\1\\127')", "return cjson.encode(1.5)", "return cjson.encode(1/3)", "return cjson.encode(1e20)", "return cjson.encode(1e15)", "return cjson.encode(123456789012345)", "return cjson.encode(true)", "return cjson.encode(nil)",
    "return cjson.encode(cjson.null)", "return cjson.encode({cjson.null, 1})", "return cjson.encode({[1] = 1, [2] = 2, [4] = 4})", "return cjson.encode({[100] = 1})", "return cjson.encode({[1.5] = 1})", "return cjson.encode({[-1] = 1})", "return cjson.encode({[0] = 1})", "return cjson.encode({[true] = 1})", "return cjson.encode(function() end)", "return cjson.encode({f = function() end})",
    "return cjson.encode(0/0)", "return cjson.encode(1/0)", "return cjson.encode()", "return cjson.encode(1, 2)", "local t = {} for i = 1, 190 do t = {t} end return #cjson.encode(t)", "return cjson.encode('caf\\195\\169')",
    "cjson.encode_sparse_array(true) local r = cjson.encode({[100] = 1}) cjson.encode_sparse_array(false) return r", "local r = {cjson.encode_sparse_array(true, 3, 5)} cjson.encode_sparse_array(false, 2, 10) return r", "cjson.encode_max_depth(2) local r = {pcall(cjson.encode, {{{}}})} cjson.encode_max_depth(1000) return r", "return cjson.encode_max_depth(0)", "return cjson.encode_max_depth('x')", "return cjson.encode_max_depth(1, 2)", "cjson.encode_number_precision(3) local r = cjson.encode(1/3) cjson.encode_number_precision(14) return r",
    "return cjson.encode_number_precision(15)", "cjson.encode_number_precision(14) return cjson.encode_number_precision()", "return cjson.encode_invalid_numbers()", "return cjson.encode_invalid_numbers('x')", "cjson.encode_invalid_numbers('null') local r = cjson.encode(0/0) cjson.encode_invalid_numbers(false) return r", "cjson.encode_invalid_numbers(true) local r = cjson.encode({0/0, 1/0, -1/0}) cjson.encode_invalid_numbers(false) return r",
    "return cjson.encode_keep_buffer()", "cjson.encode_sparse_array(false, 2, 10) return 1", "return cjson.decode('[1,2,3]')", "return cjson.decode('{\"a\":[1,{\"b\":\"c\"}]}').a[2].b", "return cjson.decode('\"a\\\\u00e9\\\\ud83d\\\\ude00\\\\n\\\\/\"')", "return cjson.decode('1.5e2')", "return tostring(cjson.decode('0.1'))", "return cjson.decode('null') == cjson.null", "return cjson.decode('true')", "return cjson.decode('[]')",
    "return cjson.decode('{}')", "return cjson.decode('')", "return cjson.decode('[1,2')", "return cjson.decode('[1 2]')", "return cjson.decode('{1:2}')", "return cjson.decode('{\"a\" 2}')", "return cjson.decode('{\"a\":}')", "return cjson.decode('{\"a\":1 \"b\"}')", "return cjson.decode('{\"a\":1,}')", "return cjson.decode('[1,]')", "return cjson.decode('nope')", "return cjson.decode('\"abc')", "return cjson.decode('\"a\\\\x\"')",
    "return cjson.decode('\"\\\\u12\"')", "return cjson.decode('\"\\\\ud800\"')", "return cjson.decode('1 2')", "return cjson.decode('@')", "return cjson.decode('[1]x')", "return cjson.decode()", "return cjson.decode({})", "return cjson.decode('1', '2')", "return cjson.decode(5)", "return cjson.decode('\\0\\0')", "return cjson.decode('1\\0junk')", "return tostring(cjson.decode('nan'))", "return tostring(cjson.decode('inf'))", "return tostring(cjson.decode('-Infinity'))",
    "return cjson.decode('0x10')", "return cjson.decode('+5')", "return cjson.decode('007')", "return cjson.decode('-')", "return cjson.decode('1.')", "return cjson.decode('1e')", "cjson.decode_invalid_numbers(false) local r = {pcall(cjson.decode, '0x10')} cjson.decode_invalid_numbers(true) return r", "return #cjson.decode(('['):rep(190) .. (']'):rep(190))", "return cjson.decode_max_depth(0)",
    "cjson.decode_max_depth(1) local r = {pcall(cjson.decode, '[[1]]')} cjson.decode_max_depth(1000) return r", "local c = cjson.new() return c.encode({1})", "return cjson.decode('[1, null, 3]')", "return cjson.decode('  [ 1 ,\\n2 ]  ')", "return cjson.encode(cjson.decode('[1.0, 1e3, -0, 123456789]'))", "return cjson.encode({['a'] = 1, [1] = 2})", "return cjson.encode({[1] = 'a', x = 'b'})",
    # MessagePack.
    "return cmsgpack.pack(1)", "return cmsgpack.pack(127, 128, 255, 256, 65535, 65536, 4294967295, 4294967296)", "return cmsgpack.pack(-1, -32, -33, -128, -129, -32768, -32769, -2147483648, -2147483649)", "return cmsgpack.pack(1.5, 0.1, 1e300, 1/0, -1/0)", "return cmsgpack.pack('', 'a', ('x'):rep(31), ('x'):rep(32), ('x'):rep(255), ('x'):rep(256))",
    "return cmsgpack.pack(('x'):rep(65536))", "return cmsgpack.pack(nil, true, false)", "return cmsgpack.pack({}, {1, 2, 3}, {a = 1})", "return cmsgpack.pack({[1] = 1, [3] = 3})", "return cmsgpack.pack({1, 2, nil, 4})", "return cmsgpack.pack({[1.5] = 1})", "return cmsgpack.pack()", "return cmsgpack.pack(function() end)", "local t = {} t[1] = t return cmsgpack.pack(t)", "local t = {} for i = 1, 20 do t[i] = i end return cmsgpack.pack(t)",
    "return {cmsgpack.unpack(cmsgpack.pack(1, 'a', {1, {2}}, true))}", "return {cmsgpack.unpack('\\207\\255\\255\\255\\255\\255\\255\\255\\255')}", "return {cmsgpack.unpack('\\211\\255\\255\\255\\255\\255\\255\\255\\255')}", "return {cmsgpack.unpack('')}", "return cmsgpack.unpack()", "return cmsgpack.unpack('\\193')", "return cmsgpack.unpack('\\146\\1')", "return cmsgpack.unpack('\\165ab')", "return cmsgpack.unpack('\\129\\192\\1')",
    "return {cmsgpack.unpack_one('\\1\\2\\3')}", "return {cmsgpack.unpack_one('\\1\\2\\3', 2)}", "return {cmsgpack.unpack_one('\\1', 5)}", "return {cmsgpack.unpack_one('\\1', -1)}", "return {cmsgpack.unpack_limit('\\1\\2\\3', 2)}", "return {cmsgpack.unpack_limit('\\1\\2\\3', 2, 1)}", "return {cmsgpack.unpack_limit('\\1\\2\\3', 0)}", "return {cmsgpack.unpack_limit('\\1', -1)}", "return cmsgpack.unpack_limit('\\1')", "return cmsgpack.unpack({})",
    "return cmsgpack.unpack('\\196\\1a')", "return cmsgpack.unpack(('\\145'):rep(120) .. '\\1')[1][1] ~= nil",
    # Requests.
    ["EVAL", "return 1"], ["EVAL", "return 1", "x"], ["EVAL", "return 1", "-1"], ["EVAL", "return 1", "2", "a"], ["EVAL", "return {KEYS, ARGV}", "1", "k", "a", "b"], ["EVAL", "return {KEYS, ARGV}", "2", "k", "l"], ["eval", "return ARGV[1]", "0", "\x00\xff"], ["EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"],
    ["EVALSHA", "E0E1F9FABFC9D4800C877A703B823AC0578FF8DB", "0"], ["EVALSHA", "ffffffffffffffffffffffffffffffffffffffff", "0"], ["EVALSHA", "short", "0"], ["EVALSHA", "short", "x"], ["EVALSHA", "ffffffffffffffffffffffffffffffffffffffff", "5"], ["EVAL_RO", "return redis.call('GET', 'text')", "0"], ["EVAL_RO", "return redis.call('SET', 'text', 'x')", "0"], ["EVAL_RO", "return redis.pcall('DEL', 'text')", "0"],
    ["EVAL_RO", "return redis.call('PUBLISH', 'a', 'b')", "0"], ["EVAL_RO", "return redis.call('PFCOUNT', 'hll')", "0"], ["EVALSHA_RO", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"], ["EVALSHA_RO", "ffffffffffffffffffffffffffffffffffffffff", "0"], ["SCRIPT", "LOAD", "return 7"], ["SCRIPT", "LOAD", "return ("], ["SCRIPT", "LOAD"], ["SCRIPT", "EXISTS"],
    ["SCRIPT", "EXISTS", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "no", "E0E1F9FABFC9D4800C877A703B823AC0578FF8DB"], ["SCRIPT", "NOSUCH"], ["SCRIPT"], ["SCRIPT", "FLUSH", "NOSUCH"], ["SCRIPT", "FLUSH", "ASYNC"], ["SCRIPT", "EXISTS", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"], ["SCRIPT", "FLUSH"], ["SCRIPT", "KILL"], ["SCRIPT", "HELP"],
    "#!lua\nreturn 1", "#!lua flags=no-writes\nreturn redis.call('SET', 'a', 1)", "#!lua flags=no-writes\nreturn redis.call('GET', 'text')", "#!lua flags=nosuch\nreturn 1", "#!luax\nreturn 1", "#!lua name=x\nreturn 1", "#!lua", "#!lua flags=allow-oom,no-cluster,allow-stale\nreturn 1", "#!lua\nreturn x", "#!lua\n\nreturn redis.call('nosuch')",
    ["EVAL_RO", "#!lua\nreturn 1", "0"], ["EVAL_RO", "#!lua flags=no-writes\nreturn 1", "0"],
    # Transactions.
    ["MULTI"], ["EVAL", "return redis.call('INCR', 'counter')", "0"], ["EVALSHA", "ffffffffffffffffffffffffffffffffffffffff", "0"], ["EVAL", "return redis.call('BLPOP', 'no', 0)", "0"], ["EVAL", "return {", "0"], ["SET", "after", "1"], ["EXEC"], ["GET", "after"],
    ["MULTI"], ["EVAL", "return 1"], ["EXEC"], ["WATCH", "text"], "return redis.call('SET', 'text', 'changed')", ["MULTI"], ["PING"], ["EXEC"],
    # Many arguments.
    "local t = {} for i = 1, 7000 do t[i] = 'v' .. i end return redis.call('RPUSH', 'long', unpack(t))", "return #redis.call('LRANGE', 'long', 0, -1)", "local t = {} for i = 1, 50000 do t[i] = i end return #t",
]  # fmt: skip


# Requests that weir answers in its own words, because it looks for keys before a store can look for the script.
OF_WEIR = [["EVALSHA", "short", "x"], ["SCRIPT", "HELP"]]


class Pair:
    """A connection to the store under test, and one to a redis-server."""

    def __init__(self, subject, model, protocol: int) -> None:
        self.connections = [subject.connect(), model.connect()]
        if protocol == 3:
            for connection in self.connections:
                connection.call("HELLO", "3")

    def ask(self, words: Words) -> tuple[bytes, bytes]:
        subject, model = (connection.call(*words).raw for connection in self.connections)
        return subject, model

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


def requests(table: list[str | Words]) -> list[Words]:
    return [entry if isinstance(entry, list) else ["EVAL", entry, "0"] for entry in table]


@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_are_those_of_redis(subject, model, protocol):
    pair = Pair(subject, model, protocol)
    for words in (["FLUSHALL"], ["SCRIPT", "FLUSH"]):
        pair.ask(words)
    different = []
    for words in requests(TABLE):
        if isinstance(subject, Weir) and words in OF_WEIR:
            continue
        ours, theirs = pair.ask(words)
        if ours != theirs:
            different.append(f"{words}\n    ours   {ours[:300]!r}\n    theirs {theirs[:300]!r}")
    pair.close()
    assert not different, f"{len(different)} of {len(TABLE)} differ:\n" + "\n".join(different)


class Values:
    """Makes random values as Lua expressions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def number(self) -> str:
        draw = self.random
        return draw.choice([
            str(draw.randrange(-200, 200)), str(draw.randrange(-(2**40), 2**40)), repr(draw.uniform(-1e6, 1e6)), repr(draw.uniform(-1, 1) * 10.0 ** draw.randrange(-30, 30)),
            f"{draw.randrange(2**53)}", "0", "-0", "2^63", "-2^63", "1e100",
        ])  # fmt: skip

    def text(self) -> str:
        length = self.random.choice([0, 1, 5, 31, 32, 40, 300])
        return "'" + "".join(f"\\{self.random.randrange(256):03d}" for _ in range(length)) + "'"

    def value(self, depth: int = 0) -> str:
        draw = self.random
        kind = draw.randrange(6 if depth < 4 else 4)
        if kind == 0:
            return self.number()
        if kind == 1:
            return self.text()
        if kind == 2:
            return draw.choice(["true", "false", "cjson.null"])
        if kind == 3:
            return "{}"
        count = draw.randrange(5)
        if kind == 4:
            return "{" + ", ".join(self.value(depth + 1) for _ in range(count)) + "}"
        keys = [draw.choice([f"['k{i}']", f"[{self.number()}]", f"[{draw.randrange(1, 9)}]", "[true]"]) for i in range(count)]
        return "{" + ", ".join(f"{key} = {self.value(depth + 1)}" for key in keys) + "}"

    def script(self) -> str:
        draw = self.random
        value, numbers = self.value(), ", ".join(self.number() for _ in range(3))
        formats = "".join(draw.choice(["b", "B", "h", "H", "i", "I", "l", "L", "T", "f", "d", "i3", "I7", "i16", "<", ">", "!", "!4", "!2", " ", "x"]) for _ in range(6))
        values = ", ".join(self.number() for _ in range(6))
        junk = "".join(draw.choice('{}[]:,"\\ntfu0123456789.eE+-xX aN/') for _ in range(draw.randrange(14)))
        operation = draw.choice(["band", "bor", "bxor", "lshift", "rshift", "arshift", "rol", "ror", "tohex"])
        pattern = "".join(draw.choice(["a", "b", ".", "%a", "%d", "%w*", "a+", "b-", "[ab]", "[^a]", "(a)", "(", ")", "$", "^", "%1", "?", "%b()", "()", "%f[a]", "x*"]) for _ in range(draw.randrange(1, 6)))
        subject = "".join(draw.choice("aab b(1)x") for _ in range(draw.randrange(12)))
        return draw.choice([
            f"return {{pcall(cjson.encode, {value})}}",
            f"return {{pcall(cmsgpack.pack, {value})}}",
            f"return {{pcall(function() return cjson.encode(cjson.decode(cjson.encode({value}))) end)}}",
            f"return {{pcall(function() return cmsgpack.pack(cmsgpack.unpack(cmsgpack.pack({value}))) end)}}",
            f"return {{pcall(function() local v = cjson.decode([==[{junk}]==]) return {{type(v), tostring(type(v) == 'table' and cjson.encode(v) or v)}} end)}}",
            f"return {{pcall(function() return cjson.encode({{cmsgpack.unpack({self.text()})}}) end)}}",
            f"return {{pcall(struct.pack, '{formats}', {values})}}",
            f"return {{pcall(function() local r = {{struct.unpack('{formats}', {self.text()})}} for i, v in ipairs(r) do r[i] = tostring(v) end return r end)}}",
            f"return {{pcall(struct.size, '{formats}')}}",
            f"return {{pcall(bit.{operation}, {numbers})}}",
            f"return {{{numbers}, tostring({self.number()}), {self.number()} .. ''}}",
            f"return redis.call('ECHO', {self.number()})",
            f"return {{pcall(string.find, '{subject}', '{pattern}')}}",
            f"return {{pcall(string.gsub, '{subject}', '{pattern}', '<%0%1>')}}",
            f"return {{pcall(string.gsub, '{subject}', '{pattern}', function(c) return c ~= 'a' and '!' end)}}",
            f"local r = {{}} local ok, e = pcall(function() for a, b in string.gmatch('{subject}', '{pattern}') do r[#r + 1] = tostring(a) .. tostring(b) end end) return {{r, e}}",
            f"return {{pcall(string.format, '%5.3f %d %g %x %e', {numbers}, {numbers})}}",
            f"return {value}",
        ])  # fmt: skip


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_values_are_written_and_read_as_by_redis(subject, model, seed):
    pair = Pair(subject, model, 2 + seed % 2)
    values = Values(seed)
    different = []
    for _ in range(ROUNDS):
        script = values.script()
        ours, theirs = pair.ask(["EVAL", script, "0"])
        if ours != theirs:
            different.append(f"{script}\n    ours   {ours[:300]!r}\n    theirs {theirs[:300]!r}")
    pair.close()
    assert not different, f"seed {seed}: {len(different)} of {ROUNDS} differ:\n" + "\n".join(different)


ENDLESS = [
    "while true do end",
    "while true do pcall(function() while true do end end) end",
    "pcall(function() while true do end end) return 'gone on'",
    "local f f = function() return pcall(f) end while true do f() end",
    "while true do xpcall(function() while true do end end, function() while true do end end) end",
    "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
    "local c = coroutine.wrap(function() while true do end end) while true do pcall(c) end",
    "return ('x'):rep(2^31)", "return (''):rep(2^31 - 1)", "local t = {} while true do t[#t + 1] = ('x'):rep(1e6) end",
    "local s = 'x' while true do s = s .. s end", "local t = {} while true do t = {t} end", "return ('a'):rep(1e5):find(('.-'):rep(20) .. 'b')",
    "return ('a'):rep(1e6):find(('a'):rep(5e5) .. 'b', 1, true)", "return ('a'):rep(3e4):match(('a?'):rep(3e4))", "local s = ('x'):rep(1e6) while true do s:gsub('x', 'yy') end",
    "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.insert(t, 1, 0) table.remove(t, 1) end", "table.insert({}, -2147483648, 1)", "local t = {} for i = 1, 1e6 do t[i] = i % 7 end while true do table.sort(t) end",
    "while true do redis.call('SET', 'k', 'v') end", "while true do redis.pcall('NOSUCH') end", "while true do collectgarbage() end", "local t = {} t[1] = t while true do cjson.encode(t) end",
    "local t = {} for i = 1, 60 do t = {t, t} end return t", "local t = {} for i = 1, 60 do t = {t, t} end return cjson.encode(t)", "return setmetatable({}, {__index = function(t, k) return t[k] end}).x", "local t = setmetatable({}, {}) getmetatable(t).__index = t return t.x",
    "local t = setmetatable({}, {__tostring = function(t) return tostring(t) end}) return tostring(t)", "error(setmetatable({}, {__index = function() while true do end end}))", "while true do loadstring('return 1')() end", "return load(function() return ' ' end)",
    "local s = ('a'):rep(2e7) local t = {} for i = 1, 1000 do t[i] = s end table.sort(t)", "local s = ('%%'):rep(3e6) local t = {} for i = 1, 1000 do t[i] = s end pcall(table.sort, t, string.format)",
    "local s = (' '):rep(1e7) .. '1' local t = {} for i = 1, 2000 do t[i] = s end math.max(unpack(t))", "local s = (' '):rep(1e7) .. '1' local t = {} for i = 1, 2000 do t[i] = s end string.char(unpack(t))",
    "local s = (' '):rep(1e7) .. '1' local t = {} for i = 1, 2000 do t[i] = s end string.format(('%d'):rep(2000), unpack(t))", "local s = (' '):rep(1e7) .. '1' local t = {} for i = 1, 2000 do t[i] = s end bit.bor(unpack(t))",
    "local s = (' '):rep(1e7) .. '1' local t = {} for i = 1, 2000 do t[i] = s end struct.pack(('d'):rep(2000), unpack(t))", "local s = ('0'):rep(5e7) while true do local x = s + s + s + s + s + s + s + s + s + s end",
    "local c = coroutine.wrap(function() local s = ('0'):rep(5e7) while true do local x = s + s + s + s + s + s + s + s + s + s end end) c()",
    "return {unpack({}, 1, 1e8)}", "return string.format('%99.99f', 1e308)", "local a = ('x'):rep(2e7) local b = a .. 'y' while a < b do end", "local t = {} for i = 1, 250 do t[i] = 'x' end return loadstring('return ' .. ('('):rep(300) .. '1' .. (')'):rep(300))",
]  # fmt: skip


@pytest.fixture
def bounded():
    """A store of its own, because the garbage of these scripts must not affect other tests."""
    server = Storage("--scriptable=false").start()
    yield server
    server.discard()


def test_no_script_holds_the_store_or_ends_it(bounded):
    other = bounded.connect()
    slow = []
    for script in ENDLESS:
        with bounded.connect(timeout=60.0) as connection:
            started = time.monotonic()
            reply = connection.call("EVAL", script, "0")
            seconds = time.monotonic() - started
        assert other.call("PING").text == "PONG", script
        assert b"gone on" not in reply.raw, script
        assert other.call("EVAL", "return #ARGV[1]", "0", "x" * 1000000).raw == b":1000000\r\n", script
        if seconds > 5.0:
            slow.append((script, seconds))
    other.close()
    assert not slow, slow
    assert bounded.resident_bytes() < 600 * 1024 * 1024


def test_scripts_leave_nothing_to_others(bounded):
    with bounded.connect() as connection:
        for script in [
            "rawset(getmetatable(_G), 'x', 1)", "table.insert(redis, 'x')", "cjson.encode_max_depth(1)", "math.randomseed(99)", "table.foreach(redis, function(k) rawset(redis, k, nil) end)",
            "rawset(string, 'rep', nil)", "getmetatable('').__index = {}", "KEYS[1] = 'x' local k = KEYS k.y = 1", "redis.setresp(3)", "redis.call('SELECT', 3)",
        ]:  # fmt: skip
            connection.call("EVAL", script, "0")
            probe = connection.call("EVAL", "return {math.random(1e9), cjson.encode({{1}}), #KEYS, #redis, ('x'):rep(2), redis.call('PING'), redis.call('HGETALL', 'h')}", "0")
            assert probe.raw.startswith(b"*7\r\n") and b"[[1]]" in probe.raw, (script, probe.raw)
        assert connection.call("DBSIZE").raw == b":0\r\n"


def test_the_cache_is_bounded(bounded):
    with bounded.connect() as connection:
        filler = " " * 900_000
        first = connection.call("SCRIPT", "LOAD", "return 'loaded'").plain()
        for number in range(30):
            assert connection.call("EVAL", f"return {number} --{filler}", "0").raw == b":%d\r\n" % number
        assert connection.call("EVALSHA", first, "0").plain() == b"loaded"
        known = connection.call("INFO", "memory").plain().decode()
        fields = dict(line.split(":", 1) for line in known.splitlines() if ":" in line)
        assert 2 <= int(fields["number_of_cached_scripts"]) < 20
        assert int(fields["used_memory_scripts_eval"]) <= 64 * 1024 * 1024
        replies = [connection.call("SCRIPT", "LOAD", f"return {number} -- loaded {filler}") for number in range(30)]
        assert any(reply.is_error for reply in replies)
        assert connection.call("EVAL", "return 'still run'", "0").plain() == b"still run"
        assert connection.call("SCRIPT", "FLUSH").text == "OK"
        assert connection.call("SCRIPT", "LOAD", f"return 1 -- {filler}").plain()


def test_waiting_calls_watches_and_subscribers_see_what_scripts_do(subject):
    with subject.connect() as waiter, subject.connect() as watcher, subject.connect() as listener, subject.connect() as caller:
        caller.call("FLUSHALL")
        listener.call("SUBSCRIBE", "news")
        watcher.call("WATCH", "watched")
        waiter.send("BLPOP", "queue", "30")
        time.sleep(0.3)
        script = "redis.call('SET', 'watched', 1) redis.call('RPUSH', 'queue', 'item') redis.call('PUBLISH', 'news', 'told') return 'done'"
        assert caller.call("EVAL", script, "0").plain() == b"done"
        assert waiter.read().plain() == [b"queue", b"item"]
        assert listener.read().plain() == [b"message", b"news", b"told"]
        watcher.call("MULTI")
        watcher.call("PING")
        assert watcher.call("EXEC").is_null
