//! Tests of scripts and functions on an engine.

use std::cell::Cell;
use std::rc::Rc;

use crate::store::bench::Bench;
use crate::values::Timestamp;
use crate::values::limits::ENGINE_SCRIPT_MS_MAX;

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
        ("return {string.gsub('aaa', 'a', function() return 'b' end, 1.5)}", "*2|$3|baa|:1|"),
        ("return {string.gsub('aaa', 'a', {a = 'b'}, 0.1)}", "*2|$3|aaa|:0|"),
        ("return cjson.encode({1, {a = 'b/c'}})", "$16|[1,{\"a\":\"b\\/c\"}]|"),
        ("return {pcall(function() error({err = 'E x'}) end)}", "*2|$-1|$3|E x|"),
    ] {
        assert_eq!(eval(&mut bench, script), reply, "{script}");
    }
}

/// A script that sorts 50,000 elements in an order in which the sort of Lua compares each with each.
const WORST_SORT: &str = "local x, v = {}, {} for i = 1, 5e4 do x[i] = i v[i] = 0 end
    local l, u, c = 1, 5e4, 0
    while u - l > 4 do
        local m = math.floor((l + u) / 2) c = c + 2 v[x[l]] = c - 1 v[x[m]] = c
        local t = x[l + 1] x[l + 1] = x[m] x[m] = x[u - 1] x[u - 1] = t l = l + 2
    end
    for i = l, u do c = c + 1 v[x[i]] = c end
    table.sort(v)";

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
        "local t = {} for i = 1, 1e6 do t[i] = 1 end t[1] = t return t",
        "local t = {} for i = 1, 5e5 do t[-i] = 1 end for k in pairs(t) do t[k] = t break end return cjson.encode(t)",
        "return #cjson.encode(('\\1'):rep(2e7))",
        "local t = {} for i = 1, 1e5 do t[-i] = 1 end while true do table.maxn(t) end",
        "local t = {} for i = 1, 1e5 do t[-i] = 1 end while true do table.foreach(t, type) end",
        "local s = ('a'):rep(2^22) while true do s:upper() s:lower() s:reverse() end",
        WORST_SORT,
        "local s, t = ('x'):rep(3e7), {} for i = 1, 80 do t[i] = s end return redis.call('EXISTS', unpack(t))",
        "local s, t = ('x'):rep(3e7), {} for i = 1, 80 do t[i] = s end return redis.acl_check_cmd('GET', unpack(t))",
    ] {
        let reply = eval(&mut bench, script);
        assert!(
            reply.starts_with("-ERR the script")
                || reply.starts_with("-ERR the request would take more than")
                || reply.contains("not enough memory"),
            "{script}: {reply}"
        );
        assert_eq!(eval(&mut bench, "return 1"), ":1|");
    }
    // The effort of a script counts for its connection, which then waits for its next turn.
    eval(&mut bench, "while true do end");
    assert!(bench.engine.effort() >= crate::values::limits::ENGINE_EFFORT_MAX);
}

/// Uses up the interpreter's references, of which there is a limited number and iterators keep some: the
/// script gets an error if none is left, and a later script runs.
#[test]
fn references_that_are_used_up_are_an_error_of_the_script() {
    let mut bench = Bench::new();
    for held in (3_900..4_000).flat_map(|count| [(count, 0), (count, 1)]) {
        let script = format!(
            "local t = {{}} for i = 1, {} do t[i] = string.gmatch('a', 'b') end \
             local f if {} == 1 then f = pairs(string) end \
             local m = setmetatable({{}}, {{}}) setmetatable(m, {{}}) return 1",
            held.0, held.1
        );
        let reply = eval(&mut bench, &script);
        assert!(reply == ":1|" || reply.starts_with('-'), "{held:?}: {reply}");
    }
    assert_eq!(eval(&mut bench, "return 1"), ":1|");
}

#[test]
fn any_number_of_scripts_may_be_loaded_and_run() {
    let mut bench = Bench::new();
    for number in 0..9_000 {
        assert_eq!(eval(&mut bench, &format!("return {number}")), format!(":{number}|"));
    }
}

