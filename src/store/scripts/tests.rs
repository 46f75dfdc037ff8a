//! Scripts on an engine.

use crate::store::bench::Bench;

fn eval(bench: &mut Bench, script: &str) -> String {
    String::from_utf8_lossy(&bench.send_bytes(&[b"EVAL", script.as_bytes(), b"1", b"key", b"argument"]))
        .replace("\r\n", "|")
}

#[test]
fn values_are_replies() {
    let mut bench = Bench::new();
    for (script, reply) in [
        ("return 1.9", ":1|"),
        ("return {1, 'a', {KEYS[1], ARGV[1]}, nil, 5}", "*3|:1|$1|a|*2|$3|key|$8|argument|"),
        ("return redis.call('SET', KEYS[1], 3.3)", "+OK|"),
        ("return redis.call('GET', KEYS[1])", "$18|3.2999999999999998|"),
        ("return {true, false}", "*2|:1|$-1|"),
        ("return redis.error_reply('MINE words')", "-MINE words|"),
        ("return redis.pcall('NOPE')", "-ERR Unknown Redis command called from script|"),
        ("return cjson.encode({1, {a = 'b/c'}})", "$16|[1,{\"a\":\"b\\/c\"}]|"),
        ("return {pcall(function() error({err = 'E x'}) end)}", "*2|$-1|$3|E x|"),
    ] {
        assert_eq!(eval(&mut bench, script), reply, "{script}");
    }
}

#[test]
fn endless_scripts_end_and_leave_the_engine_as_it_was() {
    let mut bench = Bench::new();
    for script in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do redis.pcall('NOSUCH') end",
        "local s = 'x' while true do s = s .. s end",
        "return ('a'):rep(1e5):find(('.-'):rep(20) .. 'b')",
        "table.insert({}, -2147483648, 1)",
    ] {
        let reply = eval(&mut bench, script);
        assert!(
            reply.starts_with("-ERR the script") || reply.contains("not enough memory"),
            "{script}: {reply}"
        );
        assert_eq!(eval(&mut bench, "return 1"), ":1|");
    }
    // The effort of a script is that of its request: a connection that runs such scripts waits for its turn.
    eval(&mut bench, "while true do end");
    assert!(bench.engine.effort() >= crate::values::limits::ENGINE_EFFORT_MAX);
}

#[test]
fn scripts_leave_nothing_to_others() {
    let mut bench = Bench::new();
    for script in [
        "table.insert(redis, 'x')",
        "cjson.encode_max_depth(1)",
        "math.randomseed(9)",
        "redis.setresp(3)",
        "redis.call('SELECT', 3)",
    ] {
        eval(&mut bench, script);
        let probe = "return {#redis, cjson.encode({{1}}), math.random(1e9), redis.call('HGETALL', 'h'), redis.call('DBSIZE')}";
        assert_eq!(eval(&mut bench, probe), "*5|:0|$5|[[1]]|:396464774|*0|:0|", "{script}");
        bench.send("SELECT 0");
    }
}

#[test]
fn scripts_are_known_by_their_digests() {
    Bench::new().talk(&[
        ("SCRIPT LOAD return(1)", "$40|930269f31393d0be681588b6ab08dccee7d6bb67|"),
        ("SCRIPT KILL", "-NOTBUSY No scripts in execution right now.|"),
        (
            "EVALSHA 0000000000000000000000000000000000000000 0",
            "-NOSCRIPT No matching script. Please use EVAL.|",
        ),
        ("EVAL x -1", "-ERR Number of keys can't be negative|"),
        ("EVAL x 1", "-ERR Number of keys can't be greater than number of args|"),
    ]);
}
