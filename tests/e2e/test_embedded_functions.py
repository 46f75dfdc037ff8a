"""Compares the functions (FUNCTION, FCALL) of the embedded store with a redis-server's, byte for byte, through weir and directly.

One table of requests, in RESP2 and RESP3, and dumps of libraries that each server restores from the other.
"""

from __future__ import annotations

import pytest

from harness.processes import Weir
from harness.resp import Reply

pytestmark = pytest.mark.weir_only

Words = list[str | bytes]


def load(code: str, *options: str, name: str = "lib") -> Words:
    return ["FUNCTION", "LOAD", *options, f"#!lua name={name}\n{code}"]


def refused(code: str) -> list[Words]:
    """Returns requests that load a library which must be refused."""
    return [load(code)]


def registered(code: str) -> list[Words]:
    """Returns requests that load, list and delete a library."""
    return [load(code), ["FUNCTION", "LIST"], ["FUNCTION", "DELETE", "lib"]]


def called(body: str) -> list[Words]:
    """Returns requests that register a function and call it with a key and two arguments."""
    code = f"redis.register_function('f', function(keys, args) {body} end)"
    return [load(code, "REPLACE"), ["FCALL", "f", "1", "k", "a", "b"]]


def named(fields: str) -> str:
    return f"redis.register_function{{function_name='a', callback=function() end, {fields}}}"


SIMPLE = "redis.register_function('f', function(keys, args) return {keys, args} end)"
# Requests that weir itself refuses, before a store can look for the function.
OF_WEIR = [["FCALL", "nosuch", "x"], ["FCALL", "nosuch", "5"], ["FUNCTION", "HELP"]]