#[test]
fn library_functions_take_effort_for_what_they_read() {
    let mut bench = Bench::new();
    for (script, least) in [
        ("return ('a'):find(('b'):rep(1e6))", 30_000),
        ("return #table.concat({('i'):rep(1e6)})", 30_000),
        ("return pcall(table.concat, {('i'):rep(1e6), {}})", 30_000),
        ("return struct.size(('i'):rep(4e5))", 100_000),
        ("return struct.pack((' '):rep(4e5))", 100_000),
        ("return pcall(struct.pack, 'c0i', ('i'):rep(1e6))", 30_000),
        ("return pcall(struct.unpack, 's', ('i'):rep(1e6))", 30_000),
        ("return redis.sha1hex(('i'):rep(1e6))", 75_000),
        ("return loadstring(('-'):rep(4e5)) and 1", 100_000),
        ("return pcall(cmsgpack.unpack, '\\221\\0\\1\\134\\161' .. ('\\1'):rep(1e5) .. '\\193')", 50_000),
        ("return #cmsgpack.pack(cmsgpack.unpack('\\221\\0\\1\\134\\160' .. ('\\1'):rep(1e5)))", 150_000),
        ("return pcall(cmsgpack.pack, {('i'):rep(1e6)})", 30_000),
        ("return pcall(cjson.encode, {('i'):rep(1e6), pcall})", 30_000),
    ] {
        let reply = eval(&mut bench, script);
        let spent = bench.engine.effort();
        assert!(
            spent >= least && !reply.starts_with('-'),
            "{script}: {spent} {}",
            &reply[..reply.len().min(90)]
        );
    }
}

#[test]
fn numbers_beyond_all_integers_are_packed_as_in_redis() {
    let mut bench = Bench::new();
    for (number, packed) in
        [("0/0", "0,0,0,0,0,0,0,128"), ("1/0", "0,0,0,0,0,0,0,0"), ("-1/0", "0,0,0,0,0,0,0,128")]
    {
        let script = format!("return table.concat({{struct.pack('<i8', {number}):byte(1, 8)}}, ',')");
        assert_eq!(eval(&mut bench, &script), format!("${}|{packed}|", packed.len()), "{number}");
    }
    assert_eq!(eval(&mut bench, "return struct.pack('<i4', 0/0) == ('\\0'):rep(4)"), ":1|");
}

#[test]
fn positions_before_a_text_are_beyond_its_end() {
    let mut bench = Bench::new();
    for (script, reply) in [
        ("return struct.unpack('', 'a', -5)", ":-5|"),
        ("return tostring(struct.unpack('', 'a', -1e300))", "$20|-9.2233720368548e+18|"),
        (
            "return select(2, pcall(struct.unpack, 'b', 'a', -5)):match('%(.*')",
            "$23|(data string too short)|",
        ),
        (
            "return select(2, pcall(struct.unpack, 'b', 'a', 0)):match('%(.*')",
            "$29|(offset must be 1 or greater)|",
        ),
    ] {
        assert_eq!(eval(&mut bench, script), reply, "{script}");
    }
}

#[test]
fn scripts_leave_nothing_to_others() {
    let mut bench = Bench::new();
    for script in [
        "table.insert(redis, 'x')",
        "cjson.encode_max_depth(1)",
        "redis.setresp(3)",
        "redis.call('SELECT', 3)",
    ] {
        eval(&mut bench, script);
        let probe = "return {#redis, cjson.encode({{1}}), redis.call('HGETALL', 'h'), redis.call('DBSIZE')}";
        assert_eq!(eval(&mut bench, probe), "*4|:0|$5|[[1]]|*0|:0|", "{script}");
        bench.send("SELECT 0");
    }
}

#[test]
fn scripts_are_known_by_their_digests() {
    Bench::new().talk(&[
        ("SCRIPT LOAD return(1)", "$40|930269f31393d0be681588b6ab08dccee7d6bb67|"),
        ("SADD letters c a b", ":3|"),
        ("EVAL return(redis.call('sort','letters','by','none')) 0", "*3|$1|a|$1|b|$1|c|"),
        (
            "EVAL return(redis.pcall('cluster','reset').err) 0",
            "$49|ERR This Redis command is not allowed from script|",
        ),
        ("SCRIPT KILL", "-NOTBUSY No scripts in execution right now.|"),
        (
            "EVALSHA 0000000000000000000000000000000000000000 0",
            "-NOSCRIPT No matching script. Please use EVAL.|",
        ),
        ("EVAL x -1", "-ERR Number of keys can't be negative|"),
        ("EVAL x 1", "-ERR Number of keys can't be greater than number of args|"),
    ]);
}

fn load(bench: &mut Bench, name: &str, body: &str) -> String {
    let code = format!("#!lua name={name}\n{body}");
    String::from_utf8_lossy(&bench.send_bytes(&[b"FUNCTION", b"LOAD", b"REPLACE", code.as_bytes()]))
        .replace("\r\n", "|")
}

#[test]
fn functions_are_called_and_keep_their_variables() {
    let mut bench = Bench::new();
    let body = "local n = 0 local call redis.register_function('count', function(keys, args)
        n = n + 1 call = call or redis.call call('SET', keys[1], n) return {n, call('GET', keys[1]), args[1]} end)
        redis.register_function{function_name = 'look', callback = function() return n end, flags = {'no-writes'}}";
    assert_eq!(load(&mut bench, "lib", body), "$3|lib|");
    bench.talk(&[
        ("FCALL count 1 k a", "*3|:1|$1|1|$1|a|"),
        ("FCALL COUNT 1 k a", "*3|:2|$1|2|$1|a|"),
        ("FCALL_RO look 0", ":2|"),
        ("FCALL_RO count 0", "-ERR Can not execute a script with write flag using *_ro command.|"),
        ("SCRIPT FLUSH", "+OK|"),
        ("FCALL look 0", ":2|"),
        ("FUNCTION DELETE lib", "+OK|"),
        ("FCALL look 0", "-ERR Function not found|"),
    ]);
}