TABLE: list[Words] = [
    # Requests and the first line.
    ["FUNCTION"], ["FUNCTION", "NOSUCH"], ["FUNCTION", "LOAD"], ["FUNCTION", "LOAD", "x"], ["FUNCTION", "LOAD", "#!lua"], ["FUNCTION", "LOAD", "#!lua\n"], ["FUNCTION", "LOAD", "#!lua name=a b=c\n"],
    ["FUNCTION", "LOAD", "#!lua name=a name=b\n"], ["FUNCTION", "LOAD", "#!LUA name=a\n"], ["FUNCTION", "LOAD", "#!js name=a\n"], ["FUNCTION", "LOAD", "#! name=a\n"], ["FUNCTION", "LOAD", "#!lua name=\n"], ["FUNCTION", "LOAD", "#!lua name=a-b\n"],
    ["FUNCTION", "LOAD", "#!lua NAME=a\n"], ["FUNCTION", "LOAD", "#!lua name='a'\n"], ["FUNCTION", "LOAD", '#!lua name="a\n'], ["FUNCTION", "LOAD", "#!lua  name=a  \nreturn 1"], ["FUNCTION", "LOAD", "NOSUCH", "#!lua name=lib\n"],
    ["FUNCTION", "LOAD", "REPLACE", "REPLACE", "#!lua name=lib\n" + SIMPLE], ["FUNCTION", "LOAD", "replace"], ["FUNCTION", "LOAD", "#!lua name=lib\n" + SIMPLE, "REPLACE"], ["FUNCTION", "LOAD", "#!lua name=a flags=x\n"], ["FUNCTION", "DELETE", "lib"],
    # Code that registers nothing.
    *[words for code in (
        "x x", "return 1", "x = 1", "return x", "redis.call('PING')", "redis.pcall('PING')", "redis.x = 1", "redis = 1", "redis.log = 1", "return redis.setresp(3)", "return KEYS", "return ARGV", "return redis.REPL_ALL", "return redis.log()", "redis.log(9, 'x')",
        "error('mine')", "return pcall", "return string", "return math.random()", "return cjson", "return setmetatable", "return rawset", "return _G", "return tostring(1)", "return print", "return __redis__err__handler", "\n\nreturn error",
        "local a = nil a.b = 1", "return 1 + {}", "local f = nil f()", "return redis.REDIS_VERSION .. {}", "return redis.REDIS_VERSION_NUM .. {}", "return redis.LOG_DEBUG .. {}", "return ('x'):rep(3) .. {}", "return ('x'):nosuch()", "local function f() return 1 + f() end f()",
        "redis.register_function()", "redis.register_function('a')", "redis.register_function('a', 1)", "redis.register_function('a', function() end, 3)", "redis.register_function('a-b', function() end)", "redis.register_function('', function() end)", "redis.register_function({})",
        "redis.register_function{function_name='a'}", "redis.register_function{callback=function() end}", "redis.register_function{function_name='a', callback=1}", "redis.register_function{function_name={}, callback=function() end}", "redis.register_function{function_name=1.5, callback=function() end}",
        named("flags=1"), named("flags={'x'}"), named("flags={1}"), named("flags={'no-writes', 'NO-WRITES'}"), named("description={}"), named("nosuch=1"), named("[1]=1"), named("[{}]=1"), "redis.register_function('a')('b')", "redis.register_function({}, function() end)", "redis.register_function(nil, function() end)",
        "redis.register_function(1)", "redis.register_function('a', 'b', 'c')", "redis.register_function('a\\0b', function() end)", "redis.register_function('a', function() end) redis.register_function('a', function() end)", "redis.register_function('a', function() end) error('late')",
        "return redis.register_function('a', function() end) .. {}", "redis.register_function(\n'a-b',\nfunction() end)",
    ) for words in refused(code)],
    ["FUNCTION", "LIST"],
    # Code that registers functions.
    *[words for code in (
        SIMPLE, "redis.register_function(1, function() end)", "redis.register_function{function_name=1, callback=function() end}", "redis.register_function{FUNCTION_NAME='a', CallBack=function() end}", named("flags={}"), named("flags={[2]='no-writes'}"), named("flags={'no-writes','no-writes'}"),
        named("flags={'allow-cross-slot-keys','no-cluster','allow-stale','allow-oom','no-writes'}"), named("description='does'"), named("description=1.5"), named("description=''"), "redis.log(redis.LOG_DEBUG, 'x') redis.register_function('a', function() end)",
    ) for words in registered(code)],
    # Libraries side by side.
    load(SIMPLE), load(SIMPLE), load(SIMPLE, "REPLACE"), load(SIMPLE, name="other"), load(SIMPLE, "REPLACE", name="other"), load("redis.register_function('F', function() end)", name="other"), load("redis.register_function('g', function() return 1 end)", name="LIB"), ["FUNCTION", "LIST"], ["FUNCTION", "STATS"],
    ["FUNCTION", "DELETE", "LIB"], ["FUNCTION", "LIST", "WITHCODE"], ["FUNCTION", "LIST", "LIBRARYNAME", "lib"], ["FUNCTION", "LIST", "LIBRARYNAME", "l*", "WITHCODE"], ["FUNCTION", "LIST", "LIBRARYNAME", "x"], ["FUNCTION", "LIST", "LIBRARYNAME"], ["FUNCTION", "LIST", "WITHCODE", "WITHCODE"],
    ["FUNCTION", "LIST", "LIBRARYNAME", "a", "LIBRARYNAME", "b"], ["FUNCTION", "LIST", "NOSUCH"], ["FUNCTION", "LIST", "withcode", "libraryname", "LIB"], ["FUNCTION", "STATS"], ["FUNCTION", "STATS", "x"], ["FUNCTION", "KILL"], ["FUNCTION", "KILL", "x"], ["FUNCTION", "DELETE", "nosuch"], ["FUNCTION", "DELETE"],
    ["FUNCTION", "FLUSH", "NOSUCH"], ["FUNCTION", "FLUSH", "SYNC", "x"], ["FUNCTION", "DUMP", "x"], ["FUNCTION", "RESTORE", "x"], ["FUNCTION", "RESTORE", "x", "NOSUCH"], ["FUNCTION", "RESTORE", "x", "FLUSH", "y"], ["FUNCTION", "RESTORE"], ["FUNCTION", "RESTORE", ""],
    # Requests that call.
    ["FCALL", "f", "1", "k", "a"], ["FCALL", "F", "0"], ["FCALL", "f", "0"], ["FCALL", "f", "2", "k"], ["FCALL", "f", "-1", "k"], ["FCALL", "f", "x"], ["FCALL", "nosuch", "0"], ["FCALL", "nosuch", "x"], ["FCALL", "nosuch", "5"], ["FCALL", "f"], ["FCALL_RO", "f", "0"], ["fcall", "f", "1", "k"], ["FCALL_RO", "nosuch", "0"],
    # Functions.
    *[words for body in (
        "return redis.call('PING')", "return KEYS", "return ARGV", "return redis.call('NOSUCH')", "return redis.pcall('NOSUCH')", "error('mine')", "error({err='E mine'})", "\n\nlocal a = nil return a.b", "return x", "x = 1", "keys.x = 1 return keys.x", "return redis.register_function",
        "redis.register_function('g', function() end)", "local r = {} for k, v in pairs(redis) do r[#r + 1] = k .. type(v) end table.sort(r) return r", "local r = {} for k, v in pairs(_G) do r[#r + 1] = k .. type(v) end table.sort(r) return r", "redis.setresp(3) return redis.call('HGETALL', 'h')", "return redis.call('HGETALL', 'h')",
        "redis.call('SELECT', 3) return redis.call('DBSIZE')", "return redis.call('FCALL', 'f', 0)", "return redis.call('EVAL', 'return 1', 0)", "return redis.call('FUNCTION', 'LIST')", "return loadstring('return redis.sha1hex(\"\")')()", "return loadstring('return x')()", "return loadstring('x x')", "return redis.set_repl()",
        "return redis.breakpoint()", "return redis.debug('x')", "return redis.replicate_commands()", "return redis.acl_check_cmd('GET', 'x')", "math.randomseed(5) return math.random(100000)", "return tostring(_G) == tostring(_G._G)", "return redis.LOG_WARNING", "return redis.REDIS_VERSION", "return select('#', keys, args)",
        "return 3.9", "return nil", "return {ok='x'}", "return {err='MINE x'}", "return {err='x'}", "return redis.status_reply('fine')", "return redis.error_reply('MINE words')", "return cjson.encode({keys, args})", "return redis.call('SET', keys[1], args[1])", "return redis.call('GET', keys[1])", "return {pcall(redis.call, 'NOSUCH')}",
        "_G.x = 1", "rawset(_G, 'x', 1)", "redis.x = 1", "return redis.call()", "return redis.call('BLPOP', 'no', 0)", "return redis.call('INCR', keys[1])", "return type(__redis__err__handler)", "return getmetatable(redis)", "string.x = 1", "return {coroutine.resume(coroutine.create(function() return redis.call('PING').ok end))}",
    ) for words in called(body)],
    ["FCALL", "F", "0"], ["DBSIZE"],
    # What functions keep.
    load("local n = 0 redis.register_function('f', function() n = n + 1 return n end)", "REPLACE"), ["FCALL", "f", "0"], ["FCALL", "f", "0"], ["SCRIPT", "FLUSH"], ["FCALL", "f", "0"],
    load("local c redis.register_function('f', function() c = c or redis.call return c('PING') end)", "REPLACE"), ["FCALL", "f", "0"], ["FCALL", "f", "0"],
    load("local r = redis.register_function redis.register_function('f', function() r('g', function() end) end)", "REPLACE"), ["FCALL", "f", "0"],
    load("local c = redis redis.register_function('f', function() return type(c.call) end)", "REPLACE"), ["FCALL", "f", "0"],
    load("local function deep() return redis.call('NOSUCH') end\nredis.register_function('f', function()\nlocal r = deep()\nreturn r end)", "REPLACE"), ["FCALL", "f", "0"],
    # Functions that may not write.
    load("redis.register_function{function_name='f', callback=function() return redis.call('SET','a','b') end, flags={'no-writes'}, description='does'}\nredis.register_function{function_name='g', callback=function() return redis.call('GET','a') end, flags={'no-writes','allow-oom'}}", "REPLACE"),
    ["FCALL", "f", "0"], ["FCALL_RO", "f", "0"], ["FCALL_RO", "g", "0"], ["FUNCTION", "LIST"],
    # A library that fails leaves the former one.
    load("redis.register_function('h', function() end)\nerror('x')", "REPLACE"), ["FUNCTION", "LIST"], load("redis.register_function('h', function() return 1 end)", "REPLACE"), ["FCALL", "f", "0"], ["FCALL", "h", "0"],
    # Transactions and scripts.
    ["MULTI"], ["FCALL", "h", "0"], ["FUNCTION", "LIST"], ["FCALL", "nosuch", "0"], ["FUNCTION", "DELETE", "lib"], ["EXEC"], ["FCALL", "h", "0"], ["EVAL", "return redis.call('FCALL', 'f', 0)", "0"], ["EVAL", "return redis.call('FUNCTION', 'LIST')", "0"],
    ["FUNCTION", "FLUSH"], ["FUNCTION", "FLUSH", "ASYNC"], ["FUNCTION", "LIST"], ["FUNCTION", "STATS"], ["FUNCTION", "DUMP"],
]  # fmt: skip