#[test]
fn an_endless_function_ends_and_libraries_are_loaded_again() {
    let mut bench = Bench::new();
    let body = "local n = 0 local kept = {} redis.register_function('count', function() n = n + 1 return n end)
        redis.register_function('endless', function() while true do end end)
        redis.register_function('grow', function() for i = 1, 2000 do kept[#kept + 1] = ('x'):rep(10000) .. #kept end end)";
    assert_eq!(load(&mut bench, "lib", body), "$3|lib|");
    bench.talk(&[("FCALL count 0", ":1|"), ("FCALL count 0", ":2|")]);
    assert!(bench.send("FCALL endless 0").starts_with("-ERR the script would take more than"));
    bench.talk(&[("FCALL count 0", ":1|")]);
    // Where nothing is left for its start, a function or script is refused before the interpreter is touched.
    bench.talk(&[("FCALL count 0", ":2|"), ("MULTI", "+OK|")]);
    for (words, times) in [
        (&[&b"EVAL"[..], b"while true do end", b"0"][..], 1),
        (&[b"FCALL", b"count", b"0"], 2),
        (&[b"EVAL", b"return 1", b"0"], 2),
    ] {
        (0..times).for_each(|_| assert_eq!(bench.send_bytes(words), b"+QUEUED\r\n"));
    }
    let told = bench.send("EXEC");
    assert_eq!(told.matches("-ERR the script would take more than").count(), 5, "{told}");
    bench.talk(&[("FCALL count 0", ":3|")]);
    // The memory that functions keep between calls is limited, however little each call adds.
    let refused =
        (0..20).find_map(|_| Some(bench.send("FCALL grow 0")).filter(|reply| reply.starts_with('-')));
    assert_eq!(refused.as_deref(), Some("-ERR not enough memory for the script|"));
    bench.talk(&[("FCALL count 0", ":1|")]);
    assert!(
        load(&mut bench, "other", "while true do end").starts_with("-ERR Error registering functions: ERR")
    );
    let many = "local s = ('x'):rep(1000000) local i = 0 while true do i = i + 1
        redis.register_function{function_name = 'f' .. i, callback = function() end, description = s} end";
    assert!(load(&mut bench, "other", many).contains("too many bytes"));
    bench.talk(&[
        ("FCALL count 0", ":1|"),
        ("FUNCTION FLUSH", "+OK|"),
        ("FCALL count 0", "-ERR Function not found|"),
    ]);
}

#[test]
fn libraries_are_bounded_and_added_whole_or_not_at_all() {
    let mut bench = Bench::new();
    let filler = "-".repeat(900_000);
    let body = |number: usize| format!("redis.register_function('f{number}', function() end) --{filler}");
    let replies: Vec<String> =
        (0..12).map(|number| load(&mut bench, &format!("l{number}"), &body(number))).collect();
    assert!(replies[0].starts_with('$') && replies[11].starts_with("-ERR the libraries"), "{replies:?}");
    let dumped = bench.send_bytes(&[b"FUNCTION", b"DUMP"]);
    let start = dumped.iter().position(|byte| *byte == b'\n').expect("a header") + 1;
    let bytes = &dumped[start..dumped.len() - 2];
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace("\r\n", "|");
    let restored = text(bench.send_bytes(&[b"FUNCTION", b"RESTORE", bytes, b"REPLACE"]));
    assert_eq!(restored, "+OK|");
    assert_eq!(text(bench.send_bytes(&[b"FUNCTION", b"RESTORE", bytes])), "-ERR Library l0 already exists|");
    bench.send("FUNCTION FLUSH");
    assert_eq!(
        load(&mut bench, "mine", "redis.register_function('f3', function() return 'mine' end)"),
        "$4|mine|"
    );
    for policy in ["APPEND", "REPLACE"] {
        let restored = text(bench.send_bytes(&[b"FUNCTION", b"RESTORE", bytes, policy.as_bytes()]));
        assert_eq!(restored, "-ERR Function f3 already exists|");
    }
    bench.talk(&[("FCALL f3 0", "$4|mine|"), ("FCALL f1 0", "-ERR Function not found|")]);
    assert_eq!(text(bench.send_bytes(&[b"FUNCTION", b"RESTORE", bytes, b"FLUSH"])), "+OK|");
    bench.talk(&[("FCALL f3 0", "$-1|"), ("FUNCTION DELETE mine", "-ERR Library not found|")]);
}

/// Returns a bench whose clock goes on by as many milliseconds with each reading as the cell says.
fn clocked() -> (Bench, Rc<Cell<u64>>) {
    let mut bench = Bench::new();
    let (step_ms, now_ms) = (Rc::new(Cell::new(0)), Cell::new(0));
    let step = Rc::clone(&step_ms);
    let clock = move || {
        now_ms.set(now_ms.get() + step.get());
        Timestamp::from_nanos(now_ms.get() * 1_000_000)
    };
    bench.engine = bench.engine.with_clock(clock);
    (bench, step_ms)
}

fn is_out_of_time(reply: &str) -> bool {
    reply.contains(&format!("ERR the script ran for longer than {ENGINE_SCRIPT_MS_MAX} ms"))
}

#[test]
fn commands_that_take_long_end_a_script_of_few_instructions() {
    let (mut bench, step_ms) = clocked();
    step_ms.set(100);
    let reply = eval(&mut bench, "for i = 1, 30 do redis.call('INCR', 'n') end");
    assert!(is_out_of_time(&reply), "{reply}");
    step_ms.set(0);
    let calls = bench.send("GET n");
    assert!((5..30).contains(&calls.split('|').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)), "{calls}");
}

#[test]
fn strings_that_the_engine_makes_for_a_script_take_time_too() {
    let (mut bench, step_ms) = clocked();
    for number in 0..1_000 {
        bench.send(&format!("RPUSH list {number}"));
    }
    let words: Vec<String> = (0..1_000).map(|number| number.to_string()).collect();
    let mut with_words = vec![&b"EVAL"[..], b"return 1", b"0"];
    with_words.extend(words.iter().map(String::as_bytes));
    let scripts = [
        "return #redis.call('LRANGE', 'list', 0, -1)",
        "return cjson.decode('[\"' .. ('a\",\"'):rep(1000) .. '\"]')[1]",
        "return cmsgpack.unpack('\\220\\3\\232' .. ('\\161a'):rep(1000))[1]",
    ];
    for (step, ends) in [(1, false), (100, true)] {
        step_ms.set(step);
        let reply = String::from_utf8_lossy(&bench.send_bytes(&with_words)).into_owned();
        assert_eq!(is_out_of_time(&reply), ends, "{reply}");
        for script in scripts {
            let reply = eval(&mut bench, script);
            assert_eq!(is_out_of_time(&reply), ends, "{script}: {reply}");
        }
    }
}

#[test]
fn the_scripts_of_a_transaction_have_the_time_of_one() {
    let (mut bench, step_ms) = clocked();
    bench.send("MULTI");
    for _ in 0..5 {
        assert_eq!(bench.send("EVAL for\u{b}i=1,3e3\u{b}do\u{b}end 0"), "+QUEUED|");
    }
    step_ms.set(100);
    let reply = bench.send("EXEC");
    assert!(reply.starts_with("*5|$-1|") && is_out_of_time(&reply), "{reply}");
    assert_eq!(bench.send("EVAL for\u{b}i=1,3e3\u{b}do\u{b}end 0"), "$-1|");
}

#[test]
fn all_libraries_of_a_dump_have_the_time_of_one_script() {
    let (mut bench, step_ms) = clocked();
    step_ms.set(100);
    for number in 0..10 {
        let body =
            format!("for i = 1, 1000 do end redis.register_function('f{number}', function() return 1 end)");
        assert_eq!(load(&mut bench, &format!("l{number}"), &body), format!("$2|l{number}|"));
    }
    let dumped = bench.send_bytes(&[b"FUNCTION", b"DUMP"]);
    let start = dumped.iter().position(|byte| *byte == b'\n').expect("a header") + 1;
    let dump: &[&[u8]] = &[b"FUNCTION", b"RESTORE", &dumped[start..dumped.len() - 2], b"FLUSH"];
    let reply = String::from_utf8_lossy(&bench.send_bytes(dump)).into_owned();
    assert!(is_out_of_time(&reply), "{reply}");
    bench.talk(&[("FCALL f9 0", ":1|")]);
    step_ms.set(10);
    assert_eq!(bench.send_bytes(dump), b"+OK\r\n");
}

/// Loads far more functions than the interpreter has room for references (8,000), calls some of them, and
/// then calls a command with 7,000 arguments.
#[test]
fn a_library_may_have_any_number_of_functions() {
    let mut bench = Bench::new();
    let body = "for i = 1, 20000 do redis.register_function('f' .. i, function() return i end) end";
    assert_eq!(load(&mut bench, "lib", body), "$3|lib|");
    let again = "redis.register_function('g', function() end) redis.register_function('G', function() end)";
    assert!(load(&mut bench, "twice", again).contains("Function already exists in the library"));
    for number in 0..50 {
        let body = format!(
            "for i = 1, 300 do redis.register_function('g{number}_' .. i, function() return -i end) end"
        );
        load(&mut bench, &format!("l{number}"), &body);
    }
    bench.talk(&[
        ("FCALL f1 0", ":1|"),
        ("FCALL F20000 0", ":20000|"),
        ("FCALL g49_300 0", ":-300|"),
        ("FUNCTION DELETE lib", "+OK|"),
        ("FCALL f1 0", "-ERR Function not found|"),
        ("FCALL g0_1 0", ":-1|"),
    ]);
    // The arguments of a call have room beside all functions and scripts.
    for number in 0..2_500 {
        eval(&mut bench, &format!("return {number}"));
    }
    let many = "local t = {} for i = 1, 7000 do t[i] = 'k' end return redis.call('EXISTS', unpack(t))";
    assert_eq!(eval(&mut bench, many), ":0|");
}

#[test]
fn damaged_dumps_of_libraries_are_refused_and_nothing_panics() {
    let mut random = crate::values::Random::new(11);
    let mut bench = Bench::new();
    load(&mut bench, "lib", "redis.register_function('f', function() end)");
    let dumped = bench.send_bytes(&[b"FUNCTION", b"DUMP"]);
    for _ in 0..2_000 {
        let mut bytes = dumped[4..dumped.len() - 2].to_vec();
        let at = random.index(bytes.len());
        bytes[at] = random.bits() as u8;
        bytes.truncate(random.index(bytes.len() + 1));
        bench.send_bytes(&[b"FUNCTION", b"RESTORE", &bytes, b"FLUSH"]);
    }
    bench.talk(&[("FCALL f 0", "$-1|")]);
}