def ordered(reply: Reply):
    """Returns a reply with its libraries and functions sorted, since their order is open."""
    if reply.children is None:
        return reply.raw
    children = [ordered(child) for child in reply.children]
    return reply.kind, sorted(children, key=repr) if reply.kind == b"*" and all(c.children for c in reply.children) else children


@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_are_those_of_redis(subject, model, protocol):
    different = []
    with subject.connect(protocol=protocol) as ours, model.connect(protocol=protocol) as theirs:
        for connection in (ours, theirs):
            for words in (["FLUSHALL"], ["FUNCTION", "FLUSH"], ["HSET", "h", "f", "1"]):
                connection.call(*words)
        for words in TABLE:
            # In front of a store weir reports in which stores functions are, and answers HELP itself.
            if isinstance(subject, Weir) and (words in OF_WEIR or words[:2] == ["FUNCTION", "STATS"]):
                continue
            found, expected = ours.call(*words), theirs.call(*words)
            if ordered(found) != ordered(expected):
                different.append(f"{words}\n    ours   {found.raw[:300]!r}\n    theirs {expected.raw[:300]!r}")
    assert not different, f"{len(different)} of {len(TABLE)} differ:\n" + "\n".join(different)


def test_libraries_go_from_each_to_the_other(subject, model):
    with subject.connect() as ours, model.connect() as theirs:
        for connection in (ours, theirs):
            connection.call("FUNCTION", "FLUSH")
        for number in range(5):
            code = load(f"redis.register_function('f{number}', function(k, a) return {number} end) -- {'long ' * 100}", name=f"lib{number}")
            assert ours.call(*code).raw == theirs.call(*code).raw
        for source, target in ((ours, theirs), (theirs, ours)):
            dumped = source.call("FUNCTION", "DUMP").value
            assert target.call("FUNCTION", "RESTORE", dumped).text.startswith("ERR Library lib")
            assert target.call("FUNCTION", "RESTORE", dumped, "REPLACE").text == "OK"
            target.call("FUNCTION", "DELETE", "lib3")
            target.call(*load("redis.register_function('f3', function() end)", name="another"))
            for policy in ("APPEND", "REPLACE"):
                assert target.call("FUNCTION", "RESTORE", dumped, policy).is_error
            assert target.call("FUNCTION", "RESTORE", dumped, "FLUSH").text == "OK"
            assert target.call("FCALL", "f3", "0").raw == b":3\r\n"
            assert ordered(ours.call("FUNCTION", "LIST", "WITHCODE")) == ordered(theirs.call("FUNCTION", "LIST", "WITHCODE"))
        for payload in (b"\xf5\x0a\x00?\x97u!\x84\xd9\\\xa4", b"\xf5\x03abc\n\x00rm\x92\xda\x94\x89B0", b"\x00\x01v\n\x00\x91\x08\xce\xb2\x198\x8a\xce", b"\n\x00]\x9b\\@\x0f\x7f\xa2\xda"):
            assert ours.call("FUNCTION", "RESTORE", payload).raw == theirs.call("FUNCTION", "RESTORE", payload).raw
